"""Given layouts of nests, as digits of threads and registers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NoReturn

from tilec.ir.layout import Axis, Fragment
from tilec.ir.tile import Expr, LoopLayout, Var
from tilec.rewriting.fold_constants import compute_expr
from tilec.support.diagnostics import raise_error


@lru_cache(maxsize=64)
def build_digit_layout(layout: LoopLayout, threads: int) -> Fragment:
    """Return a given layout as a fragment layout of mixed-radix digits; refuse one that is not. Each iteration has one
    thread and a number there; threads without iterations repeat those of others. Errors: `loop-layout`."""
    try:
        return _build_digits(layout, threads)
    except _IrregularLayout as irregular:
        _refuse_layout(layout, irregular.reason)


def why_irregular(layout: LoopLayout) -> str | None:
    """Return why a valid given layout is not one of mixed-radix digits; None if it is."""
    return _find_irregularity(layout, None)


def is_regular(layout: LoopLayout, threads: int) -> bool:
    """Return True if the given layout is one of mixed-radix digits for a block of `threads`. Errors: `loop-layout`."""
    return _find_irregularity(layout, threads) is None


def _find_irregularity(layout: LoopLayout, threads: int | None) -> str | None:
    """Return why a given layout is not one of mixed-radix digits for a block of `threads`; None if it is."""
    try:
        _build_digits(layout, threads)
    except _IrregularLayout as irregular:
        return irregular.reason
    return None


class _IrregularLayout(Exception):
    """A valid layout that is not one of digits."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@lru_cache(maxsize=64)
def build_iteration_table(layout: LoopLayout) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return a given layout as a table from (thread, number) to iteration; refuse clashes and negative places. Without
    given numbers, a thread's iterations are numbered in order. Errors: `loop-layout`."""
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    counts: dict[int, int] = {}
    for element in itertools.product(*(range(e) for e in layout.shape)):
        copies: set[int] = set()
        for copy in range(layout.copies):
            # A layout of several copies has one variable more: the number of the copy.
            at = (*element, copy) if layout.copies > 1 else element
            values = dict(zip(layout.vars, at, strict=True))
            thread = _evaluate_index(layout.thread, values, layout)
            if thread in copies and layout.index is None:
                continue
            copies.add(thread)
            counts[thread] = counts.get(thread, -1) + 1
            number = counts[thread] if layout.index is None else _evaluate_index(layout.index, values, layout)
            taken = found.setdefault((thread, number), element)
            if taken != element:
                _refuse_layout(layout, f"iterations {taken} and {element} both have index {number} in thread {thread}")
            if thread < 0 or number < 0:
                _refuse_layout(layout, f"iteration {element} has index {number} in thread {thread}")
    return found


def build_fitting_table(layout: LoopLayout, threads: int) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return a given layout's table from (thread, number) to iteration; refuse one with more threads than the block.
    Errors: `loop-layout`."""
    found = build_iteration_table(layout)
    used = 1 + max(thread for thread, _ in found)
    if used > threads:
        _refuse_layout(layout, f"threads 0 to {used - 1} do not fit a block of {threads}")
    return found


def _build_digits(layout: LoopLayout, threads: int | None) -> Fragment:
    """Return a given layout as mixed-radix digits, or raise `_IrregularLayout`; without `threads`, for as many as it
    uses."""
    found = build_iteration_table(layout)
    used, numbers = (1 + max(p[side] for p in found) for side in (0, 1))
    threads = threads or used
    build_fitting_table(layout, threads)
    if len(found) != used * numbers or found[(0, 0)] != (0,) * len(layout.shape):
        raise _IrregularLayout(
            f"the loop has {math.prod(layout.shape)} iterations, not {used} threads with {numbers} each"
        )
    thread_axes = _find_axes([found[(t, 0)] for t in range(used)])
    registers = _find_axes([found[(0, r)] for r in range(numbers)])
    if any(axis.dim < 0 for axis in registers):
        raise _IrregularLayout("a thread runs an iteration twice")
    made = _extend_to_threads(Fragment(layout.shape, thread_axes, registers), used, threads)
    by_thread = Fragment((1,) * len(layout.shape), (), thread_axes)
    thread_elements = [by_thread.register_offset(t) for t in range(used)]
    for (thread, number), element in found.items():
        if tuple(a + b for a, b in zip(thread_elements[thread], made.register_offset(number), strict=True)) != element:
            raise _IrregularLayout(f"iteration {element} breaks the pattern of the others")
    return made


def _extend_to_threads(layout: Fragment, used: int, threads: int) -> Fragment:
    """Return the layout for all threads of the block: the rest repeat iterations, or run past an end. Raises
    `_IrregularLayout` where they can do neither."""
    if threads % used == 0:
        return replace(layout, threads=(*layout.threads, Axis(threads // used, -1, 0)))
    *axes, last = layout.threads
    below = math.prod(axis.size for axis in axes)
    past = last.dim >= 0 and last.size * last.stride == layout.shape[last.dim]
    if not past or threads % below:
        raise _IrregularLayout(f"{used} threads do not divide a block of {threads}")
    size = next(n for n in range(last.size, threads + 1) if threads % (below * n) == 0)
    grown = (*axes, replace(last, size=size), Axis(threads // (below * size), -1, 0))
    return replace(layout, threads=grown)


def _find_axes(elements: list[tuple[int, ...]]) -> tuple[Axis, ...]:
    """Return the digits of a list of elements, least significant first, or raise `_IrregularLayout` if it has none."""
    axes: list[Axis] = []
    base = 1
    while base < len(elements):
        step = elements[base]
        changed_dims = [d for d, s in enumerate(step) if s]
        if len(changed_dims) > 1 or (changed_dims and step[changed_dims[0]] < 0):
            raise _IrregularLayout(
                f"the step from {elements[0]} to {step} is along more than one dimension, or negative"
            )
        size = 2
        while size * base < len(elements) and elements[size * base] == tuple(size * s for s in step):
            size += 1
        while len(elements) % (size * base):
            size -= 1
        if size == 1:
            raise _IrregularLayout("its steps do not divide the count evenly")
        axes.append(Axis(size, changed_dims[0], step[changed_dims[0]]) if changed_dims else Axis(size, -1, 0))
        base *= size
    return tuple(axes)


def _evaluate_index(expr: Expr, values: Mapping[Var, int], layout: LoopLayout) -> int:
    """Return the value of a thread or index expression of the layout; refuse one that is not integer arithmetic."""
    result = compute_expr(expr, values)
    if result is None:
        _refuse_layout(layout, "it uses more than arithmetic on the loop variables")
    return int(result)


def _refuse_layout(layout: LoopLayout, reason: str) -> NoReturn:
    """Raise the error `loop-layout` for a layout that the kernel gives, with this reason. Errors: `loop-layout`."""
    raise_error(
        "loop-layout",
        "this layout cannot be used",
        layout.span,
        reason,
        help="give each iteration a thread of the block and an index of its own in that thread, both from 0",
    )
