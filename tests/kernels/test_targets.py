"""Machines that are rows of numbers: on each, a product, attention and rows agree with the reference in its memory."""

from __future__ import annotations

import pytest
from harness import HERE, SAMPLES, agrees, built

from tilec.support.diagnostics import CompileError
from tilec.support.options import Value
from tilec.target.table import load_target

SMALL = ["sm_86", "sm_89"]
"""Machines with 99 KiB of shared memory for a block."""

KERNELS: dict[str, dict[str, Value]] = {
    "gemm": {"M": 256, "N": 128, "K": 320},
    "flash_attention": {"heads": 1, "S": 256, "causal": True},
    "rows/rmsnorm": {"M": 10},
}


@pytest.mark.parametrize("target", SMALL)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel(name: str, target: str) -> None:
    # A tile of attention spills registers on every machine whose products are mma.sync: that is said, and right.
    made = agrees(SAMPLES / f"{name}.tl", target, strict=name != "flash_attention", **KERNELS[name])
    assert f".target {target}\n" in made.ptx
    assert made.manifest.dynamic_smem <= load_target(target).limit("smem_bytes_per_cta")


@pytest.mark.parametrize(
    "defines",
    [
        {"dtype": "float8_e4m3fn", "other": "float8_e4m3fn", "tB": True},
        {"dtype": "float8_e4m3fn", "other": "float8_e5m2", "tA": True},
    ],
    ids=["e4m3", "mixed"],
)
def test_products_of_8_bit_floats(defines: dict[str, Value]) -> None:
    """By m16n8k32, of operands that lie along k and across it."""
    made = agrees(HERE / "gemm_types.tl", "sm_89", **defines)
    assert "mma.sync.aligned.m16n8k32.row.col.f32.e4m3." in made.ptx


def test_8_bit_floats_that_a_machine_does_not_multiply() -> None:
    with pytest.raises(CompileError) as caught:
        built(HERE / "gemm_types.tl", "sm_86", dtype="float8_e4m3fn", other="float8_e4m3fn", tB=True)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.title == "sm_86 has no tensor-core products of 8-bit floats"
    assert diagnostic.help == "use float16 operands, or a target that has them: sm_89, sm_90a and later"


def test_tiles_for_more_memory_are_refused_with_both_sizes() -> None:
    with pytest.raises(CompileError) as caught:
        built(SAMPLES / "gemm.tl", "sm_89", block_M=256, block_N=256, block_K=128)
    assert caught.value.diagnostics[0].code == "shared-memory-overflow"
    assert "sm_89 has 101,376 for a block" in caught.value.diagnostics[0].title
