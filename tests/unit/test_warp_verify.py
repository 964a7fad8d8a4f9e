"""Each promise of the warp verifier, broken by hand in a small program that otherwise keeps them all."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest

from tilec.ir import warp
from tilec.ir.layout import Axis, Fragment, mma_accumulator, row_major_fragment, swizzled_layout, wgmma_accumulator
from tilec.ir.tile import Binary, Buffer, Cast, Const, Load, Parallel, Region, Store, Var, int32_const
from tilec.ir.types import BOOL, FLOAT16, FLOAT32
from tilec.ir.warp_verify.verify import program_violations

GLOBAL = Buffer("X", (1024, 64), FLOAT16, "global")
A, B = (Buffer(name, (64, 64), FLOAT16, "shared") for name in "AB")
C = Buffer("C", (64, 64), FLOAT32, "fragment")
K, ROW, COLUMN = Var("k"), Var("i"), Var("j")
MAP = warp.TensorMap("X_map", GLOBAL, (64, 64), 128)
LAYOUT = swizzled_layout((64, 64), 2)

FILL, USE = warp.Cursor("fill", "ring"), warp.Cursor("use", "ring")
BAR = warp.BarSync(0, 128)
COMMIT = warp.CpAsyncCommit()


def loop(*body: warp.Operation, trip_count: int = 5) -> warp.Loop:
    return warp.Loop(K, int32_const(0), int32_const(trip_count), 1, body)


def sweep(store: Store) -> warp.Elementwise:
    return warp.Elementwise(Parallel((ROW, COLUMN), (64, 64), (store,)), row_major_fragment((64, 64), 128, 8))


def write(buffer: Buffer) -> warp.Elementwise:
    return sweep(Store(buffer, (ROW, COLUMN), Const(0.0, FLOAT16)))


def read(buffer: Buffer) -> warp.Elementwise:
    return sweep(Store(GLOBAL, (ROW, COLUMN), Load(buffer, (ROW, COLUMN))))


def add_up(buffer: Buffer) -> warp.Elementwise:
    """Read into registers."""
    total = Binary("add", Load(C, (ROW, COLUMN)), Cast(Load(buffer, (ROW, COLUMN)), FLOAT32), FLOAT32)
    return sweep(Store(C, (ROW, COLUMN), total))


def whole(buffer: Buffer) -> Region:
    return Region(buffer, tuple(int32_const(0) for _ in buffer.shape), buffer.shape)


def copy(buffer: Buffer, *cursors: warp.Cursor) -> warp.CpAsync:
    region = Region(GLOBAL, (int32_const(0), int32_const(0)), (64, 64))
    return warp.CpAsync(region, whole(buffer), row_major_fragment((64, 64), 128, 8), 16, cursors=cursors)


def store(buffer: Buffer) -> warp.TmaStore:
    return warp.TmaStore(MAP, (int32_const(0), int32_const(0)), buffer)


def wgmma(*cursors: warp.Cursor, a: Buffer = A) -> warp.Wgmma:
    return warp.Wgmma(whole(a), whole(B), C, False, False, False, cursors=cursors)


def tiles(depth: int = 1) -> tuple[warp.SharedTile, ...]:
    return tuple(warp.SharedTile(b, LAYOUT, depth, offset=8192 * depth * i) for i, b in enumerate((A, B)))


def one_role(*body: warp.Operation, depth: int = 1, warps: int = 4) -> warp.Program:
    """All warps run the same body; A and B have `depth` versions."""
    rings = (warp.Ring("ring", depth, ("A", "B")),) if depth > 1 else ()
    fragment = (C, wgmma_accumulator((64, 64), 1, 1) if warps == 4 else mma_accumulator((64, 64), 1, 1))
    roles = (warp.Role("all", 0, warps, body),)
    return warp.Program(
        "kernel", (GLOBAL,), (MAP,), (4, 1, 1), (Var("bx"),), roles, tiles(depth), (fragment,), rings, 16384 * depth
    )


def change(buffer: Buffer, *cursors: warp.Cursor) -> warp.Operation:
    return replace(write(buffer), cursors=cursors)


def two_roles(
    producer: tuple[warp.Operation, ...], consumer: tuple[warp.Operation, ...], depth: int = 2
) -> warp.Program:
    """A producer thread that feeds four consumer warps through a ring."""
    roles = (
        warp.Role("consumer", 0, 4, consumer, 240),
        warp.Role("producer", 4, 4, producer, 40, True),
    )
    rings = (warp.Ring("ring", depth, ("A", "B"), 16384, 4),)
    fragments = ((C, wgmma_accumulator((64, 64), 1, 1)),)
    at = 16384 * depth
    size = at + 16 * depth
    return warp.Program(
        "kernel", (GLOBAL,), (MAP,), (4, 1, 1), (Var("bx"),), roles, tiles(depth), fragments, rings, size, at
    )


def load(buffer: Buffer, *cursors: warp.Cursor) -> warp.TmaLoad:
    return warp.TmaLoad(MAP, (int32_const(0), int32_const(0)), buffer, cursors=cursors)


ACQUIRE, WAIT, RELEASE = warp.RingAcquire(FILL), warp.RingWait(USE), warp.RingRelease(USE)
LOADS = (load(A, FILL), load(B, FILL))
NEXT_FILL, NEXT_USE = warp.Advance(FILL), warp.Advance(USE)
PRODUCER = (loop(ACQUIRE, *LOADS, NEXT_FILL),)
CONSUMER = (loop(WAIT, wgmma(USE), warp.WgmmaWait(0), RELEASE, NEXT_USE),)


def violations(program: warp.Program) -> str:
    return "\n".join(program_violations(program))


def test_programs_that_keep_every_promise() -> None:
    assert violations(two_roles(PRODUCER, CONSUMER)) == ""
    assert violations(one_role(write(A), BAR, read(A))) == ""
    assert violations(one_role(write(A), warp.ProxyFence(), BAR, store(A), warp.BulkWait(0))) == ""
    cursor = (USE,)
    ring = loop(copy(A, *cursor), COMMIT, warp.CpAsyncWait(0), BAR, replace(read(A), cursors=cursor), BAR, NEXT_USE)
    assert violations(one_role(ring, depth=3)) == ""


def test_a_program_longer_than_it_is_followed_is_not_at_fault_for_that() -> None:
    """Of the consumer more is executed in an iteration than of the producer, who is left waiting."""
    filling = (ACQUIRE, *LOADS, NEXT_FILL) * 6_000
    using = (WAIT, wgmma(USE), warp.WgmmaWait(0), RELEASE, NEXT_USE) * 6_000
    assert violations(two_roles(filling, using)) == ""
    for_ever = (WAIT, wgmma(USE), warp.WgmmaWait(0), NEXT_USE) * 6_000
    assert violations(two_roles(filling, for_ever)) != ""


# ---- 1, 2: threads and memory ----------------------------------------------------------------------------------------


def test_roles_partition_the_threads() -> None:
    program = two_roles(PRODUCER, CONSUMER)
    consumer, producer = program.roles
    gap = replace(program, roles=(consumer, replace(producer, first_warp=5)))
    assert "role producer starts at warp 5, the one before ends at 4" in violations(gap)
    overlap = replace(program, roles=(consumer, replace(producer, first_warp=3)))
    assert "role producer starts at warp 3, the one before ends at 4" in violations(overlap)


def test_shared_tiles_have_names_of_their_own() -> None:
    program = two_roles(PRODUCER, CONSUMER)
    tile, *others = program.shared
    twice = replace(program, shared=(tile, *others, tile))
    assert f"two shared tiles are called {tile.buffer.name}" in violations(twice)


def test_warpgroup_operations_run_in_whole_warpgroups() -> None:
    of_two = one_role(wgmma(), warp.WgmmaWait(0), warps=2)
    assert "role all has 2 warps from 0 on, not whole warpgroups" in violations(of_two)
    whole = one_role(wgmma(), warp.WgmmaWait(0))
    behind = replace(whole, roles=(warp.Role("one", 0, 1, ()), replace(whole.roles[0], first_warp=1)))
    assert f"role all has {whole.roles[0].warps} warps from 1 on, not whole warpgroups" in violations(behind)
    program = two_roles(PRODUCER, CONSUMER)
    few = replace(program, roles=(program.roles[0], replace(program.roles[1], warps=1)))
    assert "role producer has 1 warps, not whole warpgroups" in violations(few)


def test_shared_memory() -> None:
    program = one_role(write(A))
    first, second = program.shared
    close = replace(program, shared=(first, replace(second, offset=8000)))
    assert "A ends at byte 8192 of shared memory, B starts at 8000" in violations(close)
    assert "B ends at byte 16384 of 16000" in violations(replace(program, smem_bytes=16000))
    inside = replace(two_roles(PRODUCER, CONSUMER), barriers_at=16000)
    assert "the barriers start at 16000" in violations(inside)
    beyond = two_roles(PRODUCER, CONSUMER)
    assert "the barriers ends at byte 32800 of 32799" in violations(replace(beyond, smem_bytes=32799))


# ---- 3, 4: versions and barriers -------------------------------------------------------------------------------------


def test_a_version_is_named() -> None:
    assert "CpAsync touches A without a version" in violations(one_role(copy(A), depth=2))


def test_the_tiles_of_a_version_may_be_copied_in_different_stages() -> None:
    """The second copy is an iteration behind the first, and so a version behind it."""
    late = warp.Cursor("late", FILL.ring)
    behind = (load(B, late), warp.Advance(late))
    first = (ACQUIRE, LOADS[0], NEXT_FILL)
    assert violations(two_roles((*first, loop(*first, *behind, trip_count=4), *behind), CONSUMER)) == ""


def test_a_consumer_may_change_what_it_was_given() -> None:
    """No barrier is needed from one version to the next: all have waited for it."""
    used = (warp.ProxyFence(), BAR, wgmma(USE), warp.WgmmaWait(0))
    assert violations(two_roles(PRODUCER, (loop(WAIT, change(A, USE), *used, RELEASE, NEXT_USE),))) == ""


@pytest.mark.parametrize(
    ("producer", "consumer", "message"),
    [
        ((loop(*LOADS, NEXT_FILL),), CONSUMER, "A is filled before its version is acquired"),
        ((loop(ACQUIRE, NEXT_FILL, *LOADS),), CONSUMER, "A is filled before its version is acquired"),
        ((loop(ACQUIRE, LOADS[0], ACQUIRE, LOADS[1], NEXT_FILL),), CONSUMER, "acquired again before all its tiles"),
        ((loop(ACQUIRE, LOADS[0], NEXT_FILL),), CONSUMER, "consumer waits for ever at RingWait"),
        (PRODUCER, (loop(wgmma(USE), warp.WgmmaWait(0), RELEASE, NEXT_USE),), "before it has waited for the version"),
        (PRODUCER, (loop(RELEASE, NEXT_USE),), "ring is released before it was filled"),
        (PRODUCER, (loop(WAIT, wgmma(USE), RELEASE, NEXT_USE),), "ring is released while Wgmma still reads it"),
        (PRODUCER, (loop(WAIT, change(A, USE), RELEASE, NEXT_USE),), "ring is released with no proxy fence after"),
        (PRODUCER, (loop(WAIT, change(A, USE), wgmma(USE), warp.WgmmaWait(0), RELEASE, NEXT_USE),), "has no barrier"),
        (
            PRODUCER,
            (loop(WAIT, change(A, USE), BAR, wgmma(USE), warp.WgmmaWait(0), warp.ProxyFence(), RELEASE, NEXT_USE),),
            "Wgmma on A has no proxy fence after Elementwise",
        ),
        (PRODUCER, (loop(WAIT, RELEASE, RELEASE, NEXT_USE),), "TmaLoad on A does not wait for TmaLoad"),
        (PRODUCER, (loop(WAIT, wgmma(USE), warp.WgmmaWait(0), NEXT_USE),), "producer waits for ever at RingAcquire"),
        ((loop(ACQUIRE, *LOADS, NEXT_FILL, trip_count=4),), CONSUMER, "consumer waits for ever at RingWait"),
        ((loop(ACQUIRE, *LOADS, NEXT_FILL, trip_count=6),), CONSUMER, "is filled 3 times and released 2 times"),
        ((loop(ACQUIRE, *LOADS),), CONSUMER, "TmaLoad on A does not wait for TmaLoad"),
    ],
)
def test_the_ring_protocol(
    producer: tuple[warp.Operation, ...], consumer: tuple[warp.Operation, ...], message: str
) -> None:
    found = violations(two_roles(producer, consumer))
    assert message in found


def test_a_cursor_follows_another_one_by_one_version() -> None:
    late = warp.Cursor("late", "ring")
    begin = (WAIT, wgmma(USE), NEXT_USE)
    done = (warp.WgmmaWait(0), warp.RingRelease(late))

    def behind(*moves: warp.Operation) -> str:
        iteration = (WAIT, wgmma(USE), warp.WgmmaWait(1), warp.RingRelease(late), *moves)
        return violations(two_roles(PRODUCER, (*begin, loop(*iteration, trip_count=4), *done)))

    follows = warp.Advance(late, USE)
    assert behind(follows, NEXT_USE) == ""
    assert "use is not one version before late" in behind(NEXT_USE, follows)


def test_as_many_warps_release_as_the_barrier_counts() -> None:
    program = two_roles(PRODUCER, CONSUMER)
    short = replace(program, rings=(replace(program.rings[0], arrivals=3),))
    assert "4 warps release ring, its barrier counts 3" in violations(short)
    many = replace(program, rings=(replace(program.rings[0], arrivals=5),))
    assert "waits for ever" in violations(many) or "its barrier counts 5" in violations(many)


def test_as_many_threads_release_as_the_barrier_counts() -> None:
    program = two_roles(PRODUCER, CONSUMER)
    (ring,) = program.rings
    assert violations(replace(program, rings=(replace(ring, by="thread", arrivals=128),))) == ""
    few = replace(program, rings=(replace(ring, by="thread"),))
    assert "128 threads release ring, its barrier counts 4" in violations(few)


def test_a_role_may_fill_what_it_reads_itself() -> None:
    """One of its threads begins the copies; all wait for them, and give the version back for it."""

    def alone(*iteration: warp.Operation) -> str:
        both = two_roles((), (ACQUIRE, *LOADS, NEXT_FILL, loop(*iteration, trip_count=4)), depth=3)
        return violations(replace(both, roles=(replace(both.roles[0], name="all", registers=None),)))

    ahead, product = (ACQUIRE, *LOADS, NEXT_FILL), (wgmma(USE), warp.WgmmaWait(0))
    assert "is filled 2 times and released 1 times" in alone(*ahead, WAIT, *product, RELEASE, NEXT_USE)
    assert "touches A before it has waited for the version" in alone(*ahead, *product, RELEASE, NEXT_USE)
    assert "waits for ever at RingAcquire" in alone(*ahead, WAIT, *product, NEXT_USE)


# ---- 5: asynchronous operations --------------------------------------------------------------------------------------

ACC = sweep(Store(GLOBAL, (ROW, COLUMN), Load(C, (ROW, COLUMN))))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((copy(A), BAR, read(A)), "Elementwise on A does not wait for CpAsync"),
        (
            (copy(A), COMMIT, copy(B), COMMIT, warp.CpAsyncWait(1), BAR, read(B)),
            "Elementwise on B does not wait for CpAsync",
        ),
        ((wgmma(), warp.CpAsyncWait(0), ACC, warp.WgmmaWait(0)), "Elementwise on C does not wait for Wgmma"),
        ((wgmma(), BAR, write(A), warp.WgmmaWait(0)), "Elementwise on A does not wait for Wgmma"),
        ((wgmma(), BAR, copy(B), warp.WgmmaWait(0)), "CpAsync on B does not wait for Wgmma"),
        ((store(A), BAR, write(A), warp.BulkWait(0)), "Elementwise on A does not wait for TmaStore"),
        ((wgmma(),), "role all ends while Wgmma is in flight"),
        ((store(A), warp.BulkWait(1)), "role all ends while TmaStore is in flight"),
    ],
)
def test_waits(body: tuple[warp.Operation, ...], message: str) -> None:
    assert message in violations(one_role(*body))


def test_products_into_one_accumulator_keep_their_order() -> None:
    assert violations(one_role(wgmma(), wgmma(), warp.WgmmaWait(0))) == ""
    assert violations(one_role(copy(A), COMMIT, copy(B), COMMIT, warp.CpAsyncWait(1), BAR, add_up(A))) == ""


# ---- 6: barriers and fences ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((write(A), read(A)), "Elementwise on A has no barrier after Elementwise"),
        ((read(A), write(A)), "Elementwise on A has no barrier after Elementwise"),
        ((write(A), write(A)), "Elementwise on A has no barrier after Elementwise"),
        ((copy(A), COMMIT, warp.CpAsyncWait(0), read(A)), "Elementwise on A has no barrier after CpAsync"),
        ((copy(A), COMMIT, BAR, warp.CpAsyncWait(0), read(A)), "Elementwise on A has no barrier after CpAsync"),
        ((write(A), BAR, store(A), warp.BulkWait(0)), "TmaStore on A has no proxy fence after Elementwise"),
        ((copy(A), COMMIT, warp.CpAsyncWait(0), BAR, wgmma(), warp.WgmmaWait(0)), "Wgmma on A has no proxy fence"),
        (
            (copy(A), COMMIT, warp.ProxyFence(), warp.CpAsyncWait(0), BAR, wgmma(), warp.WgmmaWait(0)),
            "Wgmma on A has no proxy fence after CpAsync",
        ),
        ((loop(write(A), BAR, read(A)),), "Elementwise on A has no barrier after Elementwise"),
    ],
)
def test_barriers_and_fences(body: tuple[warp.Operation, ...], message: str) -> None:
    assert message in violations(one_role(*body))


def test_what_is_awaited_has_completed() -> None:
    """Without `rendezvous`, as far as the thread itself is concerned."""
    here = warp.Await(("A",))
    assert violations(one_role(copy(A), COMMIT, warp.CpAsyncWait(0), here)) == ""
    assert "A is awaited while CpAsync is pending" in violations(one_role(copy(A), COMMIT, here))
    assert "A is awaited while CpAsync is pending" in violations(one_role(copy(A), warp.CpAsyncWait(0), here))
    assert violations(one_role(wgmma(), here, warp.WgmmaWait(0))) == ""
    readers = warp.Await(("A",), readers=True)
    assert "A is awaited while Wgmma is pending" in violations(one_role(wgmma(), readers, warp.WgmmaWait(0)))
    meeting = warp.Await(("A",), rendezvous=True)
    assert "Await on A has no barrier after Elementwise" in violations(one_role(write(A), meeting))
    assert violations(one_role(write(A), BAR, meeting)) == ""
    assert "Await touches A without a version" in violations(one_role(here, depth=2))
    assert "Await touches A before it has waited for the version" in violations(
        two_roles(PRODUCER, (replace(here, cursors=(USE,)), *CONSUMER))
    )


def test_copies_of_one_group_are_waited_for_together() -> None:
    both = copy(A), copy(B), COMMIT
    assert violations(one_role(*both, warp.CpAsyncWait(0), BAR, add_up(A), add_up(B))) == ""
    assert "does not wait for CpAsync" in violations(one_role(*both, warp.CpAsyncWait(1), BAR, read(A)))
    assert "does not wait for CpAsync" in violations(one_role(copy(A), warp.CpAsyncWait(0), BAR, read(A)))


def test_reads_need_nothing_between_them() -> None:
    assert violations(one_role(add_up(A), add_up(A), add_up(B))) == ""
    assert violations(one_role(write(A), write(B))) == ""


# ---- which paths are taken -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, 1, 2, 3])
def test_paths_of_the_first_blocks_and_of_the_last_are_followed(block: int) -> None:
    here = Binary("eq", Var("bx"), int32_const(block), BOOL)
    program = one_role(write(A), warp.Branch(here, (read(A),)))
    assert "has no barrier" in violations(program)


def test_trip_counts_of_scalar_parameters_are_followed() -> None:
    n = Var("n")
    body = warp.Loop(K, int32_const(0), n, 1, (write(A),))
    program = replace(one_role(body), params=(GLOBAL, n))
    assert "has no barrier" in violations(program)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_long_loops_are_followed_where_something_new_happens(depth: int) -> None:
    """At both ends, whatever the roles peel off, and whatever a part of the program does a thousand times."""
    fill, use = (ACQUIRE, *LOADS, NEXT_FILL), (WAIT, wgmma(USE), warp.WgmmaWait(0), RELEASE, NEXT_USE)
    consumer = (*use, loop(*use, trip_count=997), *use, *use)
    assert violations(two_roles((loop(*fill, trip_count=1000),), consumer, depth)) == ""
    assert violations(two_roles((loop(*fill, *fill, trip_count=500),), consumer, depth)) == ""
    assert "waits for ever" in violations(two_roles((loop(*fill, trip_count=999),), consumer, depth))
    assert "waits for ever" in violations(two_roles((loop(*fill, trip_count=1000 + depth + 1),), consumer, depth))
    last = warp.Branch(Binary("eq", K, int32_const(999), BOOL), (WAIT, wgmma(USE), NEXT_USE), use[:-1])
    assert violations(two_roles((loop(*fill, trip_count=1000),), (loop(last, NEXT_USE, trip_count=1000),), depth)) != ""


def test_where_data_decides_a_loop_runs_twice() -> None:
    bound = Load(Buffer("N", (1,), FLOAT16, "global"), (int32_const(0),))
    program = one_role(warp.Loop(K, int32_const(0), bound, 1, (write(A),)))
    assert "has no barrier" in violations(program)


def test_values_bound_on_the_way_are_known() -> None:
    twice = warp.Let(Var("n"), Binary("add", Var("bx"), int32_const(2), BOOL))
    program = one_role(twice, warp.Loop(K, int32_const(0), Var("n"), 1, (write(A),)))
    assert "has no barrier" in violations(program)


# ---- turns -----------------------------------------------------------------------------------------------------------

PING_PONG_WAIT, PING_PONG_PASS = warp.PingPongWait(), warp.PingPongPass()


def in_ping_pong(*body: warp.Operation) -> str:
    """Two warpgroups of a role that take turns."""
    program = one_role(*body, warps=8)
    return violations(replace(program, roles=(replace(program.roles[0], ping_pong_barrier=3),)))


def test_warpgroups_in_turns() -> None:
    assert in_ping_pong(loop(PING_PONG_WAIT, PING_PONG_PASS), BAR, PING_PONG_WAIT, PING_PONG_PASS) == ""
    assert "passes on a ping-pong turn that it does not have" in in_ping_pong(
        PING_PONG_WAIT, PING_PONG_PASS, PING_PONG_PASS
    )
    assert "waits for a ping-pong turn that it has" in in_ping_pong(PING_PONG_WAIT, PING_PONG_WAIT)
    assert "waits at a barrier of the role during its ping-pong turn" in in_ping_pong(
        PING_PONG_WAIT, BAR, PING_PONG_PASS
    )
    assert "waits for ever at PingPongWait" in in_ping_pong(PING_PONG_WAIT)
    assert "no warpgroup passes to it" in violations(one_role(PING_PONG_WAIT, PING_PONG_PASS, warps=8))


def test_a_group_that_never_gets_its_turn_keeps_the_producer_waiting() -> None:
    """Each warpgroup of four warps releases a version of its own accord; the ring counts both."""
    program = two_roles(
        PRODUCER, (loop(PING_PONG_WAIT, WAIT, wgmma(USE), PING_PONG_PASS, warp.WgmmaWait(0), RELEASE, NEXT_USE),)
    )
    consumer, producer = program.roles
    roles = (replace(consumer, warps=8, ping_pong_barrier=3), replace(producer, first_warp=8))
    both = replace(program, roles=roles, rings=(replace(program.rings[0], arrivals=8),))
    assert violations(both) == ""
    late = (loop(PING_PONG_WAIT, WAIT, wgmma(USE), warp.WgmmaWait(0), RELEASE, NEXT_USE), PING_PONG_PASS)
    assert violations(replace(both, roles=(replace(roles[0], body=late), roles[1]))) != ""


# ---- warpgroups that store apart -------------------------------------------------------------------------------------

TALL = Buffer("T", (128, 64), FLOAT16, "shared")
HELD = Buffer("H", (128, 64), FLOAT32, "fragment")
MEET = warp.WarpgroupSync(6)


BY_ROWS = wgmma_accumulator((128, 64), 2, 1)


def apart(*body: warp.Operation, warps: int = 8, layout: Fragment = BY_ROWS) -> warp.Program:
    tile = warp.SharedTile(TALL, swizzled_layout((128, 64), 2))
    roles = (warp.Role("all", 0, warps, body),)
    return warp.Program(
        "kernel", (GLOBAL,), (MAP,), (4, 1, 1), (Var("bx"),), roles, (tile,), ((HELD, layout),), (), 16384, 16384
    )


MATRIX = warp.StoreMatrix(HELD, TALL)
ROWS = warp.TmaStore(MAP, (int32_const(0), int32_const(0)), TALL, parts=2)
DONE = warp.BulkWait(0)


def test_warpgroups_that_store_apart_meet_apart() -> None:
    assert violations(apart(MATRIX, warp.ProxyFence(), MEET, ROWS, DONE)) == ""
    again = loop(MATRIX, warp.ProxyFence(), MEET, ROWS, DONE, MEET)
    assert violations(apart(again)) == ""
    assert violations(apart(MATRIX, warp.ProxyFence(), warp.BarSync(0, 256), ROWS, DONE)) == ""


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (apart(MATRIX, warp.ProxyFence(), ROWS, DONE), "TmaStore on T has no barrier after StoreMatrix"),
        (apart(MATRIX, MEET, ROWS, DONE), "TmaStore on T has no proxy fence after StoreMatrix"),
        (apart(loop(MATRIX, warp.ProxyFence(), MEET, ROWS, MEET), DONE), "StoreMatrix on T does not wait for TmaStore"),
        (apart(loop(MATRIX, warp.ProxyFence(), MEET, ROWS, DONE)), "StoreMatrix on T has no barrier after TmaStore"),
        # Together, a barrier of each warpgroup is not enough.
        (
            apart(MATRIX, warp.ProxyFence(), MEET, replace(ROWS, parts=1), DONE),
            "TmaStore on T has no barrier after StoreMatrix",
        ),
        (apart(MATRIX, warp.ProxyFence(), MEET, ROWS, DONE, warps=4), "is by 2, of 128 threads"),
        (
            apart(MATRIX, warp.ProxyFence(), MEET, ROWS, DONE, layout=wgmma_accumulator((128, 64), 1, 2)),
            "StoreMatrix on T, whose parts 2 warpgroups store, writes rows of other warpgroups",
        ),
        (
            apart(MATRIX, warp.ProxyFence(), MEET, ROWS, DONE, layout=row_major_fragment((128, 64), 256, 2)),
            "writes rows of other warpgroups",
        ),
        (
            apart(MATRIX, warp.ProxyFence(), warp.WarpgroupSync(15), ROWS, DONE),
            "the warpgroups' barriers are taken by another role, or do not exist",
        ),
        (
            apart(MATRIX, warp.ProxyFence(), warp.WarpgroupSync(0), ROWS, DONE),
            "the warpgroups' barriers are taken by another role, or do not exist",
        ),
    ],
)
def test_what_warpgroups_that_store_apart_need(program: warp.Program, says: str) -> None:
    assert says in violations(program)


# ---- tiles of which each warpgroup has a copy ------------------------------------------------------------------------

COPIES = replace(LAYOUT, copies=2)
BY_EACH = replace(
    row_major_fragment((64, 64), 128, 8), threads=(*row_major_fragment((64, 64), 128, 8).threads, Axis(2, -1, 0))
)
FILL_OWN = replace(write(B), layout=BY_EACH)
TALL_SUM = Buffer("C", (128, 64), FLOAT32, "fragment")
BY_OWN = warp.Wgmma(whole(TALL), whole(B), TALL_SUM, False, False, False)


SQUARE = Buffer("S", (64, 64), FLOAT16, "shared")
TRANSPOSE_OWN = warp.TransposeMatrix(SQUARE, B, 4, 32)


def with_copies(*body: warp.Operation, warps: int = 8) -> warp.Program:
    tiles = ((TALL, swizzled_layout((128, 64), 2)), (B, COPIES), (SQUARE, LAYOUT))
    ends = accumulate((layout.bytes for _, layout in tiles), initial=0)
    shared = tuple(warp.SharedTile(*one, offset=first) for one, first in zip(tiles, ends, strict=False))
    program = replace(apart(*body, warps=warps), shared=shared, smem_bytes=40960, barriers_at=40960)
    return replace(program, fragments=((TALL_SUM, BY_ROWS),))


def test_warpgroups_that_have_copies_meet_apart() -> None:
    assert COPIES.bytes == 2 * LAYOUT.bytes
    assert violations(with_copies(FILL_OWN, warp.ProxyFence(), MEET, BY_OWN, warp.WgmmaWait(0))) == ""
    by_matrices = with_copies(TRANSPOSE_OWN, warp.ProxyFence(), MEET, BY_OWN, warp.WgmmaWait(0))
    assert violations(by_matrices) == ""
    again = loop(FILL_OWN, warp.ProxyFence(), MEET, BY_OWN, warp.WgmmaWait(0), MEET)
    assert violations(with_copies(again)) == ""


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (with_copies(FILL_OWN, warp.ProxyFence(), BY_OWN, warp.WgmmaWait(0)), "Wgmma on B has no barrier"),
        (with_copies(FILL_OWN, MEET, BY_OWN, warp.WgmmaWait(0)), "Wgmma on B has no proxy fence"),
        (
            with_copies(loop(FILL_OWN, warp.ProxyFence(), MEET, BY_OWN, warp.WgmmaWait(0))),
            "Elementwise on B has no barrier after Wgmma",
        ),
        (
            with_copies(replace(FILL_OWN, layout=row_major_fragment((64, 64), 256, 8))),
            "Elementwise on B, with a copy for each of 2 warpgroups, does not do the same in each warpgroup",
        ),
        (
            with_copies(store(B), warp.BulkWait(0)),
            "TmaStore on B, with a copy for each of 2 warpgroups, cannot address",
        ),
        (with_copies(replace(TRANSPOSE_OWN, warps=8)), "TransposeMatrix by 8 warps, in a role of 256 threads"),
        (with_copies(replace(TRANSPOSE_OWN, rows=48)), "TransposeMatrix of S does not divide into 4 warps"),
        (with_copies(FILL_OWN, warps=4), "with a copy for each of 2 warpgroups, is by 128 threads"),
    ],
)
def test_what_tiles_with_copies_need(program: warp.Program, says: str) -> None:
    assert says in violations(program)


# ---- 10: tiles over the rings ----------------------------------------------------------------------------------------

OVER = Buffer("O", (64, 64), FLOAT16, "shared")
STORED = (write(OVER), warp.ProxyFence(), BAR, store(OVER), warp.BulkWait(0))


def with_tile_over(program: warp.Program, offset: int = 0, *, over_rings: bool = True) -> warp.Program:
    return replace(program, shared=(*program.shared, warp.SharedTile(OVER, LAYOUT, 1, offset, over_rings)))


def over(producer: tuple[warp.Operation, ...], consumer: tuple[warp.Operation, ...]) -> str:
    return violations(with_tile_over(two_roles(producer, consumer)))


def test_a_tile_may_lie_over_a_ring() -> None:
    assert over(PRODUCER, (*CONSUMER, BAR, *STORED)) == ""
    named = with_tile_over(two_roles(PRODUCER, (*CONSUMER, BAR, *STORED)), over_rings=False)
    assert "A ends at byte 16384 of shared memory, O starts at 0" in violations(named)
    plain = with_tile_over(one_role(write(A), BAR, *STORED))
    assert "A ends at byte 8192 of shared memory, O starts at 0" in violations(plain)


@pytest.mark.parametrize(
    ("producer", "consumer", "message"),
    [
        (PRODUCER, (*CONSUMER, *STORED), "Elementwise on A has no barrier after Wgmma, and O reuses its memory"),
        (PRODUCER, (BAR, *STORED, *CONSUMER), "ring is acquired again while O has its memory"),
        (PRODUCER, (*CONSUMER, BAR, *STORED, WAIT), "waits for ever at RingWait"),
        (
            (*PRODUCER, ACQUIRE, *LOADS),
            (*CONSUMER, BAR, *STORED),
            "O reuses the memory of ring, which is not released yet",
        ),
        ((*PRODUCER, ACQUIRE), (*CONSUMER, BAR, *STORED), "O reuses the memory of ring, which is not released yet"),
        (
            PRODUCER,
            (loop(WAIT, wgmma(USE), warp.WgmmaWait(0), BAR, *STORED, RELEASE, NEXT_USE),),
            "which is not released yet",
        ),
    ],
)
def test_a_tile_over_a_ring_waits_for_it(
    producer: tuple[warp.Operation, ...], consumer: tuple[warp.Operation, ...], message: str
) -> None:
    assert message in over(producer, consumer)


def test_the_role_that_reads_a_ring_has_what_lies_over_it() -> None:
    """No barrier of one role says when another one is done."""
    program = with_tile_over(
        two_roles((loop(ACQUIRE, *LOADS, NEXT_FILL, trip_count=1),), (WAIT, wgmma(USE), warp.WgmmaWait(0), RELEASE))
    )
    consumer, producer = program.roles
    roles = (replace(producer, first_warp=0), replace(consumer, first_warp=4), warp.Role("other", 8, 4, (BAR, *STORED)))
    assert "O reuses the memory of A, which consumer also uses" in violations(replace(program, roles=roles))


def test_a_ring_of_one_role_is_not_touched_again() -> None:
    """Versions that nobody else fills, by the same rule."""
    cursor = (USE,)
    ring = loop(copy(A, *cursor), COMMIT, warp.CpAsyncWait(0), BAR, replace(read(A), cursors=cursor), BAR, NEXT_USE)
    assert violations(with_tile_over(one_role(ring, *STORED, depth=3))) == ""
    early = (loop(copy(A, *cursor), COMMIT, NEXT_USE, trip_count=2),)
    assert "Elementwise on A does not wait for CpAsync" in violations(
        with_tile_over(one_role(*early, *STORED, depth=3))
    )
    later = with_tile_over(one_role(ring, *STORED, BAR, change(A, USE), depth=3))
    assert "Elementwise touches A while O has its memory" in violations(later)


# ---- 10: tiles that share memory -------------------------------------------------------------------------------------


def in_turns(*body: warp.Operation) -> warp.Program:
    """One role of four warps. O has the memory of A before it or after it."""
    program = one_role(*body)
    return replace(program, shared=(*program.shared, warp.SharedTile(OVER, LAYOUT, 1, 0, reuses=("A",))))


TURN_OF_A, TURN_OF_O = (write(A), BAR, read(A)), (write(OVER), BAR, read(OVER))


def test_tiles_may_take_turns() -> None:
    assert violations(in_turns(*TURN_OF_A, BAR, *TURN_OF_O)) == ""
    assert violations(in_turns(loop(*TURN_OF_A, BAR, *TURN_OF_O, BAR))) == ""
    assert (
        violations(in_turns(*TURN_OF_A, BAR, write(OVER), warp.ProxyFence(), BAR, store(OVER), warp.BulkWait(0))) == ""
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((*TURN_OF_A, *TURN_OF_O), "Elementwise on A has no barrier after Elementwise, and O reuses its memory"),
        ((write(A), *TURN_OF_O), "Elementwise on A has no barrier after Elementwise, and O reuses its memory"),
        ((loop(*TURN_OF_A, BAR, *TURN_OF_O),), "Elementwise on O has no barrier after Elementwise, and A reuses"),
        ((write(A), BAR, read(OVER)), "O is read while A has its memory"),
        ((*TURN_OF_A, BAR, *TURN_OF_O, BAR, read(A)), "A is read while O has its memory"),
        ((copy(A), COMMIT, BAR, *TURN_OF_O), "Elementwise on A does not wait for CpAsync, and O reuses its memory"),
        (
            (write(A), warp.ProxyFence(), BAR, store(A), BAR, *TURN_OF_O, warp.BulkWait(0)),
            "Elementwise on A does not wait for TmaStore, and O reuses its memory",
        ),
        ((wgmma(), BAR, *TURN_OF_O), "Elementwise on A does not wait for Wgmma, and O reuses its memory"),
    ],
)
def test_a_turn_begins_after_the_one_before(body: tuple[warp.Operation, ...], message: str) -> None:
    assert message in violations(in_turns(*body))


def test_only_tiles_that_say_so_share_memory() -> None:
    program = in_turns(*TURN_OF_A)
    *others, last = program.shared
    assert "A ends at byte 8192 of shared memory, O starts at 0" in violations(
        replace(program, shared=(*others, replace(last, reuses=("B",))))
    )
    moved = replace(last, offset=4096)
    assert "O ends at byte 12288 of shared memory, B starts at 8192" in violations(
        replace(program, shared=(*others, moved))
    )


def test_another_role_does_not_take_turns() -> None:
    program = in_turns(*TURN_OF_A)
    roles = (*program.roles, warp.Role("other", 4, 4, (warp.BarSync(1, 128), write(OVER))))
    assert "O reuses the memory of A, which all also uses" in violations(replace(program, roles=roles))
