"""Tensors and tiles, and boxes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meaning.functions import SHAPE
from meaning.numbers import Array, Format
from meaning.quantity import NoMeaning, Operand, Q, convert, quantity

Masked = Callable[[], Array | None]


class Tile:
    """Elements, how sure each is, and which have been written. `is_tensor`: what lies outside reads as `outside`, and
    is not written; of tiles there is nothing outside. `reached`: how large an element may have been while atomics were
    adding to it, in whatever order."""

    def __init__(self, shape: tuple[int, ...], form: Format, is_tensor: bool, masked: Masked) -> None:
        self.shape, self.format, self.is_tensor, self.masked = shape, form, is_tensor, masked
        self.v: Array = np.zeros(shape, form.type)
        self.e: Array = np.zeros(shape)
        self.reached: Array = np.zeros(shape)
        self.written: Array = np.zeros(shape, np.bool_)
        self.outside: float = 0
        self.block, self.owner = -1, np.full(shape if is_tensor else (), -1)
        self.name = ""
        self.copies: list[Tile] = []
        self.met: tuple[list[Array], list[Array]] = [], []

    def used(self, at: tuple[Array, ...], is_set: bool) -> None:
        """What one block has set no other one may read or set: nobody says which is first."""
        if self.is_tensor:
            owners = self.owner[at]
            if np.any((owners >= 0) & (owners != self.block)):
                raise NoMeaning("two blocks use an element that one of them sets")
            if is_set:
                self.owner[at] = self.block

    def meet(self, at: tuple[Array, ...], are: Array, is_set: bool) -> None:
        """The elements of a nest read or set elements of the tile, where they `are` to: what one of them sets no other
        one may use, for nobody says which is first."""
        if len(SHAPE) < 2:
            return
        flat = np.ravel_multi_index(at, self.shape) if at else np.zeros(are.shape, np.int64)
        mine = np.broadcast_to(np.where(are, flat, -1), SHAPE[-1]).ravel()
        read, put = self.met
        for other in put if not is_set else [*read, *put]:
            if _disagree(*((mine, other) if is_set else (other, mine)), self.v.size):
                raise NoMeaning("an element of a loop uses what another one sets")
        if not any(self.met):
            MET.append(self.met)
        (put if is_set else read).append(mine)

    def reach(self, flat: Array, added: Array) -> Array:
        """How large the elements at these places, counted along all dimensions, may have been before this is added."""
        reached = self.reached.reshape(-1)
        before: Array = np.maximum(reached[flat], np.abs(self.v.reshape(-1)[flat].astype(np.float64)))
        reached[flat] = before + np.abs(added.astype(np.float64))
        return before

    @property
    def dtype(self) -> str:
        return self.format.name

    def like(self, shape: tuple[int, ...]) -> Tile:
        """The same elements in another shape."""
        if prod(shape) != prod(self.shape):
            raise NoMeaning("a view with more or fewer elements")
        made = Tile.__new__(Tile)
        made.__dict__ |= self.__dict__
        made.shape = shape
        made.v, made.e, made.written, made.reached = (
            a.reshape(shape) for a in (self.v, self.e, self.written, self.reached)
        )
        made.owner = self.owner.reshape(shape) if self.is_tensor else self.owner
        return made

    def apart(self) -> Tile:
        """A tile of the same kind with elements of its own."""
        made = Tile(self.shape, self.format, self.is_tensor, self.masked)
        made.name = self.name
        return made

    def __getitem__(self, index: Any) -> Place:
        return Place(self, index if isinstance(index, tuple) else (index,))

    def __setitem__(self, index: Any, value: Any) -> None:
        Place(self, index if isinstance(index, tuple) else (index,)).put(quantity(value, self.format))


MET: list[tuple[list[Array], list[Array]]] = []
"""Of the tiles that the nest has met so far: what each of its elements read and set."""


def forget() -> None:
    """Another nest begins."""
    for read, put in MET:
        read.clear()
        put.clear()
    MET.clear()


def _disagree(put: Array, used: Array, size: int) -> bool:
    """Whether some element of a nest uses, of a tile of so many elements, what another one puts there; −1 is none."""
    by = np.full(size, -1, np.int64)
    places = np.flatnonzero(put >= 0)
    by[put[places]] = places
    is_shared = np.bincount(put[places], minlength=size) > 1
    users = np.flatnonzero(used >= 0)
    of = used[users]
    return bool(np.any((by[of] >= 0) & ((by[of] != users) | is_shared[of])))


class Place(Operand):
    """An element of a tile for each element of a loop; or where a box begins."""

    def __init__(self, tile: Tile, index: tuple[Any, ...]) -> None:
        if len(index) != len(tile.shape):
            raise NoMeaning("too few indices, or too many")
        self.tile, self.index = tile, index

    def _where(self, *shapes: tuple[int, ...]) -> tuple[list[Array], Array, tuple[int, ...]]:
        """The indices, each inside, and for which elements they were."""
        indices = [quantity(i).certain().astype(np.int64) for i in self.index]
        shape = np.broadcast_shapes(*(i.shape for i in indices), *shapes)
        indices = [np.broadcast_to(i, shape) for i in indices]
        inside = np.ones(shape, np.bool_)
        for i, extent in zip(indices, self.tile.shape, strict=True):
            inside &= (i >= 0) & (i < extent)
        mask = self.tile.masked()
        if not self.tile.is_tensor and not np.all(inside if mask is None else inside | ~mask):
            raise NoMeaning("an element outside of a tile")
        clipped = [np.clip(i, 0, extent - 1) for i, extent in zip(indices, self.tile.shape, strict=True)]
        return clipped, inside, shape

    def q(self) -> Q:
        indices, inside, _ = self._where()
        at, tile, mask = tuple(indices), self.tile, self.tile.masked()
        if not np.all(tile.written[at] | ~inside | (False if mask is None else ~mask)):
            raise NoMeaning("an element that nobody has written")
        tile.used(at, False)
        tile.meet(at, inside if mask is None else inside & mask, False)
        outside = quantity(tile.outside, tile.format).v
        return Q(np.where(inside, tile.v[at], outside), tile.format, np.where(inside, tile.e[at], 0.0))

    def put(self, value: Q, combine: Callable[[Q, Q], Q] | None = None) -> None:
        """Set the elements, each by one element of the loop."""
        value = convert(value, self.tile.format)
        mask = self.tile.masked()
        indices, inside, shape = self._where(value.v.shape, *(() if mask is None else (mask.shape,)))
        if mask is not None:
            inside = inside & mask
        self.tile.meet(tuple(indices), inside, True)
        at = tuple(i[inside] for i in indices)
        v, e = np.broadcast_to(value.v, shape)[inside], np.broadcast_to(value.e, shape)[inside]
        flat = np.ravel_multi_index(at, self.tile.shape) if at else np.zeros(v.size, np.int64)
        if np.unique(flat).size < flat.size:
            raise NoMeaning("two elements of a loop set one element")
        self.tile.used(at, True)
        self.tile.v[at], self.tile.e[at], self.tile.written[at] = v, e, True

    def found(self) -> Q:
        """What each element of the loop finds, where no other one of the kernel comes first."""
        indices, inside, _ = self._where()
        mask = self.tile.masked()
        self.tile.meet(tuple(indices), inside if mask is None else inside & mask, True)
        self.tile.used(tuple(i[inside] for i in indices), True)
        return self.q()

    def gather(self, value: Q, combine: Callable[[Q, Q, Array], Q], over: tuple[int, ...]) -> None:
        """Combine each element with those that the loop over a shape has for it, one after the other."""
        value = convert(value, self.tile.format)
        mask = self.tile.masked()
        indices, inside, shape = self._where(value.v.shape, over)
        if mask is not None:
            inside = inside & mask
        at = tuple(i[inside] for i in indices)
        v, e = np.broadcast_to(value.v, shape)[inside], np.broadcast_to(value.e, shape)[inside]
        flat = np.ravel_multi_index(at, self.tile.shape) if at else np.zeros(v.size, np.int64)
        tile = self.tile
        if not np.all(tile.written.reshape(-1)[flat]):
            raise NoMeaning("an element that nobody has written")
        order = np.argsort(flat, kind="stable")
        flat, v, e = flat[order], v[order], e[order]
        first = np.searchsorted(flat, flat)
        turn = np.arange(flat.size) - first  # the how-manieth for its element
        targets, errors = tile.v.reshape(-1), tile.e.reshape(-1)
        for now in range(int(turn.max(initial=-1)) + 1):
            of = turn == now
            to = flat[of]
            old = Q(targets[to], tile.format, errors[to])
            new = combine(old, Q(v[of], tile.format, e[of]), tile.reach(to, v[of]))
            targets[to], errors[to] = new.v, new.e


@dataclass
class Box:
    """Neighbours of a tile; `free` where no slice says how many."""

    tile: Tile
    start: tuple[int, ...]
    extent: tuple[int, ...]
    free: bool

    def sized(self, other: Box) -> Box:
        """With the shape of the other side, aligned at the last dimension."""
        if not self.free or other.free:
            return self
        known = list(other.extent)
        mine = ([1] * len(self.start) + known)[-len(self.start) :] if len(known) < len(self.start) else known
        while len(mine) > len(self.start) and mine[0] == 1:
            mine = mine[1:]
        if len(mine) != len(self.start):
            raise NoMeaning("boxes of different dimensions")
        return Box(self.tile, self.start, tuple(mine), False)

    def _indices(self) -> tuple[list[Array], Array]:
        axes = np.ix_(*(np.arange(s, s + e) for s, e in zip(self.start, self.extent, strict=True)))
        inside = np.ones(self.extent, np.bool_)
        for axis, extent in zip(axes, self.tile.shape, strict=True):
            inside &= (axis >= 0) & (axis < extent)
        if not self.tile.is_tensor and not inside.all():
            raise NoMeaning("a box outside of its tile")
        return [np.clip(a, 0, x - 1) for a, x in zip(axes, self.tile.shape, strict=True)], inside

    def read(self, is_shared: bool = False) -> Q:
        """`is_shared`: as one step of many blocks."""
        axes, inside = self._indices()
        at = tuple(axes)
        if not np.all(self.tile.written[at] | ~inside):
            raise NoMeaning("a box that nobody has written")
        if not is_shared:
            self.tile.used(at, False)
        outside = quantity(self.tile.outside, self.tile.format).v
        return Q(np.where(inside, self.tile.v[at], outside), self.tile.format, np.where(inside, self.tile.e[at], 0.0))

    def reach(self, added: Array) -> Array:
        """How large its elements may have been, before this is added to them; what lies outside has no size."""
        axes, inside = self._indices()
        found = np.zeros(self.extent)
        at = tuple(np.broadcast_to(a, self.extent)[inside] for a in axes)
        found[inside] = self.tile.reach(np.ravel_multi_index(at, self.tile.shape), added[inside])
        return found

    def write(self, value: Q, is_shared: bool = False) -> None:
        """Of the box's shape but for extents of 1."""
        value = convert(value, self.tile.format)
        axes, inside = self._indices()
        if squeezed(value.v.shape) != squeezed(self.extent):
            raise NoMeaning(f"{value.v.shape} into {self.extent}")
        at = tuple(np.broadcast_to(a, self.extent)[inside] for a in axes)
        if not is_shared:
            self.tile.used(at, True)
        self.tile.v[at] = value.v.reshape(self.extent)[inside]
        self.tile.e[at] = np.broadcast_to(value.e, value.v.shape).reshape(self.extent)[inside]
        self.tile.written[at] = True


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(e for e in shape if e != 1)


def box(x: Any) -> Box:
    """What an operation is given: a tile, or where a box of one begins and ends."""
    if isinstance(x, Tile):
        return Box(x, (0,) * len(x.shape), x.shape, False)
    if not isinstance(x, Place):
        raise NoMeaning("no tile")
    start, extent, free = [], [], not any(isinstance(i, slice) for i in x.index)
    for index, whole in zip(x.index, x.tile.shape, strict=True):
        if isinstance(index, slice):
            first = 0 if index.start is None else int(index.start)
            last = whole if index.stop is None else int(index.stop)
            start.append(first)
            extent.append(last - first)
        else:
            start.append(int(quantity(index)))
            extent.append(1)
    return Box(x.tile, tuple(start), tuple(extent), free)


def boxes(source: Any, target: Any) -> tuple[Box, Box]:
    """Both sides of a copy."""
    a, b = box(source), box(target)
    return a.sized(b), b.sized(a)
