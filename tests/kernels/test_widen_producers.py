"""Producers that need more registers than the fewest: `widen-producers` gives them some of the consumers'."""

from __future__ import annotations

from pathlib import Path

from harness import agrees, built

from tilec.driver.build import Build

FACTORS = 14
"""Pairs of numbers that the producer keeps through the loop: more than the fewest registers, fewer than the most."""

TEXT = """
import tilelang.language as T

@T.prim_func
def many(
    A: T.Tensor((1024, 256), "float16"),
    B: T.Tensor((192, 256), "float16"),
    at: T.Tensor((32,), "int32"),
    C: T.Tensor((256, 192), "float32"),
):
    with T.Kernel(1, threads=256) as bx:
        a = T.alloc_shared((256, 64), "float16")
        b = T.alloc_shared((192, 64), "float16")
        c = T.alloc_fragment((256, 192), "float32")
{declared}
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[({row}) & 511, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
{after}
        T.copy(c, C)
"""

HELD = """
        kept = T.alloc_fragment((256, 96), "float32")
        for i, j in T.Parallel(256, 96):
            kept[i, j] = T.exp2(T.cast(A[i, j], "float32"))
"""
USED = """
        for i, j in T.Parallel(256, 96):
            c[i, j] += kept[i, j]
"""


def write_kernel(folder: Path, factors: int, held: str = "", used: str = "") -> Path:
    """Write the kernel whose producer keeps so many pairs of numbers, and whose consumers may keep a fragment too."""
    numbers = [f'        {name}{i} = T.alloc_var("int32", 0)' for i in range(factors) for name in "xy"]
    numbers += [f"        x{i} = at[{i}]\n        y{i} = at[{i + 16}]" for i in range(factors)]
    row = " + ".join(["k", *(f"(k ^ x{i}) * y{i}" for i in range(factors))])
    path = folder / "many.tl"
    path.write_text(TEXT.format(declared="\n".join(numbers) + held, row=row, after=used), encoding="utf-8")
    return path


def list_registers(made: Build) -> list[int | None]:
    return [role.registers for role in made.program.roles]


def test_a_producer_that_spills_gets_more(tmp_path: Path) -> None:
    """Nothing spills then, and the numbers are right."""
    made = agrees(write_kernel(tmp_path, FACTORS), "sm_90a")
    assert list_registers(made) == [232, 40]
    assert made.ptx.count("setmaxnreg.inc.sync.aligned.u32 232") == made.ptx.count("setmaxnreg.dec.sync.aligned.u32 40")
    assert [entry.spill_store_bytes for entry in made.entries] == [0]


def test_lower_levels_widen_as_well(tmp_path: Path) -> None:
    _, made = built(write_kernel(tmp_path, FACTORS), "sm_90a", "auto", 2)
    assert list_registers(made) == [232, 40] and made.warnings == ()


def test_few_numbers_leave_the_consumers_their_registers(tmp_path: Path) -> None:
    _, made = built(write_kernel(tmp_path, 2), "sm_90a")
    assert list_registers(made) == [240, 24] and made.warnings == ()


def test_consumers_that_spill_keep_their_registers(tmp_path: Path) -> None:
    """With fewer of them, they would spill more."""
    _, made = built(write_kernel(tmp_path, 2, HELD, USED), "sm_90a")
    assert list_registers(made) == [240, 24]
    assert "register-spill" in [warning.code for warning in made.warnings]
