"""The cpu target's kernel: choice of compiler, flags and instruction set, and errors."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import new
from tests.comparison import relative_error
from tests.kernel.cache.builders import suffixes
from tests.kernels import compile_quickly
from tests.processes import finish, start
from vpps.kernel import host_compiler, ziglang
from vpps.kernel.host_compiler import build_cpu, compiler, tile_of_machine
from vpps.kernel.render import TILES
from vpps.reference import Reference, weights_of
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import direct, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC, TABLE

GXX = shutil.which("g++") or shutil.which("clang++") or "no compiler"
needs_gxx = pytest.mark.skipif(GXX == "no compiler", reason="puts a script before g++ or clang++, and there is none")


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VPPS_CACHE_DIR", str(folder))
    monkeypatch.setenv("VPPS_RECORDER", "python")
    return folder


@pytest.fixture
def script(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """Replace the C++ compiler with a shell script of the given lines, which logs its arguments."""
    monkeypatch.setenv("KEPT", str(tmp_path_factory.getbasetemp() / "compiled by tests of compilers"))

    def make(lines: str) -> Path:
        path = tmp_path / "compiler of mine"
        path.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(tmp_path / "log"))}\n{lines}\n')
        path.chmod(0o755)
        monkeypatch.setenv("CXX", shlex.quote(str(path)))
        return path

    return make


ANSWER = 'if [ "$1" = --version ]; then echo "my compiler 1.0"; exit 0; fi\n'
# These flags compile in a fraction of the time; a source that several tests share is compiled once.
FAST = (
    ANSWER
    + f"""
for result; do case $result in *.cpp) source=$result; esac; done
kept=$KEPT.$(cksum <"$source" | tr ' ' -)
[ -e "$kept" ] || {{ {shlex.quote(GXX)} "$@" -O0 && cp "$result" "$kept"; }} || exit 1
cp "$kept" "$result"
"""
)


def train_once(**options: Any) -> dict[str, Any]:
    """Gradients of a batch."""
    net = new()
    with vpps.Handle(net.model, vps=2, **options) as handle:
        return handle.gradients(*net.batch(1))[1]


@pytest.mark.cpu
@needs_gxx
def test_the_compiler_is_the_one_that_cxx_names_with_its_arguments(
    fresh_cache: Path, script: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script("shift\n" + FAST)
    monkeypatch.setenv("CXX", f"{shlex.quote(str(path))} --launcher")
    assert train_once()
    version, build = (tmp_path / "log").read_text().splitlines()
    assert version == "--launcher --version"
    for flag in ("--launcher", "-std=c++17", "-ffp-contract=off", "-fvisibility=hidden", "-o"):
        assert flag in build.split()
    assert "-ffast-math" not in build
    assert suffixes(fresh_cache) == [".cpp", ".json", ".so"]
    train_once()
    assert (tmp_path / "log").read_text().splitlines() == [version, build]  # the second handle compiles nothing


@pytest.mark.host
class TestChoice:
    @pytest.mark.parametrize(
        "installed, cxx, expected",
        [
            ("g++ clang++", None, ["g++"]), ("clang++", None, ["clang++"]), ("g++ clang++", "", ["g++"]),
            ("g++ clang++", "clang++", ["clang++"]), ("g++ icpx", "icpx -v 'a b'", ["icpx", "-v", "a b"]),
            ("zig", None, ["/somewhere/ziglang/zig", "c++"]), ("clang++ zig", None, ["clang++"]),
            ("!g++ clang++", None, ["clang++"]), ("!g++", None, None),
        ],
    )  # fmt: skip
    def test_is_cxx_then_gxx_then_clang_then_zig(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, cxx: str | None, expected: Any
    ) -> None:
        """A compiler marked "!" is a stub, as on macOS without the developer tools."""
        names = installed.split()
        for name in names:
            path = tmp_path / name.removeprefix("!")
            path.write_text(f"#!/bin/sh\nexit {int(name.startswith('!'))}\n")
            path.chmod(0o755)
        monkeypatch.setattr(ziglang, "installed", lambda: ("/somewhere/ziglang/zig", "c++") if "zig" in names else None)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        if cxx is not None:
            monkeypatch.setenv("CXX", cxx)
        assert host_compiler.has_compiler() == (expected is not None)
        assert expected is None or compiler() == expected

    def test_without_any_says_how_to_get_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setattr(ziglang, "installed", lambda: None)
        message = failure()
        for word in ("vpps needs a C++ compiler", "g++", "clang++", "apt-get install g++", "conda install", "CXX"):
            assert word in message
        assert "found: pip install 'vpps[zig]'" in message  # named first, because it does not need root

    @pytest.mark.parametrize(
        "cxx, words",
        [
            ("no-such-compiler", ("no such program", "apt-get install g++")),
            ("/nowhere/g++ -O2", ("no such program", "apt-get install g++")),
            ("g++ 'x", ("No closing quotation",)),
        ],
    )
    def test_of_a_wrong_cxx_names_it(self, monkeypatch: pytest.MonkeyPatch, cxx: str, words: tuple[str, ...]) -> None:
        monkeypatch.setenv("CXX", cxx)
        message = failure()
        assert all(word in message for word in (f"CXX={cxx}", *words))

    def test_of_a_compiler_may_be_in_any_encoding(self, script: Callable[[str], Path]) -> None:
        script(r"""printf '\377 version\n'; printf '\344 error\n' >&2; [ "$1" = --version ]""")
        with pytest.raises(vpps.CompileError, match="\N{REPLACEMENT CHARACTER} error"):
            vpps.Handle(new().model)


def failure() -> str:
    """The error message of a failed handle."""
    with pytest.raises(vpps.CompileError) as caught:
        vpps.Handle(new().model)
    return str(caught.value)


@pytest.mark.host
@pytest.mark.parametrize(
    "lines, words",
    [
        (
            ANSWER + 'echo "x.cpp:7: note: see here" >&2\necho "x.cpp:7: error: no such thing" >&2\nexit 1',
            ("compiler of mine", "rejected", "x.cpp:7: error: no such thing"),
        ),
        (ANSWER + 'echo "licence expired" >&2\nexit 3', ("licence expired",)),
        ("exit 1", ("--version failed", "apt-get install g++")),
        (ANSWER + "exit 0", ("wrote no library",)),
    ],
    ids=["error", "no line is an error", "version", "no output"],
)
def test_failure_of_the_compiler_is_told(
    fresh_cache: Path, script: Callable[[str], Path], lines: str, words: tuple[str, ...]
) -> None:
    script(lines)
    message = failure()
    assert all(word in message for word in words)
    assert "note" not in message
    assert suffixes(fresh_cache) == []


@pytest.mark.cpu
@needs_gxx
def test_an_output_that_cannot_be_loaded_is_made_anew(fresh_cache: Path, script: Callable[[str], Path]) -> None:
    script(ANSWER + 'while [ "$1" != -o ]; do shift; done\necho garbage > "$2"')
    message = failure()
    assert "cannot be loaded" in message
    assert "removed from the cache" in message
    script(FAST)  # command and version are unchanged, and so is the key
    assert train_once()


@pytest.mark.host
class TestKey:
    @pytest.fixture
    def key(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], str]:
        """A function that returns the kernel's cache key on an imaginary machine, without a build."""
        keys: list[str] = []

        def record(key: str, *others: Any, **label: Any) -> Path:
            keys.append(key)
            return tmp_path / key

        monkeypatch.setattr(host_compiler, "cached", record)
        monkeypatch.setattr(host_compiler, "compiler", lambda: ["c++"])
        monkeypatch.setattr(host_compiler, "compiler_version", lambda command: "1.0")
        monkeypatch.setattr(host_compiler, "cpu_features", lambda: frozenset({"avx2", "fma"}))

        def build() -> str:
            build_cpu()
            return keys[-1]

        return build

    @pytest.mark.parametrize(
        "name, value",
        [
            ("host_compiler.compiler", lambda: ["c++", "-g"]),
            ("host_compiler.compiler", lambda: ["other-c++"]),
            ("host_compiler.compiler_version", lambda command: "1.1"),
            ("host_compiler.FLAGS", (*host_compiler.FLAGS, "-g")),
            ("host_compiler.ISA_FLAGS", {**host_compiler.ISA_FLAGS, "avx2": ("-mavx",)}),
            ("host_compiler.render_cpu", lambda tile, rounds: "// another source"),
            ("host_compiler.cpu_features", frozenset),
            ("host_compiler.platform.machine", lambda: "riscv64"),
        ],
        ids=["arguments", "compiler", "version", "flags", "flags of the ISA", "source", "ISA", "architecture"],
    )
    def test_changes_with(self, key: Callable[[], str], monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
        before = key()
        assert key() == before
        monkeypatch.setattr(f"vpps.kernel.{name}", value)
        assert key() != before


AVX512 = frozenset({"avx512f", "avx512vl", "avx512dq", "avx512bw", "fma"})


@pytest.mark.host
class TestInstructionSet:
    @pytest.mark.parametrize(
        "features, isa",
        [
            (frozenset(), "portable"),
            (frozenset({"sse2", "avx"}), "portable"),
            (frozenset({"avx2"}), "portable"),
            (frozenset({"avx2", "fma"}), "avx2"),
            (frozenset({"avx2", "fma", "avx512f"}), "avx2"),
            (AVX512 | {"avx2", "fma"}, "avx512"),
            (frozenset({"asimd"}), "neon"),
        ],
        ids=lambda x: "+".join(sorted(x)) if isinstance(x, frozenset) else x,
    )
    def test_is_the_best_that_the_processor_has(
        self, monkeypatch: pytest.MonkeyPatch, features: frozenset[str], isa: str
    ) -> None:
        monkeypatch.delenv("VPPS_ISA", raising=False)
        monkeypatch.setattr("platform.machine", lambda: "aarch64" if "asimd" in features else "x86_64")
        monkeypatch.setattr(host_compiler, "cpu_features", lambda: features)
        assert tile_of_machine().isa == isa

    @pytest.mark.parametrize(
        "isa, words",
        [
            ("mmx", r"VPPS_ISA=mmx.*auto, avx512, avx2, neon, portable"),
            ("avx512", r"VPPS_ISA=avx512.*avx512f"),  # the alternative is a crash at the first such instruction
        ],
    )
    def test_that_is_not_there_is_refused(self, monkeypatch: pytest.MonkeyPatch, isa: str, words: str) -> None:
        monkeypatch.setenv("VPPS_ISA", isa)
        monkeypatch.setattr(host_compiler, "cpu_features", lambda: frozenset({"avx2", "fma"}))
        with pytest.raises(vpps.CompileError, match=words):
            vpps.Handle(new().model)


@pytest.mark.cpu
@pytest.mark.parametrize("isa", ["portable", "neon", "avx2", "avx512"])
def test_the_instruction_set_does_not_matter_to_the_results(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    if not host_compiler.ISA_NEEDS[isa] <= host_compiler.cpu_features():
        pytest.skip(f"the processor has no {isa}")
    native = train_once()
    if isa != tile_of_machine().isa:
        compile_quickly(monkeypatch)
    monkeypatch.setenv("VPPS_ISA", isa)
    net = new()
    graph, loss = net.batch(1)
    expected = Reference(graph, weights_of(net.model)).backward(loss)
    found = train_once()
    for name, g in found.items():
        assert relative_error(g, native[name]) < 1e-5
        assert relative_error(g, expected[name]) < 1e-5


@pytest.mark.cpu
def test_the_tile_of_neon_has_the_bits_of_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """This processor's multiply-adds emulate NEON: a panel is four registers of four lanes. Memory between the
    products' results is unchanged. `scripts/test_aarch64` runs NEON itself."""
    usual = tile_of_machine()
    words = [MAGIC, 1, 1, 0, HEADER_WORDS + 1]
    for columns in range(1, 70):
        to, a, b = direct(1024 * columns, 0), direct(1, 70), direct(99, 7 * columns)
        shape = {"a_width": 70, "b_width": 7 * columns, "inner": 7, "a_transposed": 0, "b_transposed": columns % 2}
        words += encode("matmul", 1, 10 * columns, dst=to, a=a, b=b, **shape)
    script = plain([*words, *encode("end", 0, 0)])
    pools, gradients = [], []
    for tile in (usual, replace(TILES["neon"], isa=usual.isa)):
        if pools:
            compile_quickly(monkeypatch)  # nothing may reorder arithmetic
        monkeypatch.setattr(host_compiler, "tile_of_machine", lambda tile=tile: tile)
        machine = CpuMachine(1)
        machine.reserve(1 << 17, 0)
        machine.pool[:] = np.random.default_rng(0).normal(size=1 << 17)
        machine.launch(script)
        assert machine.wait() is None
        pools.append(machine.pool.tobytes())
        machine.close()
        gradients.append({name: g.tobytes() for name, g in train_once().items()})
    assert pools[0] == pools[1]
    assert gradients[0] == gradients[1]


@pytest.mark.cpu
def test_the_source_is_what_was_compiled_in_every_process() -> None:
    """Otherwise the cache would never have a hit."""
    path, source, tile = build_cpu()
    with vpps.Handle(vpps.Model()) as handle:
        assert handle.source() == path.with_suffix(".cpp").read_text() == source
    for name in (i.name for i in TABLE if i.name not in ("end", "wait") and not i.on_chip):
        assert f"// {name}" in source or f" {name}(vp, " in source
    assert vpps.__version__ in source[:500]
    assert f"for target cpu: {tile.isa}" in source[:500]
    assert not any(hole in source for hole in ("{{ ", "{%", "\n\n\n\n"))
    code = "from vpps.kernel.host_compiler import build_cpu; print(build_cpu()[0])"
    assert {finish(start(code, {"PYTHONHASHSEED": seed}))[1] for seed in "12"} == {f"{path}\n"}
