"""Pipelines whose stages lie in tensor memory: what tcgen05.mma sums up is handed to the role that stores it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from harness import SAMPLES, built
from test_explicit_roles import right

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.ir.warp import Arrive, TensorArrive, walk_operations

SAMPLE = SAMPLES / "gemm" / "pipeline_objects.tl"
TARGET = "sm_100a"
SMALL = {"block_M": 128, "block_N": 64, "block_K": 64, "sms": 1, "group_size": 1, "tensor_memory": True}


def made(**sizes: int) -> Build:
    return built(SAMPLE, TARGET, **{**SMALL, **sizes})[1]


def equals_numpy(kernel: Build, adversary: int | None) -> None:
    given = emulate.draw_arguments(kernel.kernel, kernel.manifest, 3)
    wanted = given.tensors["A"].astype(np.float32) @ given.tensors["B"].astype(np.float32)
    reference = given.copy()
    emulate.run_reference(kernel.kernel, reference)
    emulate.emulate_build(kernel, given, options=RunOptions(adversary=adversary))
    for found in (reference, given):
        np.testing.assert_allclose(found.tensors["C"].astype(np.float32), wanted, rtol=2e-3, atol=2e-3 * wanted.max())


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("trip_count", [1, 2, 3, 4])
@pytest.mark.parametrize("tiles", [1, 2, 3, 5])
def test_trip_counts_on_a_hostile_machine(tiles: int, trip_count: int, stages: int) -> None:
    """Of the inputs and of the sums, of which there are two: one, as many as there are stages, more."""
    kernel = made(M=128 * tiles, N=64, K=64 * trip_count, stages=stages)
    for adversary in (None, tiles + trip_count):
        equals_numpy(kernel, adversary)


def test_ragged_edges_and_several_blocks() -> None:
    equals_numpy(made(M=264, N=200, K=200, sms=3, group_size=2), 1)


def test_who_arrives() -> None:
    """The tensor cores, where only they work on a stage; else each warp once."""
    program = made(M=256, N=64, K=128).program
    arrivals = {b.name: b.counts for b in program.barriers}
    assert arrivals["inputs_empty"] == (1,) * 3 and arrivals["outputs_full"] == (1, 1)
    assert arrivals["inputs_full"] == (4,) * 3 and arrivals["outputs_empty"] == (8, 8)
    loading, multiplying, storing = ([*walk_operations(role.body)] for role in program.roles)
    assert not any(isinstance(op, Arrive) for op in multiplying)
    assert [op.barrier.name for op in multiplying if isinstance(op, TensorArrive)] == ["inputs_empty", "outputs_full"]
    assert all(op.by_warps for op in (*loading, *storing) if isinstance(op, Arrive))


# ---- that all of it is needed ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def needed() -> Build:
    """More tiles than there are sums, more iterations than stages; right as it is."""
    kernel = made(M=640, N=64, K=320, stages=2)
    assert all(right(kernel, kernel.ptx, adversary) for adversary in (None, 0, 1))
    return kernel


def caught(kernel: Build, mutant: str) -> bool:
    assert mutant != kernel.ptx
    return not all(right(kernel, mutant, adversary) for adversary in (None, *range(8)))


def without(kernel: Build, pattern: str) -> list[str]:
    """The PTX without each line that has the pattern."""
    lines = kernel.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    return ["\n".join([*lines[:place], "", *lines[place + 1 :]]) for place in places]


@pytest.mark.parametrize(
    "pattern",
    [
        r"mbarrier\.arrive",  # a release by threads
        r"mbarrier\.(arrive\.)?expect_tx",
        r"tcgen05\.commit",  # a release by the tensor cores
        r"tcgen05\.wait::ld",
        r"tcgen05\.(alloc|dealloc)",
    ],
)
def test_nothing_can_be_left_out(needed: Build, pattern: str) -> None:
    mutants = without(needed, pattern)
    assert mutants and all(caught(needed, mutant) for mutant in mutants)


@pytest.mark.weekly
def test_each_acquire_is_needed(needed: Build) -> None:
    loads, _, _, products, epilogue = without(needed, r"bra \$L\d+_wait")  # the second one is that of the drain
    assert all(caught(needed, mutant) for mutant in (loads, products, epilogue))
    soon = made(M=1280, N=64, K=64)  # sums that are done before the epilogue has read those before
    assert right(soon, soon.ptx, 0)
    assert caught(soon, without(soon, r"bra \$L\d+_wait")[2])


@pytest.mark.parametrize("fence", ["before_thread_sync", "after_thread_sync"])
def test_fences_are_needed(needed: Build, fence: str) -> None:
    """Some of them serve in other orders only, so all of a kind together."""
    assert caught(needed, needed.ptx.replace(f"tcgen05.fence::{fence};", ""))


def waits(ptx: str) -> list[re.Match[str]]:
    return list(re.finditer(r"try_wait\.parity\S* %p\d+, \[%r\d+\+(\d+)\]", ptx))


def test_each_side_waits_at_its_own_barriers(needed: Build) -> None:
    """Each acquire at the other barrier of its stage: `full` for `empty`, and `empty` for `full`."""
    first = min(int(place) for place in re.findall(r"mbarrier\.init[^\[]*\[%\w+\+(\d+)\]", needed.ptx))
    found = waits(needed.ptx)
    assert len(found) == 5  # the second one is that of the drain
    for wait in (found[0], *found[2:]):
        there = int(wait[1])
        other = there - 16 if (there - first) // 16 % 2 else there + 16
        assert caught(needed, needed.ptx[: wait.start(1)] + str(other) + needed.ptx[wait.end(1) :]), wait[0]


def moved(ptx: str, what: str, before: str) -> str:
    """The PTX with the last line that has `what` in front of the last one that has `before`."""
    lines = ptx.split("\n")
    here = max(place for place, line in enumerate(lines) if re.search(what, line))
    there = max(place for place, line in enumerate(lines) if re.search(before, line))
    assert there < here
    return "\n".join([*lines[:there], lines[here], *lines[there:here], *lines[here + 1 :]])


def test_a_sum_is_not_read_after_its_release(needed: Build) -> None:
    """The epilogue's arrival in front of its load."""
    assert caught(needed, moved(needed.ptx, r"mbarrier\.arrive", r"tcgen05\.ld"))


def test_a_sum_is_not_handed_on_before_it_is_whole(needed: Build) -> None:
    """The commit of the sum in front of the products."""
    assert caught(needed, moved(needed.ptx, r"tcgen05\.commit", r"tcgen05\.mma"))
