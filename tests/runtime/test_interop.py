"""Simulated arrays from other libraries: the protocols used, and the messages on failure."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import vpps
from vpps import interop
from vpps.errors import DtypeError
from vpps.interop import host_array, is_on_gpu

pytestmark = pytest.mark.host


class Tensor:
    """Like PyTorch: both protocols, and errors if it requires gradients."""

    def __init__(self, kind: int, values: Any = (), requires_grad: bool = False) -> None:
        self.kind = kind
        self.values = np.asarray(values, np.float32)
        self.requires_grad = requires_grad

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, **unused: Any) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return self.values

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")


class HostArray(Tensor):
    """Like JAX: read through NumPy. An array traced in a function (to compile or differentiate it) has no numbers."""

    ndim = 1

    def __init__(self, values: Any, traced: bool = False) -> None:
        self.kind, self.values, self.traced = 1, np.asarray(values), traced

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __array__(self, *unused: Any, **also: Any) -> np.ndarray[Any, Any]:
        if self.traced:
            raise type("TracerArrayConversionError", (TypeError,), {})("a long text")
        return self.values


class NumbaArray:
    """Like Numba: only the second protocol."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"version": 3}


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("cupy")
    module.from_dlpack = lambda value: value.__dlpack__()  # type: ignore[attr-defined]
    module.asarray = lambda value: value.values  # type: ignore[attr-defined]
    module.asnumpy = np.copy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(interop, "find_spec", lambda name: module)
    return module


@pytest.mark.parametrize("value", [np.ones(3), [1, 2], 2.5, None, "text", Tensor(1, [1]), Tensor(3, [1])])
def test_what_is_on_the_host_is_left_alone(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "find_spec", lambda name: pytest.fail("asked for CuPy"))
    assert not is_on_gpu(value)
    assert host_array(value, "input") is value


@pytest.mark.parametrize("value", [Tensor(2, [1, 2]), Tensor(13, [1, 2]), NumbaArray([1, 2])])
def test_what_is_on_a_gpu_is_copied(value: Any, cupy: ModuleType) -> None:
    copy = host_array(value, "input")
    assert copy.tolist() == [1, 2]
    assert not np.shares_memory(copy, value.values)


def test_a_graph_takes_them_for_data(cupy: ModuleType) -> None:
    graph = vpps.Graph()
    assert graph.input(Tensor(2, [1, 2])).shape == (2,)
    assert [*graph.blocks.values()][-1].data[-1].tolist() == [1, 2]
    with pytest.raises(DtypeError, match=r"^input.*call 1: the Tensor cannot be read .*detach"):
        graph.input(Tensor(2, [1], requires_grad=True))


def test_arrays_of_ints_are_rows_of_a_table() -> None:
    model = vpps.Model()
    words = model.lookup("words", (5, 2))
    assert len(vpps.Graph().lookup(words, HostArray([3, 1, 3]))) == 3
    for given, message in (([1.5, 2], "expected ints, one per row, got .* float64"), ([5], "5 is out of range|row 5")):
        with pytest.raises((DtypeError, vpps.IndexRangeError), match=message):
            vpps.Graph().lookup(words, HostArray(given))


@pytest.mark.parametrize("use", ["input", "rows"])
def test_what_is_traced_has_no_numbers(use: str) -> None:
    with pytest.raises(DtypeError, match=f"^{use}, call 0: an array that JAX traces.*call vpps outside .*custom_vjp"):
        getattr(vpps.Graph(), use)(HostArray([1.0], traced=True))


def test_parameters_take_them_for_weights(cupy: ModuleType) -> None:
    model = vpps.Model()
    b = model.parameter("b", (2,), init=NumbaArray([1, 2]))
    b.assign(Tensor(2, [3, 4]))
    assert b.numpy().tolist() == [3, 4]


@pytest.mark.parametrize("kind, words", [(2, "require gradient.*detach"), (8, "DLPack type 8.*copy it to the host")])
def test_what_cannot_be_read_is_named(cupy: ModuleType, kind: int, words: str) -> None:
    with pytest.raises(DtypeError, match=f"^graph.input: .*Tensor.*{words}"):
        host_array(Tensor(kind, [1], requires_grad=True), "graph.input")


def test_a_missing_cupy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "find_spec", lambda name: None)
    with pytest.raises(
        DtypeError, match=r"input: vpps reads an array on a GPU through CuPy: pip install 'vpps\[cuda13\]'"
    ):
        host_array(Tensor(2, [1]), "input")
