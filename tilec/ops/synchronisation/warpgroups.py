"""Operations of single warpgroups in kernels with explicit roles: register counts, waits for wgmma, named barriers."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from tilec.ir import warp
from tilec.ir.operations.fields import BY_PASSES
from tilec.ir.tile import TileOp
from tilec.ops.form import Whole
from tilec.ops.language.signature import Call, Parameter, Signature
from tilec.ops.lowering import list_no_demands
from tilec.ops.registry import Spelling, define_operation, evaluate_nothing, list_no_effects
from tilec.support import schema
from tilec.support.records import dataclass

FEWEST_REGISTERS, MOST_REGISTERS = 24, 256
"""The range of setmaxnreg, in steps of eight (PTX ISA)."""


@dataclass(frozen=True, slots=True)
class SetRegisters(TileOp):
    """Sets the registers of each thread of the warpgroup to `count`."""

    name = "set_registers"
    by_warpgroups = True
    is_collective = False
    count: Annotated[
        int,
        schema.Range(FEWEST_REGISTERS, MOST_REGISTERS),
        schema.Constraint(lambda count: count % 8 == 0, "a multiple of 8"),
    ]
    via: Literal["setmaxnreg", "nothing"] | None = field(default=None, metadata=BY_PASSES)


@dataclass(frozen=True, slots=True)
class WaitWgmma(TileOp):
    """Waits until at most `pending` products of the warpgroup are in flight."""

    name = "wait_wgmma"
    by_warpgroups = True
    is_collective = False
    pending: Whole
    via: Literal["wgmma", "nothing"] | None = field(default=None, metadata=BY_PASSES)


@dataclass(frozen=True, slots=True)
class NamedArrive(TileOp):
    """Arrives at a named barrier of `threads`, and goes on."""

    name = "named_arrive"
    is_collective = False
    synchronises_roles = True
    id: Annotated[int, schema.Range(0, 15)]
    threads: Annotated[int, schema.Range(32, 1024), schema.Constraint(lambda count: count % 32 == 0, "whole warps")]


def _check_set_registers(call: Call) -> TileOp:
    """Return the operation that sets a warpgroup's registers; refuses counts but multiples of 8, 24 to 256, and a wrong
    `is_inc`.
    """
    count = call.read_integer("reg_count")
    if not FEWEST_REGISTERS <= count <= MOST_REGISTERS or count % 8:
        call.refuse("reg_count", f"a multiple of 8, {FEWEST_REGISTERS} to {MOST_REGISTERS}")
    if "is_inc" in call.arguments and call["is_inc"].value not in (0, 1):
        call.refuse("is_inc", "0 or 1")
    return SetRegisters(count, span=call.span)


def _check_wait_wgmma(call: Call) -> TileOp:
    """Return the wait of a call of T.wait_wgmma; refuses a negative number of products."""
    pending = call.read_integer("num_mma")
    if pending < 0:
        call.refuse("num_mma", "0 or more")
    return WaitWgmma(pending, span=call.span)


def read_named_barrier(call: Call, count: str) -> tuple[int, int]:
    """Return the number of a named barrier and of its threads, given by parameter `count`; refuses numbers out of
    range. Threads come in whole warps."""
    number, threads = call.read_integer("barrier_id"), call.read_integer(count)
    if not 0 <= number < 16:
        call.refuse("barrier_id", "a number from 0 to 15")
    if threads < 1 or threads % 32:
        call.refuse(count, "a number of threads in whole warps")
    return number, threads


_COUNT = Parameter("reg_count")
_REGISTERS = """Give each thread of the warpgroup `reg_count` registers from here on, a multiple of 8 from 24 to 256.

                The registers of all roles together must fit the block. It needs a target with setmaxnreg, such as
                sm_90a. In a kernel whose roles tilec makes it does nothing.
                """

define_operation(
    SetRegisters,
    list_no_effects,
    evaluate_nothing,
    Spelling(Signature("T.set_max_nreg", (_COUNT, Parameter("is_inc"))), _REGISTERS, _check_set_registers),
    Spelling(Signature("T.inc_max_nreg", (_COUNT,)), _REGISTERS, _check_set_registers),
    Spelling(Signature("T.dec_max_nreg", (_COUNT,)), _REGISTERS, _check_set_registers),
    demand=list_no_demands,
    lower=lambda op, context: (warp.SetRegisters(op.count, span=op.span),) if op.via == "setmaxnreg" else (),
)
define_operation(
    WaitWgmma,
    list_no_effects,
    evaluate_nothing,
    Spelling(
        Signature("T.wait_wgmma", (Parameter("num_mma"),)),
        """Wait until at most the newest `num_mma` products of the warpgroup are pending.

        In a kernel whose roles tilec makes it does nothing: tilec waits for products where they are needed.
        """,
        _check_wait_wgmma,
    ),
    demand=list_no_demands,
    lower=lambda op, context: (warp.WgmmaWait(op.pending, span=op.span),) if op.via == "wgmma" else (),
)
define_operation(
    NamedArrive,
    list_no_effects,
    evaluate_nothing,
    Spelling(
        Signature("T.named_barrier_arrive", (Parameter("barrier_id"), Parameter("arrive_count"))),
        """Arrive at a named barrier without waiting.

        Others wait there with T.sync_threads(barrier_id, arrive_count).
        `arrive_count` is the number of all threads that arrive, the waiting ones included.
        """,
        lambda call: NamedArrive(*read_named_barrier(call, "arrive_count"), span=call.span),
    ),
    demand=list_no_demands,
    lower=lambda op, context: (warp.NamedBarrier(op.id, op.threads, False, span=op.span),),
)
