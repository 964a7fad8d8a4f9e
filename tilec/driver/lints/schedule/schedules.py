"""bank-conflict: two alias groups access shared memory at once, both in patterns that their layouts serve slowly.
address-latency: address arithmetic makes the compute side look long, and so hides that loads need more stages.
too-few-stages: a loop waits for its loads, and more versions of its tiles fit shared memory and pay.
schedule-not-proven: the solver ended with a schedule that may not be optimal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tilec.analysis.rings import is_load
from tilec.driver.lints.registry import SCHEDULE, register_lint, register_warning
from tilec.ir import tile
from tilec.ir.tile import For, Parallel, TileOp, walk_statements
from tilec.passes.cost.stage_gain import find_stage_gain
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.shared.atoms import Sweep, compute_conflict_factor, find_shared_accesses
from tilec.passes.layout.shared.lane_addresses import find_conflict_factors as conflicts_of_nest
from tilec.passes.layout.shared.transpose_operands import is_operand_transposition
from tilec.passes.loop.build_problem import LoopProblem, PlannedLoop
from tilec.passes.loop.price.nest_price import is_per_element
from tilec.passes.loop.price.statement_price import is_asynchronous
from tilec.passes.state import KernelState
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule
from tilec.support.diagnostics import Diagnostic, Label, make_warning
from tilec.support.display import show_share
from tilec.support.source import Span
from tilec.target.table import Target

MOST_UNPROVEN = 5
"""The percents by which an interval may be too large and nothing is said: predicted times err by more."""


@register_lint(SCHEDULE, "bank-conflict")
def find_bank_conflicts(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each pair of tiles that are accessed at once, both with bank conflicts."""
    for assignment in work.assignment.kernels:
        yield from _find_conflicting_pairs(assignment, work.loops)


def _find_conflicting_pairs(assignment: LayoutAssignment, loops: Iterable[PlannedLoop]) -> Iterator[Diagnostic]:
    """Yield a warning for each pair of tiles accessed at once with bank conflicts, where it is worst.

    Statements access at once if they are the same, or overlap in a schedule.
    """
    slow = _find_conflicted_tiles(assignment)
    statements = (stmt for stmt in walk_statements(assignment.kernel.body) if isinstance(stmt, Parallel | TileOp))
    together = [(stmt.span, stmt.span) for stmt in statements]
    for planned in loops:
        together += _find_overlapping_statements(planned.loop, planned.solution.schedule)
    worst: dict[frozenset[str], tuple[float, Diagnostic]] = {}
    for first, second in together:
        for name, ways in slow.get(first, {}).items():
            for other, others_ways in slow.get(second, {}).items():
                pair = frozenset((name, other))
                if name != other and ways + others_ways > worst.get(pair, (0.0,))[0]:
                    worst[pair] = ways + others_ways, _build_warning((name, first, ways), (other, second, others_ways))
    yield from (found for _, found in worst.values())


def _build_warning(one: tuple[str, Span, float], another: tuple[str, Span, float]) -> Diagnostic:
    """Return the warning about two tiles, each given with its place and the factor that conflicts slow it by."""
    (name, first, ways), (other, second, others_ways) = one, another
    return Diagnostic(
        "bank-conflict",
        f"{name} and {other} are accessed at the same time and conflict in the banks of shared memory",
        Label(first, f"{name} takes {ways:g} times as long as its bytes need"),
        (Label(second, f"and {other} {others_ways:g} times"),) if first != second else (),
        (f"{other} takes {others_ways:g} times as long",) if first == second else (),
        "index one of them along its rows, or make its rows multiples of 32 bytes",
        "warning",
    )


def _find_conflicted_tiles(assignment: LayoutAssignment) -> dict[Span, dict[str, float]]:
    """Return, by statement span, the author's tiles that bank conflicts slow down by 2 or more, with the factor.

    Nests count by the addresses of their lanes, other statements by their access pattern.
    """
    nests = [s for s in walk_statements(assignment.kernel.body) if isinstance(s, Parallel)]
    found = {nest.span: conflicts_of_nest(nest, assignment) for nest in nests}
    inside = {s.span for nest in nests for s in walk_statements(nest.body)}
    turning = {s.span for s in walk_statements(assignment.kernel.body) if is_operand_transposition(s)}
    for access in find_shared_accesses(assignment.kernel, assignment.fragments, assignment.nest_layout):
        if access.span in inside or (access.span in turning and isinstance(access.pattern, Sweep)):
            continue
        found.setdefault(access.span, {})[access.tile] = compute_conflict_factor(
            assignment.shared[access.tile], access.pattern
        )
    # Names with a dot are the compiler's own.
    return {span: {n: ways for n, ways in tiles.items() if ways >= 2 and "." not in n} for span, tiles in found.items()}


def _find_overlapping_statements(loop: LoopProblem, schedule: Schedule) -> Iterator[tuple[Span, Span]]:
    """Yield pairs of statements that use shared-memory ports in the same rows of the reservation table."""
    held = [_find_shared_rows(loop.problem, schedule, op) for op in range(len(loop.statements))]
    for i, rows in enumerate(held):
        for j in range(i):
            if any(a < d and c < b for a, b in rows for c, d in held[j]):
                yield loop.statements[j].span, loop.statements[i].span


def _find_shared_rows(problem: Problem, schedule: Schedule, op: int) -> list[tuple[int, int]]:
    """Return the row ranges of the reservation table in which a statement holds a shared-memory port."""
    rows = []
    for use in problem.ops[op].uses:
        if problem.slots[use.slot].name.startswith("tp_smem") and use.cycles:
            first = (schedule.start[op] + use.offset) % schedule.ii
            end = first + min(use.cycles, schedule.ii)
            rows += [(first, min(end, schedule.ii)), (0, end - schedule.ii)]
    return [(first, end) for first, end in rows if end > first]


# Instructions of an integer division: by a constant a multiplication by its reciprocal, else a full division.
_DIVIDE_BY_CONSTANT, _DIVIDE_BY_VALUE = 6, 20


@register_lint(SCHEDULE, "address-latency")
def find_long_address_arithmetic(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each nest whose index arithmetic makes a loop seem to need too few stages."""
    for planned in work.loops:
        yield from _find_inflating_statements(planned.loop, work.assignment, work.target)


def _find_inflating_statements(loop: LoopProblem, assignment: LayoutAssignment, target: Target) -> Iterator[Diagnostic]:
    """Yield a warning for each nest of a loop whose index arithmetic lowers its stages, ⌈memory / compute⌉."""
    ops = list(zip(loop.statements, loop.problem.ops, strict=True))
    memory = max((op.latency for stmt, op in ops if _is_tile_load(stmt)), default=0)
    compute = sum(
        op.issue if not is_asynchronous(stmt) else max((use.cycles for use in op.uses), default=0)
        for stmt, op in ops
        if not _is_tile_load(stmt)
    )
    for stmt, op in ops:
        if not isinstance(stmt, tile.Parallel):
            continue
        indices = (index for s in tile.walk_statements(stmt.body) for index in _list_indices(s))
        work = sum(_count_index_instructions(index, stmt) for index in indices)
        elements, threads = math.prod(stmt.extents), assignment.kernel.threads
        spent = target.price("elementwise", ops=work, elements=elements, threads=threads).issue if work else 0
        # The schedule prices an operation as one instruction, so the extra cost of divisions is added.
        inflated = max(compute - op.issue, 0) + max(op.issue, spent)
        # Without index arithmetic the other work remains, at least the loads and stores.
        honest = max(inflated - spent, op.issue, 1)
        if math.ceil(memory / max(inflated, 1)) < math.ceil(memory / honest) and 2 * spent >= op.issue:
            title = "computing addresses takes longer than the work on the data"
            label = f"{spent} cycles of index arithmetic in each iteration"
            enough = f"{math.ceil(memory / max(inflated, 1))} stages seem enough to hide {memory} cycles of loading"
            notes = (f"with it, {enough}; without it {math.ceil(memory / honest)}",)
            advice = "compute the index once outside the loop, or divide by powers of two"
            yield make_warning("address-latency", title, stmt.span, label, notes=notes, help=advice)


def _is_tile_load(stmt: tile.Stmt) -> bool:
    return isinstance(stmt, tile.TileOp) and is_load(stmt)


def _list_indices(stmt: tile.Stmt) -> Iterator[tile.Expr]:
    """Yield the indices of all loads and stores of a statement."""
    if isinstance(stmt, tile.Store):
        yield from stmt.indices
    for load in tile.walk_loads(stmt):
        yield from load.indices


def _count_index_instructions(index: tile.Expr, nest: tile.Parallel) -> int:
    """Return the instructions for an index's divisions that depend on the element; other parts count 0.

    Additions and scaling fold into the access's address; what a row or column has in common is computed once.
    """
    found = 0
    for part in tile.walk_expr(index):
        if isinstance(part, tile.Binary) and part.op in ("floordiv", "floormod") and is_per_element(part, nest):
            by = part.b.value if isinstance(part.b, tile.Const) else None
            is_power = isinstance(by, int) and by > 0 and by & (by - 1) == 0
            found += 0 if is_power else _DIVIDE_BY_VALUE if by is None else _DIVIDE_BY_CONSTANT
    return found


@register_lint(SCHEDULE, "too-few-stages")
def find_too_few_stages(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning if the kernel's own `num_stages` makes its loops wait for loads, and a larger one pays.

    Only for targets with wgmma: on an H200 it has been measured how often the prediction is right.
    """
    if not work.target.has("wgmma") or work.assignment.roles or work.options.schedule is not None:
        return
    spans = {planned.loop.loop.span for planned in work.loops}
    loops = (stmt for stmt in walk_statements(work.source_kernel.body) if isinstance(stmt, For))
    written = [loop for loop in loops if loop.span in spans]
    numbers = {loop.num_stages for loop in written}
    is_limited = numbers != {planned.loop.loop.num_stages for planned in work.loops}  # by the compiler
    if is_limited or None in numbers or any(loop.stage is not None for loop in written):
        return
    if (gain := find_stage_gain(work.assignment, work.loops, work.target)) is not None:
        first, *others = written
        title = f"with num_stages={gain.stages} this kernel is predicted to take {show_share(gain.share)} less time"
        label = f"with num_stages={first.num_stages} the loads of this loop come too late"
        again = tuple(Label(loop.span, "and of this one") for loop in others)
        kib, limit = -(-gain.smem_bytes // 1024), work.target.limit("smem_bytes_per_cta") // 1024
        advice = f"write num_stages={gain.stages}, which fits: about {kib} of {limit} KiB of shared memory"
        yield make_warning("too-few-stages", title, first.span, label, secondary=again, help=advice)


@register_warning(SCHEDULE)
def find_unproven_schedules(work: KernelState) -> Iterator[Diagnostic]:
    """Yield the solver's warning for each loop whose schedule may be slower than another by more than a prediction may
    err."""
    for planned in work.loops:
        found = planned.solution
        if found.warning is not None and (found.is_cut or found.most_excess > MOST_UNPROVEN):
            label = Label(planned.loop.loop.span)
            helped = "search longer, with a larger --search-budget" if found.is_cut else None
            yield Diagnostic("schedule-not-proven", found.warning, label, help=helped, severity="warning")
