"""Whether a grid is persistent, and in which order its blocks go: by how long they take, dealt out in each way."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tilec.driver import build as driver
from tilec.ir.tile import Raster, Var
from tilec.ir.types import INT32
from tilec.passes.cost.block_order import BALANCING, BlockEstimate, estimate_blocks, simulate_persistent
from tilec.passes.cost.model import simulate_dynamic
from tilec.passes.grid.rasterisation_order import list_places
from tilec.passes.grid.rasterise import AS_NUMBERED, locate_tile
from tilec.rewriting.fold_constants import compute_expr
from tilec.sched.decision import Decision
from tilec.support.files import read_source
from tilec.support.options import CompileOptions, TileScheduler
from tilec.target.table import load_target

SAMPLES = Path(__file__).parents[2] / "samples"


def decided(
    sample: str, target: str = "sm_90a", asked: TileScheduler = "auto", what: str = "persistent grid"
) -> Decision:
    options = CompileOptions(target=target, tile_scheduler=asked)
    plan = driver.plan_kernel(read_source(str(SAMPLES / sample)), options, driver.Observer())
    return next(each for each in plan.decisions if each.what == what)


def test_blocks_of_one_length_walk() -> None:
    found = decided("gemm/cluster.tl")
    assert found.chosen == "132 blocks walk over 16 × 32"
    walked, stays = found.alternatives
    assert walked.price is not None
    assert stays.price is not None
    assert walked.price < stays.price


def test_blocks_of_a_causal_kernel_do_not() -> None:
    found = decided("attention/causal.tl")
    assert found.chosen == "no"
    stays, walked = found.alternatives
    assert walked.price is not None
    assert stays.price is not None
    # By hand: 512 blocks of 2, 4, … 64 iterations; by a stride of 132 the first block has those of 64, 56, 48 and 40,
    # 1.54 times as much as each would have of all.
    assert walked.price / stays.price == pytest.approx(1.23, abs=0.05)


def test_who_says_how_tiles_are_given_wants_them_given() -> None:
    found = decided("attention/causal.tl", asked="static")
    assert (found.chosen, found.by) == ("132 blocks walk over 32 × 16 × 1", "the command line")


def test_where_the_machine_hands_out_tiles_blocks_may_differ() -> None:
    assert decided("attention/causal.tl", "sm_100a").chosen.startswith("148 blocks walk")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_the_longest_blocks_of_all_heads_begin_first(target: str) -> None:
    """Also where the machine hands them out."""
    found = decided("attention/causal.tl", target, what="rasterisation")
    assert found.chosen == "y first"
    x_first, y_first = found.alternatives
    assert x_first.price is not None
    assert y_first.price is not None
    assert y_first.price < 0.9 * x_first.price


def test_the_machine_deals_out_what_differs_in_length() -> None:
    found = decided("attention/causal.tl", "sm_100a", what="tile scheduler")
    assert found.chosen == "launch control"
    dealt, by_stride = found.alternatives
    assert dealt.price is not None
    assert by_stride.price is not None
    assert dealt.price < 0.9 * by_stride.price


def test_where_a_stride_deals_them_out_long_blocks_meet_short_ones() -> None:
    decision = decided("attention/causal.tl", asked="static", what="rasterisation")
    stride, balanced = decision.alternatives
    assert decision.chosen == balanced.answer != stride.answer and balanced.price < stride.price


@pytest.mark.parametrize("raster", [AS_NUMBERED, *BALANCING, Raster(3), Raster(5, by_rows=False)])
@pytest.mark.parametrize(("width", "depth"), [(1, 7), (6, 1), (5, 8), (8, 4)])
def test_places_are_those_that_blocks_compute(raster: Raster, width: int, depth: int) -> None:
    if 1 in (width, depth):
        raster = AS_NUMBERED  # as `locate_tile`
    number = Var("number", INT32)
    located = [
        [compute_expr(part, {number: at}) for part in locate_tile(number, width, depth, raster)]
        for at in range(width * depth)
    ]
    assert [tuple(place) for place in located] == list_places(width, depth, raster)


def test_blocks_of_one_length_go_in_panels() -> None:
    assert decided("gemm/cluster.tl", what="rasterisation").chosen.startswith("panels of")


def test_each_block_is_looked_at_once_for_what_decides_it() -> None:
    options = CompileOptions(target="sm_90a", persistent=False, rasterisation=0, defines=(("block_N", 64),))
    assignment, target = driver.assign_kernel_layouts(read_source(str(SAMPLES / "attention/causal.tl")), options)
    tiles = estimate_blocks(assignment, target, 1 << 14)
    assert tiles is not None
    assert len(tiles) == 32 * 16
    assert tiles[:32] == tiles[32:64]
    cycles = [each.cycles for each in tiles[:32]]
    assert cycles == sorted(cycles, reverse=True)
    steps = {before - after for before, after in pairwise(cycles[:-1])}
    assert max(steps) - min(steps) <= 2
    assert estimate_blocks(assignment, load_target("sm_90a"), 511) is None


@pytest.mark.parametrize(
    ("cycles", "one_each", "by_stride", "dealt"),
    [
        ([10, 10, 10, 10], 20, 18, 18),
        # The first block has 10 and 6, the second 1 and 1; dealt out, the second does all of the rest.
        ([10, 1, 6, 1], 10, 14, 10),
        ([10], 10, 10, 10),
        ([1, 1, 10], 11, 9, 9),
    ],
)
def test_blocks_dealt_out_by_hand(cycles: list[int], one_each: int, by_stride: int, dealt: int) -> None:
    """On two multiprocessors; of each tile but the first of a block min(2, 3) cycles are hidden, but no more than it
    takes."""
    tiles = [BlockEstimate(each, filling=min(2, each), around=min(3, each)) for each in cycles]
    assert simulate_dynamic(cycles, 2) == one_each
    assert simulate_persistent(tiles, 2, is_dealt=False) == by_stride
    assert simulate_persistent(tiles, 2, is_dealt=True) == dealt
