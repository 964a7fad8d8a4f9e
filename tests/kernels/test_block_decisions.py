"""What the compiler decides at -O3 about the blocks of a product: pairs, the order of tiles. The right thing for the
shapes that it is for, and right results for every type and way of storing."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from harness import HERE, SAMPLES

from tilec.driver.build import Build, Observer, Plan, build_kernel, plan_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.ir.warp import TmaLoad
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TYPES = HERE / "gemm_types.tl"
GEMM = SAMPLES / "gemm.tl"
MATMUL = HERE.parents[1] / "benchmarks" / "kernels" / "matmul.tl"
AT_ONCE = 8


def options(asked: dict[str, Any], defines: dict[str, Any]) -> CompileOptions:
    return CompileOptions(defines=tuple(defines.items()), **asked)


def source(path: Path) -> SourceFile:
    return SourceFile(path.name, path.read_text(encoding="utf-8"))


def planned(path: Path, asked: dict[str, object] | None = None, **defines: object) -> Plan:
    return plan_kernel(source(path), options(asked or {}, defines), Observer())


def decided(made: Plan) -> dict[str, str]:
    return {decision.what: decision.chosen for decision in made.decisions}


# ---- which decisions -------------------------------------------------------------------------------------------------

LARGE = {"M": 4096, "N": 4096, "K": 4096}


@pytest.mark.parametrize("tile", [(128, 256), (256, 128), (128, 128)])
def test_a_large_product(tile: tuple[int, int]) -> None:
    """Wide tiles come as fast as they are multiplied, so that pairs save nothing; by the model 128 x 128 does not."""
    made = planned(GEMM, **LARGE, block_M=tile[0], block_N=tile[1], num_stages=4 if max(tile) == 128 else 3)
    found = decided(made)
    assert found["cluster"] == ("2x1" if max(tile) == 128 else "none")
    assert found["persistent grid"] == f"132 blocks walk over {4096 // tile[1]} × {4096 // tile[0]}"
    assert found["rasterisation"].startswith("panels of ")
    assert made.assignment.kernel.grid == (132,)


@pytest.mark.parametrize(
    ("tile", "cluster", "multicast"), [((64, 128), "1x2", "B_shared along y"), ((128, 64), "2x1", "A_shared along x")]
)
def test_a_product_that_the_cache_bounds(tile: tuple[int, int], cluster: str, multicast: str) -> None:
    """Small tiles need more bytes for a product than the L2 cache delivers: pairs load the larger one once."""
    made = planned(GEMM, **LARGE, block_M=tile[0], block_N=tile[1], threads=128, num_stages=4)
    (decision,) = (each for each in made.decisions if each.what == "cluster")
    assert (decision.chosen, decided(made)["multicast"]) == (cluster, multicast)
    prices = {each.answer: each.price for each in decision.alternatives}
    assert None not in prices.values() and prices[cluster] < prices["none"] * 0.95
    x, y, _ = made.assignment.kernel.cluster.extents
    assert made.assignment.kernel.grid == ((264,) if y == 1 else (132, 2)) and x * y == 2


@pytest.mark.parametrize(
    ("constants", "roles"),
    [({**LARGE, "num_stages": 3}, "all warps alike"), ({**LARGE, "num_stages": 4}, "producer, consumer"),
     ({**LARGE, "K": 128, "num_stages": 3}, "producer, consumer"),
     ({**LARGE, "num_stages": 3, "block_N": 256}, "producer, consumer")],
)  # fmt: skip
def test_a_ring_too_short_for_its_loads(constants: dict[str, int], roles: str) -> None:
    """Three stages stall a product; two blocks of a multiprocessor hide that, if the loop is long and two fit."""
    assert decided(planned(GEMM, **constants))["roles"] == roles


@pytest.mark.parametrize(("threads", "blocks"), [(128, 264), (256, 132)])
def test_blocks_of_a_persistent_grid_that_share_a_multiprocessor(threads: int, blocks: int) -> None:
    """A block of one consumer warpgroup and 64 columns leaves room for another one; one of two does not."""
    sizes = {**LARGE, "block_N": 64 if threads == 128 else 128, "block_K": 32 if threads == 128 else 64}
    found = decided(planned(GEMM, **sizes, threads=threads, num_stages=4))
    assert found["persistent grid"].startswith(f"{blocks} blocks walk over ")


@pytest.mark.parametrize(
    ("asked", "what", "chosen", "by"),
    [
        ({"cluster": (1, 1, 1)}, "cluster", "none", "the command line"),
        ({"cluster": (2, 2, 1)}, "cluster", "2x2", "the command line"),
        ({"multicast": False}, "cluster", "none", "the compiler"),
        ({}, "cluster", "2x1", "the compiler"),
        ({"cluster": (2, 1, 1)}, "multicast", "A_shared along x", "the compiler"),
        ({"persistent": False}, "persistent grid", "no", "the command line"),
        ({"pipeline_strategy": "unspecialize"}, "persistent grid", "no", "the compiler"),
        ({"pipeline_strategy": "unspecialize"}, "roles", "all warps alike", "the command line"),
        ({"opt_level": 2}, "cluster", "none", "the compiler"),
        ({"opt_level": 2}, "rasterisation", "x first", "the compiler"),
        ({"rasterisation": 0}, "rasterisation", "x first", "the command line"),
        ({"rasterisation": 4}, "rasterisation", "panels of 4 columns", "the command line"),
        ({}, "roles", "producer, consumer", "the compiler"),
        ({}, "consumer warpgroups", "2 warpgroups", "the kernel"),
        ({}, "programmatic dependent launch", "yes", "the compiler"),
        ({"pdl": False}, "programmatic dependent launch", "no", "the command line"),
        ({"opt_level": 2}, "programmatic dependent launch", "no", "the compiler"),
        ({"pipeline_strategy": "unspecialize"}, "programmatic dependent launch", "yes", "the compiler"),
        (
            {"pipeline_strategy": "unspecialize", "tma_loads": False},
            "programmatic dependent launch",
            "no",
            "the compiler",
        ),
    ],
)
def test_each_decision_has_its_switch(asked: dict[str, object], what: str, chosen: str, by: str) -> None:
    (decision,) = [d for d in planned(GEMM, asked, **LARGE).decisions if d.what == what]
    assert (decision.chosen, decision.by) == (chosen, by) and decision.why


@pytest.mark.parametrize(
    ("path", "defines"),
    [
        (GEMM, {}),  # 64 blocks run at once
        (GEMM, {"M": 128 * 13, "N": 128 * 11}),  # neither extent is even
        (SAMPLES / "gemm" / "dynamic.tl", {"N": 8192}),
        (SAMPLES / "flash_attention.tl", {"causal": True}),
        (SAMPLES / "gemm" / "stream_k.tl", {}),
        (SAMPLES / "gemm" / "split_k.tl", {}),
        (SAMPLES / "gemm" / "persistent.tl", {}),
        (SAMPLES / "gemm" / "grouped.tl", {}),
    ],
    ids=["one wave", "odd", "at launch", "causal", "stream-K", "split-K", "by hand", "grouped"],
)
def test_no_pairs(path: Path, defines: dict[str, object]) -> None:
    assert decided(planned(path, **defines))["cluster"] == "none"


@pytest.mark.parametrize(
    ("name", "constants", "what", "chosen"),
    [
        # Two blocks of a multiprocessor hide the waits of each other's statements; alone, a producer warp is better.
        ("gemm/sparse_2_4", {**LARGE, "block_N": 128}, "roles", "all warps alike"),
        ("flash_attention", {}, "roles", "producer, consumer"),
        # Threads load the weights of each head themselves, ahead of barriers only where they need not be coherent.
        ("models/lightning_indexer", {}, "programmatic dependent launch", "no"),
        # Blocks grow longer along x: every other panel goes backwards, and they end together.
        ("attention/backward_dq", {"S": 8192, "D": 128}, "rasterisation", "panels of 8 rows"),
        # Warpgroups that take turns gain nothing by parts of tiles.
        ("attention/backward_dq", {"S": 8192, "heads": 32}, "subtile", "none"),
        # Neighbours along y select the matrix of one expert as a rule: a wave of low panels reads few of its columns.
        (
            "gemm/grouped",
            {"rows": 8192, "groups": 8, "N": 14336, "K": 4096},
            "rasterisation",
            "panels of 11 columns",
        ),
        # Turns at the tensor cores order exponentials no better than chance.
        ("flash_attention", {"D": 64, "block_M": 128}, "ping-pong", "no"),
        # Alternating saves more than it costs in long iterations only.
        ("flash_attention", {}, "ping-pong", "2 warpgroups"),
        ("attention/causal", {"block_N": 64}, "ping-pong", "no"),
        # Some tiles have no rows, as only data know.
        ("attention/varlen", {"batch": 8, "longest": 4096}, "persistent grid", "no"),
        ("models/warp_specialised_gemm", {"M": 8192, "N": 8192, "K": 4096}, "rasterisation", "panels of 8 columns"),
    ],
)
def test_choices_that_were_measured(name: str, constants: dict[str, object], what: str, chosen: str) -> None:
    """The faster of two on an H200 (benchmarks/results/h200-2026-11-26-c30a4ca2/decided.json)."""
    assert decided(planned(SAMPLES / f"{name}.tl", **constants))[what] == chosen


@pytest.mark.parametrize("name", ["stream_k", "split_k", "persistent"])
def test_products_that_share_work_out_themselves_are_left_alone(name: str) -> None:
    made = planned(SAMPLES / "gemm" / f"{name}.tl")
    found = decided(made)
    assert (found["persistent grid"], found["rasterisation"]) == ("no", "x first")
    assert made.assignment.kernel.grid == made.kernel.grid


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8"])
def test_pairs_of_large_tiles_keep_their_registers(dtype: str) -> None:
    """What a product at full speed becomes: no spill, no serialised wgmma, no local memory."""
    defines: dict[str, object] = {"M": 4096, "N": 4096, "K": 4096, "dtype": dtype, "trans_B": True}
    if dtype != "bfloat16":
        defines |= {"block_K": 128}
    if dtype == "int8":
        defines |= {"accum_dtype": "int32", "out_dtype": "int32"}
    asked = {"cluster": (1, 2, 1), "pipeline_strategy": "warp-specialize"}
    made = build_kernel(source(MATMUL), options(asked, defines), Observer())
    (entry,) = made.entries
    assert made.warnings == () and made.manifest.cluster == (1, 2, 1) and "multicast" in made.ptx
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)


def test_what_the_kernel_says_is_obeyed() -> None:
    made = planned(SAMPLES / "gemm" / "cluster.tl", {"rasterisation": 3})
    found = {d.what: (d.chosen, d.by) for d in made.decisions}
    assert found["cluster"] == ("1x2", "the kernel")
    assert found["rasterisation"] == ("panels of 8 rows", "the kernel")
    assert found["persistent grid"][0].startswith("132 blocks walk over")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("while B[0, 0] < 0:\n            T.clear(C_local)", "wait for earlier blocks"),
        (
            "for i in T.Parallel(4):\n            before = T.atomic_add(C[0, i], 1.0, return_prev=True)\n"
            "            C[1, i] = before",
            "wait for earlier blocks",
        ),
    ],
)
def test_blocks_that_may_wait_for_others_keep_their_order(statement: str, why: str) -> None:
    text = MATMUL.read_text(encoding="utf-8").replace(
        "T.clear(C_local)\n", f"T.clear(C_local)\n        {statement}\n", 1
    )
    asked = options({}, {"out_dtype": "float32"})
    (decision,) = [
        d for d in plan_kernel(SourceFile("k.tl", text), asked, Observer()).decisions if d.what == "rasterisation"
    ]
    assert decision.chosen == "x first" and why in decision.why


def test_small_tensors_are_walked_plainly() -> None:
    (decision,) = [d for d in planned(GEMM, M=2048, N=2048, K=2048).decisions if d.what == "rasterisation"]
    assert decision.chosen == "x first" and "L2" in decision.why


def test_plans_do_not_change() -> None:
    assert planned(GEMM, **LARGE).trace == planned(GEMM, **LARGE).trace


# ---- right results ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs eight blocks at once, and whose cache is too small for anything."""

    def at_once(_: object, cluster: int) -> int:
        return AT_ONCE // cluster * cluster

    for name in ("choose_persistent_grid", "choose_tile_scheduler", "choose_rasterisation"):
        monkeypatch.setattr(f"tilec.passes.choices.{name}.blocks_at_once", at_once)
    monkeypatch.setattr("tilec.passes.choices.choose_persistent_grid.estimate_residency", lambda *_: 1)
    monkeypatch.setattr("tilec.passes.choices.choose_rasterisation.fits_in_cache", lambda kernel, target: False)


def is_right(made: Build, seed: int | None) -> bool:
    found = emulate.draw_arguments(made.kernel, made.manifest, seed or 0)
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=seed))
    emulate.run_reference(made.kernel, expected)
    return all(result.matches for result in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


def shared(made: Build) -> set[str]:
    return {op.shared for op in made.program.operations() if isinstance(op, TmaLoad)}


FAMILY = [
    *(("float16", "float32", stored) for stored in ("NN", "NT", "TN", "TT")),
    ("bfloat16", "float32", "NN"), ("float8_e4m3fn", "float32", "NT"), ("float8_e4m3fn", "float32", "NN"),
    ("int8", "int32", "NT"), ("int8", "int32", "TN"), ("float32", "float32", "NT"),
]  # fmt: skip


@pytest.mark.weekly
@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(("dtype", "accumulator", "stored"), FAMILY)
@pytest.mark.parametrize("wide", [False, True], ids=["tall", "wide"])
def test_pairs_of_every_type(dtype: str, accumulator: str, stored: str, wide: bool) -> None:
    """5 × 6 tiles, or 6 × 5, that hang over: pairs along the even extent, in two waves, the last of which is not full.
    The tile is as wide as high, so that either side can be shared."""
    depth = {"float32": 32, "float16": 64, "bfloat16": 64}.get(dtype, 128)
    M, N = (5 * 64 - 16, 6 * 64 - 32) if wide else (6 * 64 - 32, 5 * 64 - 16)
    defines = {
        "dtype": dtype, "other": dtype, "accumulator": accumulator, "out": accumulator, "tA": stored[0] == "T",
        "tB": stored[1] == "T", "M": M, "N": N, "K": 3 * depth, "bM": 64, "bN": 64, "bK": depth, "num_stages": 2,
    }  # fmt: skip
    pair = (2, 1, 1) if wide else (1, 2, 1)
    made = build_kernel(source(TYPES), options({"cluster": pair}, defines), Observer())
    assert made.manifest.cluster == pair
    assert shared(made) == {"", "x" if wide else "y"}
    for seed in (None, 1, 2):
        assert is_right(made, seed)


@pytest.mark.weekly
@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("raster", [None, 0, 1, 2, 5])
def test_orders(raster: int | None) -> None:
    """In a batch; 7 × 6 × 2 tiles."""
    defines = {"rank": 3, "batch": 2, "M": 384, "N": 448}
    for cluster in ((1, 1, 1), (1, 2, 1)):
        asked = {"rasterisation": raster, "cluster": cluster}
        made = build_kernel(source(HERE / "persistent_grid.tl"), options(asked, defines), Observer())
        assert made.manifest.cluster == cluster
        for seed in (None, 1):
            assert is_right(made, seed)


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(("target", "persistent"), [("sm_90a", False), ("sm_80", True)])
def test_orders_of_plain_grids(target: str, persistent: bool) -> None:
    defines = {"rank": 3, "batch": 2, "M": 384, "N": 448}
    asked: dict[str, object] = {"target": target, "persistent": persistent}
    found = decided(plan_kernel(source(HERE / "persistent_grid.tl"), options(asked, defines), Observer()))
    assert found["rasterisation"].startswith("panels of ")
    made = build_kernel(source(HERE / "persistent_grid.tl"), options(asked, defines), Observer())
    assert made.manifest.grid == (7, 6, 2)
    assert is_right(made, None)


@pytest.mark.weekly
@pytest.mark.usefixtures("small_machine")
def test_depths_and_pairs() -> None:
    """Fewer iterations than the ring is deep, as many, and more."""
    for trip_count, stages in itertools.product((1, 3, 4), (2, 3)):
        defines = {"M": 384, "N": 320, "K": trip_count * 64, "bM": 64, "bN": 64, "num_stages": stages}
        made = build_kernel(source(TYPES), options({"cluster": (1, 2, 1)}, defines), Observer())
        assert made.manifest.cluster == (1, 2, 1)
        assert is_right(made, trip_count)
