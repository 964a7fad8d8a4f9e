"""A kernel while it is drawn: its parameters, its tiles, and where in loops the next statement stands."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeVar

Scope = Literal["shared", "fragment", "tmem"]
Some = TypeVar("Some")

FLOATS = ("float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int32", "int8", "uint8", "int64", "uint32", "int16", "uint16", "uint64")
SMALL = ("float4_e2m1fn", "float8_e8m0fnu", "int4", "uint4", "bool")
TYPES = FLOATS + INTEGERS + SMALL
NIBBLES = ("float4_e2m1fn", "int4", "uint4")
BITS = {
    **dict.fromkeys(("float64", "int64", "uint64"), 64), **dict.fromkeys(("float32", "int32", "uint32"), 32),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16), **dict.fromkeys(NIBBLES, 4),
}  # fmt: skip
"""Of those that are not 8."""

ALSO = {
    "float32": ("float", "tf32", "tfloat32"), "float16": ("half",), "float64": ("double",), "int32": ("int",),
    "int64": ("long",), "int16": ("short",), "uint32": ("uint",), "float8_e4m3fn": ("float8_e4m3",),
    "float4_e2m1fn": ("float4_e2m1",), "float8_e8m0fnu": ("float8_e8m0",),
}  # fmt: skip
"""Other names of types."""

SIDES = (1, 2, 3, 4, 5, 7, 8, 8, 12, 16, 16, 17, 24, 32, 32, 33, 40, 48, 64, 64)
LARGEST = 2048
"""Elements of a tile: each costs the emulator time."""


class Cannot(Exception):
    """This statement has no place here: another one is drawn."""


@dataclass(frozen=True)
class Tile:
    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: Scope

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Loop:
    """A variable that counts from 0."""

    name: str
    extent: int


class Kernel:
    """Statements are added line by line. `ready` are the tiles that hold something; `steady` are those that a loop
    around must not write; `told` those with hints, which are the `notes`. Where `taken` says what counts tiles, blocks
    do not."""

    def __init__(self, rng: random.Random, target: str, name: str = "kernel") -> None:
        self.rng, self.target, self.name = rng, target, name
        self.threads = self.pick((128, 128, 128, 256, 64, 32))
        self.grid = self.pick(((1,), (2,), (3,), (2, 2), (1, 2)))
        self.has_cluster = target != "sm_80" and self.grid[0] == 2 and self.chance(0.15)
        self.sizes: dict[str, int] = {}
        self.above: list[str] = []
        self.parameters: list[str] = []
        self.tiles: list[Tile] = []
        self.ready: set[str] = set()
        self.steady: set[str] = set()
        self.loops: list[Loop] = []
        self.values: list[tuple[str, str]] = []  # variables, by name and type
        self.lines: list[str] = []
        self.names = 0
        self.depth = 2
        self.is_conditional = False
        self.taken: list[Loop] = []
        self.told: set[str] = set()
        self.notes: list[str] = []

    # -- choices

    def pick(self, items: Sequence[Some]) -> Some:
        return items[self.rng.randrange(len(items))]

    def chance(self, part: float) -> bool:
        return self.rng.random() < part

    def dtype(self) -> str:
        return self.pick(self.pick((FLOATS[:3], FLOATS, INTEGERS[:2], INTEGERS, SMALL)))

    def spelled(self, dtype: str) -> str:
        """A type, as one of its names."""
        name = self.pick(ALSO.get(dtype, (dtype,))) if self.chance(0.1) else dtype
        return f"T.{name}" if self.chance(0.2) else repr(name)

    def shape(self, dtype: str, rank: int | None = None) -> tuple[int, ...]:
        rank = rank or self.pick((1, 2, 2, 2, 3))
        while True:
            shape = tuple(self.pick(SIDES[:12] if rank == 3 else SIDES) for _ in range(rank))
            if rank == 1 and self.chance(0.5):
                shape = (self.pick((64, 96, 100, 128, 200, 256, 1)),)
            if dtype in NIBBLES:
                shape = (*shape[:-1], max(shape[-1] // 2 * 2, 2))
            if prod(shape) <= min(LARGEST, 16 * self.threads):
                return shape

    # -- text

    def new(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    @contextmanager
    def inside(self, head: str) -> Iterator[None]:
        """A block; what it fills first is not ready behind it if it may be left out."""
        self.emit(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.emit("pass")
        self.depth -= 1

    def text(self) -> str:
        """The function, without what stands at the head of the file."""
        extents = ", ".join(map(str, self.grid))
        variables = ", ".join(b.name for b in self.blocks)
        names = variables if len(self.grid) == 1 else f"({variables})"
        word, more = ("ClusterKernel", "cluster_dims=2, ") if self.has_cluster else ("Kernel", "")
        allocations = [
            f"        {t.name} = T.alloc_{t.scope}({list(t.shape)}, {self.spelled(t.dtype)})"
            for t in self.tiles
            if not t.name.startswith("_")
        ]
        return "\n".join(
            (
                *self.above,
                "@T.prim_func",
                f"def {self.name}({', '.join(self.parameters)}):",
                f"    with T.{word}({extents}, {more}threads={self.threads}) as {names}:",
                *allocations,
                *(f"        {note}" for note in self.notes),
                *self.lines,
                "",
            )
        )

    @property
    def blocks(self) -> list[Loop]:
        return [Loop(name, extent) for name, extent in zip(("bx", "by"), self.grid, strict=False)]

    # -- parameters and tiles

    def tensor(self, shape: tuple[int, ...], dtype: str, letter: str = "A") -> str:
        """A new parameter."""
        name = self.new(letter)
        extents = []
        for extent in shape:
            if dtype not in NIBBLES and self.chance(0.04):
                size = self.new("n")
                self.sizes[size] = extent
                self.above.append(f'{size} = T.{self.pick(("dynamic", "dynamic", "symbolic"))}("{size}")')
                extents.append(size)
            else:
                extents.append(str(extent))
        told = f"[{', '.join(extents)}], "
        if letter == "A" and dtype not in NIBBLES and not set(extents) & set(self.sizes) and self.chance(0.03):
            steps = [1]
            for extent in reversed(shape[1:]):
                steps.insert(0, steps[0] * extent + self.pick((0, 1, 8)))
            self.parameters.append(f"{name}: T.StridedTensor({told}{steps}, {self.spelled(dtype)})")
        else:
            word = self.pick(("Tensor",) * 9 + ("Buffer",))
            self.parameters.append(f"{name}: T.{word}({told}{self.spelled(dtype)})")
        return name

    def scalar(self, value: int) -> str:
        name = self.new("n")
        self.sizes[name] = value
        self.parameters.append(f"{name}: T.int32")
        return name

    def tile(self, shape: tuple[int, ...], dtype: str, scope: Scope) -> Tile:
        made = Tile(self.new(scope[0]), shape, dtype, scope)
        self.tiles.append(made)
        return made

    def filled(self, able: Callable[[Tile], bool] = lambda _: True) -> Tile:
        """One that holds something."""
        found = [t for t in self.tiles if t.name in self.ready and able(t)]
        if not found:
            raise Cannot
        return self.pick(found)

    def target_of(self, shape: tuple[int, ...], dtype: str, scope: Scope | None = None) -> Tile:
        """One of a shape to be written: an old one, or most often a new one."""
        scope = scope or self.pick(("shared", "fragment"))
        old = [
            t
            for t in self.tiles
            if t.shape == shape and t.dtype == dtype and t.scope == scope and t.name not in self.steady
        ]
        if old and self.chance(0.4):
            return self.pick(old)
        if len(self.tiles) > 9:
            raise Cannot
        return self.tile(shape, dtype, scope)

    # -- places

    def counters(self) -> list[Loop]:
        return (self.taken or self.blocks) + self.loops

    def start(self, extent: int, step: int = 1) -> tuple[str, int]:
        """Where along a dimension a box of a tensor begins, and the largest that this may be."""
        able = [c for c in self.counters() if c.extent <= 8]
        able = [c for c in able if c.extent]
        kind = self.rng.random()
        if kind < 0.35 or not able:
            offset = self.pick((0, 0, 0, 1, 3, 4, 8, 16)) // step * step
            return str(offset), offset
        counter = self.pick(able)
        by = self.pick((extent, extent, extent, -(-extent // step) * step, 8))
        by = max(by // step * step, step)
        if kind > 0.9:
            return f"{counter.name} * {by} + {4 * step}", (counter.extent - 1) * by + 4 * step
        if kind > 0.84:
            return f"({counter.extent - 1} - {counter.name}) * {by}", (counter.extent - 1) * by
        return f"{counter.name} * {by}", (counter.extent - 1) * by

    def own(self, shape: tuple[int, ...]) -> tuple[list[str], tuple[int, ...]]:
        """Where a box begins that no other block or iteration writes to, and the shape of the tensor."""
        counters = self.counters()
        count = prod(max(c.extent, 1) for c in counters)
        number = "0"
        for c in counters:
            number = c.name if number == "0" else f"({number} * {max(c.extent, 1)} + {c.name})"
        if self.chance(0.3) or not shape:
            return [number, *("0" for _ in shape)], (count, *shape)
        start = number if shape[0] == 1 else f"{number} * {shape[0]}"
        return [start, *("0" for _ in shape[1:])], (count * shape[0], *shape[1:])
