"""Probes of synchronisation between threads: barriers of a block, and mbarriers."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.calibrate.probe import Probe, barriers, loop, same_word, timed, wait
from tilec.target.features import Feature

ROUNDS = 4
HOPPER_ON: tuple[Feature, ...] = ("mbarrier", "tma")
"""Features for try_wait and the fence after the initialisation, which came with the accelerator."""


def probes() -> Iterator[Probe]:
    counted = same_word(lambda run: ROUNDS * run.trip_count, 256)
    yield Probe("barrier of 256 threads", _barrier(), counted, ROUNDS, threads=256)
    # A round is one arrival in each direction.
    first = same_word(lambda run: ROUNDS * run.trip_count, 64)
    yield Probe("named barrier one way", _named(), first, 2 * ROUNDS, threads=64)
    alone = same_word(lambda run: ROUNDS * run.trip_count, 32)
    yield Probe("mbarrier arrive and wait", _alone(), alone, ROUNDS, features=HOPPER_ON)
    handed = same_word(lambda run: ROUNDS * run.trip_count, 64)
    yield Probe("mbarrier one way", _handed(), handed, 2 * ROUNDS, threads=64, features=HOPPER_ON)


def _barrier() -> str:
    rounds = "\n".join(["    bar.sync 1, 256;\n    add.u32 %word, %word, 1;"] * ROUNDS)
    return f"    bar.sync 0;\n{timed(loop(rounds))}"


def _two_warps(one: str, other: str) -> str:
    """Return two loops for two warps; thread 0 times its own."""
    return f"""    setp.ne.u32 %p1, %warp, 0;
    bar.sync 0;
    @%p1 bra OTHER;
{timed(loop(one))}    bra MET;
OTHER:
{loop(other, "OTHER_LOOP")}MET:
    bar.sync 0;
"""


def _named() -> str:
    one = "\n".join(["    bar.arrive 1, 64;\n    bar.sync 2, 64;\n    add.u32 %word, %word, 1;"] * ROUNDS)
    other = "\n".join(["    bar.sync 1, 64;\n    bar.arrive 2, 64;\n    add.u32 %word, %word, 1;"] * ROUNDS)
    return _two_warps(one, other)


def _arrive(bar: int) -> str:
    return f"    mbarrier.arrive.shared::cta.b64 _, [%bars+{8 * bar}];\n"


def _alone() -> str:
    """Return rounds in which a thread waits for its own arrivals. Phases alternate, and an iteration has an even number
    of them."""
    rounds = "".join(_arrive(0) + wait(0, str(i % 2), f"ROUND{i}") for i in range(ROUNDS))
    return f"""{barriers(1)}    mov.u32 %r0, 0;
    @!%first bra MET;
{timed(loop(rounds))}MET:
    ld.param.u32 %left, [trips];
    mul.lo.u32 %word, %left, {ROUNDS};
"""


def _handed() -> str:
    """Return rounds between one thread each of two warps: full in one direction, empty in the other."""
    one = "".join(_arrive(0) + wait(1, str(i % 2), f"BACK{i}") for i in range(ROUNDS))
    other = "".join(wait(0, str(i % 2), f"THERE{i}") + _arrive(1) for i in range(ROUNDS))
    count = f"    add.u32 %word, %word, {ROUNDS};\n"
    return f"""{barriers(2)}    setp.ne.u32 %p2, %lane, 0;
    ld.param.u32 %left, [trips];
    mul.lo.u32 %r5, %left, {ROUNDS};
    @%p2 mov.u32 %word, %r5;
    setp.ne.u32 %p1, %warp, 0;
    @%p2 bra MET;
    @%p1 bra OTHER;
{timed(loop(one + count))}    bra MET;
OTHER:
{loop(other + count, "OTHER_LOOP")}MET:
    bar.sync 0;
"""
