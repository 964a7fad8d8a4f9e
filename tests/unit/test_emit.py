"""The frame of the emitted code: parameters, barriers, roles, registers, loops and lines, and nothing that ptxas or
another run would see differently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from building import KERNELS, ROOT, SAMPLES, Defines, built

from tilec.codegen.builder import encode_half, make_immediate
from tilec.ir.expr import round_to
from tilec.ir.manifest import TensorMapParam
from tilec.ir.tile import Const
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32
from tilec.ptx.isa import check_instruction
from tilec.ptx.module import FloatImm, Imm, Instruction, Loc
from tilec.ptx.parse import parse_module
from tilec.ptx.text import print_module
from tilec.support.options import STRATEGIES, Strategy

SHORT: Defines = (("M", 256), ("N", 256), ("K", 256))
CASES: list[tuple[Path, str, Strategy, int, Defines]] = [
    *((SAMPLES / "gemm.tl", t, s, 3, SHORT) for t in ("sm_80", "sm_90a") for s in STRATEGIES[:3]),
    *((KERNELS / f"{name}.tl", t, "auto", 3, ()) for t in ("sm_80", "sm_90a") for name in ("attention", "unrolled")),
    *((SAMPLES / f"{name}.tl", "sm_90a", "auto", 3, ()) for name in ("softmax", "vector_add")),
]
cases = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0].stem}-{c[1]}-{c[2]}")


@cases
def test_every_instruction_fits_its_row(case: tuple[Path, str, Strategy, int, Defines]) -> None:
    module = parse_module(built(*case).ptx)
    (entry,) = module.entries
    for item in entry.body:
        if isinstance(item, Instruction):
            assert check_instruction(item, module.target, module.version) is None, item


@cases
def test_the_text_is_the_module(case: tuple[Path, str, Strategy, int, Defines]) -> None:
    made = built(*case)
    assert print_module(parse_module(made.ptx)) == made.ptx


@cases
def test_every_line_named_is_a_line_of_the_kernel(case: tuple[Path, str, Strategy, int, Defines]) -> None:
    lines = case[0].read_text(encoding="utf-8").count("\n") + 1
    (entry,) = parse_module(built(*case).ptx).entries
    named = {item.source_line for item in entry.body if isinstance(item, Loc)}
    assert named and named <= set(range(1, lines + 1))


@cases
def test_nothing_is_lost_in_assembly(case: tuple[Path, str, Strategy, int, Defines]) -> None:
    """No spill, no injected wait, no serialised wgmma."""
    made = built(*case)
    assert made.warnings == ()
    assert all(e.registers <= 255 for e in made.entries)


# ---- roles and barriers ----------------------------------------------------------------------------------------------


def opcodes(ptx: str) -> list[str]:
    (entry,) = parse_module(ptx).entries
    return [item.opcode for item in entry.body if isinstance(item, Instruction)]


def test_roles_of_a_specialised_gemm() -> None:
    """Barriers are initialised before the roles part; nobody needs more registers than all have alike."""
    made = built(SAMPLES / "gemm.tl", "sm_90a", "auto", 3, SHORT)
    found = opcodes(made.ptx)
    (ring,) = made.program.rings
    assert found.count("mbarrier.init.shared::cta.b64") == 2 * ring.depth
    assert found.index("bar.sync") > max(i for i, op in enumerate(found) if op.startswith("mbarrier.init"))
    assert found.index("fence.mbarrier_init.release.cluster") < found.index("bar.sync")
    assert not [op for op in found if op.startswith("setmaxnreg")]
    assert found.count("elect.sync") == 1
    assert made.manifest.block == (256 + 128, 1, 1)
    (entry,) = made.entries
    assert entry.registers <= 96  # for 64 accumulators


def test_consumers_take_the_registers_that_the_producer_gives() -> None:
    """For 192 accumulators a third of what there is does not suffice."""
    sizes = (("M", 256), ("N", 192), ("block_M", 256), ("block_N", 192), ("num_stages", 2))
    made = built(SAMPLES / "gemm.tl", "sm_90a", "auto", 3, sizes)
    assert [op for op in opcodes(made.ptx) if op.startswith("setmaxnreg")] == [
        "setmaxnreg.inc.sync.aligned.u32",
        "setmaxnreg.dec.sync.aligned.u32",
    ]
    assert [role.registers for role in made.program.roles] == [240, 24]
    assert made.warnings == ()


def test_an_unspecialised_kernel_needs_no_barriers() -> None:
    found = opcodes(built(SAMPLES / "gemm.tl", "sm_80", "auto", 3, SHORT).ptx)
    assert not [op for op in found if op.startswith(("mbarrier", "setmaxnreg", "elect"))]


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_descriptors_take_fourteen_bits_of_an_address(target: str) -> None:
    """An address in shared memory has the block's number in its cluster above them, where descriptors have a field."""
    module = parse_module(built(SAMPLES / "gemm" / "cluster.tl", target, "auto", 3, ()).ptx)
    items = [item for entry in module.entries for item in entry.body if isinstance(item, Instruction)]
    writer = {item.operands[0]: item for item in items if item.operands}
    starts = [writer[item.operands[1]] for item in items if item.opcode == "cvt.u64.u32"]
    assert starts and all((i.opcode, *i.operands[2:]) == ("bfe.u32", Imm(4), Imm(14)) for i in starts)


def test_a_full_version_needs_every_byte() -> None:
    """The bytes announced are those of the boxes that fill the version."""
    made = built(SAMPLES / "gemm.tl", "sm_90a", "auto", 3, SHORT)
    (entry,) = parse_module(made.ptx).entries
    announced = [
        item.operands[-1] for item in entry.body if isinstance(item, Instruction) and "expect_tx" in item.opcode
    ]
    assert set(announced) == {Imm((128 * 64 + 64 * 128) * 2)}


def test_the_manifest_is_what_the_program_needs() -> None:
    made = built(SAMPLES / "gemm.tl", "sm_90a", "auto", 3, SHORT)
    assert made.manifest.grid == made.program.grid == (2, 2, 1)
    assert made.manifest.dynamic_smem == made.program.smem_bytes
    assert [p.tensor for p in made.manifest.params if isinstance(p, TensorMapParam)] == ["C", "A", "B"]


# ---- constants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 0.1, -2.5, 65504.0, 65520.0, 1e-8, 3.4e38, 1e39, float("inf")])
def test_constants_of_sixteen_bits(value: float) -> None:
    """As the front end rounds them: through their bits."""
    assert encode_half(value, FLOAT16) == int(np.float16(round_to(value, FLOAT16)).view(np.uint16))
    single = np.float32(round_to(round_to(value, FLOAT32), BFLOAT16))
    assert encode_half(round_to(value, BFLOAT16), BFLOAT16) == int(single.view(np.uint32) >> 16)


def test_constants() -> None:
    assert make_immediate(Const(-7, INT32)) == Imm(-7)
    assert make_immediate(Const(1.0, FLOAT32)) == FloatImm(0x3F800000, 32)
    assert make_immediate(Const(1.0, FLOAT64)) == FloatImm(0x3FF0000000000000, 64)
    assert make_immediate(Const(1e39, FLOAT32)) == FloatImm(0x7F800000, 32)


# ---- the same every time ---------------------------------------------------------------------------------------------

PRINT_DIGESTS = """
import hashlib, sys
from tilec.driver.build import Observer, build_kernel
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
for path in sys.argv[1:]:
    for target in ("sm_80", "sm_90a"):
        source = SourceFile(path, open(path, encoding="utf-8").read())
        made = build_kernel(source, CompileOptions(target=target), Observer())
        for artefact in (made.ptx.encode(), made.trace.encode(), made.cubin):
            print(target, hashlib.sha256(artefact).hexdigest())
"""


@pytest.mark.weekly
def test_builds_do_not_depend_on_the_hash_seed() -> None:
    """PTX, trace and cubin, byte for byte, in processes that order their sets differently."""
    files = [str(SAMPLES / "gemm.tl"), str(KERNELS / "manual.tl")]
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PRINT_DIGESTS, *files],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "424242")
    ]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert outputs[0].count("\n") == 12
    assert outputs[0] == outputs[1]
