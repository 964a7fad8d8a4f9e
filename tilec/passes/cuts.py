"""Where a trip of an expanded loop begins. The steps of an interval go round: any of them may stand first in the loop's
text, as long as those before it then belong to the next trip.

A product of wgmma that is in flight where the text of a trip ends is dear if other statements touch its registers: the
assembler cannot follow it over the back edge, and makes all products of the kernel wait for one another (its C7514).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tilec.ir.tile import Buffer, Stmt, TileOp
from tilec.passes.rings import accesses
from tilec.passes.usage import reads, writes

Turn = tuple[int, int]
"""Which of a role's turns at the tensor cores, and which place in it."""

Flight = tuple[int, int]
"""The step that issues a product, and the first step after it, round the interval, that waits for it."""


def first_step(stages: Sequence[int], turns: Sequence[Turn | None], flights: Sequence[Flight]) -> int:
    """Which step to begin a trip of the loop with: no turn goes on from one trip into the next; as few products as can
    be are in flight between two trips; as few trips as can be overlap. `stages` and `turns` are those of an interval's
    steps as they issue."""
    steps = len(stages)

    def crossing(at: int) -> int:
        return sum((at - issued - 1) % steps <= (waited - issued - 1) % steps for issued, waited in flights)

    if all(turn is None for turn in turns) and not crossing(0):
        return 0
    found = []
    for at in range(steps):
        taken = [turn for turn in (*turns[at:], *turns[:at]) if turn is not None]
        shifted = [stage - (place < at) for place, stage in enumerate(stages)]
        if all(earlier[1] < later[1] for earlier, later in pairwise(taken) if earlier[0] == later[0]):
            found.append((crossing(at), max(shifted) - min(shifted), at))
    return min(found)[2]


def flights(steps: Sequence[Stmt | None], versioned: frozenset[str]) -> Iterator[Flight]:
    """The products whose registers other steps of the interval touch, each with the step that waits for it. `versioned`
    tiles are read and filled at the same time."""
    for issued, step in enumerate(steps):
        if step is None or accumulator(step) is None:
            continue
        if not is_touched_by_others(step, [s for s in steps if s is not None]):
            continue
        behind = ((issued + distance) % len(steps) for distance in range(1, len(steps)))
        waited = _first_to_wait(step, ((at, s) for at in behind if (s := steps[at]) is not None), versioned)
        if waited is not None:
            yield issued, waited


def _first_to_wait(product: Stmt, behind: Iterator[tuple[int, Stmt]], versioned: frozenset[str]) -> int | None:
    """Products complete in the order of issue: who waits for a later one waits for this one too."""
    issued = accesses(product)
    read, written = issued.reads - versioned, issued.writes
    for at, stmt in behind:
        mine, added = accesses(stmt), accumulator(stmt)
        if added is not None and added == accumulator(product):
            continue  # added up in their order, without a wait
        if written & mine.all or read & mine.writes:
            return at
        if added is not None:
            read, written = read | (mine.reads - versioned), written | mine.writes
    return None


def is_touched_by_others(product: Stmt, steps: Sequence[Stmt]) -> bool:
    """Whether steps that add to something else touch the product's registers."""
    registers = {b.name for b in (*reads(product), *writes(product)) if b.scope in ("fragment", "reducer")}
    return any(registers & accesses(s).all for s in steps if accumulator(s) != accumulator(product))


def accumulator(stmt: Stmt) -> Buffer | None:
    """What a product of wgmma adds to; None for any other statement."""
    is_wgmma = isinstance(stmt, TileOp) and dict(stmt.attrs).get("via") == "wgmma"
    return stmt.regions[2].buffer if is_wgmma and isinstance(stmt, TileOp) else None
