"""The forms of a manual schedule list, the statements that its entries stand for, and converted `if`s among them.

TileLang counts each statement of a loop body, also one that gives a name a value, an expression or a typed constant.
Many of these are no statements here: a bind that reads nothing the loop writes is replayed at each use, and a name for
another value, or for a value that differs from thread to thread, is replaced by the value. So a list may leave out the
first kind, both kinds or none. Each form has a length of its own, and says the same of the statements that remain.

Each of these is skipped by some threads. A manual schedule counts them as the one statement of the text, whose entry
holds for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from tilec.analysis.scalar_definitions import mark_replayable_binds
from tilec.analysis.usage import find_writes
from tilec.ir import tile
from tilec.ir.types import BOOL
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class ElidedBind:
    """A name that got a value at `span` without a statement, which would be number `at` of the list `out`."""

    out: list[tile.Stmt]
    at: int
    name: str
    span: Span


def insert_elided_binds(
    body: tuple[tile.Stmt, ...], names: Sequence[ElidedBind]
) -> tuple[tuple[tile.Stmt, ...], frozenset[IdentityKey[tile.Stmt]]]:
    """Insert a placeholder bind into a loop body for each name without a statement; return the body and these binds.
    They only count in lists, nothing uses them.
    """
    new_body: list[tile.Stmt] = []
    binds: list[tile.Stmt] = []
    for at in range(len(body) + 1):
        placeholders = [tile.Bind(tile.Var(n.name), tile.int32_const(0), n.span) for n in names if n.at == at]
        binds += placeholders
        new_body += placeholders + list(body[at : at + 1])
    return tuple(new_body), frozenset(map(IdentityKey, binds))


class ListForms:
    """The forms that a list for this body may have. `names` are the placeholder binds of the body."""

    def __init__(self, body: tuple[tile.Stmt, ...], names: frozenset[IdentityKey[tile.Stmt]]) -> None:
        self.body, self.replayed = body, mark_replayable_binds(body)
        self.is_name = tuple(IdentityKey(s) in names for s in body)
        self.statements = tuple(s for s, is_replayed in zip(body, self.replayed, strict=True) if not is_replayed)
        self.counted = (
            tuple(not is_replayed for is_replayed in self.replayed),
            tuple(not name for name in self.is_name),
            (True,) * len(body),
        )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the lengths that a list may have: one for each form."""
        return tuple(map(sum, self.counted))

    def select_statement_entries(self, entries: tuple[int, ...]) -> tuple[int, ...]:
        """Return only the entries of a list that belong to scheduled statements, dropping names' and replayed
        binds'.
        """
        counted = next(form for form, length in zip(self.counted, self.lengths, strict=True) if length == len(entries))
        remaining = iter(entries)
        found = [(next(remaining), replay) for counts, replay in zip(counted, self.replayed, strict=True) if counts]
        return tuple(entry for entry, replay in found if not replay)


T = TypeVar("T")
ConvertedIf = tuple[Span, tuple[tile.Stmt, ...]]
"""The place of such an `if`, and its statements."""


def gather_converted_ifs(
    body: tuple[tile.Stmt, ...], converted_ifs: list[ConvertedIf]
) -> tuple[tuple[tile.Stmt, ...], dict[IdentityKey[tile.Stmt], tuple[tile.Stmt, ...]]]:
    """Replace a converted `if`'s statements, where several are scheduled, by one placeholder `if` at the last one's
    place. Return the body, and the parts of each replacement. Of nested ones the outermost counts, which is the last in
    `converted_ifs`.
    """
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
            span = converted_ifs[part_of[IdentityKey(stmt)]][0]
            replacement = tile.If(tile.Const(True, BOOL), tuple(group), (), span)
            parts_by_replacement[IdentityKey(replacement)] = replacement.then
            new_body.append(replacement)
    return tuple(new_body), parts_by_replacement


def expand_schedule_lists(
    stage: tuple[int, ...],
    order: tuple[int, ...],
    scheduling_hints: tile.SchedulingHints,
    parts: tuple[tuple[tile.Stmt, ...], ...],
) -> tuple[tuple[int, ...], tuple[int, ...], tile.SchedulingHints]:
    """Return stages, orders and hints for the parts of converted `if`s, each with its statement's entry, in order."""
    first_number = [sum(len(p) for p in parts[:i]) for i in range(len(parts))]
    position = [sum(len(parts[j]) for j in range(len(parts)) if order[j] < o) for o in order]

    def repeat_entries(entries: tuple[T, ...]) -> tuple[T, ...]:
        """Return a list with each statement's entry repeated once for each of its parts."""
        return tuple(e for e, several in zip(entries, parts, strict=True) for _ in several)

    def renumber_awaited(awaited: tuple[int, ...]) -> tuple[int, ...]:
        """Return the part numbers of awaited statements: all parts that write, or the only part."""
        numbered = ((first_number[i] + k, part, parts[i]) for i in awaited for k, part in enumerate(parts[i]))
        return tuple(number for number, part, several in numbered if len(several) == 1 or find_writes(part))

    hints = scheduling_hints
    expanded = replace(
        hints,
        asynchronous=None if hints.asynchronous is None else repeat_entries(hints.asynchronous),
        groups=None if hints.groups is None else repeat_entries(hints.groups),
        sync=None if hints.sync is None else repeat_entries(tuple(map(renumber_awaited, hints.sync))),
    )
    places = tuple(b + k for b, several in zip(position, parts, strict=True) for k in range(len(several)))
    return repeat_entries(stage), places, expanded
