"""Source and machine code: lines named in compile errors, tools' output, missing tools."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import vpps
from tests.nvrtc import needs_nvrtc
from tests.report.models import tree
from vpps.compiler.passes import Passes
from vpps.engine.configuration import Configuration
from vpps.kernel.diagnostics import numbered, quoted
from vpps.report import Inspection, inspect
from vpps.report.inspection import cpu_asm, cpu_source
from vpps.report.kernel_report import kernels_text
from vpps.report.listing import asm, sass


@lru_cache
def inspection(target: str, arch: str | None = None, compiled: bool = False) -> Inspection:
    """Inspect a Tree-LSTM; a compiled kernel is shared with other tests."""
    passes = Passes(fusion=not compiled)
    return inspect(*tree(), target, arch, configuration=Configuration(passes=passes), compiled=compiled)


@pytest.mark.host
class TestSource:
    def test_has_the_lines_that_errors_quote(self) -> None:
        source = cpu_source()
        error = quoted([(200, "what")], source).splitlines()[1:]
        lines = list(numbered(enumerate(source.splitlines(), 1)))[197:202]
        assert error == [f"{'>' if k == 2 else ' '}{line[1:]}" for k, line in enumerate(lines)]

    @pytest.mark.parametrize("target", ["cpu", "simt", "cuda"])
    def test_without_headers_names_them(self, target: str) -> None:
        found = inspection(target)
        whole, named = found.source(), found.source(named=True)
        assert '#include "script.cuh"' in named
        assert '#include "' not in whole.replace('"vpps', "")
        assert len(named) < len(whole) / 2
        assert (whole == cpu_source()) == (target == "cpu"), "that is the same for all models"

    def test_of_a_gpu_knows_the_number_of_blocks(self) -> None:
        for arch, sms in (("sm_90", 132), ("sm_75", 40)):
            assert f"#define VP_COUNT {sms} " in inspection("cuda", arch).source()

    def test_of_tails_has_each(self) -> None:
        found = inspection("cpu")
        text = found.tails()
        assert found.spec.tails
        assert all(f"struct {tail.name} " in text for tail in found.spec.tails)


@pytest.mark.host
class TestMissing:
    @pytest.mark.parametrize(
        "call, words",
        [
            (lambda: inspection("cpu").ptx(), "ptx: target 'cpu' has none; use target 'cuda'"),
            (lambda: inspection("simt").sass(), "sass: target 'simt' has none"),
            (lambda: inspection("cuda").asm(), "asm: target 'cuda' is not a host processor"),
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

    def test_tools_come_with_a_remedy(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(metadata, "files", lambda package: None)
        with pytest.raises(vpps.CompileError, match=r"there is no objdump: install it .*apt-get install binutils"):
            asm(Path("k.so"))
        with pytest.raises(vpps.CompileError, match="there is no nvdisasm: pip install nvidia-cuda-nvdisasm"):
            sass(Path("k.cubin"))
        tool = tmp_path / "nvdisasm"
        tool.write_text("#!/bin/sh\necho no such file >&2\nexit 1\n")
        tool.chmod(0o755)
        with pytest.raises(vpps.CompileError, match=r"nvdisasm cannot read k\.cubin: no such file"):
            sass(Path("k.cubin"))


@pytest.mark.cpu
def test_assembler_and_resources_of_the_host() -> None:
    listing = cpu_asm()
    assert re.search(r"^\s*[0-9a-f]+:\t\w+", listing, re.MULTILINE)
    assert "Disassembly of section .text" in listing
    text = inspection("cpu", compiled=True).resources
    assert re.search(r"\d\d KiB", text)
    assert "rows a pass" in text


@pytest.mark.nvrtc
@needs_nvrtc
def test_ptx_sass_and_resources_of_a_gpu() -> None:
    found = inspection("cuda", "sm_75", compiled=True)
    assert ".visible .entry vpps_kernel" in found.ptx()
    assert ".target sm_75" in found.ptx()
    assert re.search(r"/\*0000\*/ .*;", found.sass())
    n_lines = len(found.source().splitlines())
    for listing, line in (
        (found.ptx(), r"\.loc\s+1 (\d+)"),
        (found.sass(), r'//## File ".*vpps_kernel\.cu", line (\d+)'),
    ):
        numbers = {int(number) for number in re.findall(line, listing)}
        assert len(numbers) > 100
        assert max(numbers) <= n_lines
    assert "//## File" not in sass(found.compiled.binary)  # the kernel that runs has no lines
    assert found.source() == found.compiled.source
    lines = kernels_text([found.compiled] * 2).splitlines()
    heads, row = lines[0].split(), lines[2].split()
    assert lines[2] == lines[3]
    assert heads[:4] == ["kernel", "VPs", "registers", "cached"]
    assert row[0] == "sm_75"
    assert 0 <= int(row[3]) < int(row[2]) <= 255
    (weights,) = (line for line in lines if line.startswith("tree_lstm/U "))
    assert weights.count("registers") + weights.count("L2") + weights.count("shared") >= 2
