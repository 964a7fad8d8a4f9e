"""What a target can compute: functions of float64."""

from __future__ import annotations

from tilec.diag import AT_ONCE, Mistakes, fail
from tilec.ir.tile import Call, Stmt, walk, walk_expr
from tilec.ir.types import FLOAT64
from tilec.passes.usage import expressions

FLOAT64_FUNCTIONS = frozenset(
    {"abs", "sqrt", "floor", "ceil", "trunc", "nearbyint", "reinterpret"}
)  # the others have no instruction


def check_arithmetic(body: tuple[Stmt, ...], mistakes: Mistakes = AT_ONCE) -> None:
    """Refuse functions for which there are no instructions, one in each statement."""
    for stmt in walk(body):
        with mistakes.caught():
            _check(stmt)


def _check(stmt: Stmt) -> None:
    for expr in expressions(stmt):
        for e in walk_expr(expr):
            if isinstance(e, Call) and e.dtype == FLOAT64 and e.fn not in FLOAT64_FUNCTIONS:
                fail(
                    "unsupported-type",
                    f"T.{e.fn} of float64 is not supported",
                    stmt.span,
                    "in this statement",
                    help="compute it in float32, as T.cast(x, 'float32')",
                )
