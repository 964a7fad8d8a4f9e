"""Cluster launch control: a block that is done asks for the work of one that has not begun, and does it in its place.

The answer comes into 16 bytes of shared memory like a copy, and a barrier tells when it is there. Only the machine
knows how it is written: calls of tile IR, `clc_is_canceled` and the like, ask its four words. A request may be refused
at any time, and the reference refuses each: there every block does its own work alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tilec.ir import warp
from tilec.ir.tile import Buffer, Call as TileCall, Expr, Load, Region, TileOp, integer
from tilec.ir.types import INT32, UINT32
from tilec.ops.barriers import as_barrier, barrier_of
from tilec.ops.form import Barrier, Leader, Yes, form
from tilec.ops.lowering import Context, Demand
from tilec.ops.registry import Effects, Environment, Operation, Spelling, facet, register, tile_op
from tilec.ops.scalar import FUNCTIONS, ScalarFunction
from tilec.ops.signature import Argument, Call, Parameter, Signature
from tilec.ops.values import Value, describe
from tilec.support.diagnostics import Label, fail
from tilec.support.records import dataclass

WORDS = 4
"""An answer has 16 bytes (PTX ISA, clusterlaunchcontrol.try_cancel)."""
_RESULT = Parameter("result")


def is_request(stmt: object) -> bool:
    """Whether a block asks for the work of another one."""
    return isinstance(stmt, TileOp) and stmt.name == "try_cancel"


# ---- asking ----------------------------------------------------------------------------------------------------------


def _answer(argument: Argument, name: str) -> Buffer:
    value = argument.value
    if not isinstance(value, Buffer) or (value.scope, value.extents, value.dtype) != ("shared", (WORDS,), UINT32):
        fail(
            "wrong-argument",
            f"{name}: an answer has four words of shared memory",
            argument.span,
            f"this is {describe(value)}",
            secondary=(Label(value.span, "allocated here"),) if isinstance(value, Buffer) else (),
            help='write `answer = T.alloc_shared((4,), "uint32")`, and name all of it',
        )
    return value


def _check(call: Call) -> TileOp:
    answer = _answer(call["result"], call.name)
    region = Region(answer, (integer(0),), (WORDS,), call["result"].span)
    return tile_op("try_cancel", (region,), call.span, barrier=as_barrier(call["mbarrier"], call.name))


def _effects(op: TileOp) -> Effects:
    return Effects((), op.regions)


def _reference(op: TileOp, env: Environment) -> None:
    import numpy as np

    env.write(op.regions[0], np.zeros(WORDS, np.uint32))


register(
    Operation(
        "try_cancel",
        (
            Spelling(
                Signature("T.clc_try_cancel", (_RESULT, Parameter("mbarrier"))),
                """Ask for the work of a block that has not begun, which then never begins.

                The answer comes into `result`, a shared tile of four uint32, and its 16 bytes are announced to the
                barrier, which tells when it is there, as with T.tma_copy. T.clc_is_canceled says whether there was such
                a block; who has seen that there was none must not ask again. One thread of those that come here asks.
                It needs sm_100a, and blocks without clusters, in the order of their numbers.
                """,
                _check,
            ),
        ),
        _effects,
        _reference,
    )
)


@facet("try_cancel", "lower")
def lower(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    leader = op.attr("leader")
    assert isinstance(leader, int)
    return (warp.TryCancel(op.regions[0].buffer, barrier_of(op), leader, bool(op.attr("announces")), span=op.span),)


@facet("try_cancel", "demand")
def price(op: TileOp, context: Context) -> tuple[Demand, ...]:
    """An issue slot: the answer is waited for elsewhere."""
    return ()


# ---- what the answer says --------------------------------------------------------------------------------------------


def _question(fn: str) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        answer = _answer(call["result"], call.name)
        words: tuple[Expr, ...] = tuple(Load(answer, (integer(i),)) for i in range(WORDS))
        return TileCall(fn, words, INT32)

    return build


def _refused(*words: Any) -> Any:
    """What each question gives of an answer that refuses."""
    import numpy as np

    return np.zeros_like(words[0], np.int32)


_QUESTIONS = {
    "clc_is_canceled": "1 if T.clc_try_cancel has given its block the work of another one, else 0",
    **{
        f"clc_get_first_ctaid_{axis}": f"the index along {axis} of the block whose work that is; 0 if there is none"
        for axis in "xyz"
    },
}
FUNCTIONS |= {
    f"T.{fn}": ScalarFunction(Signature(f"T.{fn}", (_RESULT,)), doc, _question(fn)) for fn, doc in _QUESTIONS.items()
}
REFERENCES: dict[str, Callable[..., Any]] = dict.fromkeys(_QUESTIONS, _refused)


@form("try_cancel", ("shared",))
@dataclass(frozen=True, slots=True)
class Attributes:
    announces: Yes
    barrier: Barrier
    leader: Leader


@facet("try_cancel", "agrees")
def agrees(op: TileOp) -> Iterator[str]:
    answer = op.regions[0]
    if not answer.is_whole or (answer.extent, answer.buffer.dtype) != ((WORDS,), UINT32):
        yield f"{answer.buffer.name} is not the {WORDS} words of an answer"
