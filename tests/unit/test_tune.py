"""The tuner's model against arithmetic by hand, its space and its ranking."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tilec.passes.cost.model import (
    Launch,
    Level,
    LoopCost,
    Machine,
    OccupancyLimits,
    Prediction,
    count_cta_cycles,
    count_ctas_per_sm,
    predict_level_times,
    predict_uniform,
)
from tilec.tune.rank import Candidate, Rejection, rank_predictions
from tilec.tune.search import choose_next_batch, propose_by_model
from tilec.tune.space import SpaceError, build_space

HOPPER = Machine(sms=132, l2_bytes_per_cycle=4472, dram_bytes_per_cycle=1720)
LOOP = LoopCost(ii=512, length=2024, trip_count=64, busy=512)
SM = OccupancyLimits(233472, 1024, 128, 65536, 256, 2048, 32)


def test_one_cta() -> None:
    assert count_cta_cycles([LOOP]) == 2024 + 63 * 512
    assert count_cta_cycles([replace(LOOP, trip_count=1)]) == 2024
    assert count_cta_cycles([replace(LOOP, trip_count=0)]) == 0
    assert count_cta_cycles([LOOP, replace(LOOP, trip_count=1)]) == 2024 + 63 * 512 + 2024


def test_neighbours_share_slots_but_hide_latency() -> None:
    waiting = LoopCost(ii=1000, length=2000, trip_count=11, busy=300)
    assert count_cta_cycles([waiting], 1) == count_cta_cycles([waiting], 3) == 12000
    assert count_cta_cycles([waiting], 4) == 2000 + 10 * 1200


def test_waves() -> None:
    one = count_cta_cycles([LOOP])
    assert predict_uniform([LOOP], Launch(132), HOPPER) == Prediction(one, 0, 1)
    assert predict_uniform([LOOP], Launch(133), HOPPER) == Prediction(2 * one, 0, 2)
    assert predict_uniform([LOOP], Launch(1), HOPPER).compute == one
    assert predict_uniform([LOOP], Launch(0), HOPPER).cycles == 0


def test_a_wave_that_is_not_full_shares_less() -> None:
    two = Launch(ctas=3 * 132, ctas_per_sm=2)
    assert predict_uniform([LOOP], two, HOPPER).compute == count_cta_cycles([LOOP], 2) + count_cta_cycles([LOOP], 1)


def test_bandwidth_is_a_roof() -> None:
    bound = predict_uniform([LOOP], Launch(1, dram_bytes=1720 * 10**6, l2_bytes=4472 * 10**5), HOPPER)
    assert (bound.memory, bound.cycles) == (10**6, 10**6)
    assert predict_uniform([LOOP], Launch(1, dram_bytes=10**9), Machine(132)).memory == 0


@pytest.mark.parametrize(
    ("smem", "registers", "threads", "expected"),
    [
        (100_000, 128, 256, 2),  # registers: 65536 / (128 · 256), and as many by shared memory
        (232448, 128, 128, 1),  # all the shared memory there is
        (232449, 128, 128, 0),
        (0, 32, 1024, 2),  # threads
        (0, 16, 32, 32),  # CTAs
        (0, 255, 384, 0 + 65536 // (32 * 256 * 12)),
        (0, 255, 32, 8),  # each scheduler has registers for two warps
        # As cuda_occupancy.h says: the warps of CTAs need not be a multiple of the schedulers.
        (14606, 78, 96, 8),
        (20323, 46, 288, 4),
        (28011, 91, 160, 4),
        (90118, 146, 192, 2),
        (3771, 142, 160, 2),
    ],
)
def test_occupancy(smem: int, registers: int, threads: int, expected: int) -> None:
    assert count_ctas_per_sm(smem, registers, threads, SM) == expected


# ---- levels ----------------------------------------------------------------------------------------------------------

SHARED = Level("shared", latency=500, transfer=100, trip_count=10)


def cycles(level: Level, use: int, neighbours: int = 1, *inner: Level) -> tuple[int, str]:
    time = predict_level_times([level, *inner], use, neighbours)[0]
    return time.cycles, time.bound


def test_one_stage_loads_and_uses_in_turn() -> None:
    assert cycles(SHARED, 200) == (10 * (600 + 200), "latency")


def test_as_many_stages_as_cover_the_load_leave_only_the_use() -> None:
    # Bound by its use from load <= (stages - 1) * use on: 600 <= 3 * 200.
    assert cycles(replace(SHARED, stages=4), 200) == (600 + 10 * 200, "use")
    assert cycles(replace(SHARED, stages=3), 200) == (3 * 800 + 600 + 200, "latency")


def test_neighbours_hide_each_others_loads() -> None:
    # Four CTAs with one stage: 4 * 100 for the transfers, 500 of latency, 4 * 250 of use.
    assert cycles(SHARED, 250, 4) == (10 * (900 + 250), "latency")
    assert cycles(replace(SHARED, stages=2), 250, 4) == (900 + 10 * 1000, "use")


def test_neighbours_compute_while_a_loop_inside_begins_anew() -> None:
    registers = Level("shared to registers", 32, 48, 4, 2)
    ((_, alone), (_, together)) = (predict_level_times([SHARED, registers], 100, n) for n in (1, 2))
    assert (alone.cycles, alone.bound) == (32 + 48 + 4 * 100, "use")
    assert (together.cycles, together.bound) == (2 * 4 * 100, "use")  # 80 of one behind 400 of the other
    slow = replace(registers, latency=400)
    assert predict_level_times([SHARED, slow], 100, 2)[1].cycles == 2 * (400 + 96 + 100) + 100  # too long to hide


def test_transfers_that_take_longer_than_the_use() -> None:
    assert cycles(replace(SHARED, transfer=300, stages=8), 200) == (500 + 10 * 300 + 200, "bandwidth")


def test_the_use_of_a_level_is_the_loop_in_it() -> None:
    fragments = Level("registers", latency=30, transfer=20, trip_count=4, stages=2)
    outer = replace(SHARED, stages=4)
    inner = 50 + 4 * 100
    assert cycles(outer, 100, 1, fragments) == (600 + 10 * inner, "use")
    # Begun in the iteration before, the inner loop has no first load of its own.
    assert cycles(outer, 100, 1, replace(fragments, carried=True)) == (600 + 10 * 400, "use")
    # One version: each step of the product waits for its fragments.
    assert cycles(outer, 100, 1, replace(fragments, stages=1)) == (600 + 10 * 4 * 150, "use")
    # Of several warps on a scheduler one computes while the others wait.
    assert cycles(outer, 100, 1, replace(fragments, stages=1, parts=4)) == (600 + 10 * inner, "use")


def test_beginning_loads_takes_the_warps_time() -> None:
    assert cycles(replace(SHARED, stages=4, issue=50), 200) == (600 + 10 * 250, "use")


def test_a_loop_without_iterations() -> None:
    assert cycles(replace(SHARED, trip_count=0), 200) == (0, "use")


def test_more_of_what_hides_never_costs_time() -> None:
    uses, latencies, transfers = (1, 40, 300, 1000), (0, 90, 700), (0, 60, 400)
    for use, latency, transfer, trip_count, carried in product(
        uses, latencies, transfers, (1, 2, 5, 16), (False, True)
    ):
        level = Level("any", latency, transfer, trip_count, carried=carried)
        taken = [cycles(replace(level, stages=stages), use)[0] for stages in range(1, 9)]
        assert taken == sorted(taken, reverse=True)
        assert all(found >= trip_count * max(use, transfer) for found in taken)
        for stages in (1, 3):
            staged = replace(level, stages=stages)
            assert cycles(staged, use)[0] <= cycles(replace(staged, latency=latency + 1), use)[0]
            assert cycles(staged, use)[0] <= cycles(replace(staged, transfer=transfer + 1), use)[0]
            assert cycles(staged, use)[0] <= cycles(staged, use + 1)[0]
            each = [cycles(staged, use, neighbours)[0] / neighbours for neighbours in (1, 2, 3, 4)]
            assert each == sorted(each, reverse=True)


def test_space() -> None:
    both = build_space([("M", [64, 128, 64]), ("wide", [True, 1])])
    assert both.size == 4
    assert list(both.points()) == [
        (("M", 64), ("wide", True)),
        (("M", 64), ("wide", 1)),
        (("M", 128), ("wide", True)),
        (("M", 128), ("wide", 1)),
    ]
    assert list(build_space([]).points()) == [()]
    with pytest.raises(SpaceError, match="'M' is given twice"):
        build_space([("M", [1]), ("M", [2])])
    with pytest.raises(SpaceError, match="'M' has no values"):
        build_space([("M", [])])


def test_ranking_says_what_was_refused() -> None:
    found = {32: 968, 128: 936, 512: "a block of 512 does not fit", 64: 936, 256: 744}
    blocks = build_space([("block", list(found))]).points()
    ranking = rank_predictions((point, found[int(dict(point)["block"])]) for point in blocks)
    assert ranking.best == (
        Candidate((("block", 256),), 744),
        # As fast as 64, and earlier in the space.
        Candidate((("block", 128),), 936),
        Candidate((("block", 64),), 936),
        Candidate((("block", 32),), 968),
    )
    assert ranking.rejected == (Rejection((("block", 512),), "a block of 512 does not fit"),)


def test_of_variants_that_differ_in_stages_only_one_stands_for_those_that_are_as_fast() -> None:
    cycles = {(64, 2): 900, (64, 3): 800, (64, 4): 800, (128, 2): 800, (128, 3): 700, (128, 4): 700}
    points = list(build_space([("block", [64, 128]), ("n", [2, 3, 4])]).points())
    ranking = rank_predictions(((point, cycles[int(point[0][1]), int(point[1][1])]) for point in points), stages=("n",))
    found = [(*(value for _, value in one.point), one.again) for one in ranking.best]
    assert found == [
        (128, 3, False), (128, 4, True), (64, 3, False), (64, 4, True), (128, 2, False), (64, 2, False),
    ]  # fmt: skip
    order = [choose_next_batch(ranking.best, {}, propose_by_model(ranking))]
    left = [one for one in ranking.best if one.point not in order[0]]
    order.append(choose_next_batch(left, {}, propose_by_model(ranking)))
    assert [[tuple(value for _, value in point) for point in batch] for batch in order] == [
        [(128, 3), (64, 3), (128, 2), (64, 2)],
        [(128, 4), (64, 4)],
    ]


def test_ranking_of_nothing_that_fits() -> None:
    ranking = rank_predictions([((("block", 512),), "too large")])
    assert (ranking.best, len(ranking.rejected)) == ((), 1)
