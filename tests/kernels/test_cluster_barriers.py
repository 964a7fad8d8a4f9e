"""Threads that arrive at barriers of other blocks of their cluster."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from harness import HERE, built
from test_adversary import compute

from tilec.driver.build import Build
from tilec.emu import Fault
from tilec.interp import run as interp
from tilec.ir.tile import Kernel
from tilec.support.diagnostics import CompileError

KERNEL = HERE / "cluster_barriers.tl"


@pytest.fixture(scope="module")
def made() -> Build:
    return built(KERNEL, "sm_90a")[1]


def test_right_on_every_machine(made: Build) -> None:
    assert all(compute(made, made.ptx, adversary) for adversary in range(4))


@pytest.mark.parametrize("pattern", [r"mbarrier\.arrive\.shared::cluster", r"mbarrier\.arrive\.shared::cta"])
def test_each_arrival_is_needed(made: Build, pattern: str) -> None:
    lines = made.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    assert places
    for place in places:
        with pytest.raises(Fault):
            compute(made, "\n".join([*lines[:place], "", *lines[place + 1 :]]), None)


def test_no_block_is_signalled_before_it_begins_or_after_it_ends(made: Build) -> None:
    """The first block or the other waits for the cluster, which is not waited for."""
    meetings = [m.start() for m in re.finditer(r"barrier\.cluster\.(arrive|wait)", made.ptx)]
    assert len(meetings) == 4
    for begin in (0, 2):
        first, last = meetings[begin], made.ptx.index(";", meetings[begin + 1]) + 1
        mutant = made.ptx[:first] + made.ptx[last:]
        with pytest.raises(Fault):
            assert not [compute(made, mutant, adversary) for adversary in (None, 0, 1, 2, 3)]


STUCK = """
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    with T.Kernel(2, threads=256, cluster_dims=2):
        bar = T.alloc_cluster_barrier(128)
        with T.ws(0):
            if T.block_rank_in_cluster() == 0:
                T.mbarrier_arrive(bar, 1)
        with T.ws(1):
            T.barrier_wait(bar, 0)
"""


def test_the_reference_names_a_wait_that_no_block_ends(kernel: Callable[..., Kernel]) -> None:
    with pytest.raises(CompileError) as error:
        interp.run_kernel(kernel(STUCK), {"A": np.zeros(64, np.float32)})
    (found,) = error.value.diagnostics
    assert found.code == "deadlock"
