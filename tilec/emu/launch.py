"""Runs one kernel of a PTX module over a grid, from numpy arrays to numpy arrays."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

import numpy as np

from tilec.emu import (
    access,
    atomics,
    bits,
    blocks,
    bulk,
    calls,
    carry,
    control,
    cvt,
    functions,
    integers,
    matrix,
    mbarrier,
    mma,
    moves,
    registers,
    remote,
    semantics,
    tcgen05,
    tcgen05_alloc,
    tcgen05_mma,
    tensormap_replace,
    warps,
    wgmma,
    wmma,
)
from tilec.emu.asyncops import AsyncState
from tilec.emu.decode import Program
from tilec.emu.fault import Fault, SourceLocation
from tilec.emu.machine import LaunchState
from tilec.emu.memory import GLOBAL_BASE, PARAM_WINDOW, VALID, Memory
from tilec.emu.moments import Moments
from tilec.emu.numbers import TYPES, Array
from tilec.emu.order import EventLog
from tilec.emu.tensormap import Columns, TensorMap, encode
from tilec.emu.timeline import Event, Timeline
from tilec.ptx.module import Entry, Module, Param, Variable
from tilec.ptx.parse import parse_module
from tilec.records import dataclass

__all__ = ["Columns", "Fault", "Report", "SourceLocation", "TensorMap", "launch"]

# Importing a module of semantics registers its instructions.
FAMILIES = (
    *(access, atomics, bits, bulk, calls, carry, control, cvt, integers, matrix, mbarrier, mma, moves, registers),
    *(remote, semantics, tcgen05, tcgen05_alloc, tcgen05_mma, tensormap_replace, warps, wgmma, wmma),
)

_ALIGNMENT = 256
_GUARD = 256
"""Nothing is allocated between arrays, so that running off one is noticed."""


@dataclass(frozen=True, slots=True)
class Report:
    """What ran: warp instructions by stem, in the order of their first place in the kernel, and how many blocks.

    If asked for: what happened at the barriers; for a sample of the blocks, which elements of each argument they wrote.
    """

    counts: dict[str, int] = field(default_factory=dict)
    blocks: int = 0
    timeline: tuple[Event, ...] = ()
    written: tuple[Array | None, ...] = ()

    @property
    def instructions(self) -> int:
        return sum(self.counts.values())


def launch(
    ptx: str,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[object],
    *,
    cluster: int | Sequence[int] = (1, 1, 1),
    dynamic_smem: int = 0,
    adversary: int | None = None,
    races: bool = True,
    jobs: int = 1,
    sample: tuple[int, int] | None = None,
    timeline: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Run kernel `entry`. `args` are its parameters in order: arrays (written in place), numbers by `.param` type,
    `TensorMap`, `None` for a null pointer, bytes as they are, or a tuple for a C struct.

    Raises `Fault` on whatever the hardware does not promise to do; `races` says whether that includes data races. An
    `adversary` is the seed of an unfriendly but legal machine: garbage in fresh registers, an arbitrary order of warps,
    and asynchronous operations that act at any moment. `jobs` processes share the blocks where no block can see
    another one's work. A `sample` (blocks, seed) runs only some of them.
    """
    module = _parse(ptx)
    kernel = _find_entry(module, entry)
    sizes = [_three(extents) for extents in (grid, block, cluster)]
    if _directive(kernel, ".reqntid") not in (None, sizes[1]):
        raise ValueError(f"{entry} must be launched with blocks of {_directive(kernel, '.reqntid')}, not {sizes[1]}")
    if _directive(kernel, ".reqnctapercluster") not in (None, sizes[2]):
        required = _directive(kernel, ".reqnctapercluster")
        raise ValueError(f"{entry} must be launched with clusters of {required}, not {sizes[2]}")
    allocator = _Allocator(module)
    params = _pack_params(kernel, args, allocator)
    jobs = jobs if blocks.can_fork() else 1
    memory, symbols = allocator.build(is_shared_by_processes=jobs > 1)
    program = Program(module, kernel, symbols, dynamic_smem)
    generator = None if adversary is None else random.Random(adversary)
    state = LaunchState(
        program=program,
        grid=sizes[0],
        block=sizes[1],
        cluster=sizes[2],
        dynamic_smem=dynamic_smem,
        memory=memory,
        params=params,
        random=generator,
        make_async_state=AsyncState,
        counts=[0] * len(program.steps),
        events=EventLog(),
        moments=Moments(generator),
        watches_races=races,
        timeline=Timeline() if timeline else None,
    )
    is_divided = blocks.are_independent(program.steps)
    if races or sample is not None:
        memory.track_owners(is_divided and races, blocks.shared_buffer(memory.size) if jobs > 1 else None)
    clusters = _clusters(sizes[0], sizes[2])
    if sample is not None:
        clusters = blocks.sampled(clusters, *sample)
    try:
        with np.errstate(all="ignore"):
            outcome = blocks.run(state, clusters, adversary, jobs if is_divided else 1, progress)
    finally:
        allocator.copy_back(memory)
    counts: dict[str, int] = {}
    for step, count in zip(program.steps, outcome.counts, strict=True):
        counts[step.stem] = counts.get(step.stem, 0) + count
    written = tuple(allocator.written(value, memory) for value in args) if sample is not None else ()
    return Report(counts, outcome.done, tuple(outcome.events), written)


@lru_cache(maxsize=8)
def _parse(ptx: str) -> Module:
    return parse_module(ptx)


def _find_entry(module: Module, name: str) -> Entry:
    for entry in module.entries:
        if entry.name == name:
            return entry
    names = ", ".join(entry.name for entry in module.entries)
    raise ValueError(f"the module has no entry '{name}'; it has {names or 'none'}")


def _directive(entry: Entry, name: str) -> tuple[int, int, int] | None:
    """The extents that a performance directive of the kernel fixes."""
    for directive in entry.directives:
        word, _, values = directive.partition(" ")
        if word == name:
            return _three([int(value) for value in values.split(",")])
    return None


def _three(extents: int | Sequence[int]) -> tuple[int, int, int]:
    values = [extents] if isinstance(extents, int) else [int(extent) for extent in extents]
    x, y, z = [*values, 1, 1][:3]
    return x, y, z


def _clusters(grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> list[list[tuple[int, int, int]]]:
    """The positions of the blocks of each cluster, x fastest."""
    if any(extent % size for extent, size in zip(grid, cluster, strict=True)):
        raise ValueError(f"a grid of {grid} is not made of clusters of {cluster}")
    starts = itertools.product(*(range(0, grid[axis], cluster[axis]) for axis in (2, 1, 0)))
    inside = list(itertools.product(*(range(cluster[axis]) for axis in (2, 1, 0))))
    return [[(x + i, y + j, z + k) for k, j, i in inside] for z, y, x in starts]


class _Allocator:
    """Gives every array an address; views of one array share its memory."""

    def __init__(self, module: Module) -> None:
        self._next = GLOBAL_BASE
        self._roots: dict[int, tuple[Array, int]] = {}
        self._functions = functions.addresses(module)
        self._variables: list[tuple[Variable, int]] = []
        for variable in module.variables:
            if variable.space in ("global", "const"):
                self._variables.append((variable, self._reserve(variable.size)))

    def _reserve(self, size: int) -> int:
        start = self._next
        self._next += -(-size // _ALIGNMENT) * _ALIGNMENT + _GUARD
        return start

    def address(self, array: Array) -> int:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        if not root.flags.forc:
            raise ValueError("an argument must be a view of a contiguous array")
        if id(root) not in self._roots:
            self._roots[id(root)] = (root, self._reserve(root.nbytes))
        start = self._roots[id(root)][1]
        return start + int(array.__array_interface__["data"][0]) - int(root.__array_interface__["data"][0])

    def build(self, *, is_shared_by_processes: bool) -> tuple[Memory, dict[str, int]]:
        """Global memory with everything copied in, and the addresses of the module's variables."""
        size = self._next - GLOBAL_BASE
        buffer = blocks.shared_buffer(-(-size // 16) * 16) if is_shared_by_processes else None
        memory = Memory("global", GLOBAL_BASE, size, buffer=buffer)
        symbols = self._functions | {variable.name: start for variable, start in self._variables}
        for variable, start in self._variables:
            memory.allocate(variable.name, start, variable.size, VALID)
            offset = start - GLOBAL_BASE
            data = initial_bytes(variable, symbols)
            memory.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        for number, (root, start) in enumerate(self._roots.values()):
            memory.allocate(f"array {number}", start, root.nbytes, VALID)
            offset = start - GLOBAL_BASE
            memory.bytes[offset : offset + root.nbytes] = _flat_bytes(root)
        return memory, symbols

    def written(self, value: object, memory: Memory) -> Array | None:
        """Which elements of an argument some block has written; None if it is no array."""
        array = value.array if isinstance(value, TensorMap) else value
        if not isinstance(array, np.ndarray) or not array.ndim or memory.owner is None:
            return None
        start = self.address(array) - GLOBAL_BASE
        tags = np.ndarray(array.shape, np.uint8, buffer=memory.owner.data, offset=start, strides=array.strides)
        found: Array = tags != 0
        return found

    def copy_back(self, memory: Memory) -> None:
        for root, start in self._roots.values():
            if root.flags.writeable:
                offset = start - GLOBAL_BASE
                _flat_bytes(root)[:] = memory.bytes[offset : offset + root.nbytes]


def initial_bytes(variable: Variable, symbols: dict[str, int]) -> bytes:
    """What a variable holds when the kernel starts."""
    data = bytearray(variable.data)
    for item in variable.relocations:
        if item.symbol not in symbols:
            raise Fault("unsupported", f"the address of '{item.symbol}' in '{variable.name}'", variable.line)
        bits = (symbols[item.symbol] + item.addend) >> item.shift
        data[item.offset : item.offset + item.size] = bits.to_bytes(8, "little")[: item.size]
    return bytes(data)


def _flat_bytes(array: Array) -> Array:
    """The memory of a contiguous array, as bytes and in place."""
    ordered = array if array.flags.c_contiguous else array.T
    return ordered.reshape(-1).view(np.uint8)


def _pack_params(entry: Entry, args: Sequence[object], allocator: _Allocator) -> Memory:
    if len(args) != len(entry.params):
        raise ValueError(f"{entry.name} takes {len(entry.params)} arguments, not {len(args)}")
    packed = []
    offset = 0
    for param, value in zip(entry.params, args, strict=True):
        element = TYPES[param.type].bits // 8
        size = element if param.size is None else param.size
        align = max(element, param.align or 1)
        offset = -(-offset // align) * align
        data = _pack(param, value, allocator)
        if len(data) != size:
            raise ValueError(f"parameter {param.name} is {size} bytes, its argument {len(data)}")
        packed.append((param.name, offset, data))
        offset += size
    memory = Memory("parameter", PARAM_WINDOW, max(offset, 1))
    for name, start, data in packed:
        memory.allocate(name, PARAM_WINDOW + start, len(data), VALID)
        memory.bytes[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memory


def _pack(param: Param, value: object, allocator: _Allocator) -> bytes:
    if isinstance(value, TensorMap):
        return encode(value, allocator.address(value.array))
    if isinstance(value, np.ndarray) and value.ndim:
        return allocator.address(value).to_bytes(8, "little")
    if isinstance(value, bytes):
        return value
    if isinstance(value, tuple):
        return _pack_struct(value, allocator)
    size = TYPES[param.type].bits // 8 if param.size is None else param.size
    if value is None:
        return bytes(size)
    if param.size is not None:
        if value == 0:
            return bytes(size)
        raise ValueError(f"parameter {param.name} is an array of bytes: pass bytes, a tuple or an array")
    number: Any = value
    view = TYPES[param.type]
    if view.kind == "f":
        return np.array(number, view.dtype).tobytes()
    if isinstance(number, (float, np.floating)):
        return _float_bytes(float(number), size)
    return (int(number) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _float_bytes(number: float, size: int) -> bytes:
    """A float for an untyped parameter: `.b32` holds an f32."""
    formats = {2: "<e", 4: "<f", 8: "<d"}
    return struct.pack(formats[size], number)


def _pack_struct(fields: tuple[object, ...], allocator: _Allocator) -> bytes:
    """A C struct: pointers for arrays, numpy numbers with their own size and alignment."""
    data = b""
    widest = 1
    for value in fields:
        if isinstance(value, np.ndarray) and value.ndim:
            part = allocator.address(value).to_bytes(8, "little")
        elif value is None:
            part = bytes(8)
        else:
            part = np.asarray(value).tobytes()
        widest = max(widest, len(part))
        data = data.ljust(-(-len(data) // len(part)) * len(part), b"\0") + part
    return data.ljust(-(-len(data) // widest) * widest, b"\0")
