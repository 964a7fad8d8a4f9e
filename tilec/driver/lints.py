"""Lints: what makes a correct kernel slower than it looks, each with the line and the remedy.

register-spill, wgmma-serialised, injected-wait, setmaxnreg-ignored   what the assembler did (`remarks` words them)
bank-conflict         two alias groups reach shared memory at once, each by a pattern that its layout cannot serve
layout-conversion     a fragment goes through shared memory, since statements need it in different registers
barriers-exhausted    more named barriers than the machine has, or more meetings at them than may be carried from one
                      iteration to the next
address-latency       address arithmetic makes the compute side look long, and so hides that loads need more stages
tensor-memory-full    accumulators need more columns of tensor memory than an SM has
product-by-threads    a product that tcgen05.mma could do goes by mma.sync, for what stands around it
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilec.ir import warp
from tilec.ir.tile import (
    Binary,
    Const,
    Expr,
    Load,
    Parallel,
    Stmt,
    Store,
    TileOp,
    walk,
    walk_expr,
)
from tilec.passes.analysis.ordering import is_asynchronous_copy
from tilec.passes.analysis.rings import is_load
from tilec.passes.analysis.usage import expressions
from tilec.passes.layout.assign_layouts import Laid
from tilec.passes.layout.atoms import Sweep, conflicts, shared_accesses
from tilec.passes.layout.lane_addresses import conflicts as conflicts_of_nest
from tilec.passes.layout.tensor_memory import columns, crowded_out
from tilec.passes.layout.tensor_products import left_to_threads
from tilec.passes.layout.transpose_operands import is_turning
from tilec.passes.layout.vector_widths import streams
from tilec.passes.loop.build_problem import LoopProblem
from tilec.passes.loop.nest_price import is_of_each
from tilec.passes.loop.statement_price import is_asynchronous
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule
from tilec.support.diagnostics import CompileError, Diagnostic, Label, warning
from tilec.support.options import CompileOptions, Lint
from tilec.support.source import Span
from tilec.target.table import Target

CODES = frozenset(
    {
        "register-spill", "wgmma-serialised", "injected-wait", "setmaxnreg-ignored",
        "bank-conflict", "layout-conversion", "barriers-exhausted", "address-latency", "tensor-memory-full",
        "product-by-threads",
    }
)  # fmt: skip


def judge(warnings: Iterable[Diagnostic], lint: Lint) -> list[Diagnostic]:
    """The warnings that are to be shown; with "error", lints among them end the compilation."""
    kept = list(warnings)
    found = [w for w in kept if w.code in CODES]
    if lint == "error" and found:
        raise CompileError(*(replace(w, severity="error") for w in found))
    return kept if lint != "off" else [w for w in kept if w.code not in CODES]


# ---- layouts ---------------------------------------------------------------------------------------------------------


def conversions(laid: Laid) -> Iterator[Diagnostic]:
    """Every place where a fragment changes its layout; in the order in which they were found."""
    for made in laid.conversions:
        origin = () if made.origin == made.span else (Label(made.origin, "its layout comes from here"),)
        yield Diagnostic(
            "layout-conversion",
            f"{made.buffer.name} goes through shared memory, since this needs it in other registers",
            Label(made.span, f"{made.bytes:,} bytes are written and read again each time"),
            origin,
            help="use fragments of one layout together, or keep what all threads need in a shared tile",
            severity="warning",
        )


# ---- bank conflicts --------------------------------------------------------------------------------------------------


def bank_conflicts(laid: Laid, loops: Iterable[tuple[LoopProblem, Schedule]]) -> Iterator[Diagnostic]:
    """Pairs of tiles that statements reach at once, both with bank conflicts left: each where these are worst."""
    slow = _conflicted(laid)
    together = [(stmt.span, stmt.span) for stmt in walk(laid.kernel.body) if isinstance(stmt, Parallel | TileOp)]
    together += [pair for loop, schedule in loops for pair in _overlapping(loop, schedule)]
    worst: dict[frozenset[str], tuple[float, Diagnostic]] = {}
    for first, second in together:
        for tile, ways in slow.get(first, {}).items():
            for other, others_ways in slow.get(second, {}).items():
                pair = frozenset((tile, other))
                if tile != other and ways + others_ways > worst.get(pair, (0.0,))[0]:
                    worst[pair] = ways + others_ways, _conflict((tile, first, ways), (other, second, others_ways))
    yield from (found for _, found in worst.values())


def _conflict(one: tuple[str, Span, float], another: tuple[str, Span, float]) -> Diagnostic:
    """Two tiles that statements reach at the same time, each so many times as long as its bytes need."""
    (tile, first, ways), (other, second, others_ways) = one, another
    return Diagnostic(
        "bank-conflict",
        f"{tile} and {other} are reached at the same time, on the same banks of shared memory",
        Label(first, f"{tile} takes {ways:g} times as long as its bytes need"),
        (Label(second, f"and {other} {others_ways:g} times"),) if first != second else (),
        (f"{other} takes {others_ways:g} times as long",) if first == second else (),
        "index one of them along its rows, or make its rows multiples of 32 bytes",
        "warning",
    )


def _conflicted(laid: Laid) -> dict[Span, dict[str, float]]:
    """For each statement, by its span, the tiles that it reaches with conflicts, and how many times longer it takes:
    nests by the addresses of their lanes, others by the pattern in which they reach a tile."""
    nests = [s for s in walk(laid.kernel.body) if isinstance(s, Parallel)]
    found = {nest.span: conflicts_of_nest(nest, laid) for nest in nests}
    inside = {s.span for nest in nests for s in walk(nest.body)}
    turning = {s.span for s in walk(laid.kernel.body) if is_turning(s)}
    for access in shared_accesses(laid.kernel, laid.fragments, laid.nest_layout):
        if access.span in inside or (access.span in turning and isinstance(access.pattern, Sweep)):
            continue
        found.setdefault(access.span, {})[access.tile] = conflicts(laid.shared[access.tile], access.pattern)
    # What has a dot in its name nobody wrote.
    return {
        span: {tile: ways for tile, ways in tiles.items() if ways >= 2 and "." not in tile}
        for span, tiles in found.items()
    }


def _overlapping(loop: LoopProblem, schedule: Schedule) -> Iterator[tuple[Span, Span]]:
    """Statements that hold a port of shared memory in the same rows of the reservation table."""
    held = [_shared_rows(loop.problem, schedule, op) for op in range(len(loop.statements))]
    for i, rows in enumerate(held):
        for j in range(i):
            if any(a < d and c < b for a, b in rows for c, d in held[j]):
                yield loop.statements[j].span, loop.statements[i].span


def _shared_rows(problem: Problem, schedule: Schedule, op: int) -> list[tuple[int, int]]:
    rows = []
    for use in problem.ops[op].uses:
        if problem.slots[use.slot].name.startswith("tp_smem") and use.cycles:
            first = (schedule.start[op] + use.offset) % schedule.ii
            end = first + min(use.cycles, schedule.ii)
            rows += [(first, min(end, schedule.ii)), (0, end - schedule.ii)]
    return [(first, end) for first, end in rows if end > first]


# ---- barriers --------------------------------------------------------------------------------------------------------


def barriers(program: warp.Program, target: Target, span: Span) -> Iterator[Diagnostic]:
    """Named barriers of the whole block, and those that stand in a loop and are so carried across its iterations (not
    those of turns: a warpgroup has one each, whatever it carries); and how often an iteration of a pipelined loop meets
    at one, since all hand-overs of a role share its barrier."""
    met = [(op, inside) for role in program.roles for op, inside in _barriers(role.body, False)]
    turns = {number for role in program.roles for number in role.turn_barriers}
    carried = {op.id for op, inside in met if inside}
    for what, ids, limit in (
        ("uses", turns | {op.id for op, _ in met}, target.limit("named_barriers")),
        ("carries across iterations", carried, target.limit("named_barriers_carried")),
    ):
        if len(ids) > limit:
            where = next((op.span for op, _ in met if op.id == max(ids) and op.span.line), span)
            yield Diagnostic(
                "barriers-exhausted",
                f"the kernel {what} {len(ids)} named barriers, {target.name} allows {limit}",
                Label(where, "the last of them"),
                help="let hand-overs that fall together share a barrier, or split the loop",
                severity="warning",
            )
    limit = target.limit("named_barriers_carried")
    # Only of innermost loops: what others hand over is nothing beside the loops in them.
    steady = (loop for role in program.roles for loop in _steady(role.body) if not any(_loops(loop.body)))
    for loop in steady:
        stops = [op.span for op, _ in _barriers(loop.body, True)]
        if len(stops) > limit >= len({op.id for op, inside in met if inside}):
            lines = sorted({stop.line for stop in stops if stop.line})
            yield Diagnostic(
                "barriers-exhausted",
                f"each iteration stops at a barrier {len(stops)} times, {target.name} carries {limit} to the next",
                Label(loop.span, f"all its warps wait for one another before lines {', '.join(map(str, lines))}"),
                help="hand tiles over together: fill all of them, then read; or keep values in fragments",
                severity="warning",
            )


def _steady(body: tuple[warp.Operation, ...]) -> Iterator[warp.Loop]:
    """The steady states of pipelined loops."""
    for op in body:
        match op:
            case warp.Loop() | warp.Pipeline():
                if isinstance(op, warp.Loop) and op.part == "steady":
                    yield op
                yield from _steady(op.body)
            case warp.Branch():
                yield from _steady((*op.then, *op.orelse))
            case _:
                pass


def _loops(body: tuple[warp.Operation, ...]) -> Iterator[warp.Loop | warp.Pipeline]:
    """The outermost loops."""
    for op in body:
        match op:
            case warp.Loop() | warp.Pipeline():
                yield op
            case warp.Branch():
                yield from _loops((*op.then, *op.orelse))
            case _:
                pass


def _barriers(body: tuple[warp.Operation, ...], inside: bool) -> Iterator[tuple[warp.BarSync, bool]]:
    for op in body:
        match op:
            case warp.BarSync():
                yield op, inside
            case warp.Loop() | warp.Pipeline():
                yield from _barriers(op.body, True)
            case warp.Branch():
                yield from _barriers((*op.then, *op.orelse), inside)
            case _:
                pass


# ---- copies ----------------------------------------------------------------------------------------------------------


def copies(laid: Laid) -> Iterator[Diagnostic]:
    """T.async_copy that no asynchronous mechanism can carry out."""
    for stmt in walk(laid.kernel.body):
        if isinstance(stmt, TileOp) and is_asynchronous_copy(stmt) and stmt.via == "registers":
            source, tile = stmt.regions
            why = "its rows are not aligned to 4 bytes"
            if source.buffer.dtype != tile.buffer.dtype:
                why = f"it converts {source.buffer.dtype} to {tile.buffer.dtype}"
            yield warning(
                "copy-not-asynchronous",
                "this T.async_copy is not asynchronous",
                stmt.span,
                why,
                help="copy rows of whole words to a shared tile of the tensor's dtype, or write T.copy",
            )


# ---- neighbours ------------------------------------------------------------------------------------------------------


def widths(laid: Laid) -> Iterator[Diagnostic]:
    """Nests that ask for neighbours to go to one thread (`coalesced_width=`, T.vectorized), where the layout that they
    have to keep gives them to several: memory is then reached element by element."""
    for nest in walk(laid.kernel.body):
        if not isinstance(nest, Parallel) or nest.width is None or nest.is_per_thread or not streams(nest):
            continue
        layout = laid.nest_layout(nest)
        first = next((axis for axis in layout.registers if axis.size > 1), None)
        run = first.size if first is not None and (first.dim, first.stride) == (len(nest.extents) - 1, 1) else 1
        if run % nest.width:
            given = "loop_layout" if nest.layout is not None else "a fragment's layout"
            yield warning(
                "hint-not-used",
                f"neighbours that are to go {nest.width} to a thread do not",
                nest.span,
                f"{given} gives a thread {math.gcd(run, nest.width)} at a time",
                help="let each thread have neighbours in that layout, or ask for no width",
            )


# ---- address arithmetic ----------------------------------------------------------------------------------------------

# Instructions of an integer operation, as compilers expand it: a multiplication by a reciprocal, a whole division.
_BY_CONSTANT, _BY_VALUE = 6, 20


def addresses(loop: LoopProblem, laid: Laid, target: Target) -> Iterator[Diagnostic]:
    """Statements whose index arithmetic alone lowers the stages that the roofline asks for, ⌈memory / compute⌉."""
    ops = list(zip(loop.statements, loop.problem.ops, strict=True))
    memory = max((op.latency for stmt, op in ops if _loads(stmt)), default=0)
    compute = sum(op.issue if not is_asynchronous(stmt) else _busiest(op.uses) for stmt, op in ops if not _loads(stmt))
    for stmt, op in ops:
        if not isinstance(stmt, Parallel):
            continue
        work = sum(_instructions(index, stmt) for s in walk(stmt.body) for index in _indices(s))
        elements, threads = math.prod(stmt.extents), laid.kernel.threads
        spent = target.price("elementwise", ops=work, elements=elements, threads=threads).issue if work else 0
        # The schedule prices an operation as one instruction: what a division takes more comes on top.
        inflated = max(compute - op.issue, 0) + max(op.issue, spent)
        # Without the arithmetic on indices the work remains, if only that of the loads and stores.
        honest = max(inflated - spent, op.issue, 1)
        if math.ceil(memory / max(inflated, 1)) < math.ceil(memory / honest) and 2 * spent >= op.issue:
            yield Diagnostic(
                "address-latency",
                "computing addresses takes longer than the work on what they point to",
                Label(stmt.span, f"{spent} cycles of index arithmetic in each iteration"),
                notes=(
                    f"with it, {math.ceil(memory / max(inflated, 1))} stages look enough to hide {memory} cycles of "
                    f"loading; without, {math.ceil(memory / honest)}",
                ),
                help="compute the index once outside the loop, or divide by powers of two",
                severity="warning",
            )


def _loads(stmt: Stmt) -> bool:
    return isinstance(stmt, TileOp) and is_load(stmt)


def _busiest(uses: Iterable[object]) -> int:
    return max((getattr(use, "cycles", 0) for use in uses), default=0)


def _indices(stmt: Stmt) -> Iterator[Expr]:
    if isinstance(stmt, Store):
        yield from stmt.indices
    for expr in expressions(stmt):
        for part in walk_expr(expr):
            if isinstance(part, Load):
                yield from part.indices


def _instructions(index: Expr, nest: Parallel) -> int:
    """Only divisions that each element has of its own count: what adds and scales is folded into the address of the
    access, and what a row or column has in common is computed once."""
    found = 0
    for part in walk_expr(index):
        if isinstance(part, Binary) and part.op in ("floordiv", "floormod") and is_of_each(part, nest):
            by = part.b.value if isinstance(part.b, Const) else None
            is_power = isinstance(by, int) and by > 0 and by & (by - 1) == 0
            found += 0 if is_power else _BY_VALUE if by is None else _BY_CONSTANT
    return found


# ---- tensor memory ---------------------------------------------------------------------------------------------------


def products(laid: Laid, target: Target, options: CompileOptions) -> Iterator[Diagnostic]:
    """Products that go by mma.sync though the machine could do them by itself, unless that was asked for."""
    if options.opt_level < 3 or options.pipeline_strategy != "auto" or "unspecialised" in laid.kernel.asks:
        return
    crowded = {tile.span for tile in crowded_out(laid.kernel)}  # about which there is another warning
    for left in left_to_threads(laid, target):
        if left.is_able and left.op.regions[2].buffer.span not in crowded:
            yield Diagnostic(
                "product-by-threads",
                "this product goes by mma.sync, not by tcgen05.mma",
                Label(left.op.span, left.why),
                help=left.help,
                severity="warning",
            )


def tensor_memory(laid: Laid, target: Target) -> Iterator[Diagnostic]:
    """Sums that stay in registers since an SM has no columns left for them."""
    left = crowded_out(laid.kernel) if target.has("tcgen05") and laid.form == "warp_specialised" else ()
    if not left:
        return
    there = [b for b in laid.kernel.buffers if b.scope == "tmem"]
    total, limit = sum(map(columns, (*there, *left))), target.limit("tmem_columns")
    yield Diagnostic(
        "tensor-memory-full",
        f"the accumulators need {total} columns of tensor memory, an SM of {target.name} has {limit}",
        Label(left[0].span, f"{left[0].name} needs {columns(left[0])}, and stays in registers"),
        tuple(Label(b.span, f"{columns(b)} are taken here") for b in there),
        help="use a smaller tile, or split the kernel",
        severity="warning",
    )
