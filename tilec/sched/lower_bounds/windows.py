"""Refutes an II without the solver: pairs of uses of one slot for which the dependences leave no room.

Longest paths give the least and largest distance of two starts. The distance modulo II of two uses of a slot of one
unit lies between the length of the first and II less the length of the second. If the window contains no such distance,
there is no schedule. If it contains only distances of one turn, the window shrinks, and others with it.

Rings of bounded depth fail in this way: for a dozen cycles below the smallest II, every II is refuted for the same
reason, which the solver takes a thousand times longer to find.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from tilec.sched.lower_bounds.bounds import compute_depth_limits
from tilec.sched.lower_bounds.paths import build_arcs, build_edge_arcs, find_all_distances, has_positive_cycle
from tilec.sched.problem import Problem

# Beyond this size, updating the windows takes longer than the solver needs without them.
_MAX_OPS = 48
_MAX_ROUNDS = 4
_Least = TypeVar("_Least", int, int | None)


def find_refutation(problem: Problem, ii: int, without: frozenset[str] = frozenset()) -> str | None:
    """Return in words why no schedule exists at this II: shallow rings, or a slot without room; None if undecided.

    Needs an II without a positive cycle of the edges. `without` leaves out families of constraints, named as in the
    model.
    """
    constraints = build_edge_arcs(problem)
    if "rings" not in without:
        constraints = build_arcs(problem, compute_depth_limits(problem, ii, without))
    if has_positive_cycle(problem, ii, constraints):
        return "rings that fit in their pools are too shallow for the dependences between them"
    if len(problem.ops) > _MAX_OPS:
        return None
    separation = [list(row) for row in find_all_distances(problem, ii, constraints)]
    pairs = [pair for pair in _list_use_pairs(problem) if f"slot {problem.slots[pair[2]].name}" not in without]
    for _ in range(_MAX_ROUNDS):
        has_changed = False
        for u, v, slot, ahead, behind, _ in pairs:
            # start[v] − start[u] lies in [turn·II + ahead, (turn + 1)·II − behind] for some whole turn.
            low, high = separation[u][v], separation[v][u]
            first = None if low is None else -(-(low + behind - ii) // ii)
            last = None if high is None else (-high - ahead) // ii
            if first is not None and last is not None and first > last:
                return _describe_conflict(problem, u, v, slot, ahead + behind)
            if first is not None and low is not None and first * ii + ahead > low:
                has_changed = True
                if not tighten_distances(separation, u, v, first * ii + ahead):
                    return _describe_conflict(problem, u, v, slot, ahead + behind)
            if last is not None and high is not None and behind - (last + 1) * ii > high:
                has_changed = True
                if not tighten_distances(separation, v, u, behind - (last + 1) * ii):
                    return _describe_conflict(problem, u, v, slot, ahead + behind)
        if not has_changed:
            break
    return None


def find_needed_families(problem: Problem, ii: int, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return a minimal set of constraint families that refute the II by windows, dependences included.

    `known` is returned if it still does.
    """
    every = _list_families(problem)
    if known and find_refutation(problem, ii, every - {*known}) is not None:
        return known
    left: frozenset[str] = frozenset()
    for family in sorted(every):
        if find_refutation(problem, ii, left | {family}) is not None:
            left |= {family}
    return ("dependences", *sorted(every - left))


def _list_families(problem: Problem) -> frozenset[str]:
    """Return the names of the constraint families, besides dependences, that a refutation by windows can use."""
    slots = {f"slot {problem.slots[slot].name}" for _, _, slot, *_ in _list_use_pairs(problem)}
    pools = {f"pool {problem.pools[ring.pool].name}" for ring in problem.rings}
    return frozenset({*slots, *pools, *(["rings"] if problem.rings else [])})


def find_exclusive_slots(problem: Problem, ii: int, without: frozenset[str]) -> frozenset[int]:
    """Return the slots of one unit, but those in `without`, for which separating each pair of ops rules out overlaps.

    No op holds them twice or longer than the interval, and no role holds them.
    """
    others = {role.slot for role in problem.roles}
    for op in problem.ops:
        held = [use.slot for use in op.uses]
        others |= {use.slot for use in op.uses if use.cycles > ii or held.count(use.slot) > 1}
    return frozenset(
        slot
        for slot, spec in enumerate(problem.slots)
        if spec.width == 1 and slot not in others and f"slot {spec.name}" not in without
    )


def list_separations(problem: Problem, slots: frozenset[int]) -> list[tuple[int, int, int, int]]:
    """Return (op, other op, ahead, behind) for pairs of ops that share one of these slots.

    start[other] − start[op] must lie in [turn·II + ahead, (turn + 1)·II − behind] for some whole turn.
    """
    least: dict[tuple[int, int, int], tuple[int, int]] = {}
    for u, v, slot, ahead, behind, shift in _list_use_pairs(problem):
        if slot in slots:
            known = least.get((u, v, shift), (ahead, behind))
            least[u, v, shift] = max(known[0], ahead), max(known[1], behind)
    return [(u, v, *separation) for (u, v, _), separation in least.items()]


def _list_use_pairs(problem: Problem) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield (op, other op, slot, ahead, behind, shift) for each two uses of a slot of one unit by different ops.

    `ahead` and `behind` are as in `list_separations`. `shift` is the difference of the uses' offsets.
    """
    for slot, spec in enumerate(problem.slots):
        if spec.width > 1:
            continue
        users = problem.list_uses(slot)
        for at, (v, later) in enumerate(users):
            for u, use in users[:at]:
                if u != v:
                    shift = use.offset - later.offset
                    yield u, v, slot, use.cycles + shift, later.cycles - shift, shift


def tighten_distances(separation: list[list[_Least]], u: int, v: int, least: int) -> bool:
    """Record in `separation` start[v] − start[u] ≥ least and what follows; return False for a contradiction."""
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


def _describe_conflict(problem: Problem, u: int, v: int, slot: int, cycles: int) -> str:
    """Return the sentence that two ops need a slot for more cycles than the dependences leave them."""
    names = f"{problem.ops[u].name} and {problem.ops[v].name}"
    need = f"{names} need slot {problem.slots[slot].name} for {cycles} cycles together"
    return f"{need}, and the dependences leave a smaller window"
