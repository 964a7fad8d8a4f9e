"""Price of a loop's statement: cycles for which its role is busy, cycles until its result is there, and slots held.

Warps issue in order. A load to registers runs beside later statements up to the first instruction that uses its result.
Where that is in the same statement, the role waits for the load. So a copy through registers into shared memory holds
its role as long as the load takes, and so does a nest that computes with what it loads, or with a loaded address or
condition. A statement that only fills registers does not: its user is another statement, delayed by the dependence
between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

from tilec.analysis.fragment_prefetch import is_fragment_prefetch
from tilec.analysis.trip_count import get_static_trip_count
from tilec.analysis.usage import list_expressions
from tilec.ir import tile
from tilec.ops import registry
from tilec.ops.lowering import Demand, LoweringContext, list_load_demands, list_store_demands, make_demand
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import divide_demand
from tilec.passes.loop.price.nest_price import count_nest_demands
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass
from tilec.target.table import Target, Timing

Uses = dict[int, tuple[int, int]]
"""For each slot, by number: the cycles for which it is held, and the first of them."""
_MEMORY_SCOPES = ("global", "shared")
_ASYNCHRONOUS_MECHANISMS = ("tma", "tma_store", "cp_async", "wgmma", "tcgen05")


@dataclass(frozen=True, slots=True)
class _CostPart:
    """Demands of a statement that run together, `times` over. `chain`: the number of loads that wait for one another, 0
    where the part itself waits for none. `begun`: asynchronous work that a wait elsewhere completes."""

    demands: tuple[Demand, ...]
    times: int
    chain: int
    begun: bool = False


def price_statement(
    stmt: tile.Stmt, assignment: LayoutAssignment, target: Target, groups: int = 1, replays: Sequence[tile.Bind] = ()
) -> tuple[int, int, Uses]:
    """Return, for one of `groups` warpgroups, a statement's issue cycles, latency, and use of slots (cycles, first
    cycle). Of two branches the longer one counts. `replays` are binds that are evaluated again where the statement uses
    them (see `analysis.scalar_definitions`)."""
    if isinstance(stmt, tile.If) and stmt.orelse:
        branches = (replace(stmt, orelse=()), replace(stmt, then=stmt.orelse, orelse=()))
        prices = (price_statement(branch, assignment, target, groups, replays) for branch in branches)
        return max(prices, key=lambda price: price[:2])
    slot_ids = {slot.name: i for i, slot in enumerate(target.slots)}
    issue = latency = waited = 0
    uses: Uses = {}
    parts = _split_into_parts(stmt, assignment) or (_CostPart(_minimal_demand(assignment), 1, 0),)
    for part in (*_find_replayed_loads(stmt, assignment, replays), *parts):
        demands = [divide_demand(d, groups) for d in part.demands]
        timings = [(d, target.price(d.kind, **dict(d.parameters))) for d in demands]
        loads = [t for d, t in timings if part.chain and _is_load_demand(d)]
        others = [t for d, t in timings if not (part.chain and _is_load_demand(d))]
        # The demands of a tile operation overlap, warp by warp; those of a nest run one after the other.
        is_overlapped = isinstance(stmt, tile.TileOp) and len(others) > 0
        first = _count_load_cycles(loads, part.chain)
        together = max if isinstance(stmt, tile.TileOp) else sum
        busy = together([_count_busy_cycles(t, part.begun) for t in others] or [0])
        through = together([t.latency for t in others] or [0])
        issue += part.times * (max(first, busy) if is_overlapped else first + busy)
        latency += part.times * (max(first, through) if is_overlapped else first + through)
        for _, timing in timings:
            after = waited + (0 if is_overlapped or timing in loads else first)
            for slot, cycles, offset in timing.uses:
                held, begin = uses.get(slot_ids[slot], (0, after + offset))
                uses[slot_ids[slot]] = (held + cycles * part.times, min(begin, after + offset))
        waited += first * part.times
    issue = max(issue, 1)
    return issue, max(latency, issue), uses


def count_demands(stmt: tile.Stmt, assignment: LayoutAssignment) -> tuple[Demand, ...]:
    """Return the demands of a statement and all nested ones, times known trip counts; a minimal one if it has none."""
    total = [replace(d, times=part.times) for part in _split_into_parts(stmt, assignment) for d in part.demands]
    return tuple(total) or _minimal_demand(assignment)


def is_asynchronous(stmt: tile.Stmt) -> bool:
    """Return whether the statement is a TMA, cp.async, wgmma or tcgen05 operation, which it only starts."""
    return isinstance(stmt, tile.TileOp) and stmt.via in _ASYNCHRONOUS_MECHANISMS


def _count_load_cycles(loads: Sequence[Timing], chain: int) -> int:
    """Return the cycles until the last of the loads is complete, `chain` of them waiting for one another. Loads issue
    back to back, so that their waits overlap, except where the address of one is the result of another."""
    transfers = [max((offset + cycles for _, cycles, offset in t.uses), default=0) for t in loads]
    waits = sorted((t.latency - transfer for t, transfer in zip(loads, transfers, strict=True)), reverse=True)
    return sum(transfers) + sum(waits[:chain])


def _count_busy_cycles(timing: Timing, begun: bool) -> int:
    """Return the cycles in which the role's warps issue nothing else; of synchronous work, until its units are free."""
    return timing.issue if begun else max([timing.issue, *(offset + cycles for _, cycles, offset in timing.uses)])


def _is_load_demand(demand: Demand) -> bool:
    return demand.kind.startswith("ld.")


def _find_memory_loads(expr: tile.Expr) -> list[tile.Load]:
    """Return the loads from tensors and shared tiles in an expression, also those in indices."""
    own = [expr] if isinstance(expr, tile.Load) and expr.buffer.scope in _MEMORY_SCOPES else []
    return own + [load for part in tile.direct_operands(expr) for load in _find_memory_loads(part)]


def _count_chained_loads(expr: tile.Expr) -> int:
    """Return the length of an expression's longest chain of loads from memory whose indices need one another."""
    is_one = isinstance(expr, tile.Load) and expr.buffer.scope in _MEMORY_SCOPES
    return is_one + max((_count_chained_loads(part) for part in tile.direct_operands(expr)), default=0)


def _only_fills_registers(stmt: tile.Stmt) -> bool:
    """Return whether a statement only loads values to registers, without conversion or loaded indices."""
    match stmt:
        case tile.TileOp(regions=(source, destination)):
            return destination.buffer.in_registers and source.buffer.dtype == destination.buffer.dtype
        case tile.Store(buffer=buffer, value=tile.Load(dtype=dtype, indices=indices)):
            return buffer.in_registers and buffer.dtype == dtype and not any(map(_count_chained_loads, indices))
        case tile.Parallel(body=body):
            return all(_only_fills_registers(inner) for inner in body)
        case tile.Bind(value=tile.Load(indices=indices)):
            return not any(map(_count_chained_loads, indices))
        case _:
            return False


def _split_into_parts(
    stmt: tile.Stmt, assignment: LayoutAssignment, times: int = 1, outer: tile.Stmt | None = None
) -> tuple[_CostPart, ...]:
    """Return the cost parts of a statement in execution order, the loads of addresses and guards first."""
    outer = outer or stmt
    # A loop evaluates its bounds once, and its body in each iteration.
    before = _address_and_guard_loads(stmt, assignment, times, stmt is not outer)
    found: list[_CostPart] = [before] if before is not None else []
    if isinstance(stmt, tile.For) and (trip_count := get_static_trip_count(stmt)) is not None:
        times *= trip_count
    operation_demands: Sequence[Demand] = ()
    if isinstance(stmt, tile.TileOp):
        operation_demands = registry.get_operation(stmt.name).demand(stmt, build_pricing_context(assignment))
    elif isinstance(stmt, tile.Parallel):
        operation_demands = count_nest_demands(
            stmt, assignment.nest_layout(stmt), assignment.kernel.threads, "fast-math" in assignment.kernel.asks
        )
    if operation_demands:
        inside = tile.walk_statements(stmt.body) if isinstance(stmt, tile.Parallel) else ()
        chain = max([1, *(_count_chained_loads(e) for s in inside for e in list_expressions(s))])
        begun = stmt is outer and (is_asynchronous(stmt) or is_fragment_prefetch(stmt))
        is_left = begun or _only_fills_registers(stmt)
        found.append(_CostPart(tuple(operation_demands), times, 0 if is_left else chain, begun))
    if not isinstance(stmt, tile.Parallel):
        for inner in (inner for body in tile.nested_bodies(stmt) for inner in body):
            found += _split_into_parts(inner, assignment, times, outer)
    return tuple(found)


def _find_replayed_loads(
    stmt: tile.Stmt, assignment: LayoutAssignment, replays: Sequence[tile.Bind]
) -> Iterator[_CostPart]:
    """Yield one cost part with the memory loads of the replayed binds that a statement uses; nothing without any."""
    values: dict[tile.Var, tile.Expr] = {}
    for bind in replays:
        values[bind.var] = tile.substitute_variables(bind.value, values)
    expressions = (expr for s in tile.walk_statements((stmt,)) for expr in list_expressions(s))
    variables = {part for expr in expressions for part in tile.walk_expr(expr) if isinstance(part, tile.Var)}
    used = [value for var, value in values.items() if var in variables]
    loads = dict.fromkeys(load for value in used for load in _find_memory_loads(value))
    if loads:
        demands = (d for load in loads for d in _demand_per_thread(list_load_demands, load.buffer, assignment))
        yield _CostPart(tuple(demands), 1, max(map(_count_chained_loads, used)))


def _address_and_guard_loads(
    stmt: tile.Stmt, assignment: LayoutAssignment, times: int, is_nested: bool
) -> _CostPart | None:
    """Return the loads of a statement's addresses and guards, and a store that needs them, as a cost part; None
    without any."""
    exprs = list(list_expressions(stmt))
    if isinstance(stmt, tile.TileOp):
        exprs = [e for region in stmt.regions for e in region.start]
    elif not isinstance(stmt, tile.If | tile.For | tile.While | tile.Bind | tile.Store):
        return None
    loads = dict.fromkeys(load for e in exprs for load in _find_memory_loads(e))
    access_demands = [d for load in loads for d in _demand_per_thread(list_load_demands, load.buffer, assignment)]
    if not access_demands:
        return None
    if isinstance(stmt, tile.Store):
        access_demands += _demand_per_thread(list_store_demands, stmt.buffer, assignment)
    is_left = _only_fills_registers(stmt) and not is_nested
    return _CostPart(tuple(access_demands), times, 0 if is_left else max(map(_count_chained_loads, exprs)))


def _demand_per_thread(
    asks: Callable[[tile.Buffer, int, int], tuple[Demand, ...]], buffer: tile.Buffer, assignment: LayoutAssignment
) -> tuple[Demand, ...]:
    """Return the demands of one element of the buffer loaded or stored by each thread."""
    threads = assignment.kernel.threads
    return asks(buffer, threads * buffer.dtype.bytes, threads)


def _minimal_demand(assignment: LayoutAssignment) -> tuple[Demand, ...]:
    """Return the demand of one operation by each thread."""
    return (make_demand("elementwise", ops=1, elements=1, threads=assignment.kernel.threads),)


def build_pricing_context(assignment: LayoutAssignment) -> LoweringContext:
    """Return a lowering context for prices; whoever asks it for a tensor map or a scratch tile gets an error."""

    def refuse_resource(*_: object) -> NoReturn:
        raise InternalError("prices need no resources")

    known = assignment.kernel.threads, assignment.fragments, assignment.shared
    return LoweringContext(*known, (), refuse_resource, refuse_resource)
