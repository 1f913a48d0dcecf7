"""Processes that share a cache, many at once and some killed: a binary is complete or absent."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.interruptions import interrupted
from tests.kernel.cache.builders import copy, names
from tests.processes import finish, run, start
from vpps import locks
from vpps.kernel.cache import cached

pytestmark = pytest.mark.host

# Forks instead of new interpreters: importing vpps takes half a second, and the tested code a few milliseconds.
FORKS = """
    import os, signal, sys, time, traceback
    from pathlib import Path
    from tests.kernel.cache.builders import copy
    from vpps import locks
    from vpps.kernel.cache import cached, read_binary

    def in_child(work):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        return child

    def status_of(child):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def start_building() -> subprocess.Popen[str]:
    """Start a process and wait until it is building "key"."""
    process = start(
        """
        import time
        from vpps.kernel.cache import cached

        def build(text, binary):
            binary.write_bytes(b"half of a bin")
            print("building", flush=True)
            time.sleep(1000)

        cached("key", ".so", "source", build)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    return process


class TestAtOnce:
    @pytest.mark.parametrize("locked", [True, False])
    def test_eight_processes_compile_once(self, folder: Path, tmp_path: Path, locked: bool) -> None:
        """Without locks, as on some file systems, they compile several times and agree on the result."""
        out = run(
            FORKS
            + f"""
    def no_locks(descriptor):
        return None

    if not {locked}:
        locks.try_lock = no_locks

    def build(text, binary):
        with open({str(tmp_path / "log")!r}, "a") as log:
            log.write("built\\n")
        for part in range(10):  # slow enough to overlap with the others
            with binary.open("ab") as file:
                file.write(b"part ")
            time.sleep(0.01)

    def work():
        assert read_binary(cached("key", ".so", "source", build)) == b"part " * 10

    print([status_of(child) for child in [in_child(work) for _ in range(8)]])
    """
        )
        assert out == f"{[0] * 8}\n"
        assert ((tmp_path / "log").read_text() == "built\n") or not locked
        assert names(folder) == ["key.cpp", "key.json", "key.so"]

    def test_threads_of_a_process_compile_once(self, folder: Path) -> None:
        built = []

        def build(text: Path, binary: Path) -> None:
            built.append(text)
            time.sleep(0.05)
            copy(text, binary)

        threads = [threading.Thread(target=cached, args=("key", ".so", "source", build)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(built) == 1


class TestKilled:
    def test_while_others_wait_for_it(self, folder: Path) -> None:
        process = start_building()
        waiting = start(
            """
            from tests.kernel.cache.builders import copy
            from vpps.kernel.cache import cached
            print(cached("key", ".so", "source", copy).read_text())
            """,
            {"VPPS_LOG": "info"},
        )
        assert waiting.stderr is not None
        assert "waiting for another process" in waiting.stderr.readline()
        process.kill()
        process.wait()
        assert finish(waiting)[:2] == (0, "binary of source\n")

    @pytest.mark.parametrize(
        "before, work",
        [
            ("", "cached(key, '.so', 'source', copy)"),
            ("cached(key, '.so', 'source', copy)", "entries.discard(folder / key)"),
        ],
        ids=["stored", "removed"],
    )
    def test_at_any_step_of_what_it_asks_of_the_file_system(self, folder: Path, before: str, work: str) -> None:
        """An entry is complete or absent."""
        out = run(
            FORKS
            + f"""
    from vpps.kernel.cache import entries

    folder = Path({str(folder)!r}, "kernels")

    def dies_at(step, key):
        count = 0

        def hook(event, arguments):
            nonlocal count
            if event in EVENTS:
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        def work():
            sys.addaudithook(hook)
            {work}

        return status_of(in_child(work))

    EVENTS = {{"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime", "os.listdir", "fcntl.flock"}}
    status, step = -signal.SIGKILL, 0
    while status:
        assert status == -signal.SIGKILL, status
        step += 1
        key = "key%d" % step
        {before}
        status = dies_at(step, key)
        assert not (folder / key).exists() or {{path.name for path in (folder / key).iterdir()}} == {{
            key + ".so", key + ".cpp", key + ".json"
        }}
        assert read_binary(cached(key, ".so", "source", copy)) == b"binary of source"
    print(step)
    """
        )
        assert int(out) > (20 if not before else 5)


class TestStopped:
    def test_process_does_not_hold_up_others_for_ever(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        process = start_building()
        process.send_signal(signal.SIGSTOP)
        try:
            monkeypatch.setattr(locks, "PATIENCE", 0.1)
            assert cached("key", ".so", "source", copy).read_bytes() == b"binary of source"
            assert "going on without it" in caplog.text
        finally:
            process.kill()
            process.wait()


class TestInterrupted:
    """Ctrl-C can arrive at any point."""

    def test_a_lock_is_given_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(locks, "PATIENCE", 0.0)

        def work() -> None:
            with locks.held([tmp_path / "key.lock"]) as held:
                assert held

        for came in interrupted(work):
            assert came
            work()

    def test_an_entry_is_there_or_not(self, folder: Path, temporary: Path) -> None:
        seen = set()
        for came in interrupted(lambda: cached("key", ".so", "source", copy), every=23):
            assert came
            found = sorted(path.name for path in (folder / "kernels/key").glob("*"))
            assert found in ([], ["key.cpp", "key.json", "key.so"])
            seen.add(bool(found))
            shutil.rmtree(folder / "kernels/key", ignore_errors=True)
        assert seen == {True, False}
        assert names(temporary) == []
