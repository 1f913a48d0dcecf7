"""Source and machine code: the lines that compile errors name, what tools say, what is missing."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import pytest

import vpps
from tests.nvrtc import needs_nvrtc
from tests.report.models import tree
from vpps.compiler.passes import Passes
from vpps.engine.configuration import Configuration
from vpps.kernel import sass as sass_module
from vpps.kernel.diagnostics import quoted
from vpps.report import Inspection, inspect
from vpps.report.inspection import cpu_asm, cpu_source
from vpps.report.kernel_report import KernelsReport
from vpps.report.listing import Listing, asm, sass

ONLY = Listing("source", "cpu", "avx2", "cpp", "a\n\nb\nc\n")


@lru_cache
def inspection(target: str, arch: str | None = None, compiled: bool = False) -> Inspection:
    """A Tree-LSTM; its kernel is that of other tests where it is compiled."""
    passes = Passes(fusion=not compiled)
    return inspect(*tree(), target, arch, configuration=Configuration(passes=passes), compiled=compiled)


@pytest.mark.host
class TestListing:
    def test_text_is_the_text(self) -> None:
        assert str(ONLY) == "a\n\nb\nc\n"
        assert ONLY.numbered().splitlines() == ["      1 | a", "      2 |", "      3 | b", "      4 | c"]

    def test_lines_keep_their_numbers(self) -> None:
        part = ONLY.between(3)
        assert (part.source, part.first, part.last) == ("b\nc\n", 3, 4)
        assert ONLY.between(2, 99).between(3, 3).numbered() == "      3 | b\n"
        assert json.loads(json.dumps(part.as_json()))["lines"] == ["b", "c"]

    def test_lines_that_are_not_there(self) -> None:
        with pytest.raises(vpps.KernelError, match="there is no line 5: the source has lines 1 to 4"):
            ONLY.between(5)
        with pytest.raises(vpps.KernelError, match="there is no line 0"):
            ONLY.between(0, 2)


@pytest.mark.host
class TestSource:
    def test_has_the_lines_that_errors_quote(self) -> None:
        source = cpu_source()
        line = 200
        error = quoted([(line, "what")], source.source).splitlines()[1:]
        assert error == [f"{'>' if n == line else ' '}{text[1:]}" for n, text in _numbered(source, line - 2, line + 2)]

    @pytest.mark.parametrize("target", ["cpu", "simt", "cuda"])
    def test_without_headers_names_them(self, target: str) -> None:
        found = inspection(target)
        whole, named = found.source(), found.source(named=True)
        assert '#include "script.cuh"' in named.source
        assert '#include "' not in whole.source.replace('"vpps', "")
        assert len(named.source) < len(whole.source) / 2
        assert (whole.language, named.language) == (("cpp",) * 2 if target == "cpu" else ("cuda",) * 2)

    def test_of_the_cpu_is_the_same_for_all_models(self) -> None:
        assert inspection("cpu").source() == cpu_source()

    def test_of_a_gpu_knows_the_number_of_blocks(self) -> None:
        assert "#define VP_COUNT 132 " in inspection("cuda", "sm_90").source().source
        assert "#define VP_COUNT 40 " in inspection("cuda", "sm_75").source().source

    def test_of_tails_has_each(self) -> None:
        found = inspection("cpu")
        text = found.tails().source
        assert found.spec.tails
        assert all(f"struct {tail.name} " in text for tail in found.spec.tails)


def _numbered(source: Listing, first: int, last: int) -> list[tuple[int, str]]:
    return list(zip(range(first, last + 1), source.between(first, last).numbered().splitlines(), strict=True))


@pytest.mark.host
class TestMissing:
    @pytest.mark.parametrize(
        "call, words",
        [
            (lambda: inspection("cpu").ptx(), "ptx: target 'cpu' has none; use target 'cuda'"),
            (lambda: inspection("simt").sass(), "sass: target 'simt' has none"),
            (lambda: inspection("cuda").asm(), "asm: target 'cuda' is no processor of the host"),
            (lambda: inspection("cuda").tails(), "tails: target 'cuda' has them in the kernel"),
        ],
    )
    def test_code_of_another_target(self, call: Any, words: str) -> None:
        with pytest.raises(vpps.HandleError, match=words):
            call()

    def test_tails_of_cells_that_have_none(self) -> None:
        plain = inspect(*tree(), configuration=Configuration(passes=Passes(fusion=False)))
        with pytest.raises(vpps.HandleError, match="nothing in them is fused"):
            plain.tails()

    def test_tools_come_with_a_remedy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(sass_module, "nvdisasm", lambda: None)
        with pytest.raises(vpps.CompileError, match=r"there is no objdump: install it .*apt-get install binutils"):
            asm("k.so", "avx2")  # type: ignore[arg-type]
        with pytest.raises(vpps.CompileError, match="there is no nvdisasm: pip install nvidia-cuda-nvdisasm"):
            sass("k.cubin", "sm_90")  # type: ignore[arg-type]


@pytest.mark.cpu
class TestHost:
    def test_assembler_has_the_kernel(self) -> None:
        listing = cpu_asm()
        assert re.search(r"^\s*[0-9a-f]+:\t\w+", listing.source, re.MULTILINE)
        assert "Disassembly of section .text" in listing.source

    def test_resources(self) -> None:
        found = inspection("cpu", compiled=True).resources
        assert found.binary_bytes > 10_000
        assert found.registers is None
        text = str(found)
        assert "registers" not in text
        assert "rows a pass" in text


@pytest.mark.nvrtc
@needs_nvrtc
class TestGpu:
    def test_ptx_sass_and_resources(self) -> None:  # one test, as workers would compile it twice
        found = inspection("cuda", "sm_75", compiled=True)
        assert ".visible .entry vpps_kernel" in found.ptx().source
        assert ".target sm_75" in found.ptx().source
        assert re.search(r"/\*0000\*/ .*;", found.sass().source)
        assert found.source().source == found.kernel.source  # type: ignore[union-attr]
        self.check_resources(found)

    def check_resources(self, inspection: Inspection) -> None:
        found = inspection.resources
        assert found.registers is not None
        assert found.live is not None
        assert 0 < found.live <= found.registers <= 255
        both = KernelsReport((found, found))
        lines = str(both).splitlines()
        assert lines[0].split()[:3] == ["kernel", "VPs", "registers"]
        assert lines[2] == lines[3]
        (weights,) = (line for line in lines if line.startswith("tree_lstm/U "))
        assert weights.count("registers") + weights.count("L2") + weights.count("shared") >= 2
        assert json.loads(json.dumps(both.as_json()))["kernels"][0]["arch"] == "sm_75"
