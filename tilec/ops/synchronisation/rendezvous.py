"""Statements by which blocks wait for each other, or a grid waits for the grid launched before it.

Like T.sync_threads they keep their place: no access to memory that other blocks may access moves across them, and all
accesses before them are complete there. The reference runs the blocks one after the other up to each rendezvous
(`interp`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, TypeGuard

from tilec.ir import warp
from tilec.ir.tile import TileOp
from tilec.ops.form import Shared
from tilec.ops.language.signature import Signature
from tilec.ops.lowering import LoweringContext, list_no_demands
from tilec.ops.registry import Effects, Spelling, attach_facet, define_operation
from tilec.support import schema
from tilec.support.records import dataclass
from tilec.target.names import Feature


@dataclass(frozen=True, slots=True)
class RendezvousKind:
    """A kind of rendezvous. With `roles` every role of a block executes it, not only the one that computes. `feature`
    is the target feature that it needs."""

    spelled: str
    doc: str
    roles: bool = True
    feature: Feature | None = "cluster"


RENDEZVOUS: dict[str, RendezvousKind] = {
    "cluster_sync": RendezvousKind(
        "T.cluster_sync",
        """Let all threads of all blocks of the cluster wait for each other.

        Earlier accesses of each are complete for all of them after it: T.cluster_arrive and T.cluster_wait in one.
        """,
    ),
    "cluster_arrive": RendezvousKind(
        "T.cluster_arrive",
        """Arrive at the cluster's barrier without waiting for the other blocks.

        Earlier accesses are complete for every thread that has passed the matching T.cluster_wait.
        """,
    ),
    "cluster_arrive_relaxed": RendezvousKind(
        "T.cluster_arrive_relaxed",
        """As T.cluster_arrive, but earlier accesses need not be visible to the other blocks.""",
    ),
    "cluster_wait": RendezvousKind(
        "T.cluster_wait", """Wait until all blocks of the cluster have executed T.cluster_arrive."""
    ),
    "sync_grid": RendezvousKind(
        "T.sync_grid",
        """Let all blocks of the grid wait for each other.

        After it, every block reads what any block has written to tensors before it. The grid is launched cooperatively:
        all its blocks must fit on the GPU at the same time, else the launch is refused.
        """,
        roles=False,
        feature=None,
    ),
    "pdl_sync": RendezvousKind(
        "T.pdl_sync",
        """Wait for the previous kernel of the stream, and for all that it has written.

        The manifest then requests programmatic dependent launch, so that the statements before this one overlap the end
        of that kernel. Tensors may be read and written only after it.
        """,
        feature="dependent_launch",
    ),
    "pdl_trigger": RendezvousKind(
        "T.pdl_trigger",
        """Allow the next kernel of the stream to start once all blocks have executed this.

        This is programmatic dependent launch: the next kernel's T.pdl_sync still waits for this kernel's end.
        """,
        roles=False,
        feature="dependent_launch",
    ),
}
"""The kinds, by the name in tile IR."""


@dataclass(frozen=True, slots=True)
class Rendezvous(TileOp):
    """One of the `RENDEZVOUS`, after the copies of `awaited` tiles have completed. The barrier of a grid counts in
    `counter`, a tensor."""

    name = "rendezvous"
    by_warpgroups = True
    reaches_regions = False
    awaited: tuple[Shared, ...] = ()
    what: Annotated[str, schema.Constraint(RENDEZVOUS.__contains__, f"one of {', '.join(RENDEZVOUS)}")] = field(
        kw_only=True
    )
    counter: str | None = field(default=None, kw_only=True)

    @property
    def kind(self) -> RendezvousKind:
        """Return the row of `RENDEZVOUS` for this rendezvous."""
        return RENDEZVOUS[self.what]


def is_for_every_role(stmt: object) -> TypeGuard[Rendezvous]:
    """Return whether the statement is a rendezvous that each role of a block executes. Without some threads the others
    would wait for ever, or go on too early."""
    return isinstance(stmt, Rendezvous) and stmt.kind.roles


def _make_spelling(what: str, kind: RendezvousKind) -> Spelling:
    """Make the documented `T.*` name of one kind of rendezvous."""
    return Spelling(Signature(kind.spelled, ()), kind.doc, lambda call: Rendezvous(what=what, span=call.span))


define_operation(
    Rendezvous,
    lambda op: Effects(op.regions, ()),
    lambda op, env: env.rendezvous(op.what),  # suspends the block until the others have arrived
    *(_make_spelling(*item) for item in RENDEZVOUS.items()),
    demand=list_no_demands,
)


@attach_facet(Rendezvous, "lower")
def lower_rendezvous(op: Rendezvous, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower to waits for the awaited tiles' copies, then to the cluster's or grid's barrier; two kinds wait for no
    copies. These are T.cluster_wait and T.pdl_sync."""
    tiles = tuple(dict.fromkeys(region.buffer.name for region in op.regions))
    waits = (warp.Await(tiles, True, cursors=context.cursors, span=op.span),) if tiles else ()
    match op.what:
        case "cluster_arrive" | "cluster_arrive_relaxed":
            return *waits, warp.ClusterArrive(op.what == "cluster_arrive_relaxed", span=op.span)
        case "cluster_wait":
            return (warp.ClusterWait(span=op.span),)
        case "cluster_sync":
            return *waits, warp.ClusterArrive(span=op.span), warp.ClusterWait(True, span=op.span)
        case "sync_grid":
            return *waits, warp.GridSync(str(op.counter), span=op.span)
        case "pdl_sync":
            return (warp.GridControl("wait", span=op.span),)
        case _:
            return *waits, warp.GridControl("launch_dependents", span=op.span)


@attach_facet(Rendezvous, "agrees")
def verify_rendezvous(op: Rendezvous) -> Iterator[str]:
    """Yield a violation unless the operation has a counter exactly if it synchronises the grid."""
    if (op.counter is not None) != (op.what == "sync_grid"):
        yield "sync_grid needs a counter, the other kinds must not have one"
