"""T.device_assert: stops the kernel where a condition does not hold."""

from __future__ import annotations

from tilec.ir import warp
from tilec.ir.tile import Const, TileOp, Unary
from tilec.ir.types import BOOL
from tilec.ops.form import Condition
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_expr
from tilec.ops.lowering import LoweringContext, make_demand
from tilec.ops.registry import Environment, Spelling, attach_facet, define_operation, list_no_effects
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class DeviceAssert(TileOp):
    """Stops the grid where `condition` does not hold in some thread."""

    name = "device_assert"
    by_warpgroups = True
    is_collective = False
    condition: Condition
    message: str


def _check_device_assert(call: Call) -> TileOp:
    """Return the operation of a call of T.device_assert; raises an error if its condition is always false, or `msg` no
    string."""
    if not isinstance(call["msg"].value, str):
        call.refuse("msg", "a string")
    value = arithmetic.as_condition(call["condition"])
    holds = Const(value, BOOL) if isinstance(value, bool) else as_expr(Argument(value, call.span))
    if isinstance(holds, Const) and not holds.value:
        raise_error("assertion-failed", "this is always false", call["condition"].span, notes=(str(call["msg"].value),))
    return DeviceAssert(holds, str(call["msg"].value), span=call.span)


def _evaluate_device_assert(op: DeviceAssert, env: Environment) -> None:
    """Raise the error `assertion-failed` if the condition does not hold in some thread of the evaluated kernel."""
    import numpy as np

    if not np.all(env.scalar(op.condition)):
        raise_error("assertion-failed", f"an assertion of the kernel failed: {op.message}", op.span)


_NO_STACK_INFO = Parameter("no_stack_info", False, hint="the kernel stops without a message")

DEVICE_ASSERT = define_operation(
    DeviceAssert,
    list_no_effects,
    _evaluate_device_assert,
    Spelling(
        Signature("T.device_assert", (Parameter("condition"), Parameter("msg", ""), _NO_STACK_INFO)),
        """Stop the whole grid with a launch error if `condition` is false in some thread.

        Inside T.Parallel the thread that has the element tests it. The GPU does not show `msg`; `tilec emulate` names
        the line.""",
        _check_device_assert,
    ),
    demand=lambda _, context: (make_demand("elementwise", ops=1, elements=context.threads, threads=context.threads),),
)


@attach_facet(DeviceAssert, "lower")
def lower_device_assert(op: DeviceAssert, context: LoweringContext) -> tuple[warp.Operation, ...]:
    """Lower to a branch that traps where the condition does not hold."""
    stop = (warp.Trap(span=op.span),)
    return (warp.Branch(Unary("not", op.condition, BOOL), stop, cursors=context.cursors, span=op.span),)
