"""The layout that a person gives a nest, as digits of threads and registers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NoReturn

from tilec.diag import fail
from tilec.ir.layout import Axis, Fragment
from tilec.ir.tile import Expr, LoopLayout, Var
from tilec.passes.analysis.fold import compute_expr


@lru_cache(maxsize=64)
def digits(layout: LoopLayout, threads: int) -> Fragment:
    """The same layout as mixed-radix digits. Each iteration belongs to one thread, under a number of its own; threads
    that the layout does not mention repeat what others do."""
    try:
        return _digits(layout, threads)
    except _Irregular as irregular:
        _refuse(layout, irregular.reason)


def why_irregular(layout: LoopLayout) -> str | None:
    """Why a layout that is no mistake is none of digits, or None."""
    try:
        _digits(layout, None)
    except _Irregular as irregular:
        return irregular.reason
    return None


class _Irregular(Exception):
    """The layout is one, but not of digits."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _places(layout: LoopLayout) -> dict[tuple[int, int], tuple[int, ...]]:
    """Each iteration, by its thread and its number there. Where no numbers are given, they are in the iterations'
    order."""
    places: dict[tuple[int, int], tuple[int, ...]] = {}
    counts: dict[int, int] = {}
    for element in itertools.product(*(range(e) for e in layout.shape)):
        values = dict(zip(layout.vars, element, strict=True))
        thread = _evaluate(layout.thread, values, layout)
        counts[thread] = counts.get(thread, -1) + 1
        number = counts[thread] if layout.index is None else _evaluate(layout.index, values, layout)
        if (thread, number) in places:
            taken = places[thread, number]
            _refuse(layout, f"iterations {taken} and {element} are both number {number} of thread {thread}")
        places[thread, number] = element
    return places


def _digits(layout: LoopLayout, threads: int | None) -> Fragment:
    places = _places(layout)
    used, numbers = (1 + max(p[side] for p in places) for side in (0, 1))
    threads = threads or used
    if min(min(p) for p in places) < 0 or used > threads or threads % used:
        _refuse(layout, f"threads 0 to {used - 1} do not fit a block of {threads}")
    if len(places) != used * numbers or places[(0, 0)] != (0,) * len(layout.shape):
        raise _Irregular(f"{used} threads with {numbers} iterations each are not {math.prod(layout.shape)}")
    thread_axes = _axes([places[(t, 0)] for t in range(used)])
    registers = _axes([places[(0, r)] for r in range(numbers)])
    made = Fragment(layout.shape, (*thread_axes, Axis(threads // used, -1, 0)), registers)
    alone = [_sum(thread_axes, t, len(layout.shape)) for t in range(used)]
    for (thread, number), element in places.items():
        if tuple(a + b for a, b in zip(alone[thread], made.register_offset(number), strict=True)) != element:
            raise _Irregular(f"iteration {element} breaks the pattern of the others")
    return made


def _axes(elements: list[tuple[int, ...]]) -> tuple[Axis, ...]:
    """The digits of a number, least significant first, from the element that each of its values means."""
    axes: list[Axis] = []
    base = 1
    while base < len(elements):
        step = elements[base]
        moved = [d for d, s in enumerate(step) if s]
        if len(moved) != 1 or step[moved[0]] < 0:
            raise _Irregular(f"a step from {elements[0]} to {step} goes along no dimension")
        size = 2
        while size * base < len(elements) and elements[size * base] == tuple(size * s for s in step):
            size += 1
        while len(elements) % (size * base):
            size -= 1
        if size == 1:
            raise _Irregular("its steps are no digits")
        axes.append(Axis(size, moved[0], step[moved[0]]))
        base *= size
    return tuple(axes)


def _sum(axes: tuple[Axis, ...], value: int, rank: int) -> tuple[int, ...]:
    return Fragment((1,) * rank, (), axes).register_offset(value)


def _evaluate(expr: Expr, values: Mapping[Var, int], layout: LoopLayout) -> int:
    result = compute_expr(expr, values)
    if result is None:
        _refuse(layout, "it is more than arithmetic on the loop variables")
    return int(result)


def _refuse(layout: LoopLayout, reason: str) -> NoReturn:
    fail(
        "loop-layout",
        "this layout cannot be used",
        layout.span,
        reason,
        help="give each iteration a thread and a number of its own, in regular steps along the dimensions",
    )
