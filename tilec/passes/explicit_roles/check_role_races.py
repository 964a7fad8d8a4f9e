"""Check that no two roles access the same elements of a shared tile or a tensor at once, one of them writing.

The barriers of the first block are run (`explicit_roles.protocol`) with vector clocks: one entry for each role, and one
for each kind of its asynchronous work, which are copies that signal a barrier, and products that it waits for later. An
arrival publishes what its role knows to have happened; a wait for that phase learns it. Two accesses, neither of which
is known to precede the other, are a race in every order in which the roles may run.

Only accesses that certainly happen count (`explicit_roles.footprints`). Clusters, whose blocks access each other's
tiles, are left to the emulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import NoReturn

from tilec.ir import tile
from tilec.ir.types import INT32
from tilec.ir.warp_verify.barrier_machine import Barrier, PhaseClocks, join_clocks
from tilec.ops.products.gemm import Gemm
from tilec.ops.synchronisation.barriers import AllocBarrier, Arrive
from tilec.ops.synchronisation.warpgroups import WaitWgmma
from tilec.passes.explicit_roles import protocol
from tilec.passes.explicit_roles.footprints import Footprint, find_footprints
from tilec.passes.explicit_roles.known_values import UnknownValue, Values, evaluate_known
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment
from tilec.support.diagnostics import CompileError, ErrorCollector, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

MAX_STATEMENTS = 4_000
"""The most statements of all roles together: far more than a round through all stages needs."""

Actor = tuple[str, str]
"""A role by its name, and its asynchronous work: "" for none, "copies" of a statement, wgmma "products", or "tensor
cores"."""
_Tile = tuple[str, int | None]
"""The name of a tile or tensor, and the number of its version."""
Clock = dict[Actor, int]
"""The number of each actor's operations that are known to have happened."""


@dataclass(frozen=True, slots=True)
class _Access:
    actor: Actor
    footprint: Footprint
    span: Span


class _RaceFound(Exception):
    """A race: two accesses in the order in which they were found."""

    def __init__(self, first: _Access, second: _Access) -> None:
        super().__init__()
        self.first, self.second = first, second


class _LimitReached(Exception):
    """Raised after `MAX_STATEMENTS` statements."""


@dataclass(slots=True)
class _RoleClock:
    """The state of one role: its section, its clock, how much asynchronous work of each kind it has begun, and the last
    product that the compiler waits for. `later`: by product that the kernel waits for, the stages that it reads."""

    section: int
    clock: Clock
    begun: Counter[Actor] = field(default_factory=Counter)
    last_awaited: int = 0
    later: dict[int, frozenset[object]] = field(default_factory=dict)


class _RaceDetector:
    """Observes a run of the barriers, and raises `_RaceFound`."""

    def __init__(self) -> None:
        self.mine: dict[str, _RoleClock] = {}
        self.barriers: Mapping[protocol.BarrierPlace, Barrier] = {}
        self.handed_on: PhaseClocks[protocol.BarrierPlace, Actor] = PhaseClocks()
        self.writes: dict[_Tile, dict[str, dict[_Access, int]]] = {}  # by role
        self.reads: dict[_Tile, dict[str, dict[_Access, int]]] = {}
        self.statements = 0

    def start_run(self, barriers: Mapping[protocol.BarrierPlace, Barrier]) -> None:
        """Remember the barriers of the run, by place."""
        self.barriers = barriers

    def get_clock(self, role: RoleAssignment) -> _RoleClock:
        """Return a role's clock state; a new one starts with what is known at the end of all earlier sections."""
        if role.name not in self.mine:
            clock: Clock = {_get_own_actor(role): 1}
            for earlier in self.mine.values():
                if earlier.section < role.section:
                    join_clocks(clock, earlier.clock)
            self.mine[role.name] = _RoleClock(role.section, clock)
        return self.mine[role.name]

    def visit_statement(self, role: RoleAssignment, stmt: tile.Stmt, values: Values) -> None:
        """Record a role's statement: begin its asynchronous work, signal its barrier, check its accesses for races.
        Raises `_RaceFound` or `_LimitReached`."""
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            raise _LimitReached
        mine = self.get_clock(role)
        actor, tick = _get_own_actor(role), mine.clock[_get_own_actor(role)]
        if isinstance(stmt, tile.TileOp):
            self.wait_for_products(role, stmt)
            if (begun := _find_asynchronous_actor(role, stmt)) is not None:
                mine.begun[begun] += 1
                if begun[1] != "products":
                    actor, tick = begun, mine.begun[begun]
                elif isinstance(stmt, Gemm) and stmt.wait == "later":
                    actor, tick = begun, mine.begun[begun]
                    mine.later[tick] = frozenset(index for index in stmt.versions[:2] if index is not None)
                else:
                    mine.last_awaited = mine.begun[begun]
            if stmt.signals_barrier or stmt.commits:
                element = stmt.barrier
                assert element is not None
                place = (0, protocol.barrier_name(stmt), evaluate_known(element.indices[0], values))
                signalled = begun or (role.name, "tensor cores")
                if place in self.barriers:  # `check_barriers` reports a missing one
                    phase = self.barriers[place].phase
                    self.handed_on.arrive(place, phase, mine.clock, {signalled: mine.begun[signalled]})
        for footprint in find_footprints(stmt, values):
            self.check_access(_Access(actor, footprint, stmt.span), tick, mine.clock)

    def wait_for_products(self, role: RoleAssignment, op: tile.TileOp) -> None:
        """Advance a role's clock for its wgmma products at an operation that waits for some of them."""
        mine, products = self.get_clock(role), (role.name, "products")
        done = 0
        if isinstance(op, WaitWgmma):
            done = mine.begun[products] - op.pending
        elif isinstance(op, Arrive):
            stage = op.barrier.indices[0]
            given_back = (n for n, read in mine.later.items() if op.by_warps and stage in read)
            done = max((mine.last_awaited, *given_back))
        mine.clock[products] = max(mine.clock.get(products, 0), done)

    def check_access(self, access: _Access, tick: int, clock: Clock) -> None:
        """Raise `_RaceFound` if an access may overlap an earlier one that no barrier orders before it; else record
        it."""
        there, role = access.footprint, access.actor[0]
        buffer = (there.tile, there.version)
        for before in (self.writes, self.reads) if there.is_write else (self.writes,):
            for whose, kept in before.get(buffer, {}).items():
                for other, when in kept.items() if whose != role or self.mine[role].begun else ():
                    if other.actor in (access.actor, (role, "")) or clock.get(other.actor, 0) >= when:
                        continue
                    if _is_overlapping(other.footprint, there):
                        raise _RaceFound(other, access)
        mine = self.writes if there.is_write else self.reads
        mine.setdefault(buffer, {}).setdefault(role, {})[access] = tick

    def record_arrival(self, role: RoleAssignment, place: protocol.BarrierPlace, phase: int) -> None:
        """Publish the role's clock at the barrier for the phase, then advance the role's own entry."""
        mine = self.get_clock(role)
        self.handed_on.arrive(place, phase, mine.clock)
        mine.clock[_get_own_actor(role)] += 1

    def record_wait(self, role: RoleAssignment, place: protocol.BarrierPlace, phases: int) -> None:
        """Add to the role's clock what was published at the barrier in its completed phases."""
        self.handed_on.wait(place, phases, self.get_clock(role).clock)


def _get_own_actor(role: RoleAssignment) -> Actor:
    return (role.name, "")


def _find_asynchronous_actor(role: RoleAssignment, op: tile.TileOp) -> Actor | None:
    """Return the actor of an operation: the role's copies, tensor cores or products; None if its threads do it."""
    if op.signals_barrier:
        return (role.name, f"copies of {op.span.file}:{op.span.line}:{op.span.column}")
    if op.is_in_tensor_memory:
        return (role.name, "tensor cores")
    return (role.name, "products") if op.via == "wgmma" and not isinstance(op, WaitWgmma) else None


def _is_overlapping(one: Footprint, other: Footprint) -> bool:
    """Return whether the boxes of two footprints have an element in common; not if their dimensions differ."""
    is_alike = len(one.box) == len(other.box)
    return is_alike and all(a < d and c < b for (a, b), (c, d) in zip(one.box, other.box, strict=True))


def check_role_races(kernel: tile.Kernel, assignment: LayoutAssignment, mistakes: ErrorCollector) -> None:
    """Refuse a kernel in which no barrier orders two roles' accesses to one element; leave clusters unchecked.

    Errors: `role-race`."""
    roles = protocol.list_checkable_roles(assignment, mistakes)
    if kernel.cluster.blocks > 1 or len(roles) < 2:
        return
    scalars = [param for param in kernel.params if isinstance(param, tile.Var) and param.dtype == INT32]
    with suppress(_LimitReached, UnknownValue):
        try:
            protocol.run_barriers(kernel, roles, dict.fromkeys(scalars, protocol.ASSUMED_SIZE), _RaceDetector())
        except CompileError:
            return  # `check_barriers` reports errors of the barriers
        except _RaceFound as race:
            first, second = race.first, race.second
        else:
            return
        _refuse_race(kernel, first, second)


def _refuse_race(kernel: tile.Kernel, first: _Access, second: _Access) -> NoReturn:
    """Raise the error for a race of two accesses, blaming the one that writes, or the later of two writes."""
    blamed, other = (second, first) if second.footprint.is_write else (first, second)
    buffer, (one, another) = blamed.footprint.tile, (blamed.actor[0], other.actor[0])
    if one == another:
        title = f"{one} accesses {buffer} without a wait for its earlier access"
    else:
        title = f"{one} and {another} access the same elements of {buffer}, and no barrier orders them"
    raise_error(
        "role-race",
        title,
        blamed.span,
        _describe_access(blamed),
        secondary=(Label(other.span, _describe_access(other)),),
        help=_suggest_fix(kernel, blamed, other),
    )


def _describe_access(access: _Access) -> str:
    """Return an access as a label describes it: "producer writes it here", or "the copy that producer begins here
    …"."""
    role, begun = access.actor
    verb = "writes" if access.footprint.is_write else "reads"
    if not begun:
        return f"{role} {verb} it here"
    kind = "the copy" if begun.startswith("copies") else "the product"
    return f"{kind} that {role} begins here {verb} it"


def _suggest_fix(kernel: tile.Kernel, blamed: _Access, other: _Access) -> str:
    """Return the help text for a race: wait for the product or copy, or add a barrier between two roles."""
    if "products" in (blamed.actor[1], other.actor[1]):
        return "write T.wait_wgmma after the product, before the arrival at the barrier or the use of the tile"
    if "tensor cores" in (blamed.actor[1], other.actor[1]) and blamed.actor[0] != other.actor[0]:
        return "threads arrive before the product is done: name the barrier as its mbar, or in T.tcgen05_mma_arrive"
    if blamed.actor[0] == other.actor[0]:
        return "wait for the barrier that it signals before the tile is used again"
    buffer, statements = blamed.footprint.tile, tile.walk_statements(kernel.body)
    if any(isinstance(s, AllocBarrier) and buffer in (s.holds or ()) for s in statements):
        return f"several roles may read a stage at once: none may write {buffer}; pass it on through another pipeline"
    return "let the first role arrive at a barrier when it is done, and the other wait for it"
