"""A wait for a cluster is a barrier of the block only right behind an arrival that releases: what threads do in
between, or before they arrive with nothing else to say, is not handed on by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """
import tilelang.language as T


@T.prim_func
def swapped(A: T.Tensor((4, 128), "float32"), B: T.Tensor((4, 128), "float32")):
    with T.ClusterKernel(4, cluster_dims=2, threads=64) as bx:
        tile = T.alloc_shared((128,), "float32")
        T.copy(A[bx, 0], tile)
        {meeting}
        for i in T.Parallel(128):
            B[bx, i] = tile[127 - i] + 1.0
"""
RENDEZVOUS = {
    "relaxed": ["T.cluster_arrive_relaxed()", "T.cluster_wait()"],
    "released": ["T.cluster_arrive()", "T.cluster_wait()"],
    "together": ["T.cluster_sync()"],
    "between": [
        "T.cluster_arrive()",
        "for i in T.Parallel(128):",
        "    tile[i] = tile[i] * 2.0",
        "T.cluster_wait()",
    ],
}


def built(name: str, target: str) -> driver.Build:
    text = KERNEL.format(meeting="\n        ".join(RENDEZVOUS[name]))
    return driver.build_kernel(SourceFile("k.tl", text), CompileOptions(target=target), driver.Observer())


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", RENDEZVOUS)
def test_what_threads_do_before_they_meet_is_known_behind_it(name: str, target: str) -> None:
    made = built(name, target)
    for adversary in (None, 1, 2, 3):
        found = emulate.draw_arguments(made.kernel, made.manifest, 0)
        expected = found.copy()
        emulate.emulate_build(made, found, options=RunOptions(adversary=adversary))
        emulate.run_reference(made.kernel, expected)
        assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.parametrize("name", ["relaxed", "between"])
def test_a_wait_that_hands_nothing_on_is_no_barrier(name: str) -> None:
    """Without the barriers beside it the verifier refuses the program."""
    program = built(name, "sm_90a").program
    (role,) = program.roles
    bare = tuple(op for op in role.body if not isinstance(op, warp.BarSync))
    assert len(bare) < len(role.body)
    assert list(program_violations(program)) == []
    assert any("no barrier" in said for said in program_violations(replace(program, roles=(replace(role, body=bare),))))
