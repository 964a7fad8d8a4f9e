"""What the assembler made of the GEMM samples, counted in their machine code and read from its log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from harness import SAMPLES, built
from sass import Code, Instruction, disassembled

from tilec.driver.build import Build

GEMMS = sorted(
    path.relative_to(SAMPLES).with_suffix("").as_posix()
    for path in (*SAMPLES.glob("gemm*.tl"), *SAMPLES.glob("gemm/*.tl"))
    if path.stem not in ("gemv", "gemm_2cta")  # without products of tiles, and for sm_100a alone
)
NOT_SM_80 = ("gemm/cluster", "gemm/fp8_block_scaled", "gemm/fp8_row_scaled", "gemm/pipeline_objects")
PRODUCTS = {
    "sm_80": ("HMMA", "IMMA", "DMMA"),
    "sm_90a": ("HGMMA", "IGMMA", "QGMMA", "HMMA", "IMMA"),
}
LOCAL = ("LDL", "STL")
BARRIERS = ("BAR", "MEMBAR")

Compiled = tuple[Build, Code]


def compiled(name: str, target: str, folder: Path, **defines: int) -> Compiled:
    _, made = built(SAMPLES / f"{name}.tl", target, **defines)
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(made.cubin)
    return made, disassembled(cubin)


def counted(instructions: tuple[Instruction, ...]) -> Counter[str]:
    return Counter(i.stem for i in instructions)


CASES = [(name, target) for target in PRODUCTS for name in GEMMS if target != "sm_80" or name not in NOT_SM_80]


@pytest.mark.parametrize(("name", "target"), CASES, ids=lambda value: str(value))
def test_registers_suffice(name: str, target: str, tmp_path: Path) -> None:
    """No spill and nothing serialised in the log, no local memory in the code, and products of the tensor cores."""
    made, code = compiled(name, target, tmp_path)
    (entry,) = made.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
    assert not {w.code for w in made.warnings} & {"register-spill", "wgmma-serialised"}
    found = counted(code.instructions)
    assert not found.keys() & set(LOCAL) and found.keys() & set(PRODUCTS[target])


# Sample, and the products in an iteration of its main loop.
HOPPER = [
    ("gemm", "HGMMA.64x128x16.F32", 4),
    ("gemm/tf32", "HGMMA.64x256x8.F32.TF32", 4),
    ("gemm_bias_relu", "HGMMA.64x128x16.F32", 4),
    ("gemm/transposed", "HGMMA.64x256x16.F32", 4),
    ("gemm/batched", "HGMMA.64x256x16.F32", 4),
    ("gemm/persistent", "HGMMA.64x256x16.F32", 4),
    ("gemm/cluster", "HGMMA.64x256x16.F32.BF16", 4),
    ("gemm/dynamic", "HGMMA.64x256x16.F32", 4),
]
PER_PRODUCT = 8.75
"""Instructions of the main loop for each product, at most: those of the best peer (`benchmarks/static.py`)."""


@pytest.mark.parametrize(("name", "opcode", "products"), HOPPER, ids=lambda value: str(value))
def test_the_main_loop_on_hopper(name: str, opcode: str, products: int, tmp_path: Path) -> None:
    """One wgmma after the other: no barrier of threads, and nothing through registers."""
    _, code = compiled(name, "sm_90a", tmp_path)
    loop = code.around("HGMMA")
    counts = counted(loop)
    assert [i.opcode.startswith(opcode) for i in loop if i.stem == "HGMMA"] == [True] * products
    assert not counts.keys() & {*BARRIERS, "LDS", "STS", "LDG", "STG", "LDSM", "STSM"}
    assert len(loop) <= PER_PRODUCT * products
    (waits,) = (i for i in loop if i.opcode == "WARPGROUP.DEPBAR.LE")
    assert int(waits.operands.split(", ")[1], 16) == 1


@pytest.mark.parametrize("size", [1024, 4096], ids=["one tile a block", "persistent"])
@pytest.mark.parametrize(("width", "most"), [(128, 7.0), (256, 8.0)])
def test_what_a_step_of_the_tiles_compared_costs(width: int, most: float, size: int, tmp_path: Path) -> None:
    """What `benchmarks/static.py` counts, also in a persistent grid."""
    _, code = compiled("gemm", "sm_90a", tmp_path, M=size, N=size, K=size, block_N=width)
    loop = code.around("HGMMA")
    assert len(loop) <= most * counted(loop)["HGMMA"]


def test_the_producers_loop_on_hopper(tmp_path: Path) -> None:
    """Two tiles of A and B an iteration, B as two boxes."""
    _, code = compiled("gemm", "sm_90a", tmp_path)
    counts = counted(code.around("UTMALDG"))
    assert counts["UTMALDG"] == 3 and not counts.keys() & {*BARRIERS, *LOCAL}
    assert counts.total() <= 9 * counts["UTMALDG"]


def test_the_main_loop_on_ampere(tmp_path: Path) -> None:
    """Products from ldmatrix, one barrier an iteration."""
    _, code = compiled("gemm", "sm_80", tmp_path)
    # The assembler waits for copies with a load that loads nothing.
    counts = counted(tuple(i for i in code.around("HMMA") if i.operands != "RZ, [RZ]"))
    assert counts["HMMA"] > 0 and counts["LDSM"] > 0 and counts["LDGSTS"] > 0
    assert counts["BAR"] <= 2 and not counts.keys() & {*LOCAL, "LDS", "STS"}


def test_sparse_products(tmp_path: Path) -> None:
    _, code = compiled("gemm/sparse_tensor_cores", "sm_90a", tmp_path)
    assert any("SP" in i.opcode.split(".") for i in code.around("HGMMA") if i.stem == "HGMMA")
    _, code = compiled("gemm/sparse_tensor_cores", "sm_80", tmp_path)
    assert any("SP" in i.opcode.split(".") for i in code.around("HMMA") if i.stem == "HMMA")
