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
from tilec.passes.fold import compute_expr


@lru_cache(maxsize=64)
def digits(layout: LoopLayout, threads: int) -> Fragment:
    """The same layout as mixed-radix digits. Each iteration belongs to one thread, under a number of its own; threads
    that the layout does not mention repeat what others do."""
    places: dict[tuple[int, int], tuple[int, ...]] = {}
    for element in itertools.product(*(range(e) for e in layout.shape)):
        values = dict(zip(layout.vars, element, strict=True))
        place = _evaluate(layout.thread, values, layout), _evaluate(layout.index, values, layout)
        if place in places:
            _refuse(layout, f"iterations {places[place]} and {element} are both number {place[1]} of thread {place[0]}")
        places[place] = element
    used, numbers = (1 + max(p[side] for p in places) for side in (0, 1))
    if min(min(p) for p in places) < 0 or used > threads or threads % used:
        _refuse(layout, f"threads 0 to {used - 1} do not fit a block of {threads}")
    if len(places) != used * numbers or places[(0, 0)] != (0,) * len(layout.shape):
        _refuse(layout, f"{used} threads with {numbers} iterations each are not {math.prod(layout.shape)}")
    thread_axes = _axes([places[(t, 0)] for t in range(used)], layout)
    registers = _axes([places[(0, r)] for r in range(numbers)], layout)
    made = Fragment(layout.shape, (*thread_axes, Axis(threads // used, -1, 0)), registers)
    alone = [_sum(thread_axes, t, len(layout.shape)) for t in range(used)]
    for (thread, number), element in places.items():
        if tuple(a + b for a, b in zip(alone[thread], made.register_offset(number), strict=True)) != element:
            _refuse(layout, f"iteration {element} breaks the pattern of the others")
    return made


def _axes(elements: list[tuple[int, ...]], layout: LoopLayout) -> tuple[Axis, ...]:
    """The digits of a number, least significant first, from the element that each of its values means."""
    axes: list[Axis] = []
    base = 1
    while base < len(elements):
        step = elements[base]
        moved = [d for d, s in enumerate(step) if s]
        if len(moved) != 1 or step[moved[0]] < 0:
            _refuse(layout, f"a step from {elements[0]} to {step} goes along no dimension")
        size = 2
        while size * base < len(elements) and elements[size * base] == tuple(size * s for s in step):
            size += 1
        while len(elements) % (size * base):
            size -= 1
        if size == 1:
            _refuse(layout, "its steps are no digits")
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
