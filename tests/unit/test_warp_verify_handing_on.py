"""The promises of the warp verifier about a ring that threads fill for a role of one thread, each broken by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_warp_verify import (
    ACQUIRE,
    BAR,
    FILL,
    LOADS,
    NEXT_FILL,
    A,
    B,
    change,
    load,
    loop,
    store,
    two_roles,
    violations,
)

from tilec.ir import warp

# Who computes fills the ring of A and B through this cursor, who stores empties it through the other.
MAKE, TAKE = warp.Cursor("make", "ring"), warp.Cursor("take", "ring")
FENCE = warp.ProxyFence()
CLAIM, HAND_ON, NEXT_MADE = warp.RingAcquire(MAKE), warp.RingFill(MAKE), warp.Advance(MAKE)
AWAIT, GIVE_BACK, NEXT_TAKEN = warp.RingWait(TAKE), warp.RingRelease(TAKE), warp.Advance(TAKE)
WRITES = (change(A, MAKE), change(B, MAKE))
STORES = tuple(replace(store(tile), cursors=(TAKE,)) for tile in (A, B))
READ = warp.BulkWait(0)

COMPUTE = (loop(CLAIM, *WRITES, FENCE, HAND_ON, NEXT_MADE),)
STORE = (loop(AWAIT, *STORES, READ, GIVE_BACK, NEXT_TAKEN),)


def program(compute: tuple[warp.Operation, ...] = COMPUTE, store: tuple[warp.Operation, ...] = STORE) -> warp.Program:
    """Four warps that compute, and a thread that stores."""
    made = two_roles(store, compute)
    (ring,) = made.rings
    consumer, _ = made.roles
    roles = (
        consumer,
        warp.Role("producer", 4, 1, (), 40, True),
        warp.Role("store", 5, 3, store, 40, True),
    )
    return replace(made, roles=roles, rings=(replace(ring, bytes=0, fills=4, arrivals=1),))


def test_it_holds() -> None:
    assert violations(program()) == ""


def test_tiles_may_be_written_in_different_stages() -> None:
    """The second is an iteration behind the first; the version is handed on where the second is written."""
    late = warp.Cursor("late", "ring")
    first = (CLAIM, change(A, MAKE), NEXT_MADE)
    behind = (change(B, late), FENCE, warp.RingFill(late), warp.Advance(late))
    assert violations(program((*first, loop(*first, *behind, trip_count=4), *behind))) == ""


@pytest.mark.parametrize(
    ("compute", "store", "message"),
    [
        ((loop(*WRITES, FENCE, HAND_ON, NEXT_MADE),), STORE, "before it has waited for the version"),
        ((loop(HAND_ON, NEXT_MADE),), STORE, "ring is committed before its version is acquired"),
        ((loop(CLAIM, WRITES[0], FENCE, HAND_ON, NEXT_MADE),), STORE, "ring is committed before B is written"),
        ((loop(CLAIM, *WRITES, HAND_ON, NEXT_MADE),), STORE, "ring is committed with no proxy fence after Elementwise"),
        ((loop(CLAIM, FENCE, *WRITES, HAND_ON, NEXT_MADE),), STORE, "no proxy fence after Elementwise"),
        ((loop(CLAIM, *WRITES, FENCE, NEXT_MADE),), STORE, "consumer waits for ever at RingAcquire"),
        ((loop(CLAIM, *WRITES, FENCE, HAND_ON, HAND_ON, NEXT_MADE),), STORE, "is committed twice"),
        (
            (loop(CLAIM, *WRITES, FENCE, HAND_ON, BAR, *WRITES, NEXT_MADE),),
            STORE,
            "Elementwise touches A after it has passed the version on",
        ),
        (COMPUTE, (loop(*STORES, READ, GIVE_BACK, NEXT_TAKEN),), "before it has waited for the version"),
        (COMPUTE, (loop(AWAIT, *STORES, GIVE_BACK, NEXT_TAKEN),), "ring is released while TmaStore still reads it"),
        (COMPUTE, (loop(AWAIT, *STORES, warp.BulkWait(1), GIVE_BACK, NEXT_TAKEN),), "while TmaStore still reads it"),
        (COMPUTE, (loop(AWAIT, *STORES, READ, NEXT_TAKEN),), "consumer waits for ever at RingAcquire"),
        (COMPUTE, (loop(GIVE_BACK, NEXT_TAKEN),), "ring is released before it was filled"),
        (COMPUTE, (loop(AWAIT, GIVE_BACK, *STORES, READ, NEXT_TAKEN),), "after it has passed the version on"),
        ((loop(CLAIM, *WRITES, FENCE, HAND_ON, NEXT_MADE, trip_count=4),), STORE, "store waits for ever at RingWait"),
        (
            (loop(CLAIM, *WRITES, FENCE, HAND_ON, NEXT_MADE, trip_count=6),),
            STORE,
            "is filled 3 times and released 2 times",
        ),
    ],
)
def test_what_is_missing(compute: tuple[warp.Operation, ...], store: tuple[warp.Operation, ...], message: str) -> None:
    assert message in violations(program(compute, store))


@pytest.mark.parametrize(("fills", "message"), [(3, "4 warps fill ring, its barrier counts 3"), (5, "waits for ever")])
def test_as_many_warps_fill_as_the_barrier_counts(fills: int, message: str) -> None:
    made = program()
    assert message in violations(replace(made, rings=(replace(made.rings[0], fills=fills),)))


def test_one_thread_releases_once() -> None:
    made = program()
    assert "waits for ever" in violations(replace(made, rings=(replace(made.rings[0], arrivals=3),)))


def test_roles_of_one_warpgroup_ask_for_the_same_registers() -> None:
    made = program()
    consumer, producer, store = made.roles
    other = replace(made, roles=(consumer, producer, replace(store, registers=24)))
    assert "roles producer and store share a warpgroup and request 40 and 24 registers" in violations(other)
    short = replace(made, roles=(consumer, producer, replace(store, warps=2)))
    assert "role store has 2 warps, not whole warpgroups" in violations(short)


def test_a_tile_that_tma_fills_may_be_stored_by_one_role_and_read_by_another() -> None:
    """Each gives it back."""
    fed = (loop(ACQUIRE, *LOADS, NEXT_FILL),)
    use = warp.Cursor("use", "ring")
    reads = (loop(warp.RingWait(use), warp.RingRelease(use), warp.Advance(use)),)
    made = program(reads, STORE)
    consumer, producer, store = made.roles
    ring = replace(made.rings[0], bytes=16384, fills=1, arrivals=5)
    both = replace(made, roles=(consumer, replace(producer, body=fed), store), rings=(ring,))
    assert violations(both) == ""
    assert "waits for ever" in violations(replace(both, rings=(replace(ring, arrivals=6),)))
    assert load(A, FILL) == LOADS[0]
