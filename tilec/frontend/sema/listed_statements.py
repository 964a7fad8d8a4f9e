"""The forms of a manual schedule list, and the statements that its entries stand for.

TileLang counts each statement of a loop body, also one that gives a name a value, an expression or a typed constant.
Many of these are no statements here: a bind that reads nothing the loop writes is replayed at each use, and a name for
another value, or for a value that differs from thread to thread, is replaced by the value. So a list may leave out the
first kind, both kinds or none. Each form has a length of its own, and says the same of the statements that remain.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import tile
from tilec.passes.analysis.scalar_definitions import mark_replayable_binds
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
    """Insert a placeholder bind for each name. Return the body and these binds: they only count in lists, nothing uses
    them."""
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
        return tuple(map(sum, self.counted))

    def select_statement_entries(self, entries: tuple[int, ...]) -> tuple[int, ...]:
        """Return the entries of the statements, without those of names and replayed binds."""
        counted = next(form for form, length in zip(self.counted, self.lengths, strict=True) if length == len(entries))
        remaining = iter(entries)
        found = [(next(remaining), replay) for counts, replay in zip(counted, self.replayed, strict=True) if counts]
        return tuple(entry for entry, replay in found if not replay)
