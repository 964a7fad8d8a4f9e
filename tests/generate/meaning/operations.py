"""Operations on tiles, by numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meaning.functions import SHAPE, absolute
from meaning.numbers import Array, Format, rounded
from meaning.quantity import NoMeaning, Q, add, bitwise, convert, larger, quantity, settled, smaller, unit, whole
from meaning.tiles import Place, Tile, box, boxes, squeezed


def copy(source: Any, target: Any, **_: Any) -> None:
    a, b = boxes(source, target)
    b.write(a.read())


def fill(target: Any, value: Any) -> None:
    if isinstance(target, Reducer):
        return target.begin(value)
    b = box(target)
    q = convert(quantity(value, b.tile.format), b.tile.format)
    return b.write(Q(np.broadcast_to(q.v, b.extent), q.format, np.broadcast_to(q.e, b.extent)))


def clear(target: Any) -> None:
    fill(target, 0)


def transpose(source: Any, target: Any) -> None:
    q = box(source).read()
    box(target).write(Q(q.v.T, q.format, q.e.T))


# ---- sums ------------------------------------------------------------------------------------------------------------


def _grain(values: Array) -> float:
    """A power of two that all of them are multiples of, if they are of a moderate one."""
    for power in (0, -4, -10):
        scaled = values * 2.0**-power
        if np.all(scaled == np.floor(scaled)):
            return 2.0**power
    return 0.0


def summed(total: Array, terms: Array, size: Array, e: Array, digits: int, form: Format) -> Q:
    """A sum in any order, in a type of so many digits; `size` is the sum of the terms' sizes."""
    grain = _grain(terms)
    largest = float(size.max(initial=0.0))
    if not np.any(e) and grain and largest <= grain * 2.0**digits:
        return settled(total, form, np.zeros(total.shape))
    lost = size * 2.0 ** (1 - digits) * max(terms.shape[-1] if terms.ndim else 1, 4)
    with np.errstate(all="ignore"):
        return settled(total, form, np.where(np.isfinite(lost), e + lost, np.inf))


def _fold_sum(q: Q, axis: int) -> Q:
    if not q.format.is_float:
        e = np.broadcast_to(q.e, q.v.shape).sum(axis=axis)
        return whole(q.v.sum(axis=axis, dtype=q.format.type), q.format, e)
    digits = 53 if q.format.name == "float64" else q.format.digits
    with np.errstate(all="ignore"):
        return summed(
            q.v.sum(axis=axis),
            np.moveaxis(q.v, axis, -1),
            np.abs(q.v).sum(axis=axis),
            q.e.sum(axis=axis),
            digits,
            q.format,
        )


def _fold(op: Callable[[Any, Any], Q]) -> Callable[[Q, int], Q]:
    def fold(q: Q, axis: int) -> Q:
        v, e = np.moveaxis(q.v, axis, 0), np.moveaxis(q.e, axis, 0)
        total = Q(v[0], q.format, e[0])
        for i in range(1, len(v)):
            total = op(total, Q(v[i], q.format, e[i]))
        return total

    return fold


COMBINE: dict[str, Callable[[Any, Any], Q]] = {
    "sum": add,
    "max": larger,
    "min": smaller,
    "bitand": lambda a, b: bitwise(np.bitwise_and, a, b),
    "bitor": lambda a, b: bitwise(np.bitwise_or, a, b),
    "bitxor": lambda a, b: bitwise(np.bitwise_xor, a, b),
}
FOLD: dict[str, Callable[[Q, int], Q]] = {name: _fold(op) for name, op in COMBINE.items()} | {"sum": _fold_sum}


def reduction(kind: str) -> Callable[..., None]:
    is_size = kind.startswith("abs")
    plain = kind.removeprefix("abs")

    def reduce(source: Any, out: Any, dim: int = -1, clear: bool = True, **_: Any) -> None:
        a, b = box(source), box(out)
        q = a.read()
        kept = tuple(e for i, e in enumerate(a.extent) if i != dim % len(a.extent))
        if isinstance(source, Place):  # a box, of which dimensions of one element do not count
            sides = [i for i, e in enumerate(a.extent) if e != 1 or not _is_index(source, i)]
            q = Q(q.v.reshape([a.extent[i] for i in sides]), q.format, q.e.reshape([a.extent[i] for i in sides]))
            kept = tuple(e for i, e in enumerate(q.v.shape) if i != dim % q.v.ndim)
        if is_size:
            # The smallest integer has no size of its type: what becomes of it, nobody says.
            lost = np.zeros(()) if q.format.is_float else np.where(q.v == q.format.range[0], np.inf, 0.0)
            q = absolute(q)
            q = Q(q.v, q.format, q.e + (lost if q.format.kind == "int" else 0.0))
        made = FOLD[plain](q, dim % q.v.ndim)
        if squeezed(made.v.shape) != squeezed(b.extent) or squeezed(kept) != squeezed(b.extent):
            raise NoMeaning("a reduction into another shape")
        made = Q(made.v.reshape(b.extent), made.format, np.broadcast_to(made.e, made.v.shape).reshape(b.extent))
        b.write(made if clear else COMBINE[plain](b.read(), made))

    return reduce


def _is_index(place: Place, dim: int) -> bool:
    return not isinstance(place.index[dim], slice)


def scan(op: Callable[[Any, Any], Q], is_sum: bool) -> Callable[..., None]:
    def scanned(source: Any, target: Any = None, dim: int = 0, reverse: bool = False) -> None:
        a = box(source)
        b = a if target is None else box(target)
        q = a.read()
        sides = list(a.extent)
        axis = dim % len(sides)
        v, e = (np.moveaxis(x, axis, 0)[:: -1 if reverse else 1] for x in (q.v, q.e))
        if is_sum and q.format.is_float:
            # Carried in float32 where that is wider, and added in any order.
            parts = [_fold_sum(Q(v[: i + 1], q.format, e[: i + 1]), 0) for i in range(len(v))]
        else:
            parts = [Q(v[0], q.format, e[0])]
            for i in range(1, len(v)):
                parts.append(op(parts[-1], Q(v[i], q.format, e[i])))
        in_order = slice(None, None, -1 if reverse else 1)
        v = np.moveaxis(np.stack([p.v for p in parts])[in_order], 0, axis)
        e = np.moveaxis(np.stack([np.broadcast_to(p.e, p.v.shape) for p in parts])[in_order], 0, axis)
        b.write(Q(v, q.format, e))

    return scanned


# ---- products --------------------------------------------------------------------------------------------------------


def gemm(
    a: Any, b: Any, c: Any, transpose_A: bool = False, transpose_B: bool = False, *_: Any, clear_accum: Any = False,
    **__: Any,
) -> None:  # fmt: skip
    x, y, target = _matrix(a), _matrix(b), box(c)
    x = Q(x.v.T, x.format, x.e.T) if transpose_A else x
    y = Q(y.v.T, y.format, y.e.T) if transpose_B else y
    form = target.tile.format
    is_clear = bool(clear_accum)
    shape = target.extent
    old = Q(np.zeros(shape), form) if is_clear else target.read()
    if not form.is_float:
        made = x.v.astype(np.int64) @ y.v.astype(np.int64)
        if np.any(x.e) or np.any(y.e):
            raise NoMeaning("an inexact product of integers")
        target.write(whole(old.v.astype(np.int64) + made, form, old.e))
        return
    if x.format.name == "float32":  # as tf32, cut off
        x, y = _cut(x), _cut(y)
    with np.errstate(all="ignore"):
        total = x.v @ y.v + old.v
        sizes = np.abs(x.v) @ np.abs(y.v) + np.abs(old.v)
        e = old.e + x.e @ (np.abs(y.v) + y.e) + np.abs(x.v) @ y.e
        e = np.where(np.isnan(e), np.inf, e)
        grain = _grain(x.v) * _grain(y.v)
        is_whole = bool(grain) and _grain(old.v) >= grain
        # Tensor cores drop digits of terms far below the largest one.
        digits = 52 if x.format.name == "float64" else min(form.digits, 22 if x.format.bits > 8 else 13)
        if is_whole and not np.any(e) and float(sizes.max(initial=0.0)) <= grain * 2.0 ** min(digits, form.digits):
            target.write(settled(total, form, np.zeros(total.shape)))
            return
        lost = sizes * 2.0**-digits * 8 * max(1, x.v.shape[1] // 16)
        target.write(settled(total, form, np.where(np.isfinite(lost), e + lost, np.inf)))


def _cut(q: Q) -> Q:
    kept = rounded(q.v, q.format).astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    v = kept.view(np.float32).astype(np.float64)
    return Q(v, q.format, np.where(q.e > 0, q.e + np.abs(v) * 2.0**-10, q.e))


def _matrix(x: Any) -> Q:
    q = box(x).read()
    shape = squeezed(q.v.shape) if q.v.ndim > 2 else q.v.shape
    if len(shape) != 2:
        raise NoMeaning("a product of what is no matrix")
    return Q(q.v.reshape(shape), q.format, q.e.reshape(shape))


# ---- atomics ---------------------------------------------------------------------------------------------------------


def in_any_order(op: Callable[[Any, Any], Q]) -> Callable[[Q, Q, Array], Q]:
    def combined(old: Q, new: Q, reached: Array) -> Q:
        """In any order: what one addition rounds, each may, and another order rounds what this one need not, unless
        all are multiples of 0.5. So large as `reached` a sum may have been in some order."""
        made = op(old, new)
        if made.format.is_float and op is add:
            size = reached + np.abs(new.v)
            is_sure = (old.v * 2 % 1 == 0) & (new.v * 2 % 1 == 0) & (size < 2.0 ** (made.format.digits - 1))
            with np.errstate(all="ignore"):
                least = np.where(is_sure | (reached == 0) | (new.v == 0), 0.0, unit(size, made.format))
            made = Q(made.v, made.format, np.maximum(made.e, least))
        if made.format.is_float and np.any(made.e):
            return Q(made.v, made.format, np.where(made.e > 0, 2 * made.e, 0.0))
        return made

    return combined


def atomic(op: Callable[[Any, Any], Q]) -> Callable[..., Q | None]:
    combined = in_any_order(op)

    def call(target: Any, value: Any, *_: Any, return_prev: bool = False, **__: Any) -> Q | None:
        if isinstance(value, Tile) or isinstance(target, Tile) or any(isinstance(i, slice) for i in target.index):
            source, to = boxes(value, target)
            q = convert(source.read(), to.tile.format)
            new = Q(q.v.reshape(to.extent), q.format, q.e.reshape(to.extent))
            to.write(combined(to.read(is_shared=True), new, to.reach(new.v)), is_shared=True)
            return None
        before = target.found() if return_prev else None
        target.gather(quantity(value, target.tile.format), combined, SHAPE[-1])
        return before

    return call


def atomic_lanes(count: int) -> Callable[..., None]:
    def call(target: Place, value: Place, **_: Any) -> None:
        for lane in range(count):
            source = Place(value.tile, (*value.index[:-1], add(value.index[-1], lane)))
            atomic(add)(Place(target.tile, (*target.index[:-1], add(target.index[-1], lane))), source.q())

    return call


def atomic_store(target: Place, value: Any, *_: Any, **__: Any) -> None:
    target.put(quantity(value, target.tile.format))


class Reducer(Tile):
    """What all threads build together."""

    def __init__(self, tile: Tile, op: str) -> None:
        self.__dict__ |= tile.__dict__
        self.op = op

    def begin(self, value: Any = None) -> None:
        form = self.format
        low, high = (-np.inf, np.inf) if form.is_float else form.range
        start = {"sum": 0, "max": low, "min": high, "bitand": -1, "bitor": 0, "bitxor": 0}[self.op]
        if value is not None:
            start = convert(quantity(value, form), form).v
        self.v[...] = np.asarray(start).astype(form.type)
        self.e[...], self.written[...] = 0.0, True


def reducer_init(reducer: Reducer, init: Any = None) -> None:
    reducer.begin(init)


def reducer_update(target: Place, value: Any) -> None:
    tile = target.tile
    assert isinstance(tile, Reducer)
    target.gather(quantity(value, tile.format), in_any_order(COMBINE[tile.op]), SHAPE[-1])


def finalize_reducer(reducer: Reducer, out: Any = None, *_: Any) -> None:
    if out is not None:
        copy(reducer, out)


def im2col(
    image: Tile, tile: Any, row_step: Any, column_step: Any, kernel: int, stride: int, dilation: int, pad: int
) -> None:
    """A matrix with a row for each place of the filter, and a column for each tap and channel: one tile of it."""
    b, q = box(tile), box(image).read()
    count, height, width, channels = q.v.shape
    down, across = ((side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for side in (height, width))
    rows = int(quantity(row_step)) * b.extent[0] + np.arange(b.extent[0])[:, None]
    columns = int(quantity(column_step)) * b.extent[1] + np.arange(b.extent[1])[None, :]
    picture, place = rows // (down * across), rows % (down * across)
    tap, channel = columns // channels, columns % channels
    y = place // across * stride + tap // kernel * dilation - pad
    x = place % across * stride + tap % kernel * dilation - pad
    inside = (picture < count) & (tap < kernel * kernel) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    at = np.broadcast_arrays(*(np.where(inside, i, 0) for i in (picture, y, x, channel)))
    b.write(Q(np.where(inside, q.v[tuple(at)], 0), q.format, np.where(inside, q.e[tuple(at)], 0.0)))


def wide_load(count: int) -> Callable[..., list[Q]]:
    """As many words, whatever type they have."""
    return lambda place: [Place(place.tile, (*place.index[:-1], add(place.index[-1], i))).q() for i in range(count)]


def wide_store(count: int) -> Callable[..., None]:
    def call(place: Place, words: list[Q]) -> None:
        for i in range(count):
            Place(place.tile, (*place.index[:-1], add(place.index[-1], i))).put(words[i])

    return call


OPERATIONS: dict[str, Callable[..., Any]] = {
    "copy": copy,
    "async_copy": copy,
    "tma_copy": copy,
    "fill": fill,
    "clear": clear,
    "transpose": transpose,
    "gemm": gemm,
    "wgmma_gemm": gemm,
    "tcgen05_gemm": gemm,
    "cumsum": scan(add, True),
    "cummax": scan(larger, False),
    "atomic_add": atomic(add),
    "atomic_max": atomic(larger),
    "atomic_min": atomic(smaller),
    "atomic_or": atomic(COMBINE["bitor"]),
    "atomic_addx2": atomic_lanes(2),
    "atomic_addx4": atomic_lanes(4),
    "atomic_store": atomic_store,
    "atomic_load": lambda place, *_: place.q(),
    "__ldg": lambda place: place.q(),
    "reducer_init": reducer_init,
    "im2col": im2col,
    "c2d_im2col": im2col,
    **{f"{word}{32 * n}": wide_load(n) for word in ("ldg", "lds") for n in (1, 2, 4, 8)},
    **{f"{word}{32 * n}": wide_store(n) for word in ("stg", "sts") for n in (1, 2, 4, 8)},
    "reducer_update": reducer_update,
    "finalize_reducer": finalize_reducer,
    **{
        f"reduce_{kind}": reduction(kind)
        for kind in ("sum", "max", "min", "absmax", "abssum", "bitand", "bitor", "bitxor")
    },
}
