"""Loops of hand-made roles that acquire stages: the scheduler orders what stands between the waits and arrivals."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """
import tilelang.language as T

M, N, trips, stages = 64, 64, 4, 2


# What is computed of a tile keeps the stage no longer than its copy; two pipelines, and a sum that needs neither.
@T.prim_func
def kernel(
    A: T.Tensor((trips * M, N), "float16"), B: T.Tensor((trips * M, N), "float16"),
    C: T.Tensor((trips * M, N), "float32"), D: T.Tensor((M,), "float32"),
):
    with T.Kernel(1, threads=256):
        A_s = T.alloc_shared((M, N), "float16")
        B_s = T.alloc_shared((M, N), "float16")
        left = T.InputTilePipeline(A_s, stages)
        right = T.InputTilePipeline({"tile": B_s}, stages)
        a = T.alloc_fragment((M, N), "float16")
        b = T.alloc_fragment((M, N), "float16")
        e = T.alloc_fragment((M, N), "float32")
        total = T.alloc_fragment((M,), "float32")
        sum = T.alloc_fragment((M,), "float32")
        with T.ws(1):
            for k in T.serial(trips):
                with left.producer().acquire() as tiles:
                    T.copy(A[k * M, 0], tiles.A_s)
                with right.producer().acquire() as tiles:
                    T.copy(B[k * M, 0], tiles.tile)
        with T.ws(0):
            T.clear(total)
            for k in T.serial(trips):
                row = k * M
                first = left.acquire_consumer()
                T.copy(first.A_s, a)
                for i, j in T.Parallel(M, N):
                    e[i, j] = T.exp(a[i, j])
                T.reduce_sum(e, sum, dim=1)
                for i in T.Parallel(M):
                    total[i] += sum[i]
                first.release()
                with right.consumer().acquire() as tiles:
                    T.copy(tiles.tile, b)
                    for i, j in T.Parallel(M, N):
                        e[i, j] *= b[i, j]
                    T.copy(e, C[row, 0])
            T.copy(total, D)
"""
TARGETS = ("sm_80", "sm_90a", "sm_100a")


def made(target: str, **options: Any) -> Build:
    return build_kernel(SourceFile("roles.tl", KERNEL), CompileOptions(target=target, **options), Observer())


def equals_numpy(kernel: Build, adversary: int | None = None) -> None:
    given = emulate.draw_arguments(kernel.kernel, kernel.manifest, 1)
    a, b = (given.tensors[name].astype(np.float32) for name in "AB")
    rows = kernel.kernel.params[3].shape[0]
    emulate.emulate_build(kernel, given, options=RunOptions(adversary=adversary))
    np.testing.assert_allclose(given.tensors["C"], np.exp(a) * b, rtol=4e-3, atol=4e-3)
    np.testing.assert_allclose(given.tensors["D"], np.exp(a).sum(1).reshape(-1, rows).sum(0), rtol=4e-3)


def loops(kernel: Build) -> dict[str, dict[str, Any]]:
    return {loop["name"]: loop for loop in json.loads(kernel.trace)["tilec"]["loops"]}


def in_turn(loop: dict[str, Any]) -> list[str]:
    return [loop["ops"][place]["name"] for place in loop["order"]]


@pytest.mark.parametrize("target", TARGETS)
def test_a_stage_is_given_back_before_what_does_not_need_it(target: str) -> None:
    """The scheduler's order, in the trace and in the code: the first stage is released before its sum is made."""
    kernel = made(target)
    taking = loops(kernel)["kernel.warpgroup_0.k_1"]
    names = in_turn(taking)
    assert taking["status"] == "optimal" and taking["stages"] == 1
    turns = ["acquire left", "release left", "acquire right", "release right"]
    assert [name for name in names if name in turns] == turns
    assert names.index("release left") < names.index("reduce e, sum")
    role = next(r for r in json.loads(kernel.trace)["tilec"]["roles"] if r["name"] == "warpgroup_0")
    listed = [s["name"] for s in role["statements"]]
    first = listed.index("acquire left")
    assert listed[first : first + 8] == [n for n in names if not n.startswith("bind")][:8]
    for adversary in (None, 1, 2):
        equals_numpy(kernel, adversary)


def test_loops_run_as_written_without_a_scheduler() -> None:
    kernel = made("sm_90a", pipeline_strategy="none")
    assert loops(kernel) == {}
    equals_numpy(kernel)


@pytest.mark.parametrize("seed", range(6))
def test_any_order_that_keeps_the_edges_is_right(seed: int) -> None:
    """Statements in a random order that the problem's edges allow, by way of the trace."""
    generator = random.Random(seed)
    first = made("sm_90a")
    trace = json.loads(first.trace)
    for loop in trace["tilec"]["loops"]:
        before: dict[int, set[int]] = {op: set() for op in range(len(loop["ops"]))}
        for edge in loop["edges"]:
            before[edge["dst"]].add(edge["src"])
        at = 0
        while before:
            op = generator.choice([op for op, needed in before.items() if not needed])
            del before[op]
            for needed in before.values():
                needed.discard(op)
            loop["ops"][op]["start"] = at
            at += 4096
        loop["ii"] = at
    again = made("sm_90a", schedule=json.dumps(trace))
    for adversary in (None, seed):
        equals_numpy(again, adversary)


def test_an_order_that_crosses_an_acquire_is_refused() -> None:
    """The first copy begins before its stage is acquired."""
    trace = json.loads(made("sm_90a").trace)
    taking = next(loop for loop in trace["tilec"]["loops"] if loop["name"] == "kernel.warpgroup_0.k_1")
    copy = next(op for op in taking["ops"] if op["name"] == "copy A_s → a")
    for op in taking["ops"]:
        op["start"] += 4096
    taking["ii"] += 8192
    copy["start"] = 0
    with pytest.raises(CompileError) as refused:
        made("sm_90a", schedule=json.dumps(trace))
    (found,) = refused.value.diagnostics
    assert found.code == "bad-schedule" and any("acquire left" in note for note in found.notes)


def test_the_samples_roles_are_scheduled() -> None:
    path = Path(__file__).parents[2] / "samples" / "gemm" / "pipeline_objects.tl"
    source, options = SourceFile(str(path), path.read_text(encoding="utf-8")), CompileOptions()
    for target, more, role in (
        ("sm_90a", (), "warpgroup_0.k_1"),
        ("sm_100a", (("tensor_memory", True),), "warpgroup_1.k_1"),
    ):
        kernel = build_kernel(source, replace(options, target=target, defines=more), Observer())
        assert in_turn(loops(kernel)[f"gemm.{role}"])[0] == "acquire inputs"
        assert in_turn(loops(kernel)[f"gemm.{role}"])[-1] == "release inputs"
