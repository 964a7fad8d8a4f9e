"""Arrays of a script: tensors of torch where the script uses torch, else arrays of numpy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tilec.host.arrays import view_array
from tilec.ir.elements import encode_values, numpy_storage_type, storage_shape
from tilec.ir.types import DType


def is_array(value: object) -> bool:
    """Return whether a value is a numpy array, or supports DLPack or the CUDA array interface."""
    return isinstance(value, np.ndarray) or hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def is_torch_tensor(value: object) -> bool:
    """Return whether a value is a tensor of torch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def make_empty_array(shape: tuple[int, ...], dtype: DType, like: object) -> Any:
    """Return an uninitialised array of a shape: torch's where the script or `like` uses torch, else numpy's. `like`
    also gives the device. Four-bit elements share bytes.
    """
    held = storage_shape(shape, dtype)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "empty") and (like is None or is_torch_tensor(like)):
        kind = getattr(torch, "int8" if dtype.per_byte == 2 else dtype.name)
        return torch.empty(held, dtype=kind, device="cpu" if like is None else getattr(like, "device", "cpu"))
    return np.empty(held, numpy_storage_type(dtype))


def copy_numbers(array: Any, numbers: Any, dtype: DType) -> None:
    """Write numpy's numbers into a torch or numpy array, converted to its elements of this dtype."""
    if is_torch_tensor(array):
        torch = sys.modules["torch"]
        if dtype.per_byte == 2:
            array.copy_(torch.from_numpy(encode_values(numbers, dtype).view(np.int8)))
        else:
            array.copy_(torch.from_numpy(numbers).to(array.dtype))
    else:
        array[...] = encode_values(numbers, dtype)


def read_numbers(array: Any) -> Any:
    """Return the numbers of an array as float64 of numpy."""
    return array.detach().cpu().double().numpy() if is_torch_tensor(array) else np.asarray(array, np.float64)


def share_memory(value: Any) -> Any:
    """Return an argument unchanged, except a torch tensor that needs gradients: without them, on the same memory."""
    return value.detach() if is_torch_tensor(value) and getattr(value, "requires_grad", False) else value


def array_shape(array: Any) -> tuple[int, ...]:
    """Return the extents of an array as its library counts them."""
    return tuple(map(int, array.shape))


def find_strides(array: object) -> tuple[int, ...]:
    """Return an array's strides in elements; none for a value that is no array."""
    view = view_array(share_memory(array))
    return () if view is None else view.strides
