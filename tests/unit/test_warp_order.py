"""Promises 11, 12 and 16 of the warp verifier: a tile that threads change and the tensor cores read in another role,
with every signal, wait and fence that the two need, and without each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_warp_verify import (
    ACQUIRE,
    BAR,
    COLUMN,
    LOADS,
    MAP,
    NEXT_FILL,
    ROW,
    A,
    B,
    C,
    K,
    change,
    loop,
    sweep,
    tiles,
    violations,
)

from tilec.ir import warp
from tilec.ir.layout import wgmma_accumulator
from tilec.ir.tile import Buffer, Const, Load, Store, Var, int32_const
from tilec.ir.types import BOOL, FLOAT32
from tilec.ir.warp import Operation, PipelinePosition

SUM = Buffer("S", (64, 64), FLOAT32, "tmem")
FENCE = warp.ProxyFence()
# Where the consumer and the asking thread are in the ring that TMA fills, in that of the sum, and in two rings without
# tiles: by one the consumer says that it has changed the version, by the other the tensor cores that they have read it.
OURS, THEIRS = warp.Cursor("use", "ring"), warp.Cursor("ask", "ring")
SAY, HEAR = warp.Cursor("say", "changed"), warp.Cursor("hear", "changed")
TELL, LEARN = warp.Cursor("tell", "read"), warp.Cursor("learn", "read")
FILLS_SUM, READS_SUM = warp.Cursor("sum.mma", "S"), warp.Cursor("sum.consumer", "S")


def at(place: int, op: Operation) -> Operation:
    return replace(op, moment=PipelinePosition("steady", 0, K, place=place))


PRODUCER = (loop(ACQUIRE, *LOADS, at(0, NEXT_FILL)),)
TAKE = warp.RingWait(OURS)
CHANGE = change(A, OURS)
GIVE = (warp.RingRelease(OURS), warp.Advance(OURS))
CHANGED = (warp.RingAcquire(SAY), warp.RingFill(SAY), warp.Advance(SAY))
AWAIT_CHANGE = warp.RingWait(HEAR)
HAVE_HEARD = (warp.RingRelease(HEAR, True), warp.Advance(HEAR))
READ = (warp.RingAcquire(TELL), warp.RingFill(TELL, True), warp.Advance(TELL))
AWAIT_READ = (warp.RingWait(LEARN), warp.RingRelease(LEARN), warp.Advance(LEARN))
TAKE_THEIRS = warp.RingWait(THEIRS)
GIVE_THEIRS = (warp.RingRelease(THEIRS, True), warp.Advance(THEIRS))
MULTIPLY = warp.TensorMma(A, B, SUM, False, False, Const(False, BOOL), cursors=(THEIRS, FILLS_SUM))
SUM_READ = (
    warp.RingWait(READS_SUM),
    warp.TensorFence("after"),
    warp.TensorLoad(SUM, C, int32_const(0), cursors=(READS_SUM,)),
    warp.TensorWait("load", C),
    warp.TensorFence("before"),
    warp.RingRelease(READS_SUM),
)
SUM_ADDED = (warp.RingAcquire(FILLS_SUM), warp.TensorFence("after"))


def program(
    consumer: tuple[Operation, ...],
    asked: tuple[Operation, ...],
    arrivals: int = 5,
    added: tuple[Operation, ...] = SUM_ADDED,
    read: tuple[Operation, ...] = SUM_READ,
) -> warp.Program:
    """Loads for both, four warps that change A, and a thread that asks for products of it."""
    mma = (*added, loop(*asked), warp.RingFill(FILLS_SUM, True))
    roles = (
        warp.Role("consumer", 0, 4, (loop(*consumer), *read), 240),
        warp.Role("producer", 4, 1, PRODUCER, 40, True),
        warp.Role("mma", 5, 3, mma, 40, True),
    )
    named = {c.ring for op in (*consumer, *asked) for c in (getattr(op, "cursor", None),) if c is not None}
    links = (warp.Ring("changed", 2, (), 0, 1, 4), warp.Ring("read", 2, (), 0, 4, 1))
    rings = (
        warp.Ring("ring", 2, ("A", "B"), 16384, arrivals),
        warp.Ring("S", 1, ("S",), 0, 4, 1),
        *(link for link in links if link.name in named),
    )
    return warp.Program(
        "kernel", (MAP.tensor,), (MAP,), (4, 1, 1), (Var("bx"),), roles, tiles(2),
        ((C, wgmma_accumulator((64, 64), 1, 1)),), rings, 32768 + 128, 32768, tensor=(warp.TensorTile(SUM, 64),),
    )  # fmt: skip


FIRST = program(
    (TAKE, CHANGE, FENCE, *CHANGED, *GIVE), (TAKE_THEIRS, AWAIT_CHANGE, MULTIPLY, *HAVE_HEARD, *GIVE_THEIRS)
)
AFTER = program((TAKE, *AWAIT_READ, CHANGE, FENCE, *GIVE), (TAKE_THEIRS, MULTIPLY, *READ, *GIVE_THEIRS))


def test_a_tile_is_handed_over_within_an_iteration() -> None:
    assert violations(FIRST) == ""
    assert violations(AFTER) == ""


@pytest.mark.parametrize(
    ("consumer", "asked", "message"),
    [
        # Nobody says anything: whichever of the two is run first, the other one does not wait for it.
        ((TAKE, CHANGE, FENCE, *GIVE), (TAKE_THEIRS, MULTIPLY, *GIVE_THEIRS), "does not wait for"),
        # It is said, and not waited for until it is too late, or said too early.
        (
            (TAKE, CHANGE, FENCE, *CHANGED, *GIVE),
            (TAKE_THEIRS, MULTIPLY, AWAIT_CHANGE, *HAVE_HEARD, *GIVE_THEIRS),
            "does not wait for",
        ),
        (
            (TAKE, *CHANGED, CHANGE, FENCE, *GIVE),
            (TAKE_THEIRS, AWAIT_CHANGE, MULTIPLY, *HAVE_HEARD, *GIVE_THEIRS),
            "does not wait for",
        ),
        # The tensor cores read by another proxy than threads write.
        (
            (TAKE, CHANGE, *CHANGED, FENCE, *GIVE),
            (TAKE_THEIRS, AWAIT_CHANGE, MULTIPLY, *HAVE_HEARD, *GIVE_THEIRS),
            "TensorMma on A has no proxy fence after Elementwise",
        ),
        (
            (TAKE, FENCE, CHANGE, *CHANGED, FENCE, *GIVE),
            (TAKE_THEIRS, AWAIT_CHANGE, MULTIPLY, *HAVE_HEARD, *GIVE_THEIRS),
            "TensorMma on A has no proxy fence after Elementwise",
        ),
        # What the thread has asked for is not done when the thread says so, but when the tensor cores do.
        (
            (TAKE, *AWAIT_READ, CHANGE, FENCE, *GIVE),
            (TAKE_THEIRS, MULTIPLY, READ[0], warp.RingFill(TELL), READ[2], *GIVE_THEIRS),
            "Elementwise on A does not wait for TensorMma",
        ),
        (
            (TAKE, CHANGE, *AWAIT_READ, FENCE, *GIVE),
            (TAKE_THEIRS, MULTIPLY, *READ, *GIVE_THEIRS),
            "does not wait for",
        ),
        (
            (TAKE, *AWAIT_READ, CHANGE, FENCE, *GIVE),
            (TAKE_THEIRS, *READ, MULTIPLY, *GIVE_THEIRS),
            "does not wait for",
        ),
    ],
)
def test_each_piece_is_needed(consumer: tuple[Operation, ...], asked: tuple[Operation, ...], message: str) -> None:
    assert message in violations(program(consumer, asked))


def test_loads_wait_for_all_who_have_the_version() -> None:
    """The consumer alone releases it, before or after the tensor cores have read it."""
    asked = (TAKE_THEIRS, MULTIPLY, warp.Advance(THEIRS))
    assert "TmaLoad on A does not wait for TensorMma" in violations(program((TAKE, *GIVE), asked, 4))


def test_accesses_come_in_the_order_of_the_text() -> None:
    """A version that is changed twice between its product and what should be multiplied is in order by its barriers,
    but what is multiplied is not what the text says."""

    def handed_over(*changes: Operation, product: int) -> str:
        consumer = (TAKE, *changes, FENCE, *CHANGED, at(0, GIVE[0]), at(0, GIVE[1]))
        asked = (TAKE_THEIRS, AWAIT_CHANGE, at(product, MULTIPLY), *HAVE_HEARD, GIVE_THEIRS[0], at(0, GIVE_THEIRS[1]))
        return violations(program(consumer, asked))

    assert handed_over(at(2, CHANGE), BAR, at(3, CHANGE), product=4) == ""
    assert "TensorMma on A comes after Elementwise" in handed_over(at(2, CHANGE), BAR, at(4, CHANGE), product=3)
    assert "Elementwise on A comes after Elementwise" in handed_over(at(3, CHANGE), BAR, at(2, CHANGE), product=4)


CHANGES = (TAKE, CHANGE, FENCE, *CHANGED, *GIVE)
ASKED = (TAKE_THEIRS, AWAIT_CHANGE, MULTIPLY, *HAVE_HEARD, *GIVE_THEIRS)
KEEP = sweep(Store(C, (ROW, COLUMN), Load(C, (ROW, COLUMN))))  # what has come from tensor memory is used


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (1, "TensorLoad has no fence of tensor memory after RingWait"),
        (3, "S is released while TensorLoad still reads it"),
        (4, "RingRelease has no fence of tensor memory behind TensorLoad"),
    ],
)
def test_tensor_memory_is_waited_for_and_fenced(missing: int, expected: str) -> None:
    assert violations(program(CHANGES, ASKED)) == ""
    without = (*SUM_READ[:missing], *SUM_READ[missing + 1 :])
    assert expected in violations(program(CHANGES, ASKED, read=without))


def test_who_adds_to_a_sum_fences_first() -> None:
    assert "TensorMma has no fence of tensor memory after RingAcquire" in violations(
        program(CHANGES, ASKED, added=SUM_ADDED[:1])
    )


def test_registers_from_tensor_memory_are_waited_for() -> None:
    early = (*SUM_READ[:3], KEEP, *SUM_READ[3:])
    assert "Elementwise on C does not wait for TensorLoad" in violations(program(CHANGES, ASKED, read=early))
    assert violations(program(CHANGES, ASKED, read=(*SUM_READ, KEEP))) == ""
