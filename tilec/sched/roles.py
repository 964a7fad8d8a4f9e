"""Joint warp specialisation: which role runs which op, decided together with the interval.

Once the roles are chosen nothing about them is special: an op holds its role's slot while it issues, a value that
passes to another role takes longer, and `resolve` says so in a problem without candidates. Everything but the choice
itself works on that problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilec.sched.bounds import Unschedulable, bounds, serial_ii
from tilec.sched.budget import Budget
from tilec.sched.model import MOST_STEPS, REGISTER_STEP, Model
from tilec.sched.problem import Problem, Use
from tilec.sched.solution import Solution

Roles = tuple[int | None, ...]


def has_roles(problem: Problem) -> bool:
    """Whether the problem leaves open who runs what."""
    return any(op.roles for op in problem.ops)


def by_rule(problem: Problem) -> Roles:
    """The first candidate of each op: what an author of the problem would take without looking."""
    return tuple(op.roles[0] if op.roles else None for op in problem.ops)


def resolve(problem: Problem, role: Roles) -> Problem:
    """The problem with these roles as part of its ops and edges; the problem itself where there are none."""
    if not role:
        return problem
    ops = tuple(
        op
        if at is None
        else replace(
            op,
            uses=(*op.uses, Use(problem.roles[at].slot, op.issue + op.wait, -op.wait)),
            role=problem.roles[at].name,
            roles=(),
            wait=0,
        )
        for op, at in zip(problem.ops, role, strict=True)
    )
    edges = tuple(
        replace(edge, latency=edge.latency + edge.hand_over * _crosses_roles(role, edge.src, edge.dst), hand_over=0)
        for edge in problem.edges
    )
    return replace(problem, ops=ops, edges=edges, roles=(), tied=(), register_file=None)


def weigh(problem: Problem, solver: Callable[[Problem], Solution], only_by_rule: bool = False) -> Solution:
    """The solution with the roles by rule, unless others allow a smaller interval: then the one with those."""
    if not has_roles(problem):
        return solver(problem)
    rule = by_rule(problem)
    plain = resolve(problem, rule)
    if only_by_rule or all(len(op.roles) < 2 for op in problem.ops):
        return _with_roles(solver(plain), rule)
    least = bounds(plain).mii
    # Whoever must be slower by rule need not be told by how much; whoever cannot be faster otherwise, that neither.
    joint = solver(problem) if bounds(problem).mii < least else None
    if joint is not None and joint.schedule.ii < least:
        return replace(joint, ii_by_rule=least)
    kept = solver(plain)
    ii = kept.schedule.ii
    if joint is None and bounds(problem).mii < ii:
        joint = solver(problem)
    if joint is not None and joint.schedule.ii < ii:
        return replace(joint, ii_by_rule=ii)
    if joint is not None and joint.schedule.status != "optimal":
        # With other roles a smaller interval may yet exist.
        tried = tuple(attempt for attempt in joint.attempts if attempt.ii < ii)
        kept = replace(kept, schedule=replace(kept.schedule, status="feasible"), bounds=joint.bounds, attempts=tried)
        kept = replace(kept, is_cut=kept.is_cut or joint.is_cut)
    return replace(_with_roles(kept, rule), ii_by_rule=ii)


def _with_roles(solution: Solution, role: Roles) -> Solution:
    return replace(solution, schedule=replace(solution.schedule, role=role))


def _crosses_roles(role: Roles, src: int, dst: int) -> bool:
    return role[src] is not None and role[dst] is not None and role[src] != role[dst]


def spread(problem: Problem) -> Roles:
    """Some roles, to start from: each op or group of tied ones, largest first, where there is least to do so far."""
    group = list(range(len(problem.ops)))
    for tied in problem.tied:
        for old in sorted({group[op] for op in tied}):
            group = [group[tied[0]] if at == old else at for at in group]
    members: dict[int, list[int]] = {}
    for op, at in enumerate(group):
        members.setdefault(at, []).append(op)
    busy = [0] * len(problem.roles)
    role: list[int | None] = [None] * len(problem.ops)

    def demand(at: int) -> int:
        return sum(problem.ops[op].issue + problem.ops[op].wait for op in members[at])

    for at in sorted(members, key=lambda at: (-demand(at), at)):
        common = [r for r in range(len(problem.roles)) if all(r in problem.ops[op].roles for op in members[at])]
        if common:
            chosen = min(common, key=lambda r: (busy[r] + demand(at), r))
            busy[chosen] += demand(at)
            for op in members[at]:
                role[op] = chosen
    return tuple(role)


def fewest_hand_overs(
    problem: Problem,
    ii: int,
    stages: int,
    start: Sequence[int],
    effort: float,
    budget: Budget | None = None,
) -> tuple[Roles, tuple[int, ...], bool] | None:
    """Roles that pass as few values on as this interval and number of stages allow, and of those the first candidates
    in the order of the ops; with starts that go with them, and whether that is proven. None if no roles were found."""
    model = Model(problem, ii, stages, budget=budget)
    objective = model.hand_overs()
    answer = model.minimise(objective, effort, start)
    if answer.outcome != "found":
        return None
    found, is_proven = answer, answer.proven
    model.settle(objective, hand_overs(problem, found.role))
    for op, spec in enumerate(problem.ops):
        if len(spec.roles) < 2:
            continue
        place = model.role_of(op)
        if found.role[op] != spec.roles[0]:
            answer = model.minimise(place, effort / 8, found.start)
            is_proven &= answer.proven
            found = answer if answer.outcome == "found" else found
        at = spec.roles.index(found.role[op])
        model.settle(place, at)
    return found.role, found.start, is_proven


def hand_overs(problem: Problem, role: Roles) -> int:
    """How many values pass from one role to another."""
    return sum(_crosses_roles(role, edge.src, edge.dst) for edge in problem.edges if edge.hand_over)


def fits(problem: Problem, role: Roles) -> bool:
    """Whether each op has a role, tied ops the same, and the registers are enough."""
    if any(op.roles and at is None for op, at in zip(problem.ops, role, strict=True)):
        return False
    if problem.register_file is None:
        return True
    asked = registers(problem, role)
    total = sum(32 * spec.warps * count for spec, count in zip(problem.roles, asked, strict=True))
    return total <= problem.register_file and max(asked) <= REGISTER_STEP * MOST_STEPS


def guess(problem: Problem, budget: Budget | None = None) -> Roles:
    """Roles that can be had at some interval, to start from: the budget pays for it, whatever is left. Raises
    `Unschedulable` where there are none."""
    found = spread(problem)
    if fits(problem, found):
        return found
    separate = Budget()
    answer = Model(problem, max(1, serial_ii(problem)), budget=separate).feasible(1.0)
    if budget is not None:
        budget.spend(separate.spent)
    if answer.outcome != "found":
        reason = "no division of the ops among the roles leaves enough registers, or tied ops have no role in common"
        raise Unschedulable("role", "registers", reason, tuple(op for op, of in enumerate(problem.ops) if of.roles))
    return answer.role


def registers(problem: Problem, role: Roles) -> tuple[int, ...]:
    """What each role asks for per thread, in whole steps of setmaxnreg; 0 for a role that runs nothing. Counts all
    values of a role as if they lived at once."""
    asked = []
    for index, spec in enumerate(problem.roles):
        mine = {op for op, at in enumerate(role) if at == index}
        held = sum(
            value.amount
            for value in problem.values
            if value.pool == problem.registers and mine & {*value.producers, *value.consumers}
        )
        asked.append(-(-(spec.registers + held) // REGISTER_STEP) * REGISTER_STEP if mine else 0)
    return tuple(asked)
