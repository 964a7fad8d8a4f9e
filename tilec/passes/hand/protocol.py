"""Runs the barriers of a kernel that orders its roles itself, and nothing else of it, to find waits that never end.

The first block is run, with the others of its cluster where they reach its barriers, each role until it has to wait,
and every copy is complete as soon as it is begun. That is one
of the orders that the hardware may choose, so that whoever is stuck here may be stuck there. Where control flow, a
barrier's index or a parity depends on what only a run knows, nothing is said: the emulator finds the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from tilec import records
from tilec.diag import Label, fail
from tilec.ir.tile import (
    THREAD,
    Bind,
    Break,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Parallel,
    Stmt,
    Store,
    TileOp,
    Var,
    While,
    children,
    walk,
    with_children,
)
from tilec.ops.barriers import block_of, condition_of, counts_of, is_by_warps, is_meeting, is_signalling
from tilec.ops.tcgen05 import is_committing, is_of_pair, reaches_blocks
from tilec.ops.values import EXPR_TYPES
from tilec.passes.analysis.fold import compute_expr
from tilec.passes.analysis.steering import is_variable
from tilec.passes.analysis.usage import writes
from tilec.source import Span

MOST_STEPS = 5_000  # of each role: far more trips than phases need to come round
Name = tuple[str, int]
Place = tuple[int, str, int]
"""A barrier of a block of the cluster."""
Values = dict[Var, int]
"""What is known of variables: of loops, binds, and those that T.alloc_var makes, under the names of their buffers."""


@records.dataclass(frozen=True, slots=True)
class Role:
    """As much of a role as its barriers need. `is_common`: it comes before the others."""

    name: str
    kernel: Kernel
    is_common: bool


class Unknown(Exception):
    """Only a run knows."""


class _Left(Exception):
    """The innermost loop is left."""


@records.dataclass(frozen=True, slots=True)
class Step:
    """What a role does at a barrier: arrivals, bytes that are announced or (below 0) have come, and the parity of the
    phase that it waits for; at a named barrier (`meets`) it waits for the phase under way. `acquires` is the pipeline,
    and the side of it, of which it waits for a stage. `blocks` are those of the cluster whose barriers it is about, by
    their numbers there; none: its own."""

    barrier: Name
    span: Span
    arrivals: int = 0
    bytes: int = 0
    parity: int | None = None
    meets: int = 0
    waits: bool = False
    acquires: str = ""
    blocks: tuple[int, ...] = ()


@dataclass(slots=True)
class _Barrier:
    count: int
    pending: int
    bytes: int = 0
    phase: int = 0
    announced: list[Span] = field(default_factory=list)
    copied: list[Span] = field(default_factory=list)

    def settle(self) -> None:
        while self.pending <= 0 and not self.bytes:
            self.pending += self.count
            self.phase += 1


@dataclass(slots=True)
class _State:
    role: Role
    steps: Iterator[Step]
    block: int = 0
    waiting: Step | None = None
    phase: int = 0  # of the named barrier that it waits at
    is_done: bool = False
    is_cut: bool = False  # it would go on

    @property
    def name(self) -> str:
        return f"{self.role.name} of block {self.block}" if self.block else self.role.name


def check_protocol(kernel: Kernel, roles: Sequence[Role]) -> None:
    """Errors: `never-arrived`, `barrier-deadlock`, `barrier-bytes`."""
    made = {barrier_name(s): s for s in walk(kernel.body) if isinstance(s, TileOp) and s.name == "alloc_barrier"}
    statements = [s for role in roles for s in walk(role.kernel.body) if isinstance(s, TileOp)]
    _check_arrivals(made, statements)
    blocks = range(kernel.cluster.blocks if any(map(reaches_blocks, statements)) else 1)
    barriers = {
        (block, name, i): _Barrier(count, count)
        for block in blocks
        for name, op in made.items()
        for i, count in enumerate(counts_of(op))
    }
    try:
        for together in (True, False):
            states = [
                _State(role, steps(role, kernel, _indices(kernel, block)), block)
                for block in blocks
                for role in roles
                if role.is_common == together
            ]
            _run(barriers, states)
    except Unknown:
        return


def _indices(kernel: Kernel, number: int) -> dict[Var, int]:
    """Those of a block of the first cluster."""
    found = {}
    for var, size in zip(kernel.block_vars, kernel.cluster.extents, strict=False):
        number, found[var] = divmod(number, size)
    return found


def barrier_name(op: TileOp) -> str:
    element = op.attr("barrier")
    assert isinstance(element, Load)
    return element.buffer.name


def _check_arrivals(made: dict[str, TileOp], statements: list[TileOp]) -> None:
    arriving = ("arrive", "cp_async_arrive", "expect_tx")
    arrived = {barrier_name(s) for s in statements if s.name in arriving or is_committing(s)}
    for op in statements:
        is_of_drain = any(key == "drains" for key, _ in op.attrs)  # of nothing, where no trip has filled anything
        if op.name == "await_barrier" and barrier_name(op) not in arrived and not is_of_drain:
            fail(
                "never-arrived",
                f"nobody arrives at {barrier_name(op)}, which is waited for here",
                op.span,
                "waits for ever",
                secondary=(Label(made[barrier_name(op)].span, "allocated here"),),
                help=f"write T.barrier_arrive({barrier_name(op)}) where the work is done, also behind T.tma_copy",
            )


# ---- a role ----------------------------------------------------------------------------------------------------------


def steps(role: Role, kernel: Kernel, scalars: Mapping[Var, int] = MappingProxyType({})) -> Iterator[Step]:
    """What a role of the first block does at barriers. Raises `Unknown` where only a run knows that has other scalars
    than these."""
    yield from _body(role.kernel.body, role, dict.fromkeys(kernel.block_vars, 0) | dict(scalars))


def _body(body: tuple[Stmt, ...], role: Role, values: Values) -> Iterator[Step]:
    for stmt in body:
        match stmt:
            case TileOp():
                for buffer in writes(stmt):
                    values.pop(Var(buffer.name), None)
                yield from _operation(stmt, role, values)
            case Bind(var=var, value=value):
                _set(var, value, values)
            case For(var=var, body=inner) if _matters(inner):
                with suppress(_Left):
                    for index in range(_known(stmt.start, values), _known(stmt.stop, values), stmt.step):
                        values[var] = index
                        yield from _body(inner, role, values)
            case If(condition=condition, then=then, orelse=orelse) if _matters((*then, *orelse)):
                yield from _body(then if _known(condition, values) else orelse, role, values)
            case While(body=inner) if _matters(inner):
                raise Unknown
            case Break():
                raise _Left
            case Parallel(body=(Store(buffer=buffer, value=value),)) if is_variable(buffer):
                _set(Var(buffer.name), value, values)
            case _:
                _forget(stmt, values)


def _set(var: Var, value: Expr, values: Values) -> None:
    found = compute_expr(_of_variables(value), values)
    values.pop(var, None)
    if found is not None:
        values[var] = int(found)


def _forget(stmt: Stmt, values: Values) -> None:
    """What happens inside is of no concern, but that it may set variables."""
    for inner in walk((stmt,)):
        if isinstance(inner, Store) and is_variable(inner.buffer):
            values.pop(Var(inner.buffer.name), None)


def _of_variables(expr: Expr) -> Expr:
    """The expression, on variables in place of what the buffers of T.alloc_var hold."""
    if isinstance(expr, Load) and is_variable(expr.buffer):
        return Var(expr.buffer.name)
    return with_children(expr, tuple(map(_of_variables, children(expr))))


def _matters(body: tuple[Stmt, ...]) -> bool:
    return any(map(_concerns, walk(body)))


def _concerns(stmt: Stmt) -> bool:
    return isinstance(stmt, Break) or (isinstance(stmt, TileOp) and _waits_or_signals(stmt))


def _waits_or_signals(op: TileOp) -> bool:
    return is_meeting(op) or is_signalling(op) or is_committing(op)


def _known(expr: Expr, values: Values) -> int:
    found = compute_expr(_of_variables(expr), values)
    if found is None:
        raise Unknown
    return int(found)


def _operation(op: TileOp, role: Role, values: Values) -> Iterator[Step]:
    if not _concerns(op):
        return
    if op.name in ("barrier", "named_arrive"):
        number, threads = op.attr("id"), op.attr("threads")
        assert isinstance(number, int) and isinstance(threads, int)
        mine, waits = role.kernel.threads, op.name == "barrier"
        yield Step(("named barrier", number), op.span, mine, meets=threads, waits=waits)
        return
    element = op.attr("barrier")
    assert isinstance(element, Load)
    place = (element.buffer.name, _known(element.indices[0], values))
    match op.name:
        case "await_barrier":
            parity = op.attr("parity")
            assert isinstance(parity, EXPR_TYPES)
            acquires = str(dict(op.attrs).get("acquires", ""))
            yield Step(place, op.span, parity=_known(parity, values) & 1, acquires=acquires)
        case "expect_tx":
            announced = op.attr("bytes")
            assert isinstance(announced, int)
            yield Step(place, op.span, int(bool(op.attr("arrives"))), announced)
        case "gemm" | "scaled_gemm" | "tensor_arrive":
            yield Step(place, op.span, 1, blocks=(0, 1) if is_of_pair(op) else ())
        case "copy" | "gather4" | "try_cancel":
            moved = math.prod(op.regions[-1].extent) * op.regions[-1].buffer.dtype.bits // 8
            if op.attr("announces"):
                yield Step(place, op.span, bytes=moved, blocks=_block(op, values))
            yield Step(place, op.span, bytes=-moved, blocks=_block(op, values))
        case _:
            yield Step(place, op.span, _arrivals(op, role, values), blocks=_block(op, values))


def _block(op: TileOp, values: Values) -> tuple[int, ...]:
    block = block_of(op)
    return () if block is None else (_known(block, values),)


def _arrivals(op: TileOp, role: Role, values: Values) -> int:
    """How many threads of the role arrive."""
    if is_by_warps(op):
        return role.kernel.threads // 32
    condition, every = condition_of(op), range(role.kernel.threads)
    return len(every) if condition is None else sum(_known(condition, {**values, THREAD: t}) for t in every)


# ---- all of them -----------------------------------------------------------------------------------------------------


def _run(barriers: dict[Place, _Barrier], states: list[_State]) -> None:
    while any(not s.is_done for s in states):
        moved = [_advance(state, barriers) for state in states]
        if any(s.is_cut for s in states):
            return
        if not any(moved):
            _stuck(barriers, [s for s in states if not s.is_done])
    for name, barrier in barriers.items():
        if barrier.bytes:
            _unequal(name, barrier)


def _advance(state: _State, barriers: dict[Place, _Barrier]) -> bool:
    """Run until a wait; whether it got anywhere."""
    count = 0
    while not state.is_done:
        step = state.waiting or next(state.steps, None)
        if step is None or count > MOST_STEPS:
            state.is_done, state.is_cut = True, step is not None
            return True
        barrier = barriers.get((state.block, *step.barrier))
        if barrier is None and not step.meets:
            name, index = step.barrier
            fail(
                "out-of-range",
                f"the index leaves {name}",
                step.span,
                f"there is no {name}[{index}] in role {state.name}",
            )
        if barrier is None:
            barrier = barriers.setdefault((state.block, *step.barrier), _Barrier(step.meets, step.meets))
        if state.waiting is None:
            state.phase = barrier.phase
            if len(step.blocks) > 1 and state.block:
                _asked_again(step)
            for block in step.blocks or (state.block,):
                _arrive(step, barriers[block, *step.barrier])
        if _waits(step, state, barrier):
            state.waiting = step
            return count > 0
        state.waiting = None
        count += 1
    return count > 0


def _asked_again(step: Step) -> None:
    fail(
        "bad-pair",
        "the second block of a pair asks for this too",
        step.span,
        "one thread of the first says what the tensor cores of both do",
        help="put it under `if T.block_rank_in_cluster() == 0:`",
    )


def _arrive(step: Step, barrier: _Barrier) -> None:
    barrier.pending -= step.arrivals
    barrier.bytes += step.bytes
    if step.bytes:
        (barrier.announced if step.bytes > 0 else barrier.copied).append(step.span)
    barrier.settle()


def _waits(step: Step, state: _State, barrier: _Barrier) -> bool:
    if step.waits:
        return barrier.phase == state.phase
    return step.parity is not None and barrier.phase % 2 == step.parity


def _stuck(barriers: dict[Place, _Barrier], waiting: list[_State]) -> None:
    """Nobody can go on."""
    for state in waiting:
        assert state.waiting is not None
        barrier = barriers[state.block, *state.waiting.barrier]
        if barrier.bytes and barrier.pending <= 0:
            _unequal((state.block, *state.waiting.barrier), barrier)
    places = [(s, s.waiting, barriers[s.block, *s.waiting.barrier]) for s in waiting if s.waiting is not None]
    notes = tuple(
        f"{s.name} waits for {_spoken(step.barrier)}: {barrier.phase} phases have completed, "
        f"{barrier.count - barrier.pending} of {barrier.count} arrivals of the next one have come"
        for s, step, barrier in places
    )
    fail(
        "barrier-deadlock",
        "this wait never ends",
        places[0][1].span,
        f"{places[0][0].name} waits here for ever",
        secondary=tuple(Label(step.span, f"and {s.name} here") for s, step, _ in places[1:]),
        notes=notes,
        help="compare the count of the barrier with the threads that arrive, and the parity with the phases before",
    )


def _unequal(place: Place, barrier: _Barrier) -> None:
    more = "more" if barrier.bytes > 0 else "fewer"
    said = dict.fromkeys((*barrier.announced, *barrier.copied))
    first, *others = said
    fail(
        "barrier-bytes",
        f"{abs(barrier.bytes):,} {more} bytes are announced to {_spoken(place[1:])} than are copied",
        first,
        "its phase never completes" if barrier.bytes > 0 else "announced here",
        secondary=tuple(Label(span, "and here") for span in others),
        help="announce the bytes of all tiles that T.tma_copy fills, or none: then each copy announces its own",
    )


def _spoken(name: Name) -> str:
    return f"{name[0]} {name[1]}" if name[0] == "named barrier" else f"{name[0]}[{name[1]}]"
