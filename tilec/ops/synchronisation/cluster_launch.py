"""Cluster launch control: a block that has finished cancels a block that has not begun, and does its work instead.

The answer arrives in 16 bytes of shared memory like a copy, and completes on a barrier. Its encoding is opaque: calls
of tile IR, `clc_is_canceled` and the like, query its four words. A request may fail at any time. In the reference each
one fails, so that every block does its own work alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, Literal, TypeGuard

from tilec.ir import tile, warp
from tilec.ir.operations.fields import BY_PASSES
from tilec.ir.types import INT32, UINT32
from tilec.ops.form import UNKNOWN_LEADER, Announces, Barrier, Leader, Shared
from tilec.ops.functions.scalar import FUNCTIONS, ScalarFunction
from tilec.ops.language.signature import Argument, Call, Parameter, Signature
from tilec.ops.language.values import Value, describe_value
from tilec.ops.lowering import list_no_demands
from tilec.ops.registry import Effects, Environment, Spelling, attach_facet, define_operation
from tilec.ops.synchronisation.barriers import as_barrier, get_barrier
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass

ANSWER_WORDS = 4
"""An answer has 16 bytes (PTX ISA, clusterlaunchcontrol.try_cancel)."""
_RESULT = Parameter("result")


@dataclass(frozen=True, slots=True)
class TryCancel(tile.TileOp):
    """Requests the work of a block that has not begun; the answer's bytes complete on `barrier`."""

    name = "try_cancel"
    reaches_regions = False
    signals_barrier = True
    done_by = "one thread"
    answer: Shared
    barrier: Barrier
    leader: Leader
    announces: Announces
    block: tile.Expr | None = field(default=None, metadata=BY_PASSES)
    via: Literal["tma"] | None = field(default=None, metadata=BY_PASSES)


def is_try_cancel(stmt: object) -> TypeGuard[TryCancel]:
    """Return whether a statement requests the work of another block by cluster launch control."""
    return isinstance(stmt, TryCancel)


# ---- the request -----------------------------------------------------------------------------------------------------


def _read_answer(argument: Argument, name: str) -> tile.Buffer:
    """Return an argument as the shared tile of four uint32 words that an answer needs; raises an error for any
    other."""
    value = argument.value
    if not isinstance(value, tile.Buffer) or (value.scope, value.extents, value.dtype) != (
        "shared",
        (ANSWER_WORDS,),
        UINT32,
    ):
        raise_error(
            "wrong-argument",
            f"{name}: an answer needs four words of shared memory",
            argument.span,
            f"this is {describe_value(value)}",
            secondary=(Label(value.span, "allocated here"),) if isinstance(value, tile.Buffer) else (),
            help='write `answer = T.alloc_shared((4,), "uint32")`, and pass all of it',
        )
    return value


def _check_try_cancel(call: Call) -> tile.TileOp:
    """Return the request of a call of T.clc_try_cancel, for the answer's tile and its barrier; its leader is unknown
    yet.
    """
    answer = _read_answer(call["result"], call.name)
    region = tile.Region(answer, (tile.int32_const(0),), (ANSWER_WORDS,), call["result"].span)
    return TryCancel(region, as_barrier(call["mbarrier"], call.name), UNKNOWN_LEADER, announces=True, span=call.span)


def _evaluate_try_cancel(op: TryCancel, env: Environment) -> None:
    """Write four words of 0, the answer of a failed request: in the reference each request fails."""
    import numpy as np

    env.write(op.regions[0], np.zeros(ANSWER_WORDS, np.uint32))


define_operation(
    TryCancel,
    lambda op: Effects((), op.regions),
    _evaluate_try_cancel,
    Spelling(
        Signature("T.clc_try_cancel", (_RESULT, Parameter("mbarrier"))),
        """Request the work of a block that has not started; such a block then never runs.

        The answer is written to `result`, a shared tile of four uint32, and its 16 bytes are announced to the
        barrier, which completes when it is there, as with T.tma_copy. T.clc_is_canceled tells whether there was
        such a block; after an answer of 0 a block must not ask again. One of the threads that execute this
        asks. It needs sm_100a, and blocks without clusters in the order of their numbers.
        """,
        _check_try_cancel,
    ),
    demand=list_no_demands,
    lower=lambda op, _: (warp.TryCancel(op.answer.buffer, get_barrier(op), op.leader, op.announces, span=op.span),),
)


# ---- queries of the answer -------------------------------------------------------------------------------------------


def _make_query(fn: str) -> Callable[[Call], Value]:
    """Make a function that builds the query `fn` of an answer from a call."""

    def build_query(call: Call) -> Value:
        """Build the int32 call of the query on the answer's four words."""
        answer = _read_answer(call["result"], call.name)
        words: tuple[tile.Expr, ...] = tuple(tile.Load(answer, (tile.int32_const(i),)) for i in range(ANSWER_WORDS))
        return tile.Call(fn, words, INT32)

    return build_query


def _evaluate_query(*words: Any) -> Any:
    """Return 0 for each answer: in the reference each request has failed."""
    import numpy as np

    return np.zeros_like(words[0], np.int32)


_QUERIES = {
    "clc_is_canceled": "1 if T.clc_try_cancel cancelled a block, whose work this block then does, else 0",
    **{
        f"clc_get_first_ctaid_{axis}": f"the index along {axis} of the cancelled block; 0 if there is none"
        for axis in "xyz"
    },
}
FUNCTIONS |= {
    f"T.{fn}": ScalarFunction(Signature(f"T.{fn}", (_RESULT,)), doc, _make_query(fn)) for fn, doc in _QUERIES.items()
}
REFERENCES: dict[str, Callable[..., Any]] = dict.fromkeys(_QUERIES, _evaluate_query)


@attach_facet(TryCancel, "agrees")
def verify_try_cancel(op: TryCancel) -> Iterator[str]:
    """Yield a violation if the answer is not a whole tile of four uint32 words."""
    answer = op.regions[0]
    if not answer.is_whole or (answer.extent, answer.buffer.dtype) != ((ANSWER_WORDS,), UINT32):
        yield f"{answer.buffer.name} must have the {ANSWER_WORDS} words of an answer"
