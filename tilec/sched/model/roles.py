"""Joint warp specialisation: chooses the role that runs each op, together with the interval.

Once roles are chosen, an op holds its role's slot while it issues, and a value that passes to another role takes
longer: `resolve_roles` writes that into a problem without candidates. Everything but the choice itself works on that
problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilec.sched.budget import Budget
from tilec.sched.lower_bounds.bounds import Unschedulable, compute_bounds, compute_serial_ii
from tilec.sched.model.model import MAX_REGISTER_STEPS, REGISTER_STEP, Model
from tilec.sched.problem import Problem, Use
from tilec.sched.solution import Solution

Roles = tuple[int | None, ...]


def has_roles(problem: Problem) -> bool:
    """Return whether some op names candidate roles, so that roles must be chosen."""
    return any(op.roles for op in problem.ops)


def choose_roles_by_rule(problem: Problem) -> Roles:
    """Return each op's first candidate role, which the problem's author prefers; None for an op without."""
    return tuple(op.roles[0] if op.roles else None for op in problem.ops)


def resolve_roles(problem: Problem, role: Roles) -> Problem:
    """Return the problem with these chosen roles as uses of slots and longer edges; unchanged if none are given."""
    if not role:
        return problem
    ops = list(problem.ops)
    for index, (op, at) in enumerate(zip(problem.ops, role, strict=True)):
        if at is not None:
            chosen = problem.roles[at]
            uses = (*op.uses, Use(chosen.slot, op.issue + op.wait, -op.wait))
            ops[index] = replace(op, uses=uses, role=chosen.name, roles=(), wait=0)
    edges = tuple(
        replace(edge, latency=edge.latency + edge.hand_over * _crosses_roles(role, edge.src, edge.dst), hand_over=0)
        for edge in problem.edges
    )
    return replace(problem, ops=tuple(ops), edges=edges, roles=(), tied=(), register_file=None)


def solve_with_best_roles(
    problem: Problem,
    solver: Callable[[Problem], Solution],
    only_by_rule: bool = False,
    solve_below: Callable[[Problem, Solution], Solution] | None = None,
) -> Solution:
    """Return the solution with roles by rule, or with the solver's if its II is smaller and not `only_by_rule`.

    `solve_below`, if given, looks for one of a smaller II than that of a known solution, or returns that one.
    """
    if not has_roles(problem):
        return solver(problem)
    rule = choose_roles_by_rule(problem)
    plain = resolve_roles(problem, rule)
    if only_by_rule or all(len(op.roles) < 2 for op in problem.ops):
        return _set_roles(solver(plain), rule)
    least_by_rule = compute_bounds(plain).mii
    # Each problem is solved only if its bound leaves it a chance to win.
    joint = solver(problem) if compute_bounds(problem).mii < least_by_rule else None
    if joint is not None and joint.schedule.ii < least_by_rule:
        return replace(joint, ii_by_rule=least_by_rule)
    kept = solver(plain)
    ii = kept.schedule.ii
    if joint is None and compute_bounds(problem).mii < ii:
        joint = solver(problem) if solve_below is None else solve_below(problem, _set_roles(kept, rule))
    if joint is not None and joint.schedule.ii < ii:
        return replace(joint, ii_by_rule=ii)
    if joint is not None and joint.schedule.status != "optimal":
        # Other roles may still allow a smaller interval.
        tried = tuple(attempt for attempt in joint.attempts if attempt.ii < ii)
        kept = replace(kept, schedule=replace(kept.schedule, status="feasible"), bounds=joint.bounds, attempts=tried)
        kept = replace(kept, is_cut=kept.is_cut or joint.is_cut)
    return replace(_set_roles(kept, rule), ii_by_rule=ii)


def _set_roles(solution: Solution, role: Roles) -> Solution:
    return replace(solution, schedule=replace(solution.schedule, role=role))


def _crosses_roles(role: Roles, src: int, dst: int) -> bool:
    """Return whether both ops have a role and these differ."""
    return role[src] is not None and role[dst] is not None and role[src] != role[dst]


def balance_roles(problem: Problem) -> Roles:
    """Return a role for each op to start from, tied ops together: the least busy that all may have, or None."""
    group = list(range(len(problem.ops)))
    for tied in problem.tied:
        for old in sorted({group[op] for op in tied}):
            group = [group[tied[0]] if at == old else at for at in group]
    members: dict[int, list[int]] = {}
    for op, at in enumerate(group):
        members.setdefault(at, []).append(op)
    busy = [0] * len(problem.roles)
    role: list[int | None] = [None] * len(problem.ops)

    def sum_demand(at: int) -> int:
        """Return the cycles for which a group's ops keep their role busy."""
        return sum(problem.ops[op].issue + problem.ops[op].wait for op in members[at])

    for at in sorted(members, key=lambda at: (-sum_demand(at), at)):
        common = [r for r in range(len(problem.roles)) if all(r in problem.ops[op].roles for op in members[at])]
        if common:
            chosen = min(common, key=lambda r: (busy[r] + sum_demand(at), r))
            busy[chosen] += sum_demand(at)
            for op in members[at]:
                role[op] = chosen
    return tuple(role)


def find_fewest_handovers(
    problem: Problem, ii: int, stages: int, start: Sequence[int], effort: float, budget: Budget | None = None
) -> tuple[Roles, tuple[int, ...], bool] | None:
    """Return (roles with fewest handed-over values at this II and stages, starts, whether proven), or None.

    First candidates are preferred. None if no roles were found.
    """
    model = Model(problem, ii, stages, budget=budget)
    objective = model.express_handovers()
    answer = model.minimise(objective, effort, start)
    if answer.outcome != "found":
        return None
    found, is_proven = answer, answer.proven
    model.settle(objective, count_handovers(problem, found.role))
    for op, spec in enumerate(problem.ops):
        if len(spec.roles) < 2:
            continue
        place = model.express_role(op)
        if found.role[op] != spec.roles[0]:
            answer = model.minimise(place, effort / 8, found.start)
            is_proven &= answer.proven
            found = answer if answer.outcome == "found" else found
        at = spec.roles.index(found.role[op])
        model.settle(place, at)
    return found.role, found.start, is_proven


def count_handovers(problem: Problem, role: Roles) -> int:
    """Return the number of edges that hand a value from one role to another."""
    return sum(_crosses_roles(role, edge.src, edge.dst) for edge in problem.edges if edge.hand_over)


def is_valid_assignment(problem: Problem, role: Roles) -> bool:
    """Return whether each op with candidates has a role and the roles' registers fit.

    Tied ops share a role by construction.
    """
    if any(op.roles and at is None for op, at in zip(problem.ops, role, strict=True)):
        return False
    if problem.register_file is None:
        return True
    counts = count_role_registers(problem, role)
    total = sum(32 * spec.warps * count for spec, count in zip(problem.roles, counts, strict=True))
    return total <= problem.register_file and max(counts) <= REGISTER_STEP * MAX_REGISTER_STEPS


def guess_roles(problem: Problem, budget: Budget | None = None) -> Roles:
    """Return roles that are possible at some II: balanced, else the solver's; raise `Unschedulable` if there are none.

    The solver's work is charged even to a spent budget.
    """
    found = balance_roles(problem)
    if is_valid_assignment(problem, found):
        return found
    separate = Budget()
    answer = Model(problem, max(1, compute_serial_ii(problem)), budget=separate).feasible(1.0)
    if budget is not None:
        budget.spend(separate.spent)
    if answer.outcome != "found":
        reason = "no assignment of ops to roles fits the register file, or tied ops share no candidate role"
        raise Unschedulable("role", "registers", reason, tuple(op for op, spec in enumerate(problem.ops) if spec.roles))
    return answer.role


def count_role_registers(problem: Problem, role: Roles) -> tuple[int, ...]:
    """Return each role's registers per thread, rounded up to steps of setmaxnreg; 0 for a role that runs nothing.

    All values of a role count as if they lived at once.
    """
    counts = []
    for index, spec in enumerate(problem.roles):
        ops_of_role = {op for op, at in enumerate(role) if at == index}
        held = sum(
            value.amount
            for value in problem.values
            if value.pool == problem.registers and ops_of_role & {*value.producers, *value.consumers}
        )
        counts.append(-(-(spec.registers + held) // REGISTER_STEP) * REGISTER_STEP if ops_of_role else 0)
    return tuple(counts)
