"""Variables by which a kernel decides what it copies: each role works them out for itself where it can."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import SAMPLES, agrees, built

from tilec.driver.build import Build

KERNEL = """
import tilelang.language as T


@T.prim_func
def picked(
    A: T.Tensor((256, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    chosen: T.Tensor((4,), "int32"),
    C: T.Tensor((256, 64), "float32"),
):
    with T.Kernel(4, threads=128) as bx:
        A_shared = T.alloc_shared((64, 32), "float16")
        B_shared = T.alloc_shared((32, 64), "float16")
        sizes = T.alloc_shared((4,), "int32")
        C_local = T.alloc_fragment((64, 64), "float32")
        row = T.alloc_var("int32", 0)
        other = T.alloc_var("int32", 0)
        {before}
        T.clear(C_local)
        for ko in T.Pipelined(2):
            T.copy(A[row, ko * 32], A_shared)
            T.copy(B[ko * 32, 0], B_shared)
            T.gemm(A_shared, B_shared, C_local)
            {inside}
        T.copy(C_local, C[bx * 64, 0])
"""
SET = {
    "at once": "row = bx % 2 * 64 + T.min(T.max(chosen[bx], 0), 64)",
    "step by step": """
        for i in T.serial(4):
            if chosen[i] > 0:
                row += 64
            else:
                other += bx
        row = (row + other * 64) % 192""",
    "until": """
        for i in T.serial(4):
            if chosen[i] < 0:
                break
            row = i * 64""",
}
NOT_ALONE = {
    "of a tile": """
        T.copy(chosen, sizes)
        row = sizes[bx]""",
    "of a written tensor": """
        row = T.int32(C[bx, 0])""",
    "by a variable of a tile": """
        T.copy(chosen, sizes)
        other = sizes[bx]
        row = other + 1""",
    "left by a tile": """
        T.copy(chosen, sizes)
        for i in T.serial(4):
            if sizes[i] < 0:
                break
            row = i * 64""",
}


def written(folder: Path, before: str, inside: str = "") -> Path:
    path = folder / "picked.tl"
    path.write_text(KERNEL.format(before=before.strip(), inside=inside))
    return path


def roles(made: Build) -> list[str]:
    return [role.name for role in made.program.roles]


@pytest.mark.parametrize("how", SET)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_every_role_works_it_out(how: str, target: str, tmp_path: Path) -> None:
    made = agrees(written(tmp_path, SET[how]), target, seeds=range(3))
    assert roles(made) == (["consumer", "producer"] if target == "sm_90a" else ["all"])


@pytest.mark.parametrize("how", NOT_ALONE)
def test_what_others_compute_is_not_known_to_a_producer(how: str, tmp_path: Path) -> None:
    _, made = built(written(tmp_path, NOT_ALONE[how]), "sm_90a")
    assert roles(made) == ["all"]


def test_a_variable_that_the_loop_changes_stays_with_who_changes_it(tmp_path: Path) -> None:
    made = agrees(written(tmp_path, "row = bx * 32 + chosen[bx] * 0", "row += 32"), "sm_90a")
    assert roles(made) == ["all"]


def test_a_variable_that_decides_nothing_is_the_consumers(tmp_path: Path) -> None:
    made = agrees(written(tmp_path, SET["at once"] + "\n        other = chosen[0]"), "sm_90a")
    _, producer = made.program.roles
    assert "row" in str(producer.body) and "other" not in str(producer.body)


def test_groups_are_fed_by_a_producer() -> None:
    _, made = built(SAMPLES / "gemm" / "grouped.tl", "sm_90a", "warp-specialize")
    assert roles(made) == ["consumer", "producer"]
