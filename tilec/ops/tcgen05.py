"""T.tcgen05_mma_arrive: lets the tensor cores of sm_100a arrive at a barrier, in kernels with explicit roles."""

from __future__ import annotations

from typing import Literal

from tilec.ir import warp
from tilec.ir.operation_interfaces import Doer, PipelineEnd
from tilec.ir.tile import TileOp
from tilec.ops.barriers import as_barrier, barrier_of
from tilec.ops.form import NOBODY, Barrier, Leader, Yes
from tilec.ops.lowering import Context, Demand
from tilec.ops.registry import Effects, Environment, Operation, Spelling, facet, register
from tilec.ops.signature import Call, Parameter, Signature
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class TensorArrive(TileOp):
    """The tensor cores arrive at `barrier` when all earlier work that `leader` issued is complete; with `paired`, in
    both blocks of the pair."""

    name = "tensor_arrive"
    barrier: Barrier
    leader: Leader
    paired: Yes | None = None
    releases: PipelineEnd | None = None

    @property
    def commits(self) -> bool:
        return True

    @property
    def is_paired(self) -> bool:
        return self.paired is not None

    @property
    def synchronises_roles(self) -> bool:
        return True

    @property
    def done_by(self) -> Doer:
        return "one thread"


def arrival(op: TileOp) -> warp.TensorArrive:
    """Build the arrival of an operation that `commits`."""
    assert op.leader is not None
    return warp.TensorArrive(barrier_of(op), op.leader, op.is_paired, span=op.span)


def _check(call: Call) -> TileOp:
    paired: Literal[True] | None = True if call.boolean("arrive_2cta") else None
    return TensorArrive(as_barrier(call["mbar"], call.name), NOBODY, paired, span=call.span)


def _effects(op: TileOp) -> Effects:
    return Effects((), ())


def _reference(op: TileOp, env: Environment) -> None:
    """Compute nothing: `interp`, which runs the roles, models barriers."""


register(
    Operation(
        TensorArrive,
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


@facet(TensorArrive, "lower")
def lower(op: TensorArrive, context: Context) -> tuple[warp.Operation, ...]:
    return (arrival(op),)


@facet(TensorArrive, "demand")
def price(op: TileOp, context: Context) -> tuple[Demand, ...]:
    """Demand only the issue slot: the waiting time is another role's."""
    return ()
