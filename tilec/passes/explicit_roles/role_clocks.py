"""Follow what each role of a kernel knows to have happened, in a run of its barriers (`explicit_roles.protocol`).

Each role has a vector clock: one entry for each role, and one for each kind of its asynchronous work, which are copies
that signal a barrier, and products that it waits for later. An arrival publishes what its role knows; a wait for that
phase learns it. Warps that join again know what all of them knew."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import field

from tilec.ir import tile
from tilec.ir.warp_verify.barrier_machine import Barrier, PhaseClocks, join_clocks
from tilec.ops.products.gemm import Gemm
from tilec.ops.synchronisation.barriers import Arrive
from tilec.ops.synchronisation.warpgroups import WaitWgmma
from tilec.passes.explicit_roles import protocol
from tilec.passes.explicit_roles.known_values import Values
from tilec.passes.layout.assign_layouts import RoleAssignment
from tilec.support.records import dataclass

MAX_STATEMENTS = 4_000
"""The most statements of all roles together: far more than a round through all stages needs."""

Actor = tuple[str, str]
"""A role by its name, and its asynchronous work: "" for none, "copies" of a statement, wgmma "products", or "tensor
cores"."""
Clock = dict[Actor, int]
"""The number of each actor's operations that are known to have happened."""


class LimitReached(Exception):
    """Raised after `MAX_STATEMENTS` statements."""


@dataclass(slots=True)
class RoleClock:
    """The state of one role: its block and section, its clock, how much asynchronous work of each kind it has begun,
    and the last product that the compiler waits for. `later`: by product that the kernel waits for, the stages that it
    reads."""

    block: int
    section: int
    clock: Clock
    begun: Counter[Actor] = field(default_factory=Counter)
    last_awaited: int = 0
    later: dict[int, frozenset[object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment at which a statement accesses its tiles: the operation's number among its actor's, and what its role
    knows then."""

    actor: Actor
    tick: int
    clock: Clock

    def is_behind(self, actor: Actor, tick: int) -> bool:
        """Return whether an operation of an actor is known to be complete."""
        return self.clock.get(actor, 0) >= tick


class RoleClocks(ABC):
    """Observes a run of the barriers, and keeps the clocks of all roles."""

    def __init__(self) -> None:
        self.mine: dict[str, RoleClock] = {}
        self.barriers: Mapping[protocol.BarrierPlace, Barrier] = {}
        self.handed_on: PhaseClocks[protocol.BarrierPlace, Actor] = PhaseClocks()
        self.statements = 0

    def start_run(self, barriers: Mapping[protocol.BarrierPlace, Barrier]) -> None:
        """Remember the barriers of the run, by place."""
        self.barriers = barriers

    def get_clock(self, role: RoleAssignment) -> RoleClock:
        """Return a role's clock state; a new one starts with what is known at the end of all earlier sections."""
        if role.name not in self.mine:
            clock: Clock = {get_own_actor(role): 1}
            for earlier in self.mine.values():
                if earlier.block == role.block and earlier.section < role.section:
                    join_clocks(clock, earlier.clock)
            self.mine[role.name] = RoleClock(role.block, role.section, clock)
        return self.mine[role.name]

    def visit_statement(self, role: RoleAssignment, stmt: tile.Stmt, values: Values) -> None:
        """Record a role's statement: begin its asynchronous work, look at its accesses. Raises `LimitReached`."""
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            raise LimitReached
        self.visit_accesses(role, stmt, values, self.begin_statement(role, stmt))

    @abstractmethod
    def visit_accesses(self, role: RoleAssignment, stmt: tile.Stmt, values: Values, moment: Moment) -> None:
        """Look at the accesses of a statement."""

    def begin_statement(self, role: RoleAssignment, stmt: tile.Stmt) -> Moment:
        """Begin a statement's asynchronous work, and return when it accesses its tiles."""
        mine = self.get_clock(role)
        actor, tick = get_own_actor(role), mine.clock[get_own_actor(role)]
        if not isinstance(stmt, tile.TileOp):
            return Moment(actor, tick, mine.clock)
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
        return Moment(actor, tick, mine.clock)

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

    def record_arrival(
        self, role: RoleAssignment, place: protocol.BarrierPlace, phase: int, completes: tile.TileOp | None
    ) -> None:
        """Publish at the barrier for the phase what the role knows, and its asynchronous work that the arrival
        signals; then advance the role's own entry where the role itself arrives."""
        mine = self.get_clock(role)
        if completes is None:
            self.handed_on.arrive(place, phase, mine.clock)
            mine.clock[get_own_actor(role)] += 1
        else:
            signalled = _find_asynchronous_actor(role, completes) or (role.name, "tensor cores")
            self.handed_on.arrive(place, phase, mine.clock, {signalled: mine.begun[signalled]})

    def record_wait(self, role: RoleAssignment, place: protocol.BarrierPlace, phases: int) -> None:
        """Add to the role's clock what was published at the barrier in its completed phases."""
        self.handed_on.wait(place, phases, self.get_clock(role).clock)


def get_own_actor(role: RoleAssignment) -> Actor:
    """Return the actor of what the threads of a role do themselves."""
    return (role.name, "")


def _find_asynchronous_actor(role: RoleAssignment, op: tile.TileOp) -> Actor | None:
    """Return the actor of an operation: the role's copies, tensor cores or products; None if its threads do it."""
    if op.signals_barrier:
        return (role.name, f"copies of {op.span.file}:{op.span.line}:{op.span.column}")
    if op.is_in_tensor_memory:
        return (role.name, "tensor cores")
    return (role.name, "products") if op.via == "wgmma" and not isinstance(op, WaitWgmma) else None
