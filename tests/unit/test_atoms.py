"""The layout selector: its layers, the worked example of the tileiras book, and bank conflicts counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import stages

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.ir import warp
from tilec.ir.layout import SharedLayout, mma_accumulator, row_major_fragment, swizzled_layout, unswizzled_layout
from tilec.ir.tile import Kernel, walk_statements
from tilec.ops.copies.copy import Copy
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.shared.atoms import (
    AccessPattern,
    StorageCost,
    Sweep,
    compute_conflict_factor,
    compute_storage_cost,
    is_legal,
    list_candidate_layouts,
)
from tilec.support.options import CompileOptions, EnvironmentSwitches
from tilec.support.source import SourceFile
from tilec.target import table as targets
from tilec.target.table import LayoutWeights

Make = Callable[..., Kernel]
KERNELS = Path(__file__).parents[1] / "kernels"
SAMPLES = Path(__file__).parents[2] / "samples"
WEIGHTS = targets.load_target("sm_100a").weights

# A load of 128 × 64 float16 from shared memory.
LDSM_M88, LDSM_M816, BULK = StorageCost(4, 0, 32), StorageCost(2, 0, 64), StorageCost(1, 0, 0)


def choose_cheapest(*costs: StorageCost, weights: LayoutWeights = WEIGHTS) -> StorageCost:
    return min(costs, key=lambda cost: cost.rank(weights))


def test_the_worked_example() -> None:
    assert LayoutWeights(1, 4, 0.25) == WEIGHTS
    assert [cost.score(WEIGHTS) for cost in (LDSM_M88, LDSM_M816, BULK)] == [12, 18, 1]
    assert choose_cheapest(LDSM_M88, LDSM_M816, BULK) is BULK
    assert choose_cheapest(LDSM_M88, LDSM_M816) is LDSM_M88


def test_weights_are_data() -> None:
    assert choose_cheapest(LDSM_M88, LDSM_M816, weights=LayoutWeights(100, 4, 0.25)) is LDSM_M816
    assert StorageCost(0, 3, 0).score(WEIGHTS) == 12


def test_ties_go_to_registers_then_to_conflicts_then_to_the_first() -> None:
    a, b = StorageCost(2, 0, 8), StorageCost(4, 0, 0)
    assert a.score(WEIGHTS) == b.score(WEIGHTS)
    assert choose_cheapest(a, b) is b
    assert choose_cheapest(StorageCost(4, 0, 0, bank_conflicts=1), b) is b
    d = StorageCost(4, 0, 0)
    assert choose_cheapest(d, b) is d


# ---- bank conflicts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "pattern", "ways"),
    [
        (unswizzled_layout((64, 64), 2), "rows", 1),
        (unswizzled_layout((64, 64), 2), "matrix", 8),  # rows of 128 bytes: eight of them in the same four banks
        (unswizzled_layout((64, 32), 2), "matrix", 4),
        (unswizzled_layout((64, 16), 2), "matrix", 2),
        (unswizzled_layout((64, 24), 2), "matrix", 1),  # rows of 48 bytes take turns
        *((swizzled_layout((64, n), 2), "matrix", 1) for n in (16, 32, 64, 128)),
        *((swizzled_layout((64, n), 2), "rows", 1) for n in (16, 32, 64, 128)),
        (
            SharedLayout((64, 64), 2, 16, 32),
            "rows",
            4,
        ),  # a row lies in four panels that are a multiple of 128 bytes apart
        (unswizzled_layout((64, 32), 4), "columns", 32),
        (swizzled_layout((64, 32), 4), "columns", 4),
        (unswizzled_layout((64, 64), 4), "accumulator", 4),
        (swizzled_layout((64, 64), 4), "accumulator", 1),
        (unswizzled_layout((64, 64), 4), "tma", 1),
        (unswizzled_layout((64, 16), 1), "accumulator", 1),  # a byte for a thread: one turn, for 64 bytes
        (unswizzled_layout((32, 32), 1), "columns", 8),  # rows of 32 bytes: every fourth lies on the same bank
    ],
)
def test_bank_conflicts(layout: SharedLayout, pattern: AccessPattern, ways: float) -> None:
    assert compute_conflict_factor(layout, pattern) == ways


def test_candidates_and_what_rules_them_out(body: Make) -> None:
    (tile,) = body('s = T.alloc_shared((8, 64), "float16")\nT.clear(s)').buffers
    assert [c.swizzle for c in list_candidate_layouts(tile)] == [0, 128, 64, 32]
    assert not is_legal(unswizzled_layout((8, 64), 2), ["wgmma"])
    assert is_legal(swizzled_layout((8, 64), 2), ["wgmma", "tma"])
    assert not is_legal(unswizzled_layout((8, 512), 2), ["tma"])
    # Narrower panels are more and shorter rows of boxes; a swizzle takes threads a register, TMA none.
    wide, narrow = (compute_storage_cost(SharedLayout((128, 64), 2, w // 2, w), ["tma", "wgmma"]) for w in (128, 64))
    assert (wide.smem_transactions, narrow.smem_transactions) == (128 + 1 + 128, 256 + 2 + 128)
    assert (
        wide.live_registers == 0 and compute_storage_cost(swizzled_layout((128, 64), 2), ["rows"]).live_registers == 1
    )


# ---- kernels ---------------------------------------------------------------------------------------------------------


def assignment(kernel: Kernel, target: str = "sm_90a", **switches: bool) -> LayoutAssignment:
    return stages.assignment(kernel, target, switches=EnvironmentSwitches(**switches)).assignment


def swizzles(made: LayoutAssignment) -> dict[str, int]:
    return {name: layout.swizzle for name, layout in made.shared.items()}


TRANSPOSE = """
s = T.alloc_shared((64, 64), "float32")
t = T.alloc_shared((64, 64), "float32")
T.copy(A[0, 0], s)
T.copy(A[0, 0], t)
for i, j in T.Parallel(64, 64):
    A[i, j] = s[j, i] + t[i, j]
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_tile_that_is_read_by_columns_is_swizzled(body: Make, target: str) -> None:
    """And one that is not, is not: the plain address takes a register less."""
    made = body(TRANSPOSE, 'A: T.Tensor((64, 64), "float32")')
    assert swizzles(assignment(made, target)) == {"s": 128, "t": 0}


def test_always_swizzle(body: Make) -> None:
    made = body(TRANSPOSE, 'A: T.Tensor((64, 64), "float32")')
    assert swizzles(assignment(made, always_swizzle=True)) == {"s": 128, "t": 128}


def kernel_of(path: Path) -> Kernel:
    return driver.load_kernel(SourceFile(str(path), path.read_text()), CompileOptions(), driver.Observer())


def test_prefer_tma_stores_every_fragment_by_tma() -> None:
    def vias(prefer: bool) -> list[object]:
        found = assignment(kernel_of(SAMPLES / "softmax.tl"), prefer_tma=prefer)
        return [s.via for s in walk_statements(found.kernel.body) if isinstance(s, Copy)]

    assert vias(False) == ["registers", "registers"]
    assert vias(True) == ["registers", "registers", "tma_store"]


def waits(delay: bool) -> list[str]:
    path = SAMPLES / "gemm.tl"
    options = CompileOptions(switches=EnvironmentSwitches(delay_tma_store_wait=delay))
    made = driver.build_kernel(SourceFile("gemm.tl", path.read_text()), options, driver.Observer())
    (consumer,) = (role for role in made.program.roles if role.name == "consumer")
    names = [type(op).__name__ for op in warp.walk_operations(consumer.body)]
    return names[names.index("TmaStore") :]


def test_the_wait_for_a_tma_store_stands_where_the_environment_wants_it() -> None:
    assert waits(delay=False)[1] == "BulkWait"
    assert "BulkWait" in waits(delay=True)


@pytest.mark.parametrize(
    "switches",
    [
        EnvironmentSwitches(prefer_tma=True),
        EnvironmentSwitches(always_swizzle=True),
        EnvironmentSwitches(delay_tma_store_wait=False),
    ],
)
@pytest.mark.parametrize("name", ["softmax", "shared", "gemm_transposed"])
def test_kernels_are_right_with_every_switch(name: str, switches: EnvironmentSwitches) -> None:
    path = (SAMPLES if name == "softmax" else KERNELS) / f"{name}.tl"
    defines = (("M", 64),) if name == "softmax" else ()
    options = CompileOptions(switches=switches, defines=defines)
    made = driver.build_kernel(SourceFile(str(path), path.read_text()), options, driver.Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, seed=1)
    expected = found.copy()
    emulate.emulate_build(made, found)
    emulate.run_reference(made.kernel, expected)
    assert [
        r.name for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected) if not r.matches
    ] == []


def test_a_sweep_is_counted_thread_by_thread() -> None:
    """Rows of float32 that lie as an accumulator does: half a warp has four of them, and each thread two elements."""
    accumulator = Sweep(mma_accumulator((64, 64), 2, 2), (0, 1))
    needed = 64 * 64 * 4 // 128
    taken = {
        w: compute_storage_cost(SharedLayout((64, 64), 4, w // 4, w), [accumulator]).smem_transactions
        for w in (128, 32)
    }
    assert taken == {128: 2 * needed, 32: needed}
    rows = row_major_fragment((64, 64), 128, 4)
    assert compute_storage_cost(unswizzled_layout((64, 64), 4), [Sweep(rows, (0, 1))]).smem_transactions == needed
    transposed = compute_storage_cost(unswizzled_layout((64, 64), 4), [Sweep(rows, (1, 0))]).smem_transactions
    assert transposed > 8 * needed, "a plain tile by its columns"
