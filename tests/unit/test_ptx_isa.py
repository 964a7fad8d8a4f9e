"""The instruction table: every row has its semantics, opcodes find their row, and targets are told apart."""

from __future__ import annotations

import pytest

import tilec.emu.launcher  # noqa: F401  (registers the semantics)
from tilec.emu.machine.decode import DECODERS
from tilec.ptx.isa import ROWS, check_instruction, find_row
from tilec.ptx.module import Address, Imm, Instruction, Operand, Reg, Symbol, TensorAddress, Vector

R = Reg("%r0")
P = Reg("%p0")


def test_every_row_is_emulated_and_nothing_else() -> None:
    assert set(ROWS) == set(DECODERS)


@pytest.mark.parametrize(
    ("opcode", "stem"),
    [
        ("add.rn.ftz.f32", "add"),
        ("ld.global.nc.L1::no_allocate.v4.b32", "ld"),
        ("cp.async.cg.shared.global.L2::128B", "cp.async"),
        ("cp.async.commit_group", "cp.async.commit_group"),
        ("cp.async.bulk.wait_group.read", "cp.async.bulk.wait_group"),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes",
            "cp.async.bulk.tensor.2d.shared::cluster",
        ),
        ("mbarrier.try_wait.parity.shared::cta.b64", "mbarrier.try_wait"),
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16", "wgmma.mma_async"),
        ("tcgen05.mma.cta_group::1.kind::f16", "tcgen05.mma"),
        ("tcgen05.mma.ws.cta_group::1.kind::i8", "tcgen05.mma.ws"),
        ("tcgen05.wait::ld.sync.aligned", "tcgen05.wait::ld"),
        ("fence.proxy.async.shared::cta", "fence.proxy.async"),
        ("ret", "ret"),
    ],
)
def test_lookup_takes_the_longest_stem(opcode: str, stem: str) -> None:
    row = find_row(opcode)
    assert row is not None
    assert row.stem == stem


def test_unknown_instructions_have_no_row() -> None:
    assert find_row("frobnicate.b32") is None
    assert find_row("adder.b32") is None
    assert check_instruction(Instruction("frobnicate.b32"), "sm_90a", "8.0") == "unknown instruction frobnicate.b32"


ACCUMULATOR = Vector((R,) * 4)
WGMMA = Instruction(
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", (ACCUMULATOR, R, R, P, *(Imm(1),) * 2, *(Imm(0),) * 2)
)
TENSOR_WAIT = Instruction("tcgen05.wait::ld.sync.aligned")
TENSOR_LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes"
TENSOR: tuple[Operand, ...] = (Address(R), TensorAddress(R, (R, R)), Address(R))


@pytest.mark.parametrize(
    ("instruction", "target", "version", "complaint"),
    [
        (Instruction("add.s32", (R, R, Imm(1))), "sm_80", "7.0", None),
        (Instruction("add.s32", (R, R)), "sm_80", "7.0", "add.s32 takes 3 operands, not 2"),
        (
            Instruction("ld.b32", (R, Symbol("a"))),
            "sm_80",
            "7.0",
            "operand 2 of ld.b32 must be an address",
        ),
        (Instruction("min.s32", (R, R)), "sm_80", "7.0", "min.s32 takes 3 to 4 operands, not 2"),
        (WGMMA, "sm_90a", "8.0", None),
        (WGMMA, "sm_90", "8.0", f"{WGMMA.opcode} needs an architecture-specific target such as sm_90a"),
        (WGMMA, "sm_100a", "8.6", f"{WGMMA.opcode} exists on sm_90a only"),
        (
            Instruction("mbarrier.try_wait.parity.shared.b64", (P, Address(R), R)),
            "sm_80",
            "8.0",
            "mbarrier.try_wait.parity.shared.b64 needs sm_90, the target is sm_80",
        ),
        (
            Instruction(TENSOR_LOAD, TENSOR),
            "sm_90a",
            "8.0",
            f"{TENSOR_LOAD} needs PTX 8.6, the module says 8.0",
        ),
        (
            Instruction("add.bf16x2", (R, R, R)),
            "sm_80",
            "8.0",
            ".bf16x2 of add.bf16x2 needs sm_90, the target is sm_80",
        ),
        (Instruction("add.s32", (R, R, R)), "sparc", "8.0", "unknown target sparc"),
        (TENSOR_WAIT, "sm_100a", "8.6", None),
        (TENSOR_WAIT, "sm_100f", "8.8", None),
        (TENSOR_WAIT, "sm_100", "8.6", f"{TENSOR_WAIT.opcode} needs an architecture-specific target such as sm_100a"),
        (TENSOR_WAIT, "sm_90a", "8.6", f"{TENSOR_WAIT.opcode} needs sm_100, the target is sm_90a"),
        (TENSOR_WAIT, "sm_100a", "8.5", f"{TENSOR_WAIT.opcode} needs PTX 8.6, the module says 8.5"),
        (
            TENSOR_WAIT,
            "sm_120a",
            "8.7",
            f"{TENSOR_WAIT.opcode} exists on sm_100a and its relatives, not on sm_120a",
        ),
    ],
)
def test_check(instruction: Instruction, target: str, version: str, complaint: str | None) -> None:
    assert check_instruction(instruction, target, version) == complaint
