"""Converted `if`s in manual schedules: an `if` whose condition differs from thread to thread becomes several
statements.

Each of these is skipped by some threads. A manual schedule counts them as the one statement of the text, whose entry
holds for all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from tilec.ir import tile
from tilec.ir.types import BOOL
from tilec.passes.analysis.scalar_definitions import mark_replayable_binds
from tilec.passes.analysis.usage import find_writes
from tilec.support.identity import IdentityKey
from tilec.support.source import Span

T = TypeVar("T")

ConvertedIf = tuple[Span, tuple[tile.Stmt, ...]]
"""The place of such an `if`, and its statements."""


def gather_converted_ifs(
    body: tuple[tile.Stmt, ...], converted_ifs: list[ConvertedIf]
) -> tuple[tuple[tile.Stmt, ...], dict[IdentityKey[tile.Stmt], tuple[tile.Stmt, ...]]]:
    """Replace the statements of each converted `if` by one, at the place of the last of them. Return the body, and the
    parts of each replacement. Of nested ones the outermost counts, which is the last in `converted_ifs`."""
    number_of = {IdentityKey(part): number for number, (_, parts) in enumerate(converted_ifs) for part in parts}
    parts: dict[int, list[tile.Stmt]] = {}
    for stmt, is_replayed in zip(body, mark_replayable_binds(body), strict=True):
        if not is_replayed and IdentityKey(stmt) in number_of:
            parts.setdefault(number_of[IdentityKey(stmt)], []).append(stmt)
    new_body: list[tile.Stmt] = []
    parts_by_replacement: dict[IdentityKey[tile.Stmt], tuple[tile.Stmt, ...]] = {}
    part_of = {IdentityKey(s): number for number, group in parts.items() if len(group) > 1 for s in group}
    for stmt in body:
        if IdentityKey(stmt) not in part_of:
            new_body.append(stmt)
            continue
        group = parts[part_of[IdentityKey(stmt)]]
        if stmt is group[-1]:
            replacement = tile.If(
                tile.Const(True, BOOL), tuple(group), (), converted_ifs[part_of[IdentityKey(stmt)]][0]
            )
            parts_by_replacement[IdentityKey(replacement)] = replacement.then
            new_body.append(replacement)
    return tuple(new_body), parts_by_replacement


def expand_schedule_lists(
    stage: tuple[int, ...],
    order: tuple[int, ...],
    scheduling_hints: tile.SchedulingHints,
    parts: tuple[tuple[tile.Stmt, ...], ...],
) -> tuple[tuple[int, ...], tuple[int, ...], tile.SchedulingHints]:
    """Expand schedule lists to the parts of each statement: all in its stage and, one after another, at its place."""
    first_number = [sum(len(p) for p in parts[:i]) for i in range(len(parts))]
    position = [sum(len(parts[j]) for j in range(len(parts)) if order[j] < o) for o in order]

    def repeat_entries(entries: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(e for e, several in zip(entries, parts, strict=True) for _ in several)

    def renumber_awaited(awaited: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            first_number[i] + k
            for i in awaited
            for k, part in enumerate(parts[i])
            if len(parts[i]) == 1 or any(True for _ in find_writes(part))
        )

    return (
        repeat_entries(stage),
        tuple(b + k for b, several in zip(position, parts, strict=True) for k in range(len(several))),
        replace(
            scheduling_hints,
            asynchronous=None
            if scheduling_hints.asynchronous is None
            else repeat_entries(scheduling_hints.asynchronous),
            groups=None if scheduling_hints.groups is None else repeat_entries(scheduling_hints.groups),
            sync=None
            if scheduling_hints.sync is None
            else repeat_entries(tuple(renumber_awaited(awaited) for awaited in scheduling_hints.sync)),
        ),
    )
