"""Files are replaced whole or not at all, through all interruptions; the old file's mode, owner and place are kept."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from tests.interruptions import interrupted
from tests.processes import finish, start
from vpps import files
from vpps.cli.inspected import emit
from vpps.errors import WorkloadError
from vpps.files import replacing

pytestmark = pytest.mark.host


def replace(path: Path, text: str = "new") -> None:
    with replacing(path) as new:
        new.write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("old", [None, "old"])
def test_ctrl_c_comes_through_at_any_point_and_leaves_nothing(tmp_path: Path, old: str | None) -> None:
    path = tmp_path / "file"
    replace(path)
    path.unlink()
    seen = set()
    if old:
        path.write_text(old)
    for came in interrupted(lambda: replace(path)):
        assert came
        now = path.read_text() if path.exists() else None
        assert now in (old, "new")
        assert names(tmp_path) == ["file"] * (now is not None)
        seen.add(now)
        path.unlink(missing_ok=True)
        if old:
            path.write_text(old)
    assert seen == {old, "new"}
    assert path.read_text() == "new"


class TestLeftovers:
    """Covers files left by a process that is killed while it writes."""

    KILLED = """
        import os, pathlib, signal
        from vpps.files import replacing
        with replacing(pathlib.Path({path!r})) as new:
            new.write_text("half")
            {then}
        """

    def leave(self, path: Path) -> Path:
        code = self.KILLED.format(path=str(path), then="os.kill(os.getpid(), signal.SIGKILL)")
        assert finish(start(code))[0] == -signal.SIGKILL
        (left,) = set(path.parent.iterdir()) - {path}
        return left

    @pytest.mark.parametrize("name, replaced", [("file", "file"), ("ü" * 125, "ü" * 125), ("file.best", "file")])
    def test_goes_with_the_next_save_of_that_file(self, tmp_path: Path, name: str, replaced: str) -> None:
        left = self.leave(tmp_path / name)
        os.utime(left, (time.time() - 100,) * 2)
        replace(tmp_path / replaced)
        assert names(tmp_path) == sorted([replaced, *[left.name] * (name != replaced)])

    def test_stays_while_it_is_written(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        process = start(self.KILLED.format(path=str(path), then="print(flush=True); input()"), stdin=True)
        assert process.stdout is not None
        process.stdout.readline()
        (theirs,) = tmp_path.iterdir()
        os.utime(theirs, (time.time() - 100,) * 2)
        replace(path)
        assert theirs.exists()
        process.communicate("\n")
        assert path.read_text() == "half"
        assert names(tmp_path) == ["file"]


class TestReplaced:
    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
    def test_gives_its_mode_and_was_never_readable_to_more(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "file"
        path.write_text("old")
        path.chmod(mode)
        with replacing(path) as new:
            assert stat.S_IMODE(new.stat().st_mode) == 0o600
            new.write_text("new")
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert path.read_text() == "new"

    @pytest.mark.skipif(os.getuid() != 0, reason="to give files away takes root's rights")
    def test_gives_its_owner(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("old")
        os.chown(path, 1234, 4321)
        replace(path)
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)

    @pytest.mark.parametrize("there", [True, False])
    def test_may_be_where_a_link_leads(self, tmp_path: Path, there: bool) -> None:
        (tmp_path / "disk").mkdir()
        target, link = tmp_path / "disk" / "target", tmp_path / "link"
        if there:
            target.write_text("old")
        link.symlink_to(Path("disk", "target"))
        replace(link)
        assert link.is_symlink()
        assert target.read_text() == "new"
        assert names(tmp_path / "disk") == ["target"]

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path)])
    def test_is_a_file(self, tmp_path: Path, make: object) -> None:
        make(tmp_path / "odd")  # type: ignore[operator]
        with pytest.raises(OSError, match=r"odd"):
            replace(tmp_path / "odd")
        assert names(tmp_path) == ["odd"]


@pytest.mark.parametrize("name", ["x" * 250, "ü" * 125, "x" * 255])
def test_names_may_be_as_long_as_the_file_system_takes(tmp_path: Path, name: str) -> None:
    replace(tmp_path / name)
    assert names(tmp_path) == [name]


def test_the_folder_is_synced_after_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power failure could lose a file that was reported as written."""
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), names(tmp_path) == ["file"]))

    monkeypatch.setattr(os, "fsync", fsync)
    replace(tmp_path / "file")
    assert synced == [(False, False), (True, True)]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link away")
class TestLinksOfOthers:
    """Covers links and files that another user left in a shared folder."""

    @pytest.fixture
    def shared(self, tmp_path: Path) -> Path:
        (tmp_path / "mine").write_text("mine")
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o1777)
        return tmp_path / "shared"

    @pytest.mark.parametrize("owner_of_folder, mode", [(0, 0o1777), (0, 0o775), (1234, 0o1777), (5678, 0o755)])
    @pytest.mark.parametrize("target", ["../mine", "{}/mine", "there", "../missing"])
    def test_are_not_followed(self, shared: Path, target: str, owner_of_folder: int, mode: int) -> None:
        link = shared / "model.safetensors"
        link.symlink_to(target.format(shared.parent))
        (shared / "there").symlink_to("../mine")
        os.lchown(link, 1234, 1234)
        os.chown(shared, owner_of_folder, 0)
        shared.chmod(mode)
        with pytest.raises(PermissionError, match="another user"):
            replace(link)
        with pytest.raises(WorkloadError, match="another user"):
            emit("new", link)
        assert names(shared.parent) == ["mine", "shared"]
        assert (shared.parent / "mine").read_text() == "mine"

    @pytest.mark.parametrize("beyond", ["theirs/mine", "own"])
    def test_of_a_folder_on_the_way(self, shared: Path, beyond: str) -> None:
        (shared / "theirs").symlink_to(shared.parent)
        os.lchown(shared / "theirs", 1234, 1234)
        (shared / "own").symlink_to("theirs/mine")
        with pytest.raises(PermissionError, match="theirs"):
            replace(shared / beyond)
        assert (shared.parent / "mine").read_text() == "mine"

    def test_are_followed_where_only_their_owner_can_write(self, shared: Path) -> None:
        """Systems have such links, for example a moved /home."""
        (shared / "link").symlink_to("../mine")
        os.lchown(shared / "link", 1234, 1234)
        os.chown(shared, 1234, 1234)
        shared.chmod(0o755)
        replace(shared / "link")
        assert (shared.parent / "mine").read_text() == "new"


def test_links_are_followed_as_the_system_follows_them(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    (tmp_path / "again").symlink_to(tmp_path / "link")
    (tmp_path / "endless").symlink_to("endless")
    for path in ("a/b/c", "link/c", "again/../c", "missing/../c", "link", "./again/."):
        assert files.followed(tmp_path / path) == Path(os.path.realpath(tmp_path / path))
    with pytest.raises(OSError, match="symbolic links"):
        files.followed(tmp_path / "endless")
