"""Compilation of CUDA source to cubins without a GPU: live registers, errors with source lines, and the cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import vpps
from tests.kernel.cache.builders import suffixes
from tests.kernel.sass import LINE, ControlFlow, code_of, listing_of, live_registers, noncoherent_loads, parse
from tests.nvrtc import ARCHS, interpreter, needs_nvrtc, registers_and_stack
from tests.processes import run
from vpps.kernel import libnvrtc, nvrtc
from vpps.kernel.nvrtc import KERNEL, compile_cubin, supported_archs
from vpps.kernel.programs import package_folders
from vpps.kernel.resources import Resources, check_resources
from vpps.report.listing import sass

compiles = [pytest.mark.nvrtc, needs_nvrtc]

EMPTY = 'extern "C" __global__ void vpps_kernel(float* p) { p[0] = 1.f; }\n'


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VPPS_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """ptxas's reports on the kernels that the test compiles."""
    seen: list[str] = []

    def resources_of(image: bytes, name: str, report: str, *others: Any) -> Resources:
        seen.append(report)
        return original(image, name, report, *others)

    original = nvrtc.resources_of
    monkeypatch.setattr(nvrtc, "resources_of", resources_of)
    return seen


def message(source: str, arch: str = "sm_90") -> str:
    """The error message for a source or an architecture."""
    with pytest.raises(vpps.CompileError) as caught:
        compile_cubin(source, arch)
    return str(caught.value)


class TestRegisters:
    pytestmark = compiles

    @pytest.mark.parametrize("arch", ARCHS)
    def test_hold_192_weights_around_an_interpreter(self, arch: str) -> None:
        cubin = compile_cubin(interpreter(192), arch, 192)
        found = cubin.resources
        assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0)
        assert 192 <= live_registers(code_of(cubin), KERNEL) <= found.registers <= 255
        assert cubin.warnings == ()
        check_resources(found)

    @pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
    def test_that_are_live_grow_by_one_per_weight(self, arch: str) -> None:
        cubins = [compile_cubin(interpreter(n), arch) for n in (32, 64, 128)]
        live = [live_registers(code_of(cubin), KERNEL) for cubin in cubins]
        assert [b - a for a, b in pairwise(live)] == pytest.approx([32, 64], abs=4)

    def test_without_calls_nvdisasm_counts_the_same_at_every_instruction(self) -> None:
        """nvdisasm may count one more: R1, the stack pointer, which it always considers live."""
        source = re.sub(r"case [678]:.*\n", "", interpreter(96))  # their special values are handled in functions
        listing = listing_of(compile_cubin(source, "sm_90"))
        kernel = parse(listing)
        assert not any(instruction.family == "CALL" for instruction in kernel.instructions)
        counts = [int("0" + match["registers"][:5].strip()) for match in map(LINE.match, listing.splitlines()) if match]
        flow = ControlFlow(kernel, "vpps_kernel")
        place = {id(instruction): i for i, instruction in enumerate(kernel.instructions)}
        assert len(counts) == len(kernel.instructions)
        for instruction, live in zip(flow.instructions, flow.live(), strict=True):
            assert counts[place[id(instruction)]] - (live | instruction.writes).bit_count() in (0, 1), instruction.text

    @pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
    def test_that_do_not_suffice_or_are_indexed_are_reported(self, arch: str) -> None:
        found = compile_cubin(interpreter(250), arch, 250).resources
        assert min(found.spill_stores, found.spill_loads) > 0
        with pytest.raises(vpps.CompileError) as caught:
            check_resources(found)
        for words in ("the kernel spills", f"{found.spill_stores} bytes", "rows per warp"):
            assert words in str(caught.value)
        found = compile_cubin(interpreter(96, case="case 10: y[lane] = weight[at[3]]; break;"), arch, 96).resources
        assert found.spill_stores == 0  # ptxas does not count this as a spill
        assert found.stack >= 96 * 4
        with pytest.raises(vpps.CompileError, match=rf"puts {found.stack} bytes per thread on the stack"):
            check_resources(found)

    @pytest.mark.parametrize("arch", ARCHS)
    def test_and_stack_are_those_that_the_driver_goes_by(
        self, fresh_cache: Path, reports: list[str], arch: str
    ) -> None:
        """Both are read from the compiler's report, not from the cubin."""
        case = "case 10: { __shared__ float more[80]; more[lane % 80] = weight[at[3]]; y[0] = more[at[3]]; break; }"
        cubin = compile_cubin(interpreter(96, case=case), arch)
        found = cubin.resources
        (report,) = reports
        assert (found.registers, found.stack) == registers_and_stack(cubin.path.read_bytes(), KERNEL)
        assert f" {found.shared_bytes} bytes smem" in report
        assert found.shared_bytes == 80 * 4
        assert found.stack > 0
        assert found.code_bytes % 128 == 0

    def test_of_called_functions_count(self, fresh_cache: Path) -> None:
        """Their frames are on the same stack."""
        source = """
            __device__ __noinline__ float inner(float* p, int i) {
                float t[20];
                for (int k = 0; k < 20; k++) t[k] = p[k];
                return t[i];
            }
            extern "C" __global__ void vpps_kernel(float* p, int i) {
                float t[10];
                for (int k = 0; k < 10; k++) t[k] = p[k];
                p[0] = inner(p, i) + t[i];
            }
        """
        cubin = compile_cubin(source, "sm_90")
        assert cubin.resources.stack >= 4 * (10 + 20)
        assert cubin.resources.stack == registers_and_stack(cubin.path.read_bytes(), KERNEL)[1]


@pytest.mark.nvrtc
@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_loads_past_the_coherent_caches_are_found(arch: str) -> None:
    """A kernel has no such loads by default. Loads through restrict pointers, and __ldg of the script, are found."""
    table = "const float* __restrict__ table"
    of_table, of_script = "table[lane] + table[lane + at[3]]", "__uint_as_float(__ldg(at + 3))"
    for parameter, value, n in (("", "0.f", 0), (table, of_table, 2), ("", of_script, 1)):
        source = interpreter(64, parameter, f"case 10: y[lane] = {value}; break;")
        found = noncoherent_loads(code_of(compile_cubin(source, arch)))
        assert len(found) == n
        assert all(re.match(r"(@!?P\d )?LDG\.\S*CONSTANT\S* R\d+, ", text) for text in found)


class TestErrors:
    pytestmark = compiles

    def test_show_the_line_and_those_around_it(self, fresh_cache: Path) -> None:
        source = interpreter(4, case="case 10: y[lane] = nonsense; break;")
        lines = source.splitlines()
        number = next(n for n, line in enumerate(lines, start=1) if "nonsense" in line)
        text = message(source)
        assert f'line {number}: identifier "nonsense" is undefined' in text
        assert f"> {number:5d} | {lines[number - 1]}" in text
        for n in (number - 2, number - 1, number + 1, number + 2):
            assert f"  {n:5d} | {lines[n - 1]}" in text
        assert suffixes(fresh_cache) == []

    @pytest.mark.parametrize(
        "source, words",
        [
            (
                "template<class T> __device__ T f(T a) { return a.x; }\n" + EMPTY.replace("1.f", "f(1.f)"),
                ("line 1: expression must have class type", "detected during instantiation", "at line 2"),
            ),
            ('extern "C" __global__ void vpps_kernel() { asm volatile("bogus;"); }', ("bogus",)),
            ("#include <cuda/atomic>\n" + EMPTY, (">     1 | #include <cuda/atomic>",)),
            (EMPTY.replace("vpps_kernel", "other"), ("function vpps_kernel; what it defines: other",)),
            ("__device__ float x;", ("what it defines: none",)),
        ],
        ids=["template", "assembler", "header", "another kernel", "no kernel"],
    )
    def test_say_what_and_where(self, source: str, words: tuple[str, ...]) -> None:
        text = message(source)
        assert all(word in text for word in words)

    @pytest.mark.parametrize("arch", ["sm_60", "sm_20", "sm_70", "sm_999", "sm_900a"])
    def test_of_an_architecture_that_is_too_old_or_too_new_list_the_known(self, fresh_cache: Path, arch: str) -> None:
        if arch in supported_archs():
            pytest.skip(f"this NVRTC still compiles for {arch}")
        text = message(EMPTY, arch)
        if arch == "sm_70":
            assert "sm_70 needs the 12.x line: pip install 'vpps[cuda12]'" in text
            return
        assert f"does not compile for {arch}" in text
        assert "sm_80, sm_86" in text
        assert "vpps needs sm_70" in text or "--upgrade" in text
        assert suffixes(fresh_cache) == []

    @pytest.mark.parametrize("arch", ["compute_90", "90", "sm90", "sm_", "SM_90", "sm_90 -G", ""])
    def test_of_what_is_no_architecture_say_so(self, arch: str) -> None:
        assert "is no architecture" in message(EMPTY, arch)

    def test_warnings_are_kept_with_their_lines(self, fresh_cache: Path) -> None:
        source = EMPTY.replace("p[0]", "int unused;\np[0]")
        for _ in range(2):  # compiled, then from the cache
            (warning,) = compile_cubin(source, "sm_90").warnings
            assert warning == 'line 1: variable "unused" was declared but never referenced'


@pytest.mark.host
class TestWithout:
    """An environment with a missing or broken NVRTC."""

    @pytest.fixture(autouse=True)
    def nothing_is_installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(libnvrtc, "_IN_WHEELS", ("nowhere/libnvrtc.so",))
        monkeypatch.setattr(libnvrtc, "_SYSTEM", ("libnvrtc.so.nowhere",))
        libnvrtc.library.cache_clear()
        yield
        libnvrtc.library.cache_clear()

    @pytest.mark.parametrize("found", [False, True])
    def test_a_library_says_what_to_install(
        self, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, found: bool
    ) -> None:
        """Even if other packages claim to have found a library."""

        def not_found(name: str) -> None:
            raise RuntimeError(f"lib{name}.so.13 not found\nsearched: everywhere")

        pathfinder = ModuleType("cuda.pathfinder")
        pathfinder.__dict__["load_nvidia_dynamic_lib"] = not_found
        monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder if found else None)
        text = message(EMPTY)
        reason = "cannot be loaded (libnvrtc.so.13 not found)" if found else "there is no NVRTC"
        for words in (reason, "vpps[cuda13]", "vpps[cuda12]"):
            assert words in text

    @pytest.mark.parametrize("contents", [b"", b"no library"])
    def test_a_library_that_works_names_the_file(
        self, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, contents: bytes
    ) -> None:
        file = tmp_path / "nowhere" / "libnvrtc.so"
        file.parent.mkdir()
        file.write_bytes(contents)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(vpps.CompileError, match=rf"cannot be loaded \({file}: "):
            compile_cubin(EMPTY, "sm_90")

    def test_nvrtc_in_a_library_of_its_name_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(vpps.CompileError, match="has no function nvrtcVersion"):
            libnvrtc.Library(None)  # type: ignore[arg-type]  # the process itself


class TestLibrary:
    pytestmark = compiles

    def test_tells_its_version_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Package metadata is ignored."""
        builtins = next(Path(libnvrtc.library().path).resolve().parent.glob("libnvrtc-builtins.so.*"))
        monkeypatch.setattr(metadata, "version", lambda package: "99.0")
        assert nvrtc.compiler_version() == f"NVRTC {builtins.suffixes[-2][1:]}{builtins.suffix}"

    @pytest.mark.parametrize("version,caches", [("12.0", False), ("12.8", False), ("12.9", True), ("13.0", True)])
    def test_keeps_nothing_itself(self, version: str, caches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Results from NVRTC's own cache have no log (tests/gpu/test_machine.py); older versions lack the option."""
        own = libnvrtc.library()
        given: list[list[bytes]] = []

        def record(program: object, count: int, options: Sequence[bytes]) -> int:
            given.append(list(options))
            return 1

        monkeypatch.setattr(own, "version", version)
        monkeypatch.setattr(own._library, "nvrtcCompileProgram", record)
        own.compile("", "x.cu", ("--std=c++17",), "CUBIN")
        assert given == [[b"--std=c++17", *([b"--no-cache"] if caches else [])]]

    def test_is_the_first_on_the_path(self, tmp_path: Path) -> None:
        """For example, the first in PYTHONPATH: `cuda.pathfinder` only searches the environment."""
        own = Path(libnvrtc.library().path)
        name = libnvrtc._IN_WHEELS[0] if own.name.endswith("13") else libnvrtc._IN_WHEELS[1]
        carried = tmp_path / name
        carried.parent.mkdir(parents=True)
        carried.symlink_to(own)
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
        code = "from vpps.kernel.libnvrtc import library; print(library().path)"
        assert run(code, {"PYTHONPATH": path}).strip() == str(carried)

    def test_is_none_of_the_working_directory_or_of_the_script_s(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Python puts one of these folders first in its path, also with -m."""
        planted = tmp_path / "nvidia/cu13/lib/libnvrtc.so.13"
        planted.parent.mkdir(parents=True)
        planted.write_text("not a library")
        monkeypatch.chdir(tmp_path)
        for first in ("", ".", str(tmp_path)):
            monkeypatch.setattr(sys, "path", [first, *sys.path])
            assert not {first, str(tmp_path)} & set(package_folders())
        assert package_folders()

    def test_of_another_build_has_another_identity(self, tmp_path: Path) -> None:
        """NVRTC reports only two numbers of its version; the third one counts bug fixes."""
        own = libnvrtc.library()
        other = tmp_path / "libnvrtc.so"
        shutil.copyfile(own.path, other)
        with other.open("ab") as file:
            file.write(b"\0")
        assert libnvrtc.Library(str(other)).version == own.version
        assert libnvrtc.Library(str(other)).identity != own.identity


@pytest.mark.nvrtc
@needs_nvrtc
def test_source_lines_change_no_instruction() -> None:
    source = interpreter(32)
    plain, lines = compile_cubin(source, "sm_90"), compile_cubin(source, "sm_90", lines=True)
    assert plain.path != lines.path
    assert code_of(lines) == code_of(plain)
    assert replace(lines.resources, compile_seconds=0.0) == replace(plain.resources, compile_seconds=0.0)
    stores = [n for n, line in enumerate(source.splitlines(), 1) if "case 3:" in line]
    assert f'vpps_kernel.cu", line {stores[0]}' in sass(lines.path)
    assert "//## File" not in sass(plain.path)


class TestCache:
    pytestmark = compiles

    def test_keeps_source_cubin_and_resources_side_by_side(self, fresh_cache: Path) -> None:
        cubin = compile_cubin(EMPTY, "sm_90", 7)
        assert {p.suffix: p for p in cubin.path.parent.iterdir()} == {
            ".cu": cubin.source,
            ".cubin": cubin.path,
            ".json": cubin.path.with_suffix(".json"),
        }
        assert cubin.source.read_text() == EMPTY
        assert cubin.path.read_bytes()[:4] == b"\x7fELF"
        kept = json.loads(cubin.path.with_suffix(".json").read_text())["facts"]["resources"]
        assert Resources(**kept) == cubin.resources
        assert cubin.resources.cached_registers == 7

    def test_hits_without_a_compiler_unless_anything_differs(
        self, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*arguments: object) -> None:
            raise AssertionError("nothing should be compiled")

        first = compile_cubin(EMPTY, "sm_90", 3)
        monkeypatch.setattr(nvrtc, "_compile", refuse)
        assert compile_cubin(EMPTY, "sm_90", 3) == first
        assert compile_cubin(EMPTY, "sm_90", 5).resources == replace(first.resources, cached_registers=5)
        for arguments in [(EMPTY + "\n", "sm_90"), (EMPTY, "sm_80"), (EMPTY, "sm_90", 3, True)]:
            with pytest.raises(AssertionError, match="nothing should be compiled"):
                compile_cubin(*arguments)
        library = SimpleNamespace(identity="NVRTC 13.9, 1 bytes", version="13.9")
        for name, value in (("OPTIONS", ("--std=c++17",)), ("library", lambda: library)):
            with monkeypatch.context() as patch:
                patch.setattr(nvrtc, name, value)
                with pytest.raises(AssertionError, match="nothing should be compiled"):
                    compile_cubin(EMPTY, "sm_90", 3)

    def test_imports_no_binding_and_asks_for_the_version_alone_on_a_hit(self, fresh_cache: Path) -> None:
        compile_cubin(EMPTY, "sm_90")
        code = f"""
            import sys
            from vpps.kernel.nvrtc import compile_cubin
            print(compile_cubin({EMPTY!r}, "sm_90").path, "cuda" in sys.modules)
        """
        assert run(code).split() == [str(compile_cubin(EMPTY, "sm_90").path), "False"]
