"""Price of a loop's statement: cycles for which its role is busy, cycles until its result is there, and slots held.

Warps issue in order. A load to registers runs beside later statements up to the first instruction that uses its result.
Where that is in the same statement, the role waits for the load. So a copy through registers into shared memory holds
its role as long as the load takes, and so does a nest that computes with what it loads, or with a loaded address or
condition. A statement that only fills registers does not: its user is another statement, delayed by the dependence
between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

from tilec.ir import tile
from tilec.ops import registry
from tilec.ops.lowering import Context, Demand, demand, loaded, stored
from tilec.passes.analysis.fragment_prefetch import is_fragment_prefetch
from tilec.passes.analysis.trip_count import static_trip_count
from tilec.passes.analysis.usage import expressions
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import part_of
from tilec.passes.loop.nest_price import nest_demands
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass
from tilec.target.table import Target, Timing

Uses = dict[int, tuple[int, int]]
"""For each slot, by number: the cycles for which it is held, and the first of them."""
_IN_MEMORY = ("global", "shared")
_ASYNCHRONOUS = ("tma", "tma_store", "cp_async", "wgmma", "tcgen05")


@dataclass(frozen=True, slots=True)
class _Part:
    """Demands of a statement that run together, `times` over. `chain`: the number of loads that wait for one another, 0
    where the part itself waits for none. `begun`: asynchronous work that a wait elsewhere completes."""

    demands: tuple[Demand, ...]
    times: int
    chain: int
    begun: bool = False


def price(
    stmt: tile.Stmt, assignment: LayoutAssignment, target: Target, groups: int = 1, replays: Sequence[tile.Bind] = ()
) -> tuple[int, int, Uses]:
    """Return the issue cycles of a statement, its latency, and its use of each slot (cycles, first cycle). The price is
    for one of `groups` warpgroups; of two branches the longer one counts. `replays` are binds that are evaluated again
    where the statement uses them (see `analysis.scalar_definitions`)."""
    if isinstance(stmt, tile.If) and stmt.orelse:
        branches = (replace(stmt, orelse=()), replace(stmt, then=stmt.orelse, orelse=()))
        return max(
            (price(branch, assignment, target, groups, replays) for branch in branches), key=lambda cost: cost[:2]
        )
    slot_ids = {slot.name: i for i, slot in enumerate(target.slots)}
    issue = latency = waited = 0
    uses: Uses = {}
    parts = _parts(stmt, assignment) or (_Part(_nothing(assignment), 1, 0),)
    for part in (*_replayed(stmt, assignment, replays), *parts):
        timings = [(d, target.price(d.kind, **dict(d.parameters))) for d in (part_of(d, groups) for d in part.demands)]
        loads = [t for d, t in timings if part.chain and _is_load(d)]
        others = [t for d, t in timings if not (part.chain and _is_load(d))]
        # The demands of a tile operation overlap, warp by warp; those of a nest run one after the other.
        is_overlapped = isinstance(stmt, tile.TileOp) and len(others) > 0
        first = _until_loaded(loads, part.chain)
        together = max if isinstance(stmt, tile.TileOp) else sum
        busy = together([_busy(t, part.begun) for t in others] or [0])
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


def demands(stmt: tile.Stmt, assignment: LayoutAssignment) -> tuple[Demand, ...]:
    """Return the demands of a statement and of all nested ones. A loop with an unknown trip count counts as one
    iteration."""
    total = [replace(d, times=part.times) for part in _parts(stmt, assignment) for d in part.demands]
    return tuple(total) or _nothing(assignment)


def is_asynchronous(stmt: tile.Stmt) -> bool:
    """Return whether the statement only starts work that a wait completes."""
    return isinstance(stmt, tile.TileOp) and stmt.via in _ASYNCHRONOUS


# ---- loads and what waits for them ----


def _until_loaded(loads: Sequence[Timing], chain: int) -> int:
    """Return the cycles until the last of the loads is complete. Loads issue back to back, so that their waits overlap,
    except where the address of one is the result of another."""
    transfers = [max((offset + cycles for _, cycles, offset in t.uses), default=0) for t in loads]
    waits = sorted((t.latency - transfer for t, transfer in zip(loads, transfers, strict=True)), reverse=True)
    return sum(transfers) + sum(waits[:chain])


def _busy(timing: Timing, begun: bool) -> int:
    """Return the cycles in which the role's warps issue nothing else: for synchronous work, until its last unit is
    free."""
    return timing.issue if begun else max([timing.issue, *(offset + cycles for _, cycles, offset in timing.uses)])


def _is_load(demand: Demand) -> bool:
    return demand.kind.startswith("ld.")


def _loads(expr: tile.Expr) -> list[tile.Load]:
    own = [expr] if isinstance(expr, tile.Load) and expr.buffer.scope in _IN_MEMORY else []
    return own + [load for part in tile.children(expr) for load in _loads(part)]


def _chain(expr: tile.Expr) -> int:
    """Return the length of an expression's longest chain of dependent loads."""
    is_one = isinstance(expr, tile.Load) and expr.buffer.scope in _IN_MEMORY
    return is_one + max((_chain(part) for part in tile.children(expr)), default=0)


def _only_fills(stmt: tile.Stmt) -> bool:
    """Return whether a statement only loads values to registers, unchanged."""
    match stmt:
        case tile.TileOp(regions=(source, destination)):
            return destination.buffer.in_registers and source.buffer.dtype == destination.buffer.dtype
        case tile.Store(buffer=buffer, value=tile.Load(dtype=dtype, indices=indices)):
            return buffer.in_registers and buffer.dtype == dtype and not any(map(_chain, indices))
        case tile.Parallel(body=body):
            return all(_only_fills(inner) for inner in body)
        case tile.Bind(value=tile.Load(indices=indices)):
            return not any(map(_chain, indices))
        case _:
            return False


# ---- parts ----


def _parts(
    stmt: tile.Stmt, assignment: LayoutAssignment, times: int = 1, outer: tile.Stmt | None = None
) -> tuple[_Part, ...]:
    """Return the parts of a statement in execution order, its address and guard loads first."""
    outer = outer or stmt
    # A loop evaluates its bounds once, and its body in each iteration.
    before = _before(stmt, assignment, times, stmt is not outer)
    found: list[_Part] = [before] if before is not None else []
    if isinstance(stmt, tile.For) and (trip_count := static_trip_count(stmt)) is not None:
        times *= trip_count
    operation_demands: Sequence[Demand] = ()
    if isinstance(stmt, tile.TileOp):
        operation_demands = registry.get(stmt.name).demand(stmt, pricing_context(assignment))
    elif isinstance(stmt, tile.Parallel):
        operation_demands = nest_demands(
            stmt, assignment.nest_layout(stmt), assignment.kernel.threads, "fast-math" in assignment.kernel.asks
        )
    if operation_demands:
        chain = (
            max([1, *(_chain(e) for s in tile.walk(stmt.body) for e in expressions(s))])
            if isinstance(stmt, tile.Parallel)
            else 1
        )
        begun = stmt is outer and (is_asynchronous(stmt) or is_fragment_prefetch(stmt))
        found.append(_Part(tuple(operation_demands), times, 0 if begun or _only_fills(stmt) else chain, begun))
    if not isinstance(stmt, tile.Parallel):
        found += [
            part for body in tile.bodies(stmt) for inner in body for part in _parts(inner, assignment, times, outer)
        ]
    return tuple(found)


def _replayed(stmt: tile.Stmt, assignment: LayoutAssignment, replays: Sequence[tile.Bind]) -> Iterator[_Part]:
    """Yield the loads in the replayed binds that the statement uses."""
    values: dict[tile.Var, tile.Expr] = {}
    for bind in replays:
        values[bind.var] = tile.substitute(bind.value, values)
    used_variables = {
        e for s in tile.walk((stmt,)) for x in expressions(s) for e in tile.walk_expr(x) if isinstance(e, tile.Var)
    }
    used = [value for var, value in values.items() if var in used_variables]
    loads = dict.fromkeys(load for value in used for load in _loads(value))
    if loads:
        yield _Part(
            tuple(d for load in loads for d in _access(loaded, load.buffer, assignment)), 1, max(map(_chain, used))
        )


def _before(stmt: tile.Stmt, assignment: LayoutAssignment, times: int, is_nested: bool) -> _Part | None:
    """Return the loads that a statement's addresses and guards depend on, and the access of a scalar statement."""
    exprs = list(expressions(stmt))
    if isinstance(stmt, tile.TileOp):
        exprs = [e for region in stmt.regions for e in region.start]
    elif not isinstance(stmt, tile.If | tile.For | tile.While | tile.Bind | tile.Store):
        return None
    loads = dict.fromkeys(load for e in exprs for load in _loads(e))
    access_demands = [d for load in loads for d in _access(loaded, load.buffer, assignment)]
    if not access_demands:
        return None
    if isinstance(stmt, tile.Store):
        access_demands += _access(stored, stmt.buffer, assignment)
    is_left = _only_fills(stmt) and not is_nested
    return _Part(tuple(access_demands), times, 0 if is_left else max(map(_chain, exprs)))


def _access(
    asks: Callable[[tile.Buffer, int, int], tuple[Demand, ...]], buffer: tile.Buffer, assignment: LayoutAssignment
) -> tuple[Demand, ...]:
    """Return the demand of one element loaded or stored by each thread."""
    threads = assignment.kernel.threads
    return asks(buffer, threads * buffer.dtype.bytes, threads)


def _nothing(assignment: LayoutAssignment) -> tuple[Demand, ...]:
    return (demand("elementwise", ops=1, elements=1, threads=assignment.kernel.threads),)


def pricing_context(assignment: LayoutAssignment) -> Context:
    """Return a context for prices, through which nothing can be registered."""

    def refuse(*_: object) -> NoReturn:
        raise InternalError("prices need no resources")

    return Context(assignment.kernel.threads, assignment.fragments, assignment.shared, (), refuse, refuse)
