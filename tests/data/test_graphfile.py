"""Files of graphs: saved sets load lazily, and invalid files are refused."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

import vpps
from tests.data.damage import damaged, example, opened, outcome, sealed
from tests.data.graphs import assert_holds, examples, plain_graphs, set_of
from vpps.data import GraphSet, Vocabulary, grapharrays, graphfile
from vpps.errors import DataError

pytestmark = pytest.mark.host


@pytest.fixture
def graphs() -> GraphSet:
    """Return two trees with every feature of a set; in the second, children are not numbered first."""
    return example().subset([0, 1])


@pytest.fixture
def file(graphs: GraphSet, tmp_path: Path) -> Path:
    graphs.save(tmp_path / "trees.graphs")
    return tmp_path / "trees.graphs"


@pytest.mark.parametrize("arity", [2, None], ids=["table", "lists"])
@examples
@given(data=st.data())
def test_any_graphs_are_loaded_as_they_were_saved(
    arity: int | None, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plain = data.draw(st.lists(plain_graphs(arity), min_size=1, max_size=4))
    path = tmp_path_factory.getbasetemp() / "any.graphs"
    set_of(plain, arity).save(path)
    loaded = GraphSet.load(path, verify=True)
    assert_holds(loaded[:], plain, arity)
    assert_holds(loaded[[-1, 0]], [plain[-1], plain[0]], arity)


def test_names_come_back(graphs: GraphSet, file: Path) -> None:
    loaded = GraphSet.load(file)
    assert loaded.kinds == graphs.kinds
    assert loaded.classes == graphs.classes
    assert loaded.vocabularies["word"].words == graphs.vocabularies["word"].words
    assert list(loaded.arrays.columns) == ["word", "tag", "x"]
    assert loaded.path == file
    assert loaded.stat() == graphs.stat()


def test_files_without_columns_of_edges_are_as_they_were_before_there_were_any(tmp_path: Path) -> None:
    """The format is unchanged, so earlier and later versions can read each other's files."""
    path = tmp_path / "chain"
    GraphSet([2], [[-1], [0]], columns={"x": [1, 2]}).save(path)
    description, arrays = opened(path.read_bytes())
    known = {"format", "kinds", "classes", "vocabularies", "columns", "graph_columns", "crc32"}
    assert (description["format"], description.keys()) == (2, known)
    assert arrays.keys() == {"vertex_offsets", "children", "levels", "column/x"}
    assert GraphSet.load(path)[0]["x"].tolist() == [1, 2]


def test_any_program_reads_it_as_safetensors(graphs: GraphSet, file: Path) -> None:
    arrays = load_file(file)
    assert arrays["children"].tolist() == graphs.arrays.children.tolist()  # type: ignore[union-attr]
    assert arrays["column/x"].tolist() == graphs.arrays.columns["x"].tolist()


def test_part_is_saved_alone(graphs: GraphSet, tmp_path: Path) -> None:
    part = graphs.subset(slice(1, 2))
    part.save(tmp_path / "part")
    loaded = GraphSet.load(tmp_path / "part")
    assert (len(loaded), loaded.arrays.levels.tolist()) == (1, [1, 0])
    assert loaded[0]["x"].tolist() == graphs[1]["x"].tolist()
    assert loaded[0].order.tolist() == [1, 0]


@pytest.mark.parametrize("most_in_memory", [1 << 30, 1000])
def test_a_file_that_is_cut_short_after_loading_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_in_memory: int
) -> None:
    """If the file itself were mapped, SIGBUS would kill the process."""
    monkeypatch.setattr(graphfile, "MOST_IN_MEMORY", most_in_memory)
    n = 20_000
    path = tmp_path / "large"
    given = GraphSet([10] * (n // 10), np.full((n, 1), -1, np.int32), columns={"x": np.ones((n, 2)), "y": [3] * n})
    given.save(path)
    loaded, trusted = GraphSet.load(path), GraphSet.load(path, verify=False)
    os.truncate(path, 100)
    assert trusted[[7, 1_900]]["x"].sum() == 40
    assert {name: x.tolist() for name, x in loaded.arrays.all_columns().items()} == {
        name: x.tolist() for name, x in given.arrays.all_columns().items()
    }
    assert not any(x.flags.writeable or not x.flags.aligned for x in loaded.arrays.all_columns().values())


def test_a_large_file_needs_room_for_a_copy(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphfile, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"cannot be read: a file above .* set TMPDIR to a folder with room"):
        GraphSet.load(file)


@pytest.mark.parametrize(
    "header, why",
    [
        (b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "b": {"dtype": "U8", "shape": [2], '
         b'"data_offsets": [1, 3]}}', "do not follow one another"),
        (b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "b": {"dtype": "U8", "shape": [1], '
         b'"data_offsets": [2, 3]}}', "do not follow one another"),
        (b'{"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}, "a": {"dtype": "U8", "shape": [3], '
         b'"data_offsets": [0, 3]}}', "a name appears twice"),
        (b'{"__metadata__": {"vpps": "1", "vpps": "2"}, "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}',
         "a name appears twice"),
        (b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [3], "data_offsets": [0, 3]}}', "a name appears twice"),
        (b'{"__metadata__": {"vpps": 1}, "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}', "header"),
        (b'{"a": {"data_offsets": [-1, 3]}}', "do not follow one another"),
        (b'{"a": {"data_offsets": [0, true]}}', "do not follow one another"),
        (b"[" * 100_000, "header"), (b"[]", "header"), (b"{}", "should have"), (b"\xff", "header"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["graphs", "checkpoint"])
def test_headers_are_checked_before_anything_is_read(tmp_path: Path, header: bytes, why: str, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"abc")
    load, error = (GraphSet.load, DataError) if kind == "graphs" else (vpps.Model.load, vpps.CheckpointError)
    with pytest.raises(error, match=why):
        load(path)


@pytest.mark.parametrize("kind", ["graphs", "checkpoint"])
def test_a_header_that_is_too_large_is_not_parsed(tmp_path: Path, kind: str) -> None:
    """Parsing would take long, and many times the file's size in memory. The file has a hole in place of the header."""
    path = tmp_path / "file"
    path.write_bytes((200_000_000).to_bytes(8, "little"))
    os.truncate(path, 200_000_100)
    load, error = (GraphSet.load, DataError) if kind == "graphs" else (vpps.Model.load, vpps.CheckpointError)
    with pytest.raises(error, match="its header has 200000008 bytes; the limit is 100000000"):
        load(path)


def test_forked_child_uses_the_parents_set(file: Path) -> None:
    """Data loaders fork; a child inherits its parent's mapping."""
    loaded = GraphSet.load(file)
    expected = loaded[[1, 0]]["word"].tolist()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if loaded[[1, 0]]["word"].tolist() == expected and len(list(loaded.batches(1))) == 2 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loaded[[1, 0]]["word"].tolist() == expected


def test_file_in_use_may_be_replaced(graphs: GraphSet, file: Path) -> None:
    loaded = GraphSet.load(file)
    graphs.subset([0]).save(file)
    assert loaded[1]["x"].tolist() == graphs[1]["x"].tolist()
    assert len(GraphSet.load(file)) == 1


def test_failed_write_leaves_the_old_file(graphs: GraphSet, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DataError, match=r"trees\.graphs: cannot be written .*No space left"):
        graphs.subset([0]).save(file)
    assert file.read_bytes() == content
    assert list(file.parent.iterdir()) == [file]


@contextmanager
def full_disk() -> Iterator[None]:
    """Limit files to one block, so that writing fails as on a full disk. Keep the limit short: pytest also writes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_full_disk_is_an_error_of_data(graphs: GraphSet, tmp_path: Path) -> None:
    with full_disk(), pytest.raises(DataError, match=r"out\.graphs: cannot be written .*File too large"):
        graphs.save(tmp_path / "out.graphs")
    assert not list(tmp_path.iterdir())


def test_words_that_no_file_can_hold_are_named(tmp_path: Path) -> None:
    graphs = GraphSet([1], [[-1]], columns={"word": [1]}, vocabularies={"word": Vocabulary(["<unk>", "a\ud800"])})
    with pytest.raises(DataError, match=r"out: the word 'a\\ud800' for 'word' is not text: half a surrogate pair"):
        graphs.save(tmp_path / "out")
    with pytest.raises(DataError, match=r"out: cannot be written"):
        GraphSet([1], [[-1]], columns={"\ud800": [1]}).save(tmp_path / "out")


def test_missing_folder_is_named(graphs: GraphSet, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none/x: cannot be written"):
        graphs.save(tmp_path / "none" / "x")


def rewritten(file: Path, name: str, array: np.ndarray | None) -> None:
    """Replace or remove an array in the file, with correct checksums."""
    description, arrays = opened(file.read_bytes())
    del arrays[name]
    file.write_bytes(sealed(description, arrays if array is None else {**arrays, name: array}))


class TestNoSuchFile:
    @pytest.mark.parametrize(
        "content, complaint",
        [
            *((end, "not a file of graphs, or truncated") for end in (0, 5, 8, 100, 0.5, -1)),
            (b"\n", r"should have \d+ bytes and has \d+"),
            (b"(3 (2 a) (4 b))\n" * 9, "does not begin with the header of a safetensors file"),
            (b"\2\0\0\0\0\0\0\0[]", "does not begin with the header of a safetensors file"),
            (b"\1\0\0\0\0\0\0\0{", "does not begin with the header of a safetensors file"),
            (save({"weight/U": np.ones((2, 2))}, {"vpps": "{}"}), r"holds no graphs: .* GraphSet\.save did not write"),
            (None, "cannot be read: No such file"),
        ],
        ids=lambda x: str(x)[:20],
    )
    def test_is_refused(self, file: Path, content: bytes | float | None, complaint: str) -> None:
        """A number truncates the file to that length, a line end is appended to it, other contents replace it."""
        whole = file.read_bytes()
        if content is None:
            file.unlink()
        elif isinstance(content, bytes):
            file.write_bytes(whole + content if content == b"\n" else content)
        else:
            file.write_bytes(whole[: int(content) if content != 0.5 else len(whole) // 2])
        with pytest.raises(DataError, match=rf"trees\.graphs: .*{complaint}"):
            GraphSet.load(file)

    def test_other_version_is_named(self, file: Path) -> None:
        description, arrays = opened(file.read_bytes())
        file.write_bytes(sealed({**description, "format": 4}, arrays))
        with pytest.raises(DataError, match=r"another version of vpps \(format 4, not 3\): convert the data again"):
            GraphSet.load(file)

    @pytest.mark.parametrize(
        "change",
        [
            {"columns": ["none"]}, {"edge_columns": ["none"]}, {"vocabularies": ["none"]}, {"classes": 3},
            {"kinds": None}, {"kinds": "ab"}, {"crc32": 3},
        ],
        ids=lambda change: next(iter(change)),
    )  # fmt: skip
    @pytest.mark.parametrize("verify", [True, False])
    def test_wrong_description_is_damage(self, file: Path, change: dict[str, object], verify: bool) -> None:
        description, arrays = opened(file.read_bytes())
        file.write_bytes(sealed({**description, **change}, arrays))
        with pytest.raises(DataError, match=r"trees\.graphs: damaged"):
            GraphSet.load(file, verify=verify)

    @pytest.mark.parametrize(
        "name, array, complaint",
        [
            *((name, None, "") for name in ("levels", "vertex_offsets", "kind", "column/word", "vocabulary/word/text")),
            ("levels", np.zeros(4, np.int32), "do not fit 2 graphs of 5 vertices"),
            ("children", np.zeros((5, 2), np.int64), "children has the type int64"),
            ("order", np.zeros((5, 1), "i4"), "do not fit"),
            ("column/word", np.zeros(5, np.int8), "do not fit"),
            ("edge_column/role", np.zeros((5, 3), "i4"), "do not fit"),
            ("edge_column/role", np.zeros(10, "i4"), "do not fit"),
            ("vertex_offsets", np.array([0, 2**63 - 1, -2, 5]), "vertex_offsets do not rise"),
            ("vocabulary/word/offsets", np.array([0, 22, 0, 22]), "the words of vocabulary 'word' do not follow"),
        ],
    )
    @pytest.mark.parametrize("verify", [True, False])
    def test_array_that_is_missing_or_of_another_form_is_damage(
        self, file: Path, name: str, array: np.ndarray | None, complaint: str, verify: bool
    ) -> None:
        if array is None:  # remove the array
            description, arrays = opened(file.read_bytes())
            del arrays[name]
            file.write_bytes(save(arrays, {"vpps.graphs": json.dumps(description)}))
        else:
            rewritten(file, name, array)
        with pytest.raises(DataError, match=rf"trees\.graphs: damaged: .*{complaint}.*: copy the file again"):
            GraphSet.load(file, verify=verify)

    @pytest.mark.parametrize(
        "name, place, value, complaint",
        [
            ("children", 4, 3, "graph 0: vertex 2: there is no child 3"),
            ("children", 4, 2, "graph 0: vertex 2: its level is 1, but its children give it level 2"),
            ("levels", 3, 0, "graph 1: vertex 0: its level is 0, but its children give it level 1"),
            ("order", 3, 0, "graph 1: vertex 1: order does not follow the levels"),
            ("order", 4, 9, "graph 1: vertex 1: order does not follow the levels"),
            ("kind", 1, 2, "graph 0: vertex 1: there is no kind 2"),
            ("column/tag", 1, 2, "column 'tag' holds 2, but there are 2 names"),
            ("edge_column/role", 5, 3, "column 'role' holds 3, but there are 3 names"),
        ],
    )
    def test_contents_that_are_no_graphs_are_damage_whatever_checksums_say(
        self, file: Path, name: str, place: int, value: int, complaint: str
    ) -> None:
        array = opened(file.read_bytes())[1][name]
        array.reshape(-1)[place] = value
        rewritten(file, name, array)
        with pytest.raises(DataError, match=rf"trees\.graphs: damaged: {complaint}.*: copy the file again"):
            GraphSet.load(file)

    def test_children_before_parents_need_an_order(self, graphs: GraphSet, file: Path) -> None:
        rewritten(file, "order", None)
        with pytest.raises(DataError, match="graph 1: vertex 0: a child comes after it, and no order is given"):
            GraphSet.load(file)

    def test_flipped_bit_is_found(self, file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[-1] ^= 4
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"damaged: the checksum of .* differs"):
            GraphSet.load(file)

    @pytest.mark.parametrize("lists", [False, True], ids=["table", "lists"])
    def test_any_damage_is_refused_or_changes_nothing(self, lists: bool, tmp_path: Path) -> None:
        original, random = example(lists), np.random.default_rng(18)
        path, seen = tmp_path / "damaged", set()
        original.save(path)
        content = path.read_bytes()
        for _ in range(300):
            how, wrong = damaged(content, random)
            path.write_bytes(wrong)
            seen.add(outcome(path, how, original))
        assert seen == {"refused", "equal", "another set"}

    def test_large_sets_are_checked_to_their_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(grapharrays, "_CHECKED_AT_ONCE", 4)
        example().save(tmp_path / "parts")
        GraphSet.load(tmp_path / "parts")
        levels = opened((tmp_path / "parts").read_bytes())[1]["levels"]
        levels[-1] += 1
        rewritten(tmp_path / "parts", "levels", levels)
        with pytest.raises(DataError, match="graph 2: vertex 2: its level is 3"):
            GraphSet.load(tmp_path / "parts")
