"""The loop headers of a kernel: `T.serial`, `T.unroll`, `T.Pipelined`, `T.Parallel`, and manual schedules."""

from __future__ import annotations

from typing import Literal

from tilec.diag import fail
from tilec.ir.expr import cast
from tilec.ir.tile import Bind, Buffer, Expr, LoopKind, Stmt, integer
from tilec.ir.types import BOOL, INT32
from tilec.ops.signature import Argument, Call, Parameter, Signature, as_expr
from tilec.ops.values import EXPR_TYPES, describe
from tilec.passes.fold import fold_expr
from tilec.passes.usage import reads, writes
from tilec.records import dataclass

_BOUNDS = (Parameter("start"), Parameter("stop", None))
_STEP = Parameter("step", None)
_ANNOTATIONS = Parameter("annotations", None, supported=False, keyword_only=True)

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
                Parameter("sync", None, supported=False),
                Parameter("group", None, supported=False),
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


# ---- the manual schedule ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ManualSchedule:
    num_stages: int | None = None
    stage: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None


def manual_schedule(call: Call, body: tuple[Stmt, ...]) -> ManualSchedule:
    """`num_stages`, `stage` and `order` of T.Pipelined, checked against the statements of its body.

    A bind that only depends on what the body does not write is evaluated anew wherever it is used, so it takes no
    entry; lists that have one for it are accepted too.
    """
    num_stages = None if call["num_stages"].value is None else call.integer("num_stages")
    if num_stages is not None and num_stages < 0:
        fail("wrong-argument", "T.Pipelined: num_stages must not be negative", call["num_stages"].span)
    given: list[Literal["order", "stage"]] = [k for k in ("order", "stage") if call[k].value is not None]
    if not given:
        return ManualSchedule(num_stages)
    if len(given) == 1:
        missing = "stage" if given[0] == "order" else "order"
        fail(
            "manual-schedule",
            f"`{given[0]}` without `{missing}`",
            call[given[0]].span,
            "T.Pipelined needs both or neither",
            help="leave it out, and the schedule is solved",
        )
    replayed = replayable(body)
    stage, order = (_entries(call, name, body, replayed) for name in ("stage", "order"))
    if min(stage) < 0:
        fail("manual-schedule", "a stage must not be negative", call["stage"].span, f"this holds {min(stage)}")
    if len(set(order)) < len(order):
        twice = next(o for o in order if order.count(o) > 1)
        fail(
            "manual-schedule",
            "two statements have the same place in `order`",
            call["order"].span,
            f"{twice} is there twice",
        )
    # Gaps, where replayed binds were counted, close.
    ranks = {o: rank for rank, o in enumerate(sorted(order))}
    return ManualSchedule(num_stages, stage, tuple(ranks[o] for o in order))


def _entries(call: Call, name: str, body: tuple[Stmt, ...], replayed: tuple[bool, ...]) -> tuple[int, ...]:
    argument = call[name]
    value = argument.value
    entries = (
        tuple(v for v in value if isinstance(v, int) and not isinstance(v, bool)) if isinstance(value, tuple) else ()
    )
    if not isinstance(value, tuple) or len(entries) < len(value):
        fail("wrong-argument", f"T.Pipelined: `{name}` is a list of integers", argument.span)
    scheduled = replayed.count(False)
    if len(entries) == len(body):
        return tuple(e for e, skip in zip(entries, replayed, strict=True) if not skip)
    if len(entries) != scheduled:
        entry_count = f"{len(entries)} entr{'y' if len(entries) == 1 else 'ies'}"
        fail(
            "manual-schedule",
            f"`{name}` has {entry_count} for {scheduled} statement{'s' * (scheduled != 1)}",
            argument.span,
            _counted(body, replayed),
        )
    return entries


def _counted(body: tuple[Stmt, ...], replayed: tuple[bool, ...]) -> str:
    lines = [str(stmt.span.line) for stmt, skip in zip(body, replayed, strict=True) if not skip]
    return f"one entry for the statement on each of the lines {', '.join(lines)}"


def replayable(body: tuple[Stmt, ...]) -> tuple[bool, ...]:
    """For each statement of a loop body, whether it is a bind that reads nothing the body writes."""
    written: set[Buffer] = {buffer for stmt in body for buffer in writes(stmt)}
    return tuple(isinstance(stmt, Bind) and written.isdisjoint(reads(stmt)) for stmt in body)
