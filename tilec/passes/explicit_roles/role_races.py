"""That no two roles reach the same elements of a shared tile or a tensor at once, one of them writing.

The barriers of the first block are run (`explicit_roles.protocol`) with a clock for each role, and for each kind of
work that it only begins: copies that signal a barrier, and products that it waits for later. An arrival hands on what
its role knows to have happened, and who waits for that phase knows it from then on. Two accesses of which neither is
known to have happened before the other one are a race in this and in every order in which the roles may run.

What is sure to be reached is looked at, and nothing else (`explicit_roles.footprints`); clusters, whose blocks reach
each other's tiles, are left to the emulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import NoReturn

from tilec.ir import tile
from tilec.ir.barrier_machine import Barrier, PhaseClocks, join_clocks
from tilec.ir.types import INT32
from tilec.ops.barriers import AllocBarrier, Arrive
from tilec.ops.gemm import Gemm
from tilec.ops.warpgroups import WaitWgmma
from tilec.passes.explicit_roles.footprints import Footprint, footprints
from tilec.passes.explicit_roles.known_values import Unknown, Values, known
from tilec.passes.explicit_roles.protocol import SIZE, Place, Role, barrier_name, run
from tilec.support.diagnostics import CompileError, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

MOST_STATEMENTS = 4_000
"""Of all roles together: far more than stages need to come round."""

Actor = tuple[str, str]
"""A role, by its name, or what it has begun and does not wait for: "copies" by a statement, "products" of warpgroups,
or what it has asked the "tensor cores" for."""
_Tile = tuple[str, int | None]
"""A tile or a tensor by name, and which version of it."""
Clock = dict[Actor, int]
"""How far what each actor has done is known to have happened."""


@dataclass(frozen=True, slots=True)
class _Access:
    actor: Actor
    footprint: Footprint
    span: Span


class _Found(Exception):
    """A race: two accesses in the order in which they were met."""

    def __init__(self, first: _Access, second: _Access) -> None:
        super().__init__()
        self.first, self.second = first, second


class _Enough(Exception):
    """As much has been looked at as is worth while."""


@dataclass(slots=True)
class _Mine:
    """Of one role: its clock, how much it has begun of each kind, the last product for which tilec waits, and of those
    for which the kernel does the stages that they read."""

    clock: Clock
    begun: Counter[Actor] = field(default_factory=Counter)
    waited_for: int = 0
    later: dict[int, frozenset[object]] = field(default_factory=dict)


class _Clocks:
    """Watches the barriers being run."""

    def __init__(self) -> None:
        self.mine: dict[str, _Mine] = {}
        self.common: Clock = {}
        self.barriers: Mapping[Place, Barrier] = {}
        self.handed_on: PhaseClocks[Place, Actor] = PhaseClocks()
        self.writes: dict[_Tile, dict[str, dict[_Access, int]]] = {}  # by role
        self.reads: dict[_Tile, dict[str, dict[_Access, int]]] = {}
        self.statements = 0

    def begins(self, barriers: Mapping[Place, Barrier]) -> None:
        self.barriers = barriers

    def of(self, role: Role) -> _Mine:
        """A role begins when all that is done in common has been done."""
        if role.name not in self.mine:
            self.mine[role.name] = _Mine({**self.common, _itself(role): 1})
        return self.mine[role.name]

    # ---- what a role does --------------------------------------------------------------------------------------------

    def does(self, role: Role, stmt: tile.Stmt, values: Values) -> None:
        self.statements += 1
        if self.statements > MOST_STATEMENTS:
            raise _Enough
        mine = self.of(role)
        actor, tick = _itself(role), mine.clock[_itself(role)]
        if role.is_common:
            join_clocks(self.common, mine.clock)
        if isinstance(stmt, tile.TileOp):
            self.waits(role, stmt)
            if (begun := _begun(role, stmt)) is not None:
                mine.begun[begun] += 1
                if begun[1] != "products":
                    actor, tick = begun, mine.begun[begun]
                elif isinstance(stmt, Gemm) and stmt.wait == "later":
                    actor, tick = begun, mine.begun[begun]
                    mine.later[tick] = frozenset(index for index in stmt.versions[:2] if index is not None)
                else:
                    mine.waited_for = mine.begun[begun]
            if stmt.signals_barrier or stmt.commits:
                element = stmt.barrier
                assert element is not None
                place = (0, barrier_name(stmt), known(element.indices[0], values))
                signalled = begun or (role.name, "tensor cores")
                if place in self.barriers:  # else the protocol says so
                    phase = self.barriers[place].phase
                    self.handed_on.arrive(place, phase, mine.clock, {signalled: mine.begun[signalled]})
        for footprint in footprints(stmt, values):
            self.reaches(_Access(actor, footprint, stmt.span), tick, mine.clock)

    def waits(self, role: Role, op: tile.TileOp) -> None:
        """For products, where the kernel says so, or tilec in front of an arrival: where that gives back a stage, also
        for those that read it."""
        mine, products = self.of(role), (role.name, "products")
        done = 0
        if isinstance(op, WaitWgmma):
            done = mine.begun[products] - op.pending
        elif isinstance(op, Arrive):
            stage = op.barrier.indices[0]
            given_back = (n for n, read in mine.later.items() if op.by_warps and stage in read)
            done = max((mine.waited_for, *given_back))
        mine.clock[products] = max(mine.clock.get(products, 0), done)

    def reaches(self, access: _Access, tick: int, clock: Clock) -> None:
        there, role = access.footprint, access.actor[0]
        buffer = (there.tile, there.version)
        for before in (self.writes, self.reads) if there.is_write else (self.writes,):
            for whose, kept in before.get(buffer, {}).items():
                for other, when in kept.items() if whose != role or self.has_begun(role) else ():
                    if other.actor in (access.actor, (role, "")) or clock.get(other.actor, 0) >= when:
                        continue
                    if _overlap(other.footprint, there):
                        raise _Found(other, access)
        mine = self.writes if there.is_write else self.reads
        mine.setdefault(buffer, {}).setdefault(role, {})[access] = tick

    def has_begun(self, role: str) -> bool:
        """Whether it does anything that it does not wait for."""
        return bool(self.mine[role].begun)

    # ---- what passes at barriers -------------------------------------------------------------------------------------

    def arrives(self, role: Role, place: Place, phase: int) -> None:
        mine = self.of(role)
        self.handed_on.arrive(place, phase, mine.clock)
        mine.clock[_itself(role)] += 1
        if role.is_common:
            join_clocks(self.common, mine.clock)

    def passes(self, role: Role, place: Place, phases: int) -> None:
        self.handed_on.wait(place, phases, self.of(role).clock)


def _itself(role: Role) -> Actor:
    return (role.name, "")


def _begun(role: Role, op: tile.TileOp) -> Actor | None:
    """Who does it while the role goes on; None where the role does it itself."""
    if op.signals_barrier:
        return (role.name, f"copies of {op.span.file}:{op.span.line}:{op.span.column}")
    if op.is_in_tensor_memory:
        return (role.name, "tensor cores")
    return (role.name, "products") if op.via == "wgmma" and not isinstance(op, WaitWgmma) else None


def _overlap(one: Footprint, other: Footprint) -> bool:
    if len(one.box) != len(other.box):
        return False
    return all(a < d and c < b for (a, b), (c, d) in zip(one.box, other.box, strict=True))


# ---- the kernel ------------------------------------------------------------------------------------------------------


def check_races(kernel: tile.Kernel, roles: Sequence[Role]) -> None:
    """Errors: `role-race`."""
    if kernel.cluster.blocks > 1 or len(roles) < 2:
        return
    scalars = [param for param in kernel.params if isinstance(param, tile.Var) and param.dtype == INT32]
    with suppress(_Enough, Unknown):
        try:
            run(kernel, roles, dict.fromkeys(scalars, SIZE), _Clocks())
        except CompileError:
            return  # what is wrong with the barriers themselves is said elsewhere
        except _Found as race:
            first, second = race.first, race.second
        else:
            return
        _refuse(kernel, first, second)


def _refuse(kernel: tile.Kernel, first: _Access, second: _Access) -> NoReturn:
    """To blame is who writes, of two the later one."""
    blamed, other = (second, first) if second.footprint.is_write else (first, second)
    buffer, (one, another) = blamed.footprint.tile, (blamed.actor[0], other.actor[0])
    if one == another:
        title = f"{one} reaches a part of {buffer} that it has not waited for"
    else:
        title = f"{one} and {another} reach the same elements of {buffer}, and no barrier orders them"
    raise_error(
        "role-race",
        title,
        blamed.span,
        _does(blamed),
        secondary=(Label(other.span, _does(other)),),
        help=_way_out(kernel, blamed, other),
    )


def _does(access: _Access) -> str:
    role, begun = access.actor
    verb = "writes" if access.footprint.is_write else "reads"
    if not begun:
        return f"{role} {verb} it here"
    kind = "the copy" if begun.startswith("copies") else "the product"
    return f"{kind} that {role} begins here {verb} it"


def _way_out(kernel: tile.Kernel, blamed: _Access, other: _Access) -> str:
    products = next((a for a in (blamed, other) if a.actor[1] == "products"), None)
    if products is not None:
        return "write T.wait_wgmma behind the product, before the barrier is arrived at or the tile is used"
    if blamed.actor[0] == other.actor[0]:
        return "wait for the barrier that it signals before the tile is used again"
    buffer = blamed.footprint.tile
    if any(buffer in _held(stmt) for stmt in tile.walk_statements(kernel.body) if isinstance(stmt, tile.TileOp)):
        return f"all who take a stage may read it at once: let none of them write {buffer}, or hand it on by a pipeline"
    return "let the one arrive at a barrier when it is done, and the other one wait for that"


def _held(op: tile.TileOp) -> tuple[str, ...]:
    """The tiles of the stages whose barriers these are."""
    return op.holds or () if isinstance(op, AllocBarrier) else ()
