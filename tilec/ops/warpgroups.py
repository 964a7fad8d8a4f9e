"""What a warpgroup does for itself where a kernel shares its work out by hand: registers, products in flight, named
barriers."""

from __future__ import annotations

from typing import Annotated

from tilec.ir import warp
from tilec.ir.tile import TileOp
from tilec.ops.form import Whole, form
from tilec.ops.lowering import Context, Demand
from tilec.ops.registry import Effects, Environment, Operation, Spelling, facet, register, tile_op
from tilec.ops.signature import Call, Parameter, Signature
from tilec.support import schema
from tilec.support.records import dataclass

FEWEST_REGISTERS, MOST_REGISTERS = 24, 256
"""What setmaxnreg takes, in steps of eight (PTX ISA)."""


def _check_registers(call: Call) -> TileOp:
    count = call.integer("reg_count")
    if not FEWEST_REGISTERS <= count <= MOST_REGISTERS or count % 8:
        call.refuse("reg_count", f"a multiple of 8, {FEWEST_REGISTERS} to {MOST_REGISTERS}")
    if "is_inc" in call.arguments and call["is_inc"].value not in (0, 1):
        call.refuse("is_inc", "0 or 1")
    return tile_op("set_registers", (), call.span, count=count)


def _check_wait(call: Call) -> TileOp:
    pending = call.integer("num_mma")
    if pending < 0:
        call.refuse("num_mma", "0 or more")
    return tile_op("wait_wgmma", (), call.span, pending=pending)


def _check_arrive(call: Call) -> TileOp:
    return tile_op("named_arrive", (), call.span, **named(call, "arrive_count"))


def named(call: Call, count: str) -> dict[str, int]:
    """The number of a named barrier and of the threads that come to it."""
    number, threads = call.integer("barrier_id"), call.integer(count)
    if not 0 <= number < 16:
        call.refuse("barrier_id", "a number from 0 to 15")
    if threads < 1 or threads % 32:
        call.refuse(count, "a number of threads in whole warps")
    return {"id": number, "threads": threads}


def _effects(op: TileOp) -> Effects:
    return Effects((), ())


def _reference(op: TileOp, env: Environment) -> None:
    """Nothing that shows in what is computed."""


_COUNT = Parameter("reg_count")
_REGISTERS = """Give each thread of the warpgroup `reg_count` registers from here on, a multiple of 8 from 24 to 256.

                Whether that is more or less follows from what it has. All roles together must fit the block's
                registers. It needs a target that moves registers between warps, as sm_90a. In a kernel whose roles
                tilec makes it is nothing.
                """

register(
    Operation(
        "set_registers",
        (
            Spelling(Signature("T.set_max_nreg", (_COUNT, Parameter("is_inc"))), _REGISTERS, _check_registers),
            Spelling(Signature("T.inc_max_nreg", (_COUNT,)), _REGISTERS, _check_registers),
            Spelling(Signature("T.dec_max_nreg", (_COUNT,)), _REGISTERS, _check_registers),
        ),
        _effects,
        _reference,
    )
)
register(
    Operation(
        "wait_wgmma",
        (
            Spelling(
                Signature("T.wait_wgmma", (Parameter("num_mma"),)),
                """Wait until at most the newest `num_mma` products of the warpgroup are under way.

                In a kernel whose roles tilec makes it is nothing: products are waited for where they are needed.
                """,
                _check_wait,
            ),
        ),
        _effects,
        _reference,
    )
)
register(
    Operation(
        "named_arrive",
        (
            Spelling(
                Signature("T.named_barrier_arrive", (Parameter("barrier_id"), Parameter("arrive_count"))),
                """Arrive at a named barrier and go on: others wait there with T.sync_threads(barrier_id, arrive_count).

                `arrive_count` are all threads that come to it, those that wait included.
                """,
                _check_arrive,
            ),
        ),
        _effects,
        _reference,
    )
)


@facet("set_registers", "lower")
def lower_registers(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    count = op.attr("count")
    assert isinstance(count, int)
    return (warp.SetRegisters(count, span=op.span),) if ("via", "setmaxnreg") in op.attrs else ()


@facet("wait_wgmma", "lower")
def lower_wait(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    pending = op.attr("pending")
    assert isinstance(pending, int)
    return (warp.WgmmaWait(pending, span=op.span),) if ("via", "wgmma") in op.attrs else ()


@facet("named_arrive", "lower")
def lower_arrive(op: TileOp, context: Context) -> tuple[warp.Operation, ...]:
    number, threads = op.attr("id"), op.attr("threads")
    assert isinstance(number, int) and isinstance(threads, int)
    return (warp.NamedBarrier(number, threads, False, span=op.span),)


def _price(op: TileOp, context: Context) -> tuple[Demand, ...]:
    return ()


for _name in ("set_registers", "wait_wgmma", "named_arrive"):
    facet(_name, "demand")(_price)


_EIGHTS = schema.Where(lambda count: count % 8 == 0, "a multiple of 8")


@form("set_registers")
@dataclass(frozen=True, slots=True)
class RegisterAttributes:
    count: Annotated[
        int,
        schema.Range(FEWEST_REGISTERS, MOST_REGISTERS),
        schema.Where(lambda count: count % 8 == 0, "a multiple of 8"),
    ]


@form("wait_wgmma")
@dataclass(frozen=True, slots=True)
class WaitAttributes:
    pending: Whole


@form("named_arrive")
@dataclass(frozen=True, slots=True)
class ArriveAttributes:
    id: Annotated[int, schema.Range(0, 15)]
    threads: Annotated[int, schema.Range(32, 1024), schema.Where(lambda count: count % 32 == 0, "whole warps")]
