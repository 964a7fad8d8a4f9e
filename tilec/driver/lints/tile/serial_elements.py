"""serial-elements: serial loops over independent elements, which every thread runs in full.

In doubt nothing is reported: a loop that reads what it writes, or whose index depends on the thread, is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilec.analysis.usage import find_reads, find_writes, list_expressions
from tilec.driver.lints.registry import TILE, register_lint
from tilec.ir import tile
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, make_warning

_MIN_ITERATIONS = 32
"""Iterations from which on it matters: a warp would run them at once."""


@register_lint(TILE, "serial-elements")
def find_serial_elements(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each nest of serial loops over independent elements, which T.Parallel could run."""
    yield from _find_redundant_nests(work.source_kernel.body, work.source_kernel.threads)


def _find_redundant_nests(body: tuple[tile.Stmt, ...], threads: int) -> Iterator[Diagnostic]:
    """Yield a warning for each perfect nest of at least 32 serial iterations that every thread runs in full."""
    for stmt in body:
        if (
            isinstance(stmt, tile.For)
            and (nest := _get_perfect_nest(stmt))
            and _count_elements(nest) >= _MIN_ITERATIONS
            and _is_redundant(nest)
        ):
            extents = ", ".join(str(_get_constant_trip_count(loop)) for loop in nest)
            title = f"each of the {threads} threads runs all {_count_elements(nest):,} iterations of this loop"
            advice = f"write T.Parallel({extents}) instead of the loop{'s' if len(nest) > 1 else ''}"
            yield make_warning("serial-elements", title, stmt.span, "a serial loop over elements", help=advice)
        elif isinstance(stmt, tile.For | tile.While | tile.If):
            for inner in tile.nested_bodies(stmt):
                yield from _find_redundant_nests(inner, threads)


def _get_perfect_nest(loop: tile.For) -> list[tile.For]:
    """Return the serial loops nested directly in each other from this one; empty if a loop has another form."""
    if loop.kind != "serial" or _get_constant_trip_count(loop) is None or loop.step != 1:
        return []
    if len(loop.body) == 1 and isinstance(loop.body[0], tile.For):
        inner = _get_perfect_nest(loop.body[0])
        return [loop, *inner] if inner else []
    return [loop]


def _get_constant_trip_count(loop: tile.For) -> int | None:
    """Return the trip count of a loop from 0 to a constant, the form that T.Parallel takes; else None."""
    if isinstance(loop.start, tile.Const) and loop.start.value == 0 and isinstance(loop.stop, tile.Const):
        return int(loop.stop.value)
    return None


def _count_elements(nest: list[tile.For]) -> int:
    return math.prod(_get_constant_trip_count(loop) or 0 for loop in nest)


def _is_redundant(nest: list[tile.For]) -> bool:
    """Return whether a nest's body only stores elements, another in each iteration, and reads nothing it writes."""
    body = nest[-1].body
    stores = [stmt for stmt in tile.walk_statements(body) if isinstance(stmt, tile.Store)]
    if not stores or not all(isinstance(stmt, tile.Parallel) and stmt.extents == (1,) for stmt in body):
        return False
    if any(not isinstance(stmt, tile.Store | tile.Parallel) for stmt in tile.walk_statements(body)):
        return False
    written = {buffer for stmt in body for buffer in find_writes(stmt)}
    read = {buffer for stmt in body for buffer in find_reads(stmt)}
    parts = [
        part for stmt in tile.walk_statements(body) for expr in list_expressions(stmt) for part in tile.walk_expr(expr)
    ]
    if written & read or tile.THREAD in parts or any(store.atomic is not None for store in stores):
        return False
    return all(_is_indexed_by_all(store, nest) for store in stores)


def _is_indexed_by_all(store: tile.Store, nest: list[tile.For]) -> bool:
    """Return whether a store to global or shared memory has all loop variables in its indices."""
    named = {part for index in store.indices for part in tile.walk_expr(index)}
    return store.buffer.scope in ("global", "shared") and all(loop.var in named for loop in nest)
