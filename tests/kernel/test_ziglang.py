"""The compiler of the ziglang package: its flags, and training without any other compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kernel.cache.builders import suffixes
from tests.processes import run
from vpps.kernel import ziglang
from vpps.kernel.host_compiler import FLAGS, ISA_FLAGS

TRAINING = """
    import vpps
    from vpps.data import graphs_of_trees, synthetic_treebank
    from vpps.kernel.host_compiler import compiler
    from vpps.zoo import TreeLSTMSentiment

    trees = graphs_of_trees(synthetic_treebank(24, 1, seed=5).train, min_count=1)
    model = vpps.Model(seed=3)
    network = TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=24, hidden=20)
    with vpps.Handle(model, vps=2, optimizer=vpps.Adam(lr=0.01)) as handle:
        for batch in trees.batches(8, seed=1, epoch=0):
            graph = vpps.Graph()
            handle.fb(graph, network.loss(graph, batch))
            print(handle.sync_get_latest_loss().hex())
    print(compiler()[-1])
"""


@pytest.mark.host
class TestCommand:
    def test_is_known_by_its_last_words(self) -> None:
        assert all(ziglang.is_zig(c.split()) for c in ("/there/ziglang/zig c++", "zig c++", "python -m ziglang c++"))
        assert not any(ziglang.is_zig(c.split()) for c in ("zig cc", "c++", "g++", "ccache c++"))

    def test_is_none_where_the_package_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ziglang, "package_folders", list)
        ziglang.installed.cache_clear()
        assert ziglang.installed() is None
        ziglang.installed.cache_clear()

    @pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
    def test_is_for_the_processor_that_the_flags_name(self, isa: str, tmp_path: Path) -> None:
        """Zig's default is this processor, but several machines may share a cache."""
        compiling, linking = ziglang.steps(
            ["zig", "c++"], (*FLAGS, *ISA_FLAGS[isa]), tmp_path / "a.cpp", tmp_path / "a.so"
        )
        assert "-mcpu=baseline" in compiling
        assert compiling.index("-ffp-contract=off") > 0
        assert "-shared" in linking
        assert "-shared" not in compiling

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library is found in Linux's way")
    def test_links_the_c_library_that_python_has_open(self) -> None:
        library = ziglang.c_library()
        assert library is not None
        assert library.is_file()
        assert str(library) in ziglang.link_flags()


@pytest.mark.cpu
def test_trains_without_a_compiler_in_path_as_with_one(tmp_path: Path) -> None:
    """Zig compiles kernel and tails: losses are bit-identical, and zig leaves no files behind."""
    if ziglang.installed() is None:
        pytest.skip("the ziglang package is not installed (pip install 'vpps[zig]')")
    for folder in ("bin", "home", "cache"):
        (tmp_path / folder).mkdir(mode=0o700)
    compiled = {"VPPS_PASSES": "all", "VPPS_RECORDER": "compiled", "CXX": ""}
    nothing = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": ""}
    *expected, other = run(TRAINING, compiled).split()
    alone = {**compiled, **nothing, "VPPS_CACHE_DIR": str(tmp_path / "cache")}
    *found, zig = run(TRAINING, alone, timeout=600).split()  # zig compiles everything
    assert zig == "c++"
    assert other in ("g++", "clang++", "c++")
    assert len(found) == 3
    assert found == expected
    assert set(suffixes(tmp_path / "cache")) == {".cpp", ".json", ".so"}
    assert list((tmp_path / "home").iterdir()) == []
