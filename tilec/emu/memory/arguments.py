"""The arguments of a launch: arrays as global memory, and all arguments as the bytes of the kernel's parameters."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tilec.emu.calls import functions
from tilec.emu.fault import Fault
from tilec.emu.machine import blocks
from tilec.emu.memory.memory import GLOBAL_BASE, PARAM_WINDOW, VALID, Memory
from tilec.emu.numbers import TYPES, Array
from tilec.emu.tma.tensormap import TensorMap, encode_map
from tilec.ptx.module import Entry, Module, Param, Variable
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass

_ALIGNMENT = 256
_GUARD = 256
"""Unallocated bytes after each array, so that an access past its end faults."""


@dataclass(frozen=True, slots=True)
class ArrayPiece:
    """Bytes `start` to `end` of the array `root`, at `address`."""

    root: Array
    start: int
    end: int
    address: int


class AddressTable:
    """An argument that is a table of addresses: that of `array[index]` for each index of the first `rank` axes. Each
    has memory of its own."""

    def __init__(self, array: Array, rank: int = 1) -> None:
        self.array, self.rank = array, rank
        self.cells: Array = np.zeros(array.shape[:rank], np.uint64)

    def list_entries(self) -> Iterator[tuple[tuple[int, ...], Array]]:
        """Yield the index of each entry, and the array at its address."""
        for index in np.ndindex(*self.cells.shape):
            yield index, self.array[index]


class Allocator:
    """Gives every array an address, a multiple of 256 as cudaMalloc does. Overlapping views of one array share one
    allocation."""

    def __init__(self, module: Module, args: Sequence[object] = ()) -> None:
        self._next = GLOBAL_BASE
        self._placed: dict[IdentityKey[Array], list[ArrayPiece]] = {}
        self._functions = functions.assign_function_addresses(module)
        self._variables: list[tuple[Variable, int]] = []
        for variable in module.variables:
            if variable.space in ("global", "const"):
                self._variables.append((variable, self._reserve_bytes(variable.size)))
        self._place_arrays(_find_arrays(args))
        for table in args:
            if isinstance(table, AddressTable):
                for index, array in table.list_entries():
                    table.cells[index] = self.find_address(array)

    def _reserve_bytes(self, size: int) -> int:
        """Reserve bytes of global memory, aligned and with an unallocated gap behind, and return their address."""
        start = self._next
        self._next += -(-size // _ALIGNMENT) * _ALIGNMENT + _GUARD
        return start

    def _place_arrays(self, arrays: Iterable[Array]) -> None:
        """Reserve global memory for arrays, one piece for overlapping views of a root; raise `ValueError` as
        `_find_root` does."""
        ranges: dict[IdentityKey[Array], list[tuple[int, int]]] = {}
        for array in arrays:
            root = _find_root(array)
            ranges.setdefault(IdentityKey(root), []).append(_compute_byte_range(array, root))
        for same, of_arrays in ranges.items():
            pieces: list[tuple[int, int]] = []
            for start, end in sorted(of_arrays):
                if pieces and start < pieces[-1][1]:
                    pieces[-1] = (pieces[-1][0], max(pieces[-1][1], end))
                else:
                    pieces.append((start, end))
            placed = self._placed[same] = []
            for start, end in pieces:
                placed.append(ArrayPiece(same.of, start, end, self._reserve_bytes(end - start)))

    def find_address(self, array: Array) -> int:
        """Return the global address of an array argument, or of a view of one."""
        root = _find_root(array)
        start = int(array.__array_interface__["data"][0]) - int(root.__array_interface__["data"][0])
        *_, piece = (piece for piece in self._placed[IdentityKey(root)] if piece.start <= start)
        return piece.address + start - piece.start

    def build_memory(self, *, is_shared_by_processes: bool) -> tuple[Memory, dict[str, int]]:
        """Return global memory with arrays and variables copied in, and the addresses of the module's variables and
        functions."""
        size = self._next - GLOBAL_BASE
        buffer = blocks.make_shared_buffer(-(-size // 16) * 16) if is_shared_by_processes else None
        memory = Memory("global", GLOBAL_BASE, size, buffer=buffer)
        symbols = self._functions | {variable.name: start for variable, start in self._variables}
        for variable, start in self._variables:
            memory.allocate(variable.name, start, variable.size, VALID)
            offset = start - GLOBAL_BASE
            data = build_initial_bytes(variable, symbols)
            memory.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        for number, piece in enumerate(chain.from_iterable(self._placed.values())):
            memory.allocate(f"array {number}", piece.address, piece.end - piece.start, VALID)
            memory.bytes[_slice_piece(piece)] = _view_as_bytes(piece.root)[piece.start : piece.end]
        return memory, symbols

    def find_written(self, value: object, memory: Memory) -> Array | None:
        """Return a mask of the elements of an argument that some block has written; None if it is no array or nothing
        was tracked."""
        if isinstance(value, AddressTable) and memory.owner is not None:
            marked: Array = np.zeros(value.array.shape, np.bool_)
            for index, entry in value.list_entries():
                marked[index] = self.find_written(entry, memory)
            return marked
        array = find_array(value)
        if array is None or memory.owner is None:
            return None
        start = self.find_address(array) - GLOBAL_BASE
        tags = np.ndarray(array.shape, np.uint8, buffer=memory.owner.data, offset=start, strides=array.strides)
        found: Array = tags != 0
        return found

    def copy_back(self, memory: Memory) -> None:
        """Copy global memory back to the caller's arrays, except read-only ones."""
        for piece in chain.from_iterable(self._placed.values()):
            if piece.root.flags.writeable:
                _view_as_bytes(piece.root)[piece.start : piece.end] = memory.bytes[_slice_piece(piece)]


def find_array(value: object) -> Array | None:
    """Return the array that an argument is, or that its tensor map describes; None for a scalar or anything else."""
    array = value.array if isinstance(value, TensorMap) else value
    return array if isinstance(array, np.ndarray) and array.ndim else None


def list_arrays(value: object) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield the arrays that an argument gives access to, each with its index in a table of addresses, else ()."""
    if isinstance(value, AddressTable):
        yield from value.list_entries()
    elif (array := find_array(value)) is not None:
        yield (), array


def _find_arrays(args: Iterable[object]) -> Iterator[Array]:
    """Yield the arrays among the arguments, those inside structs, tables and tensor maps included."""
    for value in args:
        if isinstance(value, AddressTable):
            yield from (array for _, array in value.list_entries())
            yield value.cells
        elif isinstance(value, tuple):
            yield from _find_arrays(value)
        elif (array := find_array(value)) is not None:
            yield array


def _find_root(array: Array) -> Array:
    """Return the array that owns the memory of this one; raise `ValueError` if it is not contiguous or holds
    objects."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not root.flags.forc:
        raise ValueError("an array argument must be contiguous, or a view of a contiguous array")
    if array.dtype.hasobject:
        raise ValueError("an array argument of Python objects has no bytes of its own")
    return root


def _compute_byte_range(array: Array, root: Array) -> tuple[int, int]:
    """Return the first byte of its root that an array spans, and the byte behind its last."""
    start = int(root.__array_interface__["data"][0])
    low, high = np.lib.array_utils.byte_bounds(array)
    return low - start, high - start


def _slice_piece(piece: ArrayPiece) -> slice:
    """Return the slice of global memory's bytes that a piece takes."""
    start = piece.address - GLOBAL_BASE
    return slice(start, start + piece.end - piece.start)


def build_initial_bytes(variable: Variable, symbols: dict[str, int]) -> bytes:
    """Return a variable's contents at kernel start, with the addresses of symbols filled in; fault on an unknown
    symbol."""
    data = bytearray(variable.data)
    for item in variable.relocations:
        if item.symbol not in symbols:
            raise Fault("unsupported", f"the address of '{item.symbol}' in '{variable.name}'", variable.line)
        bits = (symbols[item.symbol] + item.addend) >> item.shift
        data[item.offset : item.offset + item.size] = bits.to_bytes(8, "little")[: item.size]
    return bytes(data)


def _view_as_bytes(array: Array) -> Array:
    """Return a view of a contiguous array's memory as bytes, of a column-major one too."""
    ordered = array if array.flags.c_contiguous else array.T
    return ordered.reshape(-1).view(np.uint8)


def pack_params(entry: Entry, args: Sequence[object], allocator: Allocator) -> Memory:
    """Return a memory that holds the kernel's parameters; raise `ValueError` on a missing argument or one that does not
    fit."""
    if len(args) != len(entry.params):
        named = ", ".join(f"{param.name} ({_describe_param(param)})" for param in entry.params)
        raise ValueError(f"{entry.name} takes {len(entry.params)} arguments, not {len(args)}: {named}")
    packed = []
    offset = 0
    for number, (param, value) in enumerate(zip(entry.params, args, strict=True)):
        align, size = functions.measure_param(param)
        offset = -(-offset // align) * align
        try:
            data = _pack_argument(param, value, allocator)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"argument {number} ({param.name}): {error}") from None
        if len(data) != size:
            mismatch = f"the parameter is {_describe_param(param)}, not {_describe_value(value)} of {len(data)} bytes"
            raise ValueError(f"argument {number} ({param.name}): {mismatch}")
        packed.append((param.name, offset, data))
        offset += size
    memory = Memory("parameter", PARAM_WINDOW, max(offset, 1))
    for name, start, data in packed:
        memory.allocate(name, PARAM_WINDOW + start, len(data), VALID)
        memory.bytes[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memory


def _describe_param(param: Param) -> str:
    """Return a parameter's type, or its size in bytes, in words for an error."""
    return f".{param.type}" if param.size is None else f"{param.size} bytes"


def _describe_value(value: object) -> str:
    """Return what kind of argument a value is, in words for an error."""
    names = {TensorMap: "a tensor map", np.ndarray: "the address of an array", bytes: "bytes", tuple: "a struct"}
    return names.get(type(value), f"a {type(value).__name__}")


def _pack_argument(param: Param, value: object, allocator: Allocator) -> bytes:
    """Return an argument's bytes: of an address, tensor map, struct, bytes or number, zeros for None; refuse any other.
    Raises `ValueError` on what its parameter cannot hold."""
    if isinstance(value, TensorMap):
        return encode_map(value, allocator.find_address(value.array))
    if isinstance(value, AddressTable):
        return allocator.find_address(value.cells).to_bytes(8, "little")
    if isinstance(value, np.ndarray) and value.ndim:
        return allocator.find_address(value).to_bytes(8, "little")
    if isinstance(value, bytes):
        return value
    if isinstance(value, tuple):
        return _pack_struct(value, allocator)
    size = functions.measure_param(param)[1]
    if value is None:
        return bytes(size)
    if not isinstance(value, (bool, int, float, np.generic, np.ndarray)):
        wanted = "an array, a number, a TensorMap, None, bytes or a tuple"
        raise ValueError(f"{_describe_value(value)}, where {wanted} belongs")
    if param.size is not None:
        if value == 0:
            return bytes(size)
        raise ValueError(f"the parameter is {param.size} bytes: pass bytes, a tuple, an array or a TensorMap")
    return _pack_number(param, value, size)


def _pack_number(param: Param, value: Any, size: int) -> bytes:
    """Return a number's bytes in the parameter's type; raise `ValueError` on a float for an integer, or one out of
    range. An untyped parameter of several bytes takes a float."""
    view = TYPES[param.type]
    if view.kind == "f":
        return np.array(value, view.dtype).tobytes()
    is_float = isinstance(value, float) or (isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind == "f")
    if is_float and (param.type[0] in "us" or size == 1):
        raise ValueError(f"{value} is not a whole number, and the parameter is {_describe_param(param)}")
    if is_float:
        # An untyped parameter: `.b32` holds an f32.
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], float(value))
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind not in "iub":
        # A number of a type that numpy does not know, such as ml_dtypes.bfloat16.
        return value.tobytes()
    number = int(value)
    if not -(1 << 8 * size - 1) <= number < 1 << 8 * size:
        raise ValueError(f"{number} does not fit the parameter, which is {_describe_param(param)}")
    return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _pack_struct(fields: tuple[object, ...], allocator: Allocator) -> bytes:
    """Return the bytes of a C struct: addresses for arrays, zeros for None, numpy numbers with their own size and
    alignment."""
    data = b""
    widest = 1
    for value in fields:
        if isinstance(value, np.ndarray) and value.ndim:
            part = allocator.find_address(value).to_bytes(8, "little")
        elif value is None:
            part = bytes(8)
        else:
            part = np.asarray(value).tobytes()
        widest = max(widest, len(part))
        data = data.ljust(-(-len(data) // len(part)) * len(part), b"\0") + part
    return data.ljust(-(-len(data) // widest) * widest, b"\0")
