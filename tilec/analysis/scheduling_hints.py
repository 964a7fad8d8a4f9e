"""Scheduling hints of a loop's statements: asynchronous or not, explicit waits, ring groups; see
`ir.tile.SchedulingHints`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from tilec.analysis.rings import find_touched_outside
from tilec.analysis.scalar_definitions import find_scheduled_statements, mark_replayable_binds
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ops.copies.copy import Copy
from tilec.ops.copies.im2col import Im2col
from tilec.ops.synchronisation.sync import WaitCopies, make_buffer_region
from tilec.support.diagnostics import Label, raise_error

Entry = TypeVar("Entry")


def list_asynchronous_hints(loop: tile.For) -> Iterator[Label | bool | None]:
    """Yield each body statement's asynchronous hint: its label if requested, False if forbidden, None without one."""
    hints = loop.scheduling_hints
    flags = iter((hints and hints.asynchronous) or ())
    for again in mark_replayable_binds(loop.body):
        flag = None if again else next(flags, None)
        yield Label(hints.span, "requested here") if flag and hints else flag


def apply_asynchronous_hint(part: tuple[tile.Stmt, ...], hint: Label | bool | None) -> tuple[tile.Stmt, ...]:
    """Return the statements with a forbidden cp.async copy turned into one by registers; refuse an impossible request.
    Errors: `async-impossible`."""
    copy = part[0]
    if hint is None or not isinstance(copy, Copy | Im2col):
        return part
    if hint is False:
        return (replace(copy, via="registers"),) if copy.via == "cp_async" else part
    if copy.via not in ("cp_async", "tma") and isinstance(hint, Label):
        source, destination = copy.regions
        reason = f"it converts {source.buffer.dtype} to {destination.buffer.dtype}"
        if source.buffer.dtype == destination.buffer.dtype:
            reason = "its rows are not aligned to 4 bytes, or it fills only a part of a tile"
        raise_error(
            "async-impossible",
            "this copy cannot be asynchronous",
            copy.span,
            reason,
            secondary=(hint,),
            help="remove its stage from the asynchronous stages",
        )
    return part


def find_data_sources(statements: Sequence[tile.Stmt], number: int) -> tuple[int, ...]:
    """Return the indices of the last earlier writers of the buffers that statement `number` reads."""
    last = {b.name: i for i in range(number) for b in find_writes(statements[i])}
    return tuple(sorted({last[b.name] for b in find_reads(statements[number]) if b.name in last}))


def build_explicit_waits(kernel: tile.Kernel, loop: tile.For) -> Iterator[tuple[WaitCopies, ...]]:
    """Yield, for each body statement, the wait that its `sync` hint adds before it, or () where it adds none."""
    waits = loop.scheduling_hints.sync if loop.scheduling_hints is not None else None
    statements = find_scheduled_statements(loop)
    numbers = iter(range(len(statements)))
    for stmt, again in zip(loop.body, mark_replayable_binds(loop.body), strict=True):
        listed = () if again or waits is None else waits[next(numbers)]
        read = {b.name for b in find_reads(stmt)}
        left = (b for i in listed for b in _find_results(kernel, statements[i]) if b.name not in read)
        regions = tuple(make_buffer_region(b, stmt.span) for b in dict.fromkeys(left))
        yield (WaitCopies(regions, rendezvous=True, span=stmt.span),) if regions else ()


def _find_results(kernel: tile.Kernel, stmt: tile.Stmt) -> Iterator[tile.Buffer]:
    """Yield the buffers a statement writes; for a loop, only tensors and what statements outside of it use."""
    used = find_touched_outside(kernel, stmt) if isinstance(stmt, tile.For) else frozenset()
    return (b for b in find_writes(stmt) if not isinstance(stmt, tile.For) or b.scope == "global" or b.name in used)


def expand_statements(loop: tile.For, parts: Sequence[tuple[tile.Stmt, ...]]) -> tile.For:
    """Return the loop with each statement replaced by its list in `parts`; all of a list keep its schedule place."""
    new = replace(loop, body=tuple(s for part in parts for s in part))
    if loop.stage is None or loop.order is None:
        return new
    counts = [len(part) for part, again in zip(parts, mark_replayable_binds(loop.body), strict=True) if not again]
    places = [(place, i) for place, count in zip(loop.order, counts, strict=True) for i in range(count)]
    order = tuple(sorted(places).index(p) for p in places)
    stage, hints = repeat_entries(loop.stage, counts), split_hints(loop.scheduling_hints, counts)
    return replace(new, stage=stage, order=order, scheduling_hints=hints)


def rewrite_scheduled_bodies(stmt: tile.Stmt, each: Callable[[tile.Stmt], tuple[tile.Stmt, ...]]) -> tile.Stmt:
    """Rewrite each statement nested directly in `stmt` by `each`; in a loop the results keep their schedule place."""
    if not isinstance(stmt, tile.For):
        return map_nested_bodies(stmt, lambda body: map_statements(body, each))
    parts = [each(inner) for inner in stmt.body]
    is_same = all(len(part) == 1 and part[0] is inner for part, inner in zip(parts, stmt.body, strict=True))
    return stmt if is_same else expand_statements(stmt, parts)


def repeat_entries(entries: tuple[Entry, ...], counts: list[int]) -> tuple[Entry, ...]:
    return tuple(entry for entry, count in zip(entries, counts, strict=True) for _ in range(count))


def split_hints(scheduling_hints: tile.SchedulingHints | None, counts: list[int]) -> tile.SchedulingHints | None:
    """Return the hints, without `sync`, for a body where statement i became counts[i], the last of which keeps its
    group. Waits of `sync` are statements by now."""
    if scheduling_hints is None:
        return None
    asynchronous, groups = scheduling_hints.asynchronous, scheduling_hints.groups
    if asynchronous is not None:
        asynchronous = repeat_entries(asynchronous, counts)
    if groups is not None:
        of_parts = ((-1,) * (count - 1) + (group,) * min(count, 1) for group, count in zip(groups, counts, strict=True))
        groups = tuple(chain.from_iterable(of_parts))
    return replace(scheduling_hints, asynchronous=asynchronous, groups=groups, sync=None)
