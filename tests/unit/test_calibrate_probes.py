"""Every probe runs in the emulator: no fault, and the chain's result; and the assembler takes it without a remark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sass import disassembled

from tilec.calibrate import probe as frame
from tilec.calibrate.measure import PROBES, find_wrong_word
from tilec.calibrate.probe import ROW_BYTES, Probe, Run
from tilec.driver.emulation import emulate
from tilec.emu import launch
from tilec.ir.manifest import extract_from_cubin
from tilec.ptx.assemble import assemble_module
from tilec.target.table import load_target

ROWS = 1 << 13
"""Of the emulated memory."""


def emulated(probe: Probe, trips: int, adversary: int | None) -> tuple[Run, dict[str, Any]]:
    target = load_target("sm_90a")
    launched = frame.build_manifest(probe, target.name)
    blocks = 2 if probe.fills_chip else 1
    tensors: dict[str, Any] = {
        "times": np.full((blocks, len(probe.readings)), -1, np.int64),
        "result": np.full((blocks, probe.threads), 0xDEADBEEF, np.uint32),
    }
    rows = min(probe.rows, ROWS)
    words = np.random.default_rng(1).integers(0, 1 << 32, rows * ROW_BYTES // 4, np.uint32)
    if probe.name == "ld.global latency":
        words[:] = 0  # it adds what it loads to its address
    if rows:
        tensors["memory"] = words.view(np.uint16).reshape(rows, ROW_BYTES // 2)
    run = Run(trips, blocks, words.copy())
    arguments = emulate.KernelArguments(tensors, {"trips": trips, "blocks": blocks, "rows": rows})
    launch(
        frame.build_ptx(probe, target.ptx_target, target.ptx_version),
        probe.entry,
        blocks,
        probe.threads,
        emulate.build_launch_arguments(launched, arguments),
        dynamic_smem=launched.dynamic_smem,
        adversary=adversary,
    )
    return run, tensors


@pytest.mark.parametrize("adversary", [None, 1])
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_chain_gives_its_result(probe: Probe, adversary: int | None) -> None:
    """On a friendly machine, and on one that does everything at the worst moment that is allowed."""
    run, tensors = emulated(probe, 2, adversary)
    assert find_wrong_word(probe, run, tensors["result"]) == ""
    assert (tensors["times"] > 0).all()


@pytest.mark.some(20)
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_assembles_without_a_remark(probe: Probe) -> None:
    target = load_target("sm_90a")
    made = assemble_module(frame.build_ptx(probe, target.ptx_target, target.ptx_version), target.name)
    assert made.remarks == ()
    assert extract_from_cubin(made.cubin) == [frame.build_manifest(probe, target.name)]


# What an iteration of a probe's loop must hold as machine code, by the beginning of its name: the assembler leaves out
# what nobody uses, and joins what is the same. Of one warp, where several share the operations.
HELD = {
    "fma": ("FFMA", 64),
    **{
        f"{name} {what}": ("MUFU", 32) for name in ("ex2", "rcp", "rsqrt", "tanh") for what in ("latency", "throughput")
    },
    "shuffle": ("SHFL", 32),
    "mma.sync bf16": ("HMMA", 32),
    "mma.sync f16": ("HMMA", 32),
    "mma.sync s8": ("IMMA", 32),
    "wgmma.ss bf16 n64": ("HGMMA", 8),
    "wgmma.rs bf16 n64": ("HGMMA", 8),
    "wgmma.ss e4m3 n64": ("QGMMA", 8),
    "wgmma.ss s8 n64": ("IGMMA", 8),
    "wgmma issue 5": ("HGMMA", 5),
    "clock under load": ("HGMMA", 8),
    "ld.shared latency": ("LDS", 32),
    "ld.shared throughput": ("LDS", 8),
    "ldmatrix latency": ("LDSM", 32),
    "ldmatrix throughput": ("LDSM", 8),
    "st.shared throughput": ("STS", 8),
    "stmatrix throughput": ("STSM", 8),
    "barrier of": ("BAR", 4),
    "tma.load 1024": ("UTMALDG", 1),
    "tma.store 1024": ("UTMASTG", 1),
    "tma.load throughput": ("UTMALDG", 8),
    "tma.store throughput": ("UTMASTG", 8),
    "cp.async": ("LDGSTS", 1),
    "ld.global": ("LDG", 4),
    "copy": ("LDG", 4),
}


@pytest.mark.some(8)
@pytest.mark.parametrize("probe", [p for p in PROBES if p.name.startswith(tuple(HELD))], ids=lambda probe: probe.name)
def test_machine_code_holds_the_whole_chain(probe: Probe, tmp_path: Path) -> None:
    target = load_target("sm_90a")
    file = tmp_path / "probe.cubin"
    file.write_bytes(assemble_module(frame.build_ptx(probe, target.ptx_target, target.ptx_version), target.name).cubin)
    stem, count = next(held for name, held in HELD.items() if probe.name.startswith(name))
    code = disassembled(file)
    loops = [sum(one.stem == stem for one in loop) for loop in code.loops()]
    # Unrolled or not.
    assert any(held and held % count == 0 for held in loops), (stem, loops)
    # A product whose sums nobody needs is there in name only.
    assert not [one for one in code.instructions if one.stem == "HGMMA" and one.operands.startswith("RZ, ")]
    # Between each two looks at the clock: a chain whose result nobody needs would be gone.
    between = "".join({stem: "x", "CS2R": "|", "S2UR": "|"}.get(one.stem, "") for one in code.instructions)
    assert sum("x" in part for part in between.split("|")[1:-1]) >= probe.body.count("@%more bra"), between
