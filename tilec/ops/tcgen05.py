"""What a kernel that orders its roles itself says to the tensor cores of sm_100a, beside T.tcgen05_gemm."""

from __future__ import annotations

from tilec.ir import warp
from tilec.ir.tile import TileOp, with_attr
from tilec.ops.barriers import as_barrier, barrier_of, block_of
from tilec.ops.form import Barrier, Leader, Yes, form
from tilec.ops.lowering import Context, Demand
from tilec.ops.registry import Effects, Environment, Operation, Spelling, facet, register, tile_op
from tilec.ops.signature import Call, Parameter, Signature
from tilec.support.records import dataclass


def is_committing(op: TileOp) -> bool:
    """Whether the tensor cores arrive at a barrier of the kernel's for it."""
    return op.name == "tensor_arrive" or (op.name in ("gemm", "scaled_gemm") and "barrier" in dict(op.attrs))


PAIRED = ("paired", True)
"""Of what the tensor cores of two blocks do together."""


def is_of_pair(op: TileOp) -> bool:
    """Whether the tensor cores of two blocks do it together, and signal both."""
    return PAIRED in op.attrs


def reaches_blocks(op: TileOp) -> bool:
    """Whether a block reaches another one of its cluster by it: its tiles, its tensor cores, or a barrier."""
    return op.name == "send" or is_of_pair(op) or (op.name == "arrive" and block_of(op) is not None)


def arrival(op: TileOp) -> warp.TensorArrive:
    """The arrival that a committing operation asks for."""
    leader = op.attr("leader")
    assert isinstance(leader, int)
    return warp.TensorArrive(barrier_of(op), leader, is_of_pair(op), span=op.span)


def _check(call: Call) -> TileOp:
    op = tile_op("tensor_arrive", (), call.span, barrier=as_barrier(call["mbar"], call.name))
    return with_attr(op, *PAIRED) if call.boolean("arrive_2cta") else op


def _effects(op: TileOp) -> Effects:
    return Effects((), ())


def _reference(op: TileOp, env: Environment) -> None:
    """What a barrier orders is for `interp` to know, which runs the roles."""


register(
    Operation(
        "tensor_arrive",
        (
            Spelling(
                Signature("T.tcgen05_mma_arrive", (Parameter("mbar"), Parameter("arrive_2cta", False))),
                """Let the tensor cores arrive at a barrier once they have done all that this thread has asked them for.

                One thread of those that come here says so, the one that asks for T.tcgen05_gemm there. With arrive_2cta
                they arrive at it in both blocks of the pair that multiply together.
                """,
                _check,
            ),
        ),
        _effects,
        _reference,
    )
)


@facet("tensor_arrive", "lower")
def lower(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    return (arrival(op),)


@facet("tensor_arrive", "demand")
def price(op: TileOp, context: Context) -> tuple[Demand, ...]:
    """An issue slot: what is waited for is another role's time."""
    return ()


@form("tensor_arrive")
@dataclass(frozen=True, slots=True)
class Attributes:
    barrier: Barrier
    leader: Leader
    paired: Yes | None = None
    releases: str | None = None
