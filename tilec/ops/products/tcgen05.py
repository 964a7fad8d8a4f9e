"""T.tcgen05_mma_arrive: lets the tensor cores of sm_100a arrive at a barrier, in kernels with explicit roles."""

from __future__ import annotations

from typing import Literal

from tilec.ir import warp
from tilec.ir.operations.interfaces import PipelineEnd
from tilec.ir.tile import TileOp
from tilec.ops.form import UNKNOWN_LEADER, Barrier, Leader, Yes
from tilec.ops.language.signature import Call, Parameter, Signature
from tilec.ops.lowering import list_no_demands
from tilec.ops.registry import Spelling, define_operation, evaluate_nothing, list_no_effects
from tilec.ops.synchronisation.barriers import as_barrier, get_barrier
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class TensorArrive(TileOp):
    """The tensor cores arrive at `barrier` when all earlier work that `leader` issued is complete; with `paired`, in
    both blocks of the pair."""

    name = "tensor_arrive"
    commits = True
    synchronises_roles = True
    done_by = "one thread"
    barrier: Barrier
    leader: Leader
    paired: Yes | None = None
    releases: PipelineEnd | None = None

    @property
    def is_paired(self) -> bool:
        return self.paired is not None


def build_tensor_arrive(op: TileOp) -> warp.TensorArrive:
    """Build the tensor cores' arrival at an operation's own barrier, issued by its leader."""
    assert op.leader is not None
    return warp.TensorArrive(get_barrier(op), op.leader, op.is_paired, span=op.span)


def _check_tensor_arrive(call: Call) -> TileOp:
    """Return the arrival of T.tcgen05_mma_arrive, in both blocks of a pair with `arrive_2cta`; its leader is unknown
    yet.
    """
    paired: Literal[True] | None = True if call.read_boolean("arrive_2cta") else None
    return TensorArrive(as_barrier(call["mbar"], call.name), UNKNOWN_LEADER, paired, span=call.span)


define_operation(
    TensorArrive,
    list_no_effects,
    evaluate_nothing,
    Spelling(
        Signature("T.tcgen05_mma_arrive", (Parameter("mbar"), Parameter("arrive_2cta", False))),
        """Let the tensor cores arrive at a barrier when all earlier operations of this thread are complete.

        One of the threads that execute this issues it, the same that issues T.tcgen05_gemm there. With
        arrive_2cta they arrive at the barrier in both blocks of the pair.
        """,
        _check_tensor_arrive,
    ),
    demand=list_no_demands,
    lower=lambda op, context: (build_tensor_arrive(op),),
)
