"""The placeholder of a wrong statement while the rest of a kernel is checked. It reads and writes the same buffers as
the statement and demands no instructions. Kernels cannot spell it, and a kernel that contains one is not compiled.
"""

from __future__ import annotations

from tilec.ir import warp
from tilec.ir.tile import Buffer, Stmt, TileOp
from tilec.ops.form import Anywhere
from tilec.ops.lowering import Context, Demand
from tilec.ops.registry import Effects, Environment, Operation, facet, register
from tilec.ops.sync import everything
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class Refused(TileOp):
    """A wrong statement, which reads the first `reads` regions of `touched` and writes the others."""

    name = "refused"
    fragments_lie = "its own way"
    reaches_regions = False
    in_text = False
    touched: tuple[Anywhere, ...]
    reads: int


def refused(reads: tuple[Buffer, ...], writes: tuple[Buffer, ...], span: Span) -> TileOp:
    """Return the placeholder of a statement that reads and writes these buffers."""
    return Refused(tuple(everything(b, span) for b in (*reads, *writes)), len(reads), span=span)


def is_refused(stmt: Stmt) -> bool:
    """Return whether the statement is the placeholder of a wrong one."""
    return isinstance(stmt, Refused)


def _effects(op: Refused) -> Effects:
    return Effects(op.touched[: op.reads], op.touched[op.reads :])


def _reference(op: Refused, env: Environment) -> None:
    raise InternalError("a kernel with a mistake is run")


register(Operation(Refused, (), _effects, _reference))


@facet(Refused, "demand")
def demand(op: Refused, context: Context) -> tuple[Demand, ...]:
    return ()


@facet(Refused, "lower")
def lower(op: Refused, context: Context) -> tuple[warp.Operation, ...]:
    raise InternalError("a kernel with a mistake is compiled")
