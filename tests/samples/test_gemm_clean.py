"""Every GEMM sample as it is written, on Hopper: registers suffice, nothing is serialised, nothing is in local memory,
and no access of shared memory in the main loop meets another one's bank.

The first three are read from the assembler's log and the machine code; bank conflicts are counted by the emulator.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bank_turns import conflicted, counted
from references import SAMPLES
from sass import PRODUCTS, disassembled, local_accesses, products
from test_every_sample import FOLDER, arguments_of, made

from tilec.driver.emulation import emulate

GEMMS = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in (*FOLDER.glob("gemm*.tl"), *FOLDER.glob("gemm/*.tl"))
    if path.stem not in ("gemv", "gemm_2cta")  # without products of tiles, and for sm_100a alone
)

SMALLER = {
    "gemm/pipeline_objects": {"M": 512, "N": 512, "K": 256},
    "gemm/batched": {"batch": 1},
    "gemm/grouped": {"rows": 150, "groups": 3, "N": 128},
    "gemm/moe_grouped": {"tokens": 80, "pairs": 150, "groups": 3, "N": 256},
    "gemm/moe_ping_pong": {"tokens": 160, "pairs": 230, "groups": 3, "N": 192, "blocks": 3},
}
"""Tensors whose blocks are sooner done, where that changes none of its tiles in shared memory."""

BLOCKS = {"gemm/grouped": 5, "gemm/moe_grouped": 5}  # some of which have rows


def test_all_are_known() -> None:
    assert {*GEMMS} <= {known.path for known in SAMPLES}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", GEMMS)
def test_nothing_stands_in_the_way(name: str, tmp_path: Path) -> None:
    built = made(name, "sm_90a", {})
    (entry,) = built.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
    assert [w.code for w in built.warnings if w.code != "assembled-interval"] == []
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(built.cubin)
    code = disassembled(cubin)
    assert products(code.instructions)
    assert local_accesses(code.instructions) == 0
    reached = {one.stem for one in code.around(*PRODUCTS)} & {"LDS", "STS", "LDSM", "STSM"}

    (known,) = (known for known in SAMPLES if known.path == name)
    smaller = made(name, "sm_90a", dict(SMALLER[name])) if name in SMALLER else built
    with counted() as seen:
        emulate.emulate_build(
            smaller, arguments_of(known, smaller), options=emulate.RunOptions(sample=BLOCKS.get(name, 1))
        )
    # An epilogue may stage its accumulators with two turns for each store; the main loop may not.
    assert conflicted("" if reached else name, seen) == {}
