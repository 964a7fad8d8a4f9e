"""Arguments for tables of addresses, `T.Tensor((n,), T.ptr)`: a list of arrays, or an array of their addresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from tilec.host.arrays import CPU, View, dense_strides
from tilec.ir.elements import numpy_storage_type, storage_shape
from tilec.ir.manifest import TensorInfo
from tilec.ir.types import TYPES_BY_NAME
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class TableArgument:
    """An argument for a table: its extents, and the arrays at its entries in row-major order, or else the array that
    holds their addresses."""

    extents: tuple[int, ...]
    entries: tuple[View, ...]
    addresses: View | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents of the table, followed by those of its entries' arrays where these are known."""
        return (*self.extents, *self.entries[0].shape) if self.entries else self.extents


def read_table(tensor: TensorInfo, value: object, make_view: Callable[[object], View]) -> TableArgument:
    """Return an argument for a table; raise `TypeError` or `ValueError` for one that is no list and holds no
    addresses.
    """
    if isinstance(value, list | tuple):
        extents, arrays = _flatten_list(tensor, value, tensor.table)
        return TableArgument(extents, tuple(map(make_view, arrays)))
    one = make_view(value)
    if one.dtype not in ("int64", "uint64"):
        raise TypeError(
            f"{tensor.name} takes a list of arrays, or their addresses as int64, not an array of {one.dtype}"
        )
    if len(one.shape) != tensor.table or not one.has_steps(dense_strides(one.shape)):
        raise ValueError(f"{tensor.name} takes a dense array of addresses with {tensor.table} dimensions")
    return TableArgument(one.shape, (), one)


def _flatten_list(tensor: TensorInfo, value: object, rank: int) -> tuple[tuple[int, ...], list[object]]:
    """Return the extents of a nested list of this depth, and its items in row-major order; refuse uneven ones."""
    if rank == 0:
        return (), [value]
    if not isinstance(value, list | tuple):
        raise TypeError(f"{tensor.name} takes a list of arrays, {tensor.table} lists deep")
    parts = [_flatten_list(tensor, item, rank - 1) for item in value]
    if len({extents for extents, _ in parts}) > 1:
        raise ValueError(f"the lists of {tensor.name} differ in length")
    inner = parts[0][0] if parts else (0,) * (rank - 1)
    return (len(parts), *inner), [array for _, arrays in parts for array in arrays]


def list_entry_views(tensor: TensorInfo, table: TableArgument, shape: tuple[int, ...]) -> Iterator[View]:
    """Yield the arrays at a table's entries, of the tensor's `shape` where only their addresses are given. These are
    read on the CPU; raise `ValueError` for 0.
    """
    if table.addresses is None:
        yield from table.entries
        return
    dtype = TYPES_BY_NAME[tensor.dtype]
    storage, held = numpy_storage_type(dtype), storage_shape(shape, dtype)
    for number, address in enumerate(table.addresses.as_numpy(np.dtype(np.uint64)).reshape(-1).tolist()):
        if not address and 0 not in held:
            raise ValueError(f"address {number} of {tensor.name} is 0")
        yield View(address, storage.name, held, dense_strides(held), (CPU, 0))


def join_entries(tensor: TensorInfo, entries: list[View], shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Return an array of the tensor's `shape`, the table's extents first, with copies of its entries."""
    dtype = TYPES_BY_NAME[tensor.dtype]
    storage = numpy_storage_type(dtype)
    joined: NDArray[np.generic] = np.zeros(storage_shape(shape, dtype), storage)
    for index, one in zip(np.ndindex(*shape[: tensor.table]), entries, strict=True):
        joined[index] = one.as_numpy(storage)
    return joined


def copy_to_entries(tensor: TensorInfo, entries: list[View], joined: NDArray[np.generic]) -> None:
    """Copy the parts of a table's joined array to the arrays at its entries."""
    for index, one in zip(np.ndindex(*joined.shape[: tensor.table]), entries, strict=True):
        one.as_numpy(joined.dtype)[...] = joined[index]


def check_entries(tensor: TensorInfo, table: TableArgument, extents: tuple[int, ...]) -> None:
    """Raise `ValueError` for a table of other extents, or for arrays that are written and the same memory."""
    if table.extents != extents:
        raise ValueError(f"{tensor.name} has {list(table.extents)} addresses, the kernel takes {list(extents)}")
    places = [one.address for one in table.entries if math.prod(one.shape)]
    if tensor.role != "in" and len(set(places)) < len(places):
        raise ValueError(f"two arrays of {tensor.name}, which are written, are the same memory")
