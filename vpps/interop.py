"""Exchanges arrays with other libraries, on the host or on a GPU, through the protocols that these libraries share.

In: `host_array` brings a CuPy, PyTorch, JAX or Numba array to the host (`__dlpack__`, `__cuda_array_interface__`).
Out: `DevicePool.view` gives a CuPy array over the pool's memory, which supports both protocols.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from vpps.errors import DtypeError

# DLDeviceType in dlpack.h: memory of an NVIDIA GPU, and memory that the host may read.
_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_HOST = (1, 3)  # kDLCPU, kDLCUDAHost


def is_on_gpu(value: Any) -> bool:
    """Return True if the array is in the memory of an NVIDIA GPU; imports nothing.

    Raises:
        DtypeError: the array is neither on such a GPU nor on the host.
    """
    # Look at the type: a tensor that requires gradients raises on access to the second protocol's attribute.
    if hasattr(type(value), "__dlpack_device__"):
        kind = int(value.__dlpack_device__()[0])
        if kind not in _CUDA + _HOST:
            raise DtypeError(
                f"a {type(value).__name__} on a device of another kind (DLPack type {kind}): copy it to the host first"
            )
        return kind in _CUDA
    return hasattr(value, "__cuda_array_interface__")


def host_array(value: Any, what: str) -> Any:
    """Copy an array on a GPU to a NumPy array of the same type on the host; return any other value unchanged.

    The copy waits for work that the array's owner has queued on the streams that the protocols name.

    Args:
        value: anything; callers refuse values that are not arrays.
        what: the value's name in messages.

    Raises:
        DtypeError: the array cannot be exported (a PyTorch tensor that requires gradients), or CuPy is not installed.
    """
    try:
        if not is_on_gpu(value):
            return value
        if find_spec("cupy") is None:
            raise DtypeError(
                "vpps reads an array on a GPU through CuPy: pip install 'vpps[cuda13]', or copy it to the host"
            )
        import cupy

        array = cupy.from_dlpack(value) if hasattr(type(value), "__dlpack__") else cupy.asarray(value)
    except DtypeError as error:
        raise DtypeError(f"{what}: {error}") from None
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # exporters differ in the errors they raise
        raise DtypeError(
            f"{what}: the {type(value).__name__} cannot be read ({error}); copy it to the host first, with "
            ".detach().cpu().numpy() for a PyTorch tensor"
        ) from error
    return cupy.asnumpy(array)


def refuse_masked(value: Any, what: str) -> None:
    """Raise DtypeError if an array, or an array inside lists, has masked elements (`numpy.ma`).

    NumPy's conversions drop the mask, so a masked element would take part in computations like any other.
    """
    masked = sys.modules.get("numpy.ma")  # a program with masked arrays has imported it
    if masked is not None and _is_masked(value, masked, set()):
        raise DtypeError(f"{what}: the array has masked elements: fill them with array.filled(0), or leave them out")


def _is_masked(value: Any, masked: Any, seen: set[int]) -> bool:
    if isinstance(value, masked.MaskedArray):
        return bool(masked.is_masked(value))
    if not isinstance(value, list | tuple) or id(value) in seen:  # a list can contain itself
        return False
    nested = (list, tuple, masked.MaskedArray)
    if not any(issubclass(kind, nested) for kind in set(map(type, value))):
        return False
    seen.add(id(value))
    return any(_is_masked(x, masked, seen) for x in value)


def requires_gradient(value: Any) -> bool:
    """Return True if a value is a PyTorch tensor that requires gradients; imports nothing."""
    return getattr(value, "requires_grad", False) is True


def detached(value: Any) -> Any:
    """Copy a tensor that requires gradients to the host, in a type that NumPy supports; return other values as is."""
    if not requires_gradient(value):
        return value
    return widened(value.detach().cpu())  # waits for the stream that computes it


def widened(value: Any) -> Any:
    """Convert a PyTorch tensor of 8-bit or 16-bit floats to float32: NumPy lacks bfloat16. Return other tensors as is.

    Raises:
        DtypeError: the tensor carries a tangent of forward-mode differentiation, which the conversion would lose.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    if torch.autograd.forward_ad.unpack_dual(value).tangent is not None:
        raise DtypeError(
            "the tensor carries a tangent (forward_ad, torch.func.jvp), and vpps has no forward-mode derivatives: "
            "compute gradients by backward"
        )
    return value.float() if value.is_floating_point() and value.element_size() < 4 else value
