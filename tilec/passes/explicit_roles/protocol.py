"""Runs the barriers of a kernel with explicit roles, and nothing else of it, to find waits that never end.

It runs the first block, and the others of its cluster if they reach its barriers. Each role runs until it has to wait,
and every copy is complete at once. The hardware may choose this order too, so a deadlock here is a deadlock there.
Nothing is reported where control flow, a barrier's index or a parity depends on run-time values: the emulator finds the
rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from types import MappingProxyType
from typing import NoReturn, Protocol

from tilec.ir import tile
from tilec.ir.warp_verify.barrier_machine import Barrier, run_together
from tilec.ops.placeholder import is_refused
from tilec.ops.synchronisation.barriers import AllocBarrier, Arrive, AwaitBarrier, CpAsyncArrive, ExpectTx
from tilec.ops.synchronisation.sync import BlockBarrier
from tilec.ops.synchronisation.warpgroups import NamedArrive
from tilec.passes.explicit_roles import known_values
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment
from tilec.support.diagnostics import ErrorCollector, InternalError, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

MAX_STEPS = 5_000  # of each role: far more than a round through all phases needs
ASSUMED_SIZE = 7680
"""The value assumed for sizes known only at launch, itself or a multiple: tiles of usual sizes divide it."""
_BARRIER_MISTAKES = ("bad-cta-pair", "unbalanced-acquires", "missing-arrival", "barrier-deadlock", "transaction-bytes")
"""Errors that may follow from one another: only the first is reported."""
BarrierName = tuple[str, int]
BarrierPlace = tuple[int, str, int]
"""A barrier of a block of the cluster."""


@dataclass(frozen=True, slots=True)
class BarrierStep:
    """An operation of a role on a barrier: arrivals, bytes (announced above 0, arrived below), and the parity of the
    phase that it waits for. At a named barrier (`meets` threads) it waits for the current phase. `blocks` are the ranks
    in the cluster of the blocks whose barrier it is; none: its own. `completes` is the asynchronous
    operation whose end it signals."""

    barrier: BarrierName
    span: Span
    arrivals: int = 0
    bytes: int = 0
    parity: int | None = None
    meets: int = 0
    waits: bool = False
    blocks: tuple[int, ...] = ()
    completes: tile.TileOp | None = None


@dataclass(slots=True)
class _TrackedBarrier(Barrier):
    """A barrier with the places at which its bytes are announced and copied."""

    announced: list[Span] = field(default_factory=list)
    copied_at: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class _RoleState:
    role: RoleAssignment
    steps: Iterator[BarrierStep]
    waiting: BarrierStep | None = None
    phase: int = 0  # of the named barrier that it waits at
    is_done: bool = False
    is_cut: bool = False  # stopped after the most steps, though it could go on


class BarrierObserver(Protocol):
    """Observes a run of the barriers: statements between them, arrivals and completed waits."""

    def start_run(self, barriers: Mapping[BarrierPlace, Barrier]) -> None:
        """Begin to observe a run of these barriers."""

    def visit_statement(self, role: RoleAssignment, stmt: tile.Stmt, values: known_values.Values) -> None:
        """Observe that a role is about to run this operation or nest."""

    def record_arrival(
        self, role: RoleAssignment, place: BarrierPlace, phase: int, completes: tile.TileOp | None
    ) -> None:
        """Observe an arrival in the current phase: of the role, and of the operation whose end it signals."""

    def record_wait(self, role: RoleAssignment, place: BarrierPlace, phases: int) -> None:
        """Observe that the role has waited until this many phases are complete."""


def list_checkable_roles(assignment: LayoutAssignment, mistakes: ErrorCollector) -> list[RoleAssignment]:
    """Return the explicit roles whose barriers can be run; [] after a refused statement or an error about barriers."""
    statements = tile.walk_statements(assignment.kernel.body)
    # A refused statement may have been an arrival.
    if mistakes.has(*_BARRIER_MISTAKES) or any(map(is_refused, statements)):
        return []
    return list(assignment.roles)


def find_allocations(kernel: tile.Kernel) -> dict[str, AllocBarrier]:
    """Return the statement that allocates each barrier array of the kernel, by the array's name."""
    return {barrier_name(s): s for s in tile.walk_statements(kernel.body) if isinstance(s, AllocBarrier)}


def run_barriers(
    kernel: tile.Kernel,
    roles: Sequence[RoleAssignment],
    scalars: Mapping[tile.Var, int] = MappingProxyType({}),
    watch: BarrierObserver | None = None,
    cluster: int = 0,
) -> bool:
    """Run the barriers of one block or cluster; refuse deadlocks and left-over bytes, or raise `UnknownValue`. It is
    raised where control flow depends on other scalars than these. `watch` observes the run, `cluster` is the number of
    the block's cluster along each axis. Returns whether all roles came to their end. Errors: `barrier-deadlock`,
    `transaction-bytes`."""
    statements = [s for role in roles for s in tile.walk_statements(role.kernel.body) if isinstance(s, tile.TileOp)]
    blocks = range(kernel.cluster.blocks if any(s.reaches_blocks for s in statements) else 1)
    barriers: dict[BarrierPlace, _TrackedBarrier] = {}
    for block, (name, op) in itertools.product(blocks, find_allocations(kernel).items()):
        barriers |= {(block, name, i): _TrackedBarrier(count) for i, count in enumerate(op.counts)}
    if watch is not None:
        watch.start_run(barriers)
    are_done = True
    for section in sorted({role.section for role in roles}):
        states = []
        for block, role in itertools.product(blocks, roles):
            if role.section == section:
                own = role.in_block(block)
                values = {**_find_block_indices(kernel, block, cluster), **scalars}
                states.append(_RoleState(own, _run_barrier_statements(role.kernel.body, own, values, watch)))
        are_done &= _run_states(barriers, states, watch)
    return are_done


def _find_block_indices(kernel: tile.Kernel, number: int, cluster: int) -> dict[tile.Var, int]:
    """Return the value of each block variable for block `number` of the cluster with this number along each axis."""
    found = dict.fromkeys(kernel.block_vars, cluster)
    for var, size in zip(kernel.block_vars, kernel.cluster.extents, strict=False):
        number, digit = divmod(number, size)
        found[var] = cluster * size + digit
    return found


def barrier_name(op: tile.TileOp) -> str:
    """Return the name of the barrier array that an operation waits or arrives at."""
    assert op.barrier is not None
    return op.barrier.buffer.name


# ---- operations of one role ------------------------------------------------------------------------------------------


def _run_barrier_statements(
    body: tuple[tile.Stmt, ...], role: RoleAssignment, values: known_values.Values, watch: BarrierObserver | None
) -> Iterator[BarrierStep]:
    """Yield a role's barrier operations in execution order, update `values`, and show `watch` each statement. Raises
    `UnknownValue` where control flow is unknown, and `LoopLeft` at a break."""
    for stmt in body:
        if watch is not None and isinstance(stmt, tile.TileOp | tile.Parallel):
            watch.visit_statement(role, stmt, values)
        match stmt:
            case tile.For(var=var, body=inner) if _affects_barriers(inner) or _is_watched(stmt, values, watch):
                with suppress(known_values.LoopLeft):
                    for index in known_values.evaluate_iterations(stmt, values):
                        values[var] = index
                        yield from _run_barrier_statements(inner, role, values, watch)
            case tile.If() if _affects_barriers((*stmt.then, *stmt.orelse)) or _is_watched(stmt, values, watch):
                taken = stmt.then if known_values.evaluate_known(stmt.condition, values) else stmt.orelse
                yield from _run_barrier_statements(taken, role, values, watch)
            case tile.While(body=inner) if _affects_barriers(inner):
                raise known_values.UnknownValue
            case tile.Break():
                raise known_values.LoopLeft
            case _:
                known_values.update_values(stmt, values)
                if isinstance(stmt, tile.TileOp):
                    yield from _walk_operation(stmt, role, values)


def _is_watched(stmt: tile.For | tile.If, values: known_values.Values, watch: BarrierObserver | None) -> bool:
    """Return whether there is an observer and the statement's bounds or condition are known, so that it can be
    followed."""
    deciding = (stmt.start, stmt.stop) if isinstance(stmt, tile.For) else (stmt.condition,)
    return watch is not None and all(known_values.is_known(expr, values) for expr in deciding)


def _affects_barriers(body: tuple[tile.Stmt, ...]) -> bool:
    """Return whether a statement among these waits at a barrier, signals one, or leaves a loop."""
    return any(map(_is_relevant, tile.walk_statements(body)))


def _is_relevant(stmt: tile.Stmt) -> bool:
    """Return whether the statement waits at a barrier, signals one, or leaves a loop."""
    if isinstance(stmt, tile.TileOp):
        return stmt.synchronises_roles or stmt.signals_barrier or stmt.commits
    return isinstance(stmt, tile.Break)


def _walk_operation(op: tile.TileOp, role: RoleAssignment, values: known_values.Values) -> Iterator[BarrierStep]:
    """Yield the arrivals, bytes and waits of one operation at barriers; nothing for an operation without any."""
    if not _is_relevant(op):
        return
    if isinstance(op, BlockBarrier | NamedArrive):
        assert op.id is not None and op.threads is not None
        mine, waits = role.kernel.threads, isinstance(op, BlockBarrier)
        yield BarrierStep(("named barrier", op.id), op.span, mine, meets=op.threads, waits=waits)
        return
    assert op.barrier is not None
    place = (op.barrier.buffer.name, known_values.evaluate_known(op.barrier.indices[0], values))
    blocks = () if op.block is None else (known_values.evaluate_known(op.block, values),)
    match op:
        case AwaitBarrier():
            yield BarrierStep(place, op.span, parity=known_values.evaluate_known(op.parity, values) & 1)
        case ExpectTx():
            yield BarrierStep(place, op.span, int(op.arrives), op.bytes)
        case Arrive() | CpAsyncArrive():
            yield BarrierStep(place, op.span, _count_arrivals(op, role, values), blocks=blocks)
        case tile.TileOp(commits=True):
            yield BarrierStep(place, op.span, 1, blocks=(0, 1) if op.is_paired else (), completes=op)
        case tile.TileOp(signals_barrier=True):
            copied_bytes = math.prod(op.regions[-1].extent) * op.regions[-1].buffer.dtype.bits // 8
            if op.announces:
                yield BarrierStep(place, op.span, bytes=copied_bytes, blocks=blocks)
            yield BarrierStep(place, op.span, bytes=-copied_bytes, blocks=blocks, completes=op)
        case _:
            raise InternalError(f"the effect of T.{op.name} on a barrier is not defined")


def _count_arrivals(op: Arrive | CpAsyncArrive, role: RoleAssignment, values: known_values.Values) -> int:
    """Return by how many threads or warps of the role an operation arrives, given its condition."""
    if isinstance(op, Arrive) and op.by_warps:
        return role.kernel.threads // 32
    if op.condition is None:
        return role.kernel.threads
    return sum(
        known_values.evaluate_known(op.condition, {**values, tile.THREAD: t}) for t in range(role.kernel.threads)
    )


# ---- all roles -------------------------------------------------------------------------------------------------------


def _run_states(
    barriers: dict[BarrierPlace, _TrackedBarrier], states: list[_RoleState], watch: BarrierObserver | None
) -> bool:
    """Run these roles together until all end, are stuck or have run too far; return whether all ended. Refuse a
    deadlock and, if all have ended, a barrier with more or fewer bytes announced than copied."""
    outcome = run_together(states, lambda s: _advance_role(s, barriers, watch), lambda s: s.is_done, lambda s: s.is_cut)
    if outcome == "stuck":
        _refuse_deadlock(barriers, [s for s in states if not s.is_done])
    for name, barrier in barriers.items() if outcome == "done" else ():
        if barrier.bytes:
            _refuse_byte_count(name, barrier)
    return outcome == "done"


def _advance_role(
    state: _RoleState, barriers: dict[BarrierPlace, _TrackedBarrier], watch: BarrierObserver | None
) -> bool:
    """Run a role's barrier steps until it waits, ends or has run `MAX_STEPS`; return False if it made no step.
    Errors: `out-of-range`, `bad-cta-pair`."""
    count = 0
    while not state.is_done:
        step = state.waiting or next(state.steps, None)
        if step is None or count > MAX_STEPS:
            state.is_done, state.is_cut = True, step is not None
            return True
        own = (state.role.block, *step.barrier)
        barrier = barriers.get(own)
        if barrier is None and not step.meets:
            name, index = step.barrier
            raise_error(
                "out-of-range",
                f"the index is out of the bounds of {name}",
                step.span,
                f"there is no {name}[{index}] in role {state.role.name}",
            )
        if barrier is None:
            barrier = barriers.setdefault(own, _TrackedBarrier(step.meets))
        if state.waiting is None:
            state.phase = barrier.phase
            if len(step.blocks) > 1 and state.role.block:
                _refuse_second_block(step)
            for block in step.blocks or (state.role.block,):
                place = (block, *step.barrier)
                if watch is not None and (step.arrivals or step.completes):
                    watch.record_arrival(state.role, place, barriers[place].phase, step.completes)
                if step.bytes:
                    tracked = barriers[place].announced if step.bytes > 0 else barriers[place].copied_at
                    tracked.append(step.span)
                barriers[place].arrive(step.arrivals, step.bytes)
        if (
            barrier.phase == state.phase
            if step.waits
            else step.parity is not None and not barrier.has_completed(step.parity)
        ):
            state.waiting = step
            return count > 0
        if watch is not None and (step.waits or step.parity is not None):
            watch.record_wait(state.role, own, barrier.phase)
        state.waiting = None
        count += 1
    return count > 0


def _refuse_second_block(step: BarrierStep) -> NoReturn:
    """Raise an error for a step of a CTA pair that the second block issues, too."""
    raise_error(
        "bad-cta-pair",
        "the second block of a CTA pair also issues this",
        step.span,
        "one thread of the first block issues it for the tensor cores of both",
        help="put it under `if T.block_rank_in_cluster() == 0:`",
    )


def _refuse_deadlock(barriers: dict[BarrierPlace, _TrackedBarrier], waiting: list[_RoleState]) -> NoReturn:
    """Raise the error for waits that never end, or for wrong byte counts where a barrier misses only bytes."""
    places = [(s, s.waiting, barriers[s.role.block, *s.waiting.barrier]) for s in waiting if s.waiting is not None]
    for state, step, barrier in places:
        if barrier.misses_only_bytes:
            _refuse_byte_count((state.role.block, *step.barrier), barrier)
    notes = tuple(
        f"{s.role.name} waits for {_barrier_text(step.barrier)}: {barrier.phase} phases have completed, "
        f"the next one has {barrier.arrived} of {barrier.count} arrivals"
        for s, step, barrier in places
    )
    raise_error(
        "barrier-deadlock",
        "this wait never ends",
        places[0][1].span,
        f"{places[0][0].role.name} waits here for ever",
        secondary=tuple(Label(step.span, f"and {s.role.name} here") for s, step, _ in places[1:]),
        notes=notes,
        help="compare the count of the barrier with the threads that arrive, and the parity with the number of "
        "completed phases",
    )


def _refuse_byte_count(place: BarrierPlace, barrier: _TrackedBarrier) -> NoReturn:
    """Raise the error for a barrier at which more or fewer bytes are announced than are copied."""
    more = "more" if barrier.bytes > 0 else "fewer"
    first, *others = dict.fromkeys((*barrier.announced, *barrier.copied_at))
    raise_error(
        "transaction-bytes",
        f"{abs(barrier.bytes):,} {more} bytes are announced to {_barrier_text(place[1:])} than are copied",
        first,
        "its phase never completes" if barrier.bytes > 0 else "announced here",
        secondary=tuple(Label(span, "and here") for span in others),
        help="announce the bytes of all tiles that T.tma_copy fills, or of none: then each copy announces its own",
    )


def _barrier_text(name: BarrierName) -> str:
    return f"{name[0]} {name[1]}" if name[0] == "named barrier" else f"{name[0]}[{name[1]}]"
