"""The picture: written, well-formed, the same for the same points, and refused before anything is measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.report.roofline.machines import MACHINE, point
from vpps.errors import WorkloadError
from vpps.report.roofline.plot import check_plot, draw

pytestmark = pytest.mark.host

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed (extra plot)"
)
SVG = "{http://www.w3.org/2000/svg}"


def texts(path: Path) -> str:
    return "\n".join("".join(element.itertext()) for element in ElementTree.parse(path).iter(f"{SVG}text"))


@needs_matplotlib
class TestPicture:
    def test_shows_roofs_phases_and_ratios(self, tmp_path: Path) -> None:
        path = tmp_path / "roof.svg"
        draw(path, [point(1), point(8, seconds=3e-4)], MACHINE)
        shown = texts(path)
        for expected in (
            "a-workload hidden=8 on a round machine, 2 virtual processors (avx2)",
            "fused multiply-adds, 1 GFLOP/s",
            "memory, 1 GB/s",
            "nearest cache, 4 GB/s",
            "gradients",
            "batch size 8: floor",
            f"300 us, {point(8, seconds=3e-4).ratio:.2f} x",
        ):
            assert expected in shown

    def test_of_equal_points_is_the_same_file(self, tmp_path: Path) -> None:
        paths = [tmp_path / f"{k}.svg" for k in range(2)]
        for path in paths:
            draw(path, [point(1)], MACHINE)
        assert paths[0].read_bytes() == paths[1].read_bytes()

    def test_of_floors_alone_has_no_measured_bars(self, tmp_path: Path) -> None:
        path = tmp_path / "roof.svg"
        draw(path, [point(1, seconds=None)], MACHINE)
        assert "measured" not in texts(path)

    def test_may_be_a_png(self, tmp_path: Path) -> None:
        draw(tmp_path / "roof.png", [point(1)], MACHINE)
        assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG\r\n")

    def test_that_cannot_be_written_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "roof.svg").mkdir()
        with pytest.raises(WorkloadError, match=r"--plot .*roof\.svg: Is a directory"):
            draw(tmp_path / "roof.svg", [point(1)], MACHINE)


class TestRefused:
    def test_another_format(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match=r"roof.gif: expected a name that ends in .svg, .png, .pdf"):
            check_plot(tmp_path / "roof.gif")

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match=r"there is no folder .*missing; make it first"):
            check_plot(tmp_path / "missing" / "roof.svg")

    def test_without_matplotlib(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(WorkloadError, match=r"pip install 'vpps\[plot\]'"):
            check_plot(tmp_path / "roof.svg")
