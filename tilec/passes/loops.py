"""The loop headers of a kernel: `T.serial`, `T.unroll`, `T.Pipelined`, `T.Parallel`."""

from __future__ import annotations

from tilec.diag import fail
from tilec.ir.expr import cast
from tilec.ir.tile import Expr, LoopKind, integer
from tilec.ir.types import BOOL, INT32
from tilec.ops.signature import Argument, Call, Parameter, Signature, as_expr
from tilec.ops.values import EXPR_TYPES, describe
from tilec.passes.fold import fold_expr
from tilec.records import dataclass

_BOUNDS = (Parameter("start"), Parameter("stop", None))
_STEP = Parameter("step", None)
_ANNOTATIONS = Parameter("annotations", None, keyword_only=True)

_SERIAL = (*_BOUNDS, _STEP, _ANNOTATIONS)
_UNROLL = (
    *_BOUNDS,
    _STEP,
    Parameter("explicit", False, supported=False, keyword_only=True),
    Parameter("unroll_factor", None, supported=False, keyword_only=True),
    _ANNOTATIONS,
)

SEQUENTIAL: dict[str, tuple[LoopKind, Signature]] = {
    "range": ("serial", Signature("range", (*_BOUNDS, _STEP))),
    "T.serial": ("serial", Signature("T.serial", _SERIAL)),
    "T.Serial": ("serial", Signature("T.Serial", _SERIAL)),
    "T.unroll": ("unroll", Signature("T.unroll", _UNROLL)),
    "T.Unroll": ("unroll", Signature("T.Unroll", _UNROLL)),
    "T.Pipelined": (
        "pipelined",
        Signature(
            "T.Pipelined",
            (
                *_BOUNDS,
                Parameter("num_stages", None),
                Parameter("order", None),
                Parameter("stage", None),
                Parameter("sync", None),
                Parameter("group", None),
                _ANNOTATIONS,
            ),
        ),
    ),
}

PARALLEL = Signature(
    "T.Parallel",
    (
        Parameter("coalesced_width", None, supported=False, keyword_only=True),
        Parameter("loop_layout", None, supported=False, keyword_only=True),
        Parameter("prefer_async", None, supported=False, keyword_only=True),
        _ANNOTATIONS,
    ),
    variadic=True,
)


@dataclass(frozen=True, slots=True)
class Header:
    """What a for statement says about its iterations."""

    start: Expr
    stop: Expr
    step: int

    @property
    def values(self) -> tuple[int, int] | None:
        """The smallest and largest value of the loop variable, where the bounds are known."""
        start, stop = getattr(self.start, "value", None), getattr(self.stop, "value", None)
        if start is None or stop is None:
            return None
        values = range(start, stop, self.step)
        return (min(values[0], values[-1]), max(values[0], values[-1])) if values else None


def header(call: Call) -> Header:
    """Start, stop and step, as Python's `range` reads them."""
    first = _bound(call, "start")
    has_stop = call["stop"].value is not None
    start, stop = (first, _bound(call, "stop")) if has_stop else (integer(0), first)
    step = 1
    if "step" in call.arguments and call["step"].value is not None:
        step = call.integer("step")
        if step == 0:
            fail("wrong-argument", f"{call.name}: the step must not be 0", call["step"].span)
    return Header(start, stop, step)


def _bound(call: Call, name: str) -> Expr:
    expr = as_expr(call[name])
    if expr.dtype.is_float or expr.dtype == BOOL:
        fail("wrong-dtype", f"{call.name}: the bounds must be integers", call[name].span, f"this is {expr.dtype}")
    return fold_expr(cast(expr, INT32))


def parallel_extents(call: Call) -> tuple[int, ...]:
    """The extents of T.Parallel: integers known at compile time."""
    if not call.variadic:
        fail("missing-argument", "T.Parallel needs at least one extent", call.span)
    return tuple(_extent(argument) for argument in call.variadic)


def _extent(argument: Argument) -> int:
    value = argument.value
    if isinstance(value, EXPR_TYPES):
        fail(
            "runtime-shape",
            "the extents of T.Parallel must be known at compile time",
            argument.span,
            "depends on a run-time value",
            help="run over the whole tile and guard the body with `if`",
        )
    if not isinstance(value, int) or isinstance(value, bool):
        fail("wrong-argument", "T.Parallel: extents are integers", argument.span, f"this is {describe(value)}")
    if value <= 0:
        fail("wrong-shape", "the extents of T.Parallel must be positive", argument.span, f"this is {value}")
    return value
