"""Check that no two roles access the same elements of a shared tile or a tensor at once, one of them writing.

The barriers of the first block are run with vector clocks (`explicit_roles.role_clocks`). Two accesses, neither of
which is known to precede the other, are a race in every order in which the roles may run.

Only accesses that certainly happen count (`explicit_roles.footprints`). Clusters, whose blocks access each other's
tiles, are left to the emulator."""

from __future__ import annotations

from contextlib import suppress
from typing import NoReturn

from tilec.ir import tile
from tilec.ir.types import INT32
from tilec.ops.synchronisation.barriers import AllocBarrier
from tilec.passes.explicit_roles import protocol
from tilec.passes.explicit_roles.footprints import Footprint, find_footprints
from tilec.passes.explicit_roles.known_values import UnknownValue, Values
from tilec.passes.explicit_roles.role_clocks import Actor, LimitReached, Moment, RoleClocks
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment
from tilec.support.diagnostics import CompileError, ErrorCollector, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

_Tile = tuple[str, int | None]
"""The name of a tile or tensor, and the number of its version."""


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


class _RaceDetector(RoleClocks):
    """Raises `_RaceFound` at a race."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[_Tile, dict[str, dict[_Access, int]]] = {}  # by role
        self.reads: dict[_Tile, dict[str, dict[_Access, int]]] = {}

    def visit_accesses(self, role: RoleAssignment, stmt: tile.Stmt, values: Values, moment: Moment) -> None:
        """Check a statement's accesses for races."""
        for footprint in find_footprints(stmt, values):
            self.check_access(_Access(moment.actor, footprint, stmt.span), moment)

    def check_access(self, access: _Access, moment: Moment) -> None:
        """Raise `_RaceFound` if an access may overlap an earlier one that no barrier orders before it; else record
        it."""
        there, role = access.footprint, access.actor[0]
        buffer = (there.tile, there.version)
        for before in (self.writes, self.reads) if there.is_write else (self.writes,):
            for whose, kept in before.get(buffer, {}).items():
                for other, when in kept.items() if whose != role or self.mine[role].begun else ():
                    if other.actor in (access.actor, (role, "")) or moment.is_behind(other.actor, when):
                        continue
                    if _is_overlapping(other.footprint, there):
                        raise _RaceFound(other, access)
        mine = self.writes if there.is_write else self.reads
        mine.setdefault(buffer, {}).setdefault(role, {})[access] = moment.tick


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
    with suppress(LimitReached, UnknownValue):
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
