"""Refutes an II without the solver: pairs of uses of one slot that the dependences leave no room for.

Longest paths say how far apart two starts must and may be. Two uses of a slot of one unit are further restricted: their
distance modulo II lies between the length of the one and II less the length of the other. Where the window holds no
such distance there is no schedule; where it holds those of one turn only, the window shrinks, and others with it.

This is what rings of bounded depth run into: a dozen cycles short of the smallest II, every II fails for the same
reason, and finding that reason takes the solver a thousand times longer.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.sched.bounds import depth_limits
from tilec.sched.paths import arcs, distances, edge_arcs, has_positive_cycle
from tilec.sched.problem import Problem

# Windows of more ops than this take longer to keep up to date than the solver needs without them.
_MOST_OPS = 48
_ROUNDS = 4


def refutation(problem: Problem, ii: int, without: frozenset[str] = frozenset()) -> str | None:
    """Why there is no schedule at this II, or None if that cannot be told. Needs an II without a positive cycle.
    `without` leaves families of constraints aside, named as those of the model."""
    within = edge_arcs(problem) if "rings" in without else arcs(problem, depth_limits(problem, ii, without))
    if has_positive_cycle(problem, ii, within):
        return "rings that fit in their pools are too shallow for the dependences between them"
    if len(problem.ops) > _MOST_OPS:
        return None
    separation = [list(row) for row in distances(problem, ii, within)]
    pairs = [pair for pair in _pairs(problem) if f"slot {problem.slots[pair[2]].name}" not in without]
    for _ in range(_ROUNDS):
        has_changed = False
        for u, v, slot, ahead, behind, _ in pairs:
            # start[v] − start[u] lies in [turn·II + ahead, (turn + 1)·II − behind] for some whole turn.
            low, high = separation[u][v], separation[v][u]
            first = None if low is None else -(-(low + behind - ii) // ii)
            last = None if high is None else (-high - ahead) // ii
            if first is not None and last is not None and first > last:
                return _words(problem, u, v, slot, ahead + behind)
            if first is not None and low is not None and first * ii + ahead > low:
                has_changed = True
                if not _tighten(separation, u, v, first * ii + ahead):
                    return _words(problem, u, v, slot, ahead + behind)
            if last is not None and high is not None and behind - (last + 1) * ii > high:
                has_changed = True
                if not _tighten(separation, v, u, behind - (last + 1) * ii):
                    return _words(problem, u, v, slot, ahead + behind)
        if not has_changed:
            break
    return None


def needed(problem: Problem, ii: int, known: tuple[str, ...]) -> tuple[str, ...]:
    """The families of constraints that, with the dependences, are enough for a refutation, none of which can be left
    out; those that are `known` from the interval before if they still are."""
    every = _families(problem)
    if known and refutation(problem, ii, every - {*known}) is not None:
        return known
    left: frozenset[str] = frozenset()
    for family in sorted(every):
        if refutation(problem, ii, left | {family}) is not None:
            left |= {family}
    return ("dependences", *sorted(every - left))


def _families(problem: Problem) -> frozenset[str]:
    slots = {f"slot {problem.slots[slot].name}" for _, _, slot, *_ in _pairs(problem)}
    pools = {f"pool {problem.pools[ring.pool].name}" for ring in problem.rings}
    return frozenset({*slots, *pools, *(["rings"] if problem.rings else [])})


def held_once(problem: Problem, ii: int, without: frozenset[str]) -> frozenset[int]:
    """The slots of one unit for which it is enough to keep ops apart from each other: no op holds one of them twice, or
    for longer than the interval; nor does a role, which may run an op or not."""
    others = {role.slot for role in problem.roles}
    for op in problem.ops:
        held = [use.slot for use in op.uses]
        others |= {use.slot for use in op.uses if use.cycles > ii or held.count(use.slot) > 1}
    return frozenset(
        slot
        for slot, spec in enumerate(problem.slots)
        if spec.width == 1 and slot not in others and f"slot {spec.name}" not in without
    )


def separations(problem: Problem, slots: frozenset[int]) -> list[tuple[int, int, int, int]]:
    """(op, other op, ahead, behind): start[other] − start[op] lies in [turn·II + ahead, (turn + 1)·II − behind] for
    some whole turn, or they hold one of these slots, of one unit each, at once."""
    least: dict[tuple[int, int, int], tuple[int, int]] = {}
    for u, v, slot, ahead, behind, shift in _pairs(problem):
        if slot in slots:
            known = least.get((u, v, shift), (ahead, behind))
            least[u, v, shift] = max(known[0], ahead), max(known[1], behind)
    return [(u, v, *separation) for (u, v, _), separation in least.items()]


def _pairs(problem: Problem) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(op, other op, slot, cycles the other must stay behind, cycles it must end ahead of the next turn, how far apart
    they hold it from one cycle on)."""
    for slot, spec in enumerate(problem.slots):
        if spec.width > 1:
            continue
        users = [(op, use) for op, of in enumerate(problem.ops) for use in of.uses if use.slot == slot and use.cycles]
        for at, (v, later) in enumerate(users):
            for u, use in users[:at]:
                if u != v:
                    shift = use.offset - later.offset
                    yield u, v, slot, use.cycles + shift, later.cycles - shift, shift


def _tighten(separation: list[list[int | None]], u: int, v: int, least: int) -> bool:
    """Records start[v] − start[u] ≥ least, and what follows from it. False if that is a contradiction."""
    back = separation[v][u]
    if back is not None and back + least > 0:
        return False
    onward = [(b, beyond) for b, beyond in enumerate(separation[v]) if beyond is not None]
    for row in separation:
        before = row[u]
        if before is None:
            continue
        for b, beyond in onward:
            known = row[b]
            if known is None or before + least + beyond > known:
                row[b] = before + least + beyond
    return True


def _words(problem: Problem, u: int, v: int, slot: int, cycles: int) -> str:
    names = f"{problem.ops[u].name} and {problem.ops[v].name}"
    return f"{names} hold slot {problem.slots[slot].name} for {cycles} cycles, and the dependences keep them closer"
