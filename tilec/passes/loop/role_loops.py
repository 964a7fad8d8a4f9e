"""Scheduling problems of loops that acquire pipeline stages inside explicit roles, and the roles reordered by
schedules.

The kernel fixes the roles, and the order in which each acquires, releases, waits and arrives. The scheduler orders the
rest: a statement on a stage stays between its acquire and its release, one on other memory stays where waits and
arrivals have it, and one on registers only follows its operands. An iteration ends before the next begins, so all its
statements are in one stage: the pipelines say how far roles run in advance of one another. The order that the scheduler
begins with has each release as early as possible, for the role that waits for the stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilec.analysis.control_slice import is_variable
from tilec.analysis.rings import find_accesses
from tilec.analysis.usage import find_reads, find_writes, list_expressions
from tilec.ir import tile
from tilec.ops.synchronisation.barriers import AllocBarrier, get_barrier
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment
from tilec.passes.loop.build_problem import LoopProblem
from tilec.passes.loop.describe import describe_statement
from tilec.passes.loop.price.statement_price import price_statement
from tilec.sched.problem import Edge, Op, Problem, Slot, Use
from tilec.support.records import dataclass
from tilec.target.table import Target

Statements = tuple[tile.Stmt, ...]


@dataclass(frozen=True, slots=True)
class StatementUnit:
    """Statements that stay together: an acquire with its phase updates, or one statement, which is `main`. `pipeline`
    is the one of which it acquires or releases a stage. `is_ordered`: it keeps its place among all ordered units."""

    statements: Statements
    main: tile.Stmt
    pipeline: str
    is_ordered: bool


def find_role_loops(assignment: LayoutAssignment) -> tuple[tuple[RoleAssignment, tile.For], ...]:
    """Return each loop of an explicit role that acquires pipeline stages and contains no other control flow."""
    return tuple((part, loop) for part in assignment.roles for loop in _find_stage_loops(part.kernel.body))


def _find_stage_loops(body: Statements) -> Iterator[tile.For]:
    """Yield the serial loops that acquire stages and have no control flow or barrier polls inside."""
    loops = (s for s in tile.walk_statements(body) if isinstance(s, tile.For) and s.kind == "serial")
    for loop in (loop for loop in loops if any(map(_is_acquire, loop.body))):
        compound = tile.For | tile.If | tile.While | tile.Break
        if not any(isinstance(s, compound) or _is_barrier_poll(s) for s in loop.body):
            yield loop


def _is_barrier_poll(stmt: tile.Stmt) -> bool:
    """Return whether a nest reads the state of a barrier without waiting, so that its result depends on when it
    runs."""
    return isinstance(stmt, tile.Parallel) and any(b.scope == "barrier" for b in find_reads(stmt))


def _is_acquire(stmt: tile.Stmt) -> bool:
    return isinstance(stmt, tile.TileOp) and stmt.acquires is not None


def _find_pipeline_name(stmt: tile.Stmt) -> str:
    """Return the name of the pipeline whose stage a statement acquires, releases or drains, else ""."""
    if not isinstance(stmt, tile.TileOp):
        return ""
    end = stmt.acquires or stmt.releases
    return end[0] if end is not None else stmt.drains or ""


def group_statements(body: Statements) -> tuple[StatementUnit, ...]:
    """Group a loop's statements into units, which are scheduled whole: an acquire with its phase updates is one."""
    found: list[StatementUnit] = []
    at = 0
    while at < len(body):
        end = at + 1
        while end < len(body) and body[end].span == body[at].span and _is_part_of_acquire(body[at : end + 1]):
            end += 1
        statements = body[at:end]
        main = next((s for s in statements if _find_pipeline_name(s)), statements[-1])
        pipeline = _find_pipeline_name(main)
        found.append(StatementUnit(statements, main, pipeline, bool(pipeline) or not _is_movable(main)))
        at = end
    return tuple(found)


def _is_part_of_acquire(statements: Statements) -> bool:
    """Return whether the statements can be one acquire: binds, at most one wait, and updates of its phase variables."""
    waits = [s for s in statements if isinstance(s, tile.TileOp)]
    sets = [s for s in statements if isinstance(s, tile.Parallel)]
    return (
        isinstance(statements[0], tile.Bind)
        and len(waits) <= 1
        and all(map(_is_acquire, waits))
        and all(map(only_sets_variables, sets))
        and (not sets or bool(waits))
    )


def only_sets_variables(stmt: tile.Stmt) -> bool:
    """Return whether a statement is a nest that only stores to variables of T.alloc_var."""
    return isinstance(stmt, tile.Parallel) and all(
        isinstance(s, tile.Store) and is_variable(s.buffer) for s in stmt.body
    )


def _is_movable(stmt: tile.Stmt) -> bool:
    """Return whether a statement may move as far as its operands allow: no print, wait, or operation of unknown
    order."""
    match stmt:
        case tile.Parallel():
            return not any(isinstance(s, tile.Print) for s in tile.walk_statements((stmt,)))
        case tile.TileOp():
            return stmt.order_is_known and stmt.wait is None and not stmt.commits
        case tile.Bind():
            return True
        case _:
            return False


def build_role_problems(assignment: LayoutAssignment, target: Target) -> tuple[LoopProblem, ...]:
    """Return the scheduling problem of each loop that `find_role_loops` returns."""
    pipelines = map_tiles_to_pipelines(assignment.kernel)
    return tuple(_build_problem(part, loop, pipelines, target) for part, loop in find_role_loops(assignment))


def map_tiles_to_pipelines(kernel: tile.Kernel) -> dict[str, str]:
    """Return the name of the pipeline that holds each tile, by the tile's name."""
    made = [s for s in kernel.body if isinstance(s, AllocBarrier)]
    return {buffer: str(op.pipeline) for op in made for buffer in op.holds or ()}


def _build_problem(part: RoleAssignment, loop: tile.For, pipelines: Mapping[str, str], target: Target) -> LoopProblem:
    """Return the scheduling problem of a loop of one explicit role, with all its statements in one stage."""
    units_in_order = release_early(group_statements(loop.body), pipelines)
    slots = (*target.slots, Slot(f"issue ({part.name})"))
    ops = tuple(_build_op(unit, part, target, len(target.slots)) for unit in units_in_order)
    edges = tuple(_build_edges(units_in_order, ops, pipelines))
    problem = Problem(f"{part.kernel.name}.{part.name}.{loop.var.name}", ops, edges, slots, max_stages=1)
    return LoopProblem(loop, tuple(u.main for u in units_in_order), (part.name,) * len(units_in_order), (), problem)


def _build_op(unit: StatementUnit, part: RoleAssignment, target: Target, own_slot: int) -> Op:
    """Return the op of a unit, priced by its main statement, which issues in the role's own slot."""
    stmt = unit.main
    issue, latency, uses = price_statement(stmt, part.assignment, target)
    uses[own_slot] = (issue, 0)
    slot_uses = tuple(Use(slot, cycles, offset) for slot, (cycles, offset) in sorted(uses.items()) if cycles)
    return Op(name_statement(stmt), slot_uses, issue, latency, part.name, stmt.span.line, file=stmt.span.file)


def name_statement(stmt: tile.Stmt) -> str:
    """Return the statement's name for listings: `acquire inputs`, `arrive done`, `copy A → A_shared`."""
    if not isinstance(stmt, tile.TileOp):
        return describe_statement(stmt)
    if _find_pipeline_name(stmt):
        action = "acquire" if stmt.acquires is not None else "release" if stmt.releases is not None else "drain"
        return f"{action} {_find_pipeline_name(stmt)}"
    is_about_barrier = stmt.barrier is not None and not stmt.regions
    return f"{stmt.name} {get_barrier(stmt).name}" if is_about_barrier else describe_statement(stmt)


def _build_edges(units: Sequence[StatementUnit], ops: Sequence[Op], pipelines: Mapping[str, str]) -> Iterator[Edge]:
    """Yield an edge for each two units of the loop that must keep their order, with the reason."""
    touched = [_find_touched_names(unit) for unit in units]
    for j in range(len(units)):
        for i in range(j):
            why = _why_ordered(units[i], units[j], touched[i], touched[j], pipelines)
            if why:
                yield Edge(i, j, ops[i].issue if _completes_asynchronously(units[i]) else ops[i].latency, 0, why)


def _completes_asynchronously(unit: StatementUnit) -> bool:
    """Return whether the unit is TMA or tcgen05 work, for whose completion only the stage's receiver waits."""
    return isinstance(unit.main, tile.TileOp) and unit.main.via in ("tma", "tcgen05")


@dataclass(frozen=True, slots=True)
class _TouchedNames:
    """Names of the buffers and variables that a unit accesses; `memory`: buffers that are not in registers."""

    reads: frozenset[str]
    writes: frozenset[str]
    memory: frozenset[str]


def _find_touched_names(unit: StatementUnit) -> _TouchedNames:
    """Return the names of the buffers and variables that a unit reads and writes; variables begin with %."""
    accesses = [find_accesses(stmt) for stmt in unit.statements]
    parts = (e for s in tile.walk_statements(unit.statements) for x in list_expressions(s) for e in tile.walk_expr(x))
    used = frozenset(f"%{e.name}" for e in parts if isinstance(e, tile.Var))
    bound = frozenset(f"%{stmt.var.name}" for stmt in unit.statements if isinstance(stmt, tile.Bind))
    buffers = (b for stmt in unit.statements for b in (*find_reads(stmt), *find_writes(stmt)))
    memory = frozenset(b.name for b in buffers if not b.in_registers)
    return _TouchedNames(used.union(*(a.reads for a in accesses)), bound.union(*(a.writes for a in accesses)), memory)


def _why_ordered(
    a: StatementUnit, b: StatementUnit, first: _TouchedNames, second: _TouchedNames, pipelines: Mapping[str, str]
) -> str:
    """Return why the first unit must stay before the second: a dependence or the text's order; "" if it need not."""
    for kind, names in (
        ("data", first.writes & second.reads),
        ("anti", first.reads & second.writes),
        ("output", first.writes & second.writes),
    ):
        if names:
            return f"{kind} {min(names).removeprefix('%')}"
    if a.is_ordered and b.is_ordered:
        return "as written"
    for ordered, other in ((a, second), (b, first)):
        if ordered.is_ordered and any(pipelines.get(name, "") in ("", ordered.pipeline) or not ordered.pipeline
                                      for name in other.memory):  # fmt: skip
            return f"stage of {ordered.pipeline}" if ordered.pipeline else "as written"
    return ""


def release_early(units: Sequence[StatementUnit], pipelines: Mapping[str, str]) -> tuple[StatementUnit, ...]:
    """Return the units with each release moved right behind the last unit that it must follow."""
    order: list[StatementUnit] = []
    for unit in units:
        touched, at = _find_touched_names(unit), len(order)
        while (
            _is_release(unit)
            and at
            and not _why_ordered(order[at - 1], unit, _find_touched_names(order[at - 1]), touched, pipelines)
        ):
            at -= 1
        order.insert(at, unit)
    return tuple(order)


def _is_release(unit: StatementUnit) -> bool:
    """Return True if the unit releases a pipeline stage."""
    return isinstance(unit.main, tile.TileOp) and unit.main.releases is not None
