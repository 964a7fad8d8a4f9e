"""What a statement of a loop costs: cycles that its role is busy, cycles until its result is there, and what it holds.

Warps issue in order. A load to registers runs on beside what follows it, up to the first instruction that uses what it
loads: where that is of the same statement, its role does nothing else until the load is through. So a copy through
registers into shared memory holds its role as long as the load takes, and so does a nest that computes with what it
loads, an address or a condition that is loaded. A statement that only fills registers does not: who uses them is
another statement, which issues as much later as the dependence between the two says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

from tilec.ir import tile
from tilec.ops import registry
from tilec.ops.lowering import Demand, LoweringContext, list_load_demands, list_store_demands, make_demand
from tilec.passes.analysis.fragment_prefetch import is_fragment_prefetch
from tilec.passes.analysis.trip_count import get_static_trip_count
from tilec.passes.analysis.usage import list_expressions
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import part_of
from tilec.passes.loop.nest_price import nest_demands
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass
from tilec.target.table import Target, Timing

Uses = dict[int, tuple[int, int]]
"""Of each slot by its number: for how many cycles it is held, and from which on."""
_IN_MEMORY = ("global", "shared")
_ASYNCHRONOUS = ("tma", "tma_store", "cp_async", "wgmma", "tcgen05")


@dataclass(frozen=True, slots=True)
class _Part:
    """What belongs together in a statement, so many `times`. `chain`: how many loads wait for one another in turn, 0
    where the part itself waits for none. `begun`: something that a wait elsewhere completes."""

    demands: tuple[Demand, ...]
    times: int
    chain: int
    begun: bool = False


def price(
    stmt: tile.Stmt, assignment: LayoutAssignment, target: Target, groups: int = 1, replays: Sequence[tile.Bind] = ()
) -> tuple[int, int, Uses]:
    """Cycles in which the role issues nothing else, cycles until all is through, and for how many cycles, after how
    many, each slot is held; for one of `groups` warpgroups. Of two branches that of the one that takes longer.
    `replays` are binds that are evaluated anew where the statement uses them (see `analysis.scalar_definitions`)."""
    if isinstance(stmt, tile.If) and stmt.orelse:
        each = (replace(stmt, orelse=()), replace(stmt, then=stmt.orelse, orelse=()))
        return max((price(branch, assignment, target, groups, replays) for branch in each), key=lambda cost: cost[:2])
    slot_ids = {slot.name: i for i, slot in enumerate(target.slots)}
    issue = latency = waited = 0
    uses: Uses = {}
    own = _parts(stmt, assignment) or (_Part(_nothing(assignment), 1, 0),)
    for part in (*_replayed(stmt, assignment, replays), *own):
        timings = [(d, target.price(d.kind, **dict(d.parameters))) for d in (part_of(d, groups) for d in part.demands)]
        loads = [t for d, t in timings if part.chain and _is_load(d)]
        others = [t for d, t in timings if not (part.chain and _is_load(d))]
        # The parts of a tile operation overlap, warp by warp; those of a nest and the iterations of a loop wait for one
        # another.
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
    """What a statement, with all that is nested in it, asks of the machine. A loop of which only the data know how
    often it runs counts as one iteration."""
    total = [replace(d, times=part.times) for part in _parts(stmt, assignment) for d in part.demands]
    return tuple(total) or _nothing(assignment)


def is_asynchronous(stmt: tile.Stmt) -> bool:
    """Whether the statement only starts something that a wait completes."""
    return isinstance(stmt, tile.TileOp) and stmt.via in _ASYNCHRONOUS


# ---- loads and what waits for them ----


def _until_loaded(loads: Sequence[Timing], chain: int) -> int:
    """Cycles until the last of the loads is through. They are begun one behind the other, so that what they wait for
    is the same time, but where the address of one is what another loads."""
    transfers = [max((offset + cycles for _, cycles, offset in t.uses), default=0) for t in loads]
    waits = sorted((t.latency - moved for t, moved in zip(loads, transfers, strict=True)), reverse=True)
    return sum(transfers) + sum(waits[:chain])


def _busy(timing: Timing, begun: bool) -> int:
    """Cycles in which the role's warps issue nothing else. What is not asynchronous they do themselves: they are busy
    until the last of the units is through."""
    return timing.issue if begun else max([timing.issue, *(offset + cycles for _, cycles, offset in timing.uses)])


def _is_load(demand: Demand) -> bool:
    return demand.kind.startswith("ld.")


def _loads(expr: tile.Expr) -> list[tile.Load]:
    """The loads from memory in an expression."""
    own = [expr] if isinstance(expr, tile.Load) and expr.buffer.scope in _IN_MEMORY else []
    return own + [load for part in tile.direct_operands(expr) for load in _loads(part)]


def _chain(expr: tile.Expr) -> int:
    """How many loads of an expression wait for one another."""
    is_one = isinstance(expr, tile.Load) and expr.buffer.scope in _IN_MEMORY
    return is_one + max((_chain(part) for part in tile.direct_operands(expr)), default=0)


def _only_fills(stmt: tile.Stmt) -> bool:
    """Whether a statement does no more with what it loads than to leave it in registers."""
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
    """In the order in which they are carried out: first what the statement loads to know where and whether."""
    outer = outer or stmt
    # A loop looks at its bounds once, and runs its body as often as it has iterations.
    before = _before(stmt, assignment, times, stmt is not outer)
    found: list[_Part] = [before] if before is not None else []
    if isinstance(stmt, tile.For) and (trip_count := get_static_trip_count(stmt)) is not None:
        times *= trip_count
    asked: Sequence[Demand] = ()
    if isinstance(stmt, tile.TileOp):
        asked = registry.get_operation(stmt.name).demand(stmt, pricing_context(assignment))
    elif isinstance(stmt, tile.Parallel):
        asked = nest_demands(
            stmt, assignment.nest_layout(stmt), assignment.kernel.threads, "fast-math" in assignment.kernel.asks
        )
    if asked:
        chain = (
            max([1, *(_chain(e) for s in tile.walk_statements(stmt.body) for e in list_expressions(s))])
            if isinstance(stmt, tile.Parallel)
            else 1
        )
        begun = stmt is outer and (is_asynchronous(stmt) or is_fragment_prefetch(stmt))
        found.append(_Part(tuple(asked), times, 0 if begun or _only_fills(stmt) else chain, begun))
    if not isinstance(stmt, tile.Parallel):
        found += [
            part
            for body in tile.nested_bodies(stmt)
            for inner in body
            for part in _parts(inner, assignment, times, outer)
        ]
    return tuple(found)


def _replayed(stmt: tile.Stmt, assignment: LayoutAssignment, replays: Sequence[tile.Bind]) -> Iterator[_Part]:
    """What the values of binds load."""
    values: dict[tile.Var, tile.Expr] = {}
    for bind in replays:
        values[bind.var] = tile.substitute_variables(bind.value, values)
    named = {
        e
        for s in tile.walk_statements((stmt,))
        for x in list_expressions(s)
        for e in tile.walk_expr(x)
        if isinstance(e, tile.Var)
    }
    used = [value for var, value in values.items() if var in named]
    loads = dict.fromkeys(load for value in used for load in _loads(value))
    if loads:
        yield _Part(
            tuple(d for load in loads for d in _access(list_load_demands, load.buffer, assignment)),
            1,
            max(map(_chain, used)),
        )


def _before(stmt: tile.Stmt, assignment: LayoutAssignment, times: int, is_nested: bool) -> _Part | None:
    """What a statement loads to know where or whether, and a scalar one to know what."""
    exprs = list(list_expressions(stmt))
    if isinstance(stmt, tile.TileOp):
        exprs = [e for region in stmt.regions for e in region.start]
    elif not isinstance(stmt, tile.If | tile.For | tile.While | tile.Bind | tile.Store):
        return None
    loads = dict.fromkeys(load for e in exprs for load in _loads(e))
    asked = [d for load in loads for d in _access(list_load_demands, load.buffer, assignment)]
    if not asked:
        return None
    if isinstance(stmt, tile.Store):
        asked += _access(list_store_demands, stmt.buffer, assignment)
    is_left = _only_fills(stmt) and not is_nested
    return _Part(tuple(asked), times, 0 if is_left else max(map(_chain, exprs)))


def _access(
    asks: Callable[[tile.Buffer, int, int], tuple[Demand, ...]], buffer: tile.Buffer, assignment: LayoutAssignment
) -> tuple[Demand, ...]:
    """Each thread loads or stores one element, as `asks` says."""
    threads = assignment.kernel.threads
    return asks(buffer, threads * buffer.dtype.bytes, threads)


def _nothing(assignment: LayoutAssignment) -> tuple[Demand, ...]:
    return (make_demand("elementwise", ops=1, elements=1, threads=assignment.kernel.threads),)


def pricing_context(assignment: LayoutAssignment) -> LoweringContext:
    """A context for prices only: nothing may be registered through it."""

    def refuse(*_: object) -> NoReturn:
        raise InternalError("prices need no resources")

    return LoweringContext(assignment.kernel.threads, assignment.fragments, assignment.shared, (), refuse, refuse)
