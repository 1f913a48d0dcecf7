"""The machine that a handle chooses, with a (simulated) GPU and without."""

from __future__ import annotations

import ctypes
import sys
import warnings
from typing import Any

import pytest

import vpps
from tests.processes import run
from tests.runtime import fake_cuda
from vpps.runtime import driver

pytestmark = pytest.mark.cpu


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which the driver's library is not found."""
    real = ctypes.CDLL

    def library(name: str) -> Any:
        if name == "libcuda.so.1":
            raise OSError(f"{name}: cannot open shared object file")
        return real(name)

    monkeypatch.setattr(ctypes, "CDLL", library)
    monkeypatch.delenv("VPPS_TARGET", raising=False)


def test_without_a_driver_it_is_the_cpu_and_nothing_is_said(no_driver: None, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for target in ("auto", "cpu"):
            with vpps.Handle(vpps.Model(), target=target, vps=1) as handle:
                assert repr(handle) == "<vpps.Handle: cpu, 1 virtual processor>"
    assert capfd.readouterr() == ("", "")


def test_without_a_driver_no_package_of_cuda_is_imported() -> None:
    if driver.why_cuda_is_unusable() is None:
        pytest.skip("there is a GPU")
    run(
        """
        import sys
        import vpps

        vpps.Handle(vpps.Model(), vps=1).close()
        assert not any(name.partition(".")[0] in ("cuda", "cupy") for name in sys.modules)
        """,
        {"VPPS_TARGET": ""},
    )


def test_who_asks_for_cuda_is_told_what_is_missing(no_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = r"no NVIDIA driver \(libcuda.so.1 is not found\); install one, .*--gpus all, or use target='cpu'"
    with pytest.raises(vpps.HandleError, match=rf"^target='cuda': .*{remedy}$"):
        vpps.Handle(vpps.Model(), target="cuda")
    monkeypatch.setenv("VPPS_TARGET", "cuda")
    with pytest.raises(vpps.HandleError, match=rf"{remedy} \(the target is that of VPPS_TARGET=cuda\)$"):
        vpps.Handle(vpps.Model())
    with vpps.Handle(vpps.Model(), target="cpu", vps=1):
        pass


def test_unknown_targets_are_named_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(vpps.HandleError, match=r"^target='gpu': expected 'auto'"):
        vpps.Handle(vpps.Model(), target="gpu")
    monkeypatch.setenv("VPPS_TARGET", "gpu")
    with pytest.raises(vpps.HandleError, match=r"^VPPS_TARGET=gpu: expected 'auto'"):
        vpps.Handle(vpps.Model())


@pytest.mark.parametrize("lacking", ["cupy", "a working cuda.bindings", "a GPU", "a new GPU"])
def test_a_gpu_that_cannot_be_used_is_left_alone(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    fake = fake_cuda.install(monkeypatch)
    monkeypatch.delenv("VPPS_TARGET", raising=False)
    match lacking:
        case "cupy":
            monkeypatch.setattr(driver, "find_spec", lambda name: None if name == "cupy" else name)
        case "a working cuda.bindings":
            monkeypatch.delattr(sys.modules["cuda.bindings"], "__version__")
        case "a GPU":
            fake.devices = 0
        case "a new GPU":
            fake.attributes["COMPUTE_CAPABILITY_MAJOR"] = 6
    with vpps.Handle(vpps.Model(), vps=1) as handle:
        assert "cpu" in repr(handle)
    with pytest.raises(vpps.HandleError, match=r"^target='cuda'"):
        vpps.Handle(vpps.Model(), target="cuda")


@pytest.mark.parametrize("timeline", [False, True])
def test_a_gpu_that_can_be_used_is(monkeypatch: pytest.MonkeyPatch, timeline: bool) -> None:
    fake_cuda.install(monkeypatch)
    monkeypatch.delenv("VPPS_TARGET", raising=False)
    with vpps.Handle(vpps.Model(), train=False, timeline=timeline) as handle:
        assert repr(handle) == "<vpps.Handle: cuda, 4 virtual processors>"
