"""What a mistake leaves in its place while the rest of a kernel is checked: it reads and writes what the statement
does, and asks for nothing. No kernel has a name for it, and none that has one is compiled.
"""

from __future__ import annotations

from tilec.ir import warp
from tilec.ir.tile import Buffer, Stmt, TileOp
from tilec.ops.lowering import Context, Demand
from tilec.ops.registry import Effects, Environment, Operation, facet, register, tile_op
from tilec.ops.sync import everything
from tilec.support.diagnostics import InternalError
from tilec.support.source import Span


def refused(reads: tuple[Buffer, ...], writes: tuple[Buffer, ...], span: Span) -> TileOp:
    """In the place of a statement that reads and writes these."""
    return tile_op("refused", tuple(everything(b, span) for b in (*reads, *writes)), span, reads=len(reads))


def is_refused(stmt: Stmt) -> bool:
    """Whether something wrong stood here."""
    return isinstance(stmt, TileOp) and stmt.name == "refused"


def _effects(op: TileOp) -> Effects:
    count = op.attr("reads")
    assert isinstance(count, int)
    return Effects(op.regions[:count], op.regions[count:])


def _reference(op: TileOp, env: Environment) -> None:
    raise InternalError("a kernel with a mistake is run")


register(Operation("refused", (), _effects, _reference))


@facet("refused", "demand")
def demand(op: TileOp, context: Context) -> tuple[Demand, ...]:
    return ()


@facet("refused", "lower")
def lower(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    raise InternalError("a kernel with a mistake is compiled")
