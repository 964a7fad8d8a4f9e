"""Probes of synchronisation between threads: barriers of a block, and mbarriers."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.calibrate.probe import Probe, emit_barriers, emit_loop, emit_timed, emit_wait, expect_same_word
from tilec.target.names import Feature

ROUNDS = 4
HOPPER_ON: tuple[Feature, ...] = ("mbarrier", "tma")
"""Features for try_wait and the fence after the initialisation, which came with the accelerator."""


def build_barrier_probes() -> Iterator[Probe]:
    """Yield the probes of barriers of a block and of mbarriers."""
    counted = expect_same_word(lambda run: ROUNDS * run.trip_count, 256)
    yield Probe("barrier of 256 threads", _emit_barrier_rounds(), counted, ROUNDS, threads=256)
    # A round is one arrival in each direction.
    first = expect_same_word(lambda run: ROUNDS * run.trip_count, 64)
    yield Probe("named barrier one way", _emit_named_barrier_rounds(), first, 2 * ROUNDS, threads=64)
    alone = expect_same_word(lambda run: ROUNDS * run.trip_count, 32)
    yield Probe("mbarrier arrive and wait", _emit_single_thread_rounds(), alone, ROUNDS, features=HOPPER_ON)
    handed = expect_same_word(lambda run: ROUNDS * run.trip_count, 64)
    yield Probe("mbarrier one way", _emit_two_thread_rounds(), handed, 2 * ROUNDS, threads=64, features=HOPPER_ON)


def _emit_barrier_rounds() -> str:
    """Return PTX that times a loop of bar.sync among 256 threads, and counts the barriers in %word."""
    rounds = "\n".join(["    bar.sync 1, 256;\n    add.u32 %word, %word, 1;"] * ROUNDS)
    return f"    bar.sync 0;\n{emit_timed(emit_loop(rounds))}"


def _emit_two_warps(one: str, other: str) -> str:
    """Return PTX in which warp 0 runs and times the loop body `one`, and warp 1 the body `other`; then all meet."""
    return f"""    setp.ne.u32 %p1, %warp, 0;
    bar.sync 0;
    @%p1 bra OTHER;
{emit_timed(emit_loop(one))}    bra MET;
OTHER:
{emit_loop(other, "OTHER_LOOP")}MET:
    bar.sync 0;
"""


def _emit_named_barrier_rounds() -> str:
    """Return PTX that times rounds in which two warps signal each other by two named barriers, and counts them in
    %word."""
    one = "\n".join(["    bar.arrive 1, 64;\n    bar.sync 2, 64;\n    add.u32 %word, %word, 1;"] * ROUNDS)
    other = "\n".join(["    bar.sync 1, 64;\n    bar.arrive 2, 64;\n    add.u32 %word, %word, 1;"] * ROUNDS)
    return _emit_two_warps(one, other)


def _emit_arrive(bar: int) -> str:
    """Return PTX of one thread's arrival at mbarrier number `bar`."""
    return f"    mbarrier.arrive.shared::cta.b64 _, [%bars+{8 * bar}];\n"


def _emit_single_thread_rounds() -> str:
    """Return PTX that times rounds in which thread 0 arrives at an mbarrier of one arrival and waits for that phase."""
    rounds = "".join(_emit_arrive(0) + emit_wait(0, str(i % 2), f"ROUND{i}") for i in range(ROUNDS))
    return f"""{emit_barriers(1)}    mov.u32 %r0, 0;
    @!%first bra MET;
{emit_timed(emit_loop(rounds))}MET:
    ld.param.u32 %left, [trips];
    mul.lo.u32 %word, %left, {ROUNDS};
"""


def _emit_two_thread_rounds() -> str:
    """Return PTX that times rounds in which one thread of each of two warps signals the other by two mbarriers."""
    one = "".join(_emit_arrive(0) + emit_wait(1, str(i % 2), f"BACK{i}") for i in range(ROUNDS))
    other = "".join(emit_wait(0, str(i % 2), f"THERE{i}") + _emit_arrive(1) for i in range(ROUNDS))
    count = f"    add.u32 %word, %word, {ROUNDS};\n"
    return f"""{emit_barriers(2)}    setp.ne.u32 %p2, %lane, 0;
    ld.param.u32 %left, [trips];
    mul.lo.u32 %r5, %left, {ROUNDS};
    @%p2 mov.u32 %word, %r5;
    setp.ne.u32 %p1, %warp, 0;
    @%p2 bra MET;
    @%p1 bra OTHER;
{emit_timed(emit_loop(one + count))}    bra MET;
OTHER:
{emit_loop(other + count, "OTHER_LOOP")}MET:
    bar.sync 0;
"""
