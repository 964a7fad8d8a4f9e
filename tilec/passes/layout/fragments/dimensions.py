"""Fragment layouts in other dimensions: extended, embedded in more, with and without those of extent 1."""

from __future__ import annotations

import math

from tilec.ir.layout import Axis, Fragment


def extend_layout(layout: Fragment, dims: tuple[int, ...], extents: tuple[int, ...]) -> Fragment:
    """Return a layout of `extents` with this layout along dimensions `dims`; a thread has all indices of the others."""
    wide = embed_layout(drop_unit_dims(layout, len(dims)), extents, dims)
    more = tuple(Axis(extents[d], d, 1) for d in reversed(range(len(extents))) if d not in dims)
    return Fragment(extents, wide.threads, more + wide.registers)


def distribute_last_dimension(
    dims: tuple[int, ...], layout: Fragment, extents: tuple[int, ...], vector: int
) -> Fragment | None:
    """Return a layout with this one along `dims` and the last dimension divided among threads with copies, or None. A
    thread has runs of at most `vector` elements, neighbouring threads side by side. None where that does not divide."""
    last = len(extents) - 1
    known = drop_unit_dims(layout, len(dims))
    repeating = math.prod(a.size for a in known.threads if a.dim < 0)
    if last in dims or repeating == 1 or extents[last] % repeating:
        return None
    run = math.gcd(extents[last] // repeating, vector)
    wide, stride = extend_layout(layout, dims, extents), run
    threads: list[Axis] = []
    for axis in wide.threads:
        threads.append(axis if axis.dim >= 0 else Axis(axis.size, last, stride))
        stride *= axis.size if axis.dim < 0 else 1
    others = tuple(a for a in wide.registers if a.dim != last)
    return Fragment(extents, tuple(threads), (Axis(run, last, 1), Axis(extents[last] // stride, last, stride), *others))


def is_projection(whole: Fragment, dims: tuple[int, ...], layout: Fragment) -> bool:
    """Return True if `whole`, projected to its dimensions `dims`, equals this layout."""
    return whole.project(dims).to_canonical() == drop_unit_dims(layout, len(dims)).to_canonical()


def drop_unit_dims(layout: Fragment, count: int) -> Fragment:
    """Return the layout without dimensions of extent 1; as it is if it already has `count` dimensions."""
    if len(layout.shape) == count:
        return layout
    return layout.project(tuple(d for d, extent in enumerate(layout.shape) if extent != 1))


def restore_unit_dims(layout: Fragment, shape: tuple[int, ...]) -> Fragment:
    """Return the layout with dimensions of extent 1 put back so that it has this shape."""
    if len(layout.shape) == len(shape):
        return layout
    kept = [d for d, extent in enumerate(shape) if extent != 1]
    kept = kept if len(kept) == len(layout.shape) else list(range(len(layout.shape)))
    return embed_layout(layout, shape, tuple(kept))


def embed_layout(layout: Fragment, shape: tuple[int, ...], dims: tuple[int, ...]) -> Fragment:
    """Return the layout in a larger shape, with its dimension i moved to dimension dims[i]."""

    def move_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(a.size, dims[a.dim] if a.dim >= 0 else -1, a.stride) for a in axes)

    return Fragment(shape, move_axes(layout.threads), move_axes(layout.registers))
