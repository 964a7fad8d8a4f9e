"""Who hands a version of a ring's tiles to whom within an iteration, where roles change it in place.

A ring passes each version from who fills it to all who use it, and from these back. That is enough where what is there
stays as it is. Where a role changes it and another one uses it too, as the tensor cores do what threads scale first,
each waits for what the other must have done before it:

    T.copy(A, A_s)            the producer fills A_s
    A_s[i, j] *= …            the consumers change it        and say so
    T.gemm(A_s, B_s, C)       one thread asks for a product  when it has heard that; that it is done is said
    A_s[i, j] *= …            the consumers change it again  when they have heard that

Each such message is a link: a ring without tiles, of as many versions as the ring whose versions it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.ir.tile import Stmt
from tilec.passes.analysis.rings import Accesses, RingPlan, find_accesses
from tilec.passes.loop.assign_roles import LOADS, passing, user_of
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """The role `teller` says that it is done with the statements `told`, as far as they are about a version of `ring`;
    `hearer` waits for that before any of its statements `awaiting`."""

    ring: str
    teller: str
    hearer: str
    told: tuple[int, ...]
    awaiting: tuple[int, ...]


def begun(plan: RingPlan, roles: Sequence[str], statements: Sequence[Stmt]) -> tuple[int, ...]:
    """The statements that a version goes through before it is handed to the roles that read the ring: those that fill
    it, and what the same role does with it before any other one is named."""
    filler = passing(plan, roles, statements).filler
    users = sorted({*plan.producers, *plan.consumers})
    first = next((i for i in users if i not in plan.producers and user_of(roles[i]) != filler), len(statements))
    return tuple(i for i in users if i in plan.producers or i < first)


def read_before_handed_on(
    plan: RingPlan, roles: Sequence[str], statements: Sequence[Stmt]
) -> Iterator[tuple[int, int]]:
    """What the role that fills a version reads of it before it hands it on, and each statement of another role that
    waits for that: though both only read, the second cannot begin before the first is done."""
    filler = passing(plan, roles, statements).filler
    if filler in (LOADS, "all"):
        return
    others = [j for j in plan.consumers if user_of(roles[j]) != filler]
    for own in begun(plan, roles, statements):
        if own not in plan.producers:
            yield from ((own, j) for j in others if own < j)


def links(ring: str, plan: RingPlan, roles: Sequence[str], statements: Sequence[Stmt]) -> tuple[Link, ...]:
    """In the order of the text. Statements of one role that wait for the same ones of another share a link."""
    tiles = {b.name for b in plan.buffers}
    touched = [find_accesses(s) for s in statements]
    users = sorted({*plan.producers, *plan.consumers})
    known = set(begun(plan, roles, statements))
    waiting: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for j in users:
        if j in plan.producers:
            continue
        hearer = user_of(roles[j])
        earlier = [i for i in users if i < j and i not in known and user_of(roles[i]) != hearer]
        earlier = [i for i in earlier if _conflict(touched[i], touched[j], tiles)]
        for teller in dict.fromkeys(user_of(roles[i]) for i in earlier):
            told = tuple(i for i in earlier if user_of(roles[i]) == teller)
            waiting.setdefault((teller, hearer, told), []).append(j)
    return tuple(Link(ring, teller, hearer, told, tuple(js)) for (teller, hearer, told), js in waiting.items())


def _conflict(a: Accesses, b: Accesses, tiles: set[str]) -> bool:
    return bool(tiles & ((a.writes & b.all_names) | (a.all_names & b.writes)))
