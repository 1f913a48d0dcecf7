"""Arrays of other libraries, wherever their memory is, through the protocols that these libraries share.

In: `host_array` brings a CuPy, PyTorch, JAX or Numba array to the host (`__dlpack__`, `__cuda_array_interface__`).
Out: `DevicePool.view` gives a CuPy array over the pool's memory, which has both protocols.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from vpps.errors import DtypeError

# DLDeviceType in dlpack.h: what is in memory of an NVIDIA GPU, and what the host may read.
_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_HOST = (1, 3)  # kDLCPU, kDLCUDAHost


def is_on_gpu(value: Any) -> bool:
    """Whether the array's numbers are in the memory of an NVIDIA GPU; imports nothing.

    Raises:
        DtypeError: they are neither there nor on the host.
    """
    # A type's attributes: a tensor that requires gradients raises where asked for the second protocol.
    if hasattr(type(value), "__dlpack_device__"):
        kind = int(value.__dlpack_device__()[0])
        if kind not in _CUDA + _HOST:
            raise DtypeError(
                f"a {type(value).__name__} on a device of another kind (DLPack type {kind}): copy it to the host first"
            )
        return kind in _CUDA
    return hasattr(value, "__cuda_array_interface__")


def host_array(value: Any, what: str) -> Any:
    """`value` itself, unless it is an array on a GPU: then its copy on the host, a NumPy array of the same type.

    The copy waits for work that its owner has put into the streams that the protocols name.

    Args:
        value: anything; what is no array at all is for others to refuse.
        what: names it in messages.

    Raises:
        DtypeError: it cannot be exported (a PyTorch tensor that requires gradients), or CuPy is not installed.
    """
    try:
        if not is_on_gpu(value):
            return value
        if find_spec("cupy") is None:
            raise DtypeError(
                "an array on a GPU is read through CuPy: pip install 'vpps[cuda13]', or copy it to the host"
            )
        import cupy

        array = cupy.from_dlpack(value) if hasattr(type(value), "__dlpack__") else cupy.asarray(value)
    except DtypeError as error:
        raise DtypeError(f"{what}: {error}") from None
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # what exporters raise; they differ
        raise DtypeError(
            f"{what}: the {type(value).__name__} cannot be read ({error}); copy it to the host first, with "
            ".detach().cpu().numpy() for a PyTorch tensor"
        ) from error
    return cupy.asnumpy(array)


def refuse_masked(value: Any, what: str) -> None:
    """Raise DtypeError if elements of an array, or of one within lists, are masked out (`numpy.ma`).

    NumPy's own conversions keep what is under the mask, so a masked element would be computed with like any other.
    """
    masked = sys.modules.get("numpy.ma")  # whoever makes such arrays has imported it
    if masked is not None and _is_masked(value, masked, set()):
        raise DtypeError(f"{what}: a masked array with masked elements: fill them, array.filled(0), or leave them out")


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
    """Whether it is a tensor of PyTorch through which gradients flow; imports nothing."""
    return getattr(value, "requires_grad", False) is True


def detached(value: Any) -> Any:
    """The numbers of a tensor that requires gradients, on the host, in a type that NumPy has; others as they are."""
    if not requires_gradient(value):
        return value
    return widened(value.detach().cpu())  # waits for the stream that computes it


def widened(value: Any) -> Any:
    """A tensor of PyTorch of floats of 8 or 16 bits in float32: NumPy lacks bfloat16. Others as they are.

    Raises:
        DtypeError: it carries a tangent of forward-mode differentiation, which would be lost.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    if torch.autograd.forward_ad.unpack_dual(value).tangent is not None:
        raise DtypeError(
            "the tensor carries a tangent (forward_ad, torch.func.jvp), and vpps has no forward-mode derivatives: take "
            "gradients by backward"
        )
    return value.float() if value.is_floating_point() and value.element_size() < 4 else value
