"""The placeholder of a wrong statement while the rest of a kernel is checked. It reads and writes the same buffers as
the statement and demands no instructions. Kernels cannot spell it, and a kernel that contains one is not compiled.
"""

from __future__ import annotations

from tilec.ir.tile import Buffer, Stmt, TileOp
from tilec.ops.form import Anywhere
from tilec.ops.lowering import list_no_demands
from tilec.ops.registry import Effects, Environment, define_operation
from tilec.ops.synchronisation.sync import make_buffer_region
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class RefusedStatement(TileOp):
    """A wrong statement, which reads the first `reads` regions of `touched` and writes the others."""

    name = "refused"
    fragments_lie = "its own way"
    reaches_regions = False
    in_text = False
    touched: tuple[Anywhere, ...]
    reads: int


def make_refused(reads: tuple[Buffer, ...], writes: tuple[Buffer, ...], span: Span) -> TileOp:
    """Return the placeholder of a wrong statement that reads and writes these whole buffers."""
    return RefusedStatement(tuple(make_buffer_region(b, span) for b in (*reads, *writes)), len(reads), span=span)


def is_refused(stmt: Stmt) -> bool:
    """Return whether a statement is the placeholder of a wrong one."""
    return isinstance(stmt, RefusedStatement)


def _evaluate_refused(op: RefusedStatement, env: Environment) -> None:
    """Raise `InternalError`: a kernel with a wrong statement is never evaluated."""
    raise InternalError("a kernel with a mistake is run")


define_operation(
    RefusedStatement,
    lambda op: Effects(op.touched[: op.reads], op.touched[op.reads :]),
    _evaluate_refused,
    demand=list_no_demands,
)
