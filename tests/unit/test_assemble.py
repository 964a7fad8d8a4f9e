"""nvJitLink and its log: a kernel's costs, and what the assembler did to it unasked."""

from __future__ import annotations

import pytest

from tilec.ptx.assemble import Remark, assemble_module, parse_remarks
from tilec.ptx.isa import check_instruction
from tilec.ptx.module import Instruction
from tilec.ptx.parse import parse_module
from tilec.support.diagnostics import InternalError

ACCUMULATORS = 32
REGISTERS = f".reg .b64 %a, %b, %o; .reg .pred %p; .reg .f32 %d<{ACCUMULATORS}>; .reg .b32 %r<4>;"
SET_UP = "\n".join(
    [
        *(f"mov.f32 %d{i}, 0f00000000;" for i in range(ACCUMULATORS)),
        "ld.param.u64 %o, [out]; mov.u64 %a, %o; mov.u64 %b, %o;",
    ]
)
STORE = "\n".join(f"st.global.f32 [%o+{4 * i}], %d{i};" for i in range(ACCUMULATORS))
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
MMA = (
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
    + ", ".join(f"%d{i}" for i in range(ACCUMULATORS))
    + "}, %a, %b, 1, 1, 1, 0, 0;"
)


def kernel(
    *body: str,
    directives: str = ".reqntid 128, 1, 1",
    registers: str = REGISTERS,
    name: str = "k",
    head: str = ".version 8.0\n.target sm_90a",
) -> str:
    head += "\n.address_size 64"
    entry = f".visible .entry {name}(.param .u64 out) {directives}"
    return "\n".join([head, entry, "{", registers, *body, "ret;", "}", ""])


def line_of(ptx: str, text: str) -> int:
    return 1 + ptx.split("\n").index(text)


def test_a_clean_kernel_has_no_remarks() -> None:
    assembled = assemble_module(kernel(SET_UP, FENCE, MMA, COMMIT, WAIT, STORE), "sm_90a")
    assert assembled.cubin.startswith(b"\x7fELF")
    assert assembled.remarks == ()
    (report,) = assembled.entries
    assert report.name == "k"
    assert report.registers > ACCUMULATORS
    assert (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes, report.smem_bytes) == (0, 0, 0, 0)


SPELLINGS = """
sad.u32 %r0, %r1, %r2, %r3;
bfind.u32 %r0, %r1;
brev.b32 %r0, %r1;
dp4a.s32.u32 %r0, %r1, %r2, %r3;
lop3.b32 %r0, %r1, %r2, %r3, 0x96;
match.any.sync.b32 %r0, %r1, -1;
redux.sync.add.s32 %r0, %r1, -1;
shf.l.wrap.b32 %r0, %r1, %r2, %r3;
tanh.approx.f32 %d0, %d1;
"""


@pytest.mark.parametrize("text", SPELLINGS.split("\n")[1:-1])
def test_spellings_that_no_kernel_emits(text: str) -> None:
    """What the emulator knows and code generation does not: here the assembler has its say."""
    assert assemble_module(kernel(text), "sm_90a").remarks == ()


FOUR, EIGHT = "{%r0, %r1, %r2, %r3}", "{%r0, %r1, %r2, %r3, %r0, %r1, %r2, %r3}"
TMA = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
TENSOR_SPELLINGS = f"""
tcgen05.ld.sync.aligned.32x32b.x4.pack::16b.b32 {FOUR}, [%r4+8];
tcgen05.ld.sync.aligned.16x64b.x4.b32 {FOUR}, [%r4];
tcgen05.ld.sync.aligned.16x128b.x2.b32 {FOUR}, [%r4];
tcgen05.ld.sync.aligned.16x256b.x1.b32 {FOUR}, [%r4];
tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {FOUR}, [%r4], 16;
tcgen05.st.sync.aligned.32x32b.x4.unpack::16b.b32 [%r4+8], {FOUR};
tcgen05.st.sync.aligned.16x32bx2.x4.b32 [%r4], 16, {FOUR};
tcgen05.wait::ld.sync.aligned; tcgen05.wait::st.sync.aligned;
tcgen05.fence::before_thread_sync; tcgen05.fence::after_thread_sync;
tcgen05.cp.cta_group::1.128x256b [%r4], %a;
tcgen05.cp.cta_group::1.4x256b [%r4], %a;
tcgen05.cp.cta_group::1.128x128b.b8x16.b6x16_p32 [%r4], %a;
tcgen05.cp.cta_group::1.64x128b.warpx2::02_13 [%r4], %a;
tcgen05.cp.cta_group::1.64x128b.warpx2::01_23 [%r4], %a;
tcgen05.cp.cta_group::1.32x128b.warpx4.b8x16.b4x16_p64 [%r4], %a;
tcgen05.shift.cta_group::1.down [%r4];
tcgen05.mma.cta_group::1.kind::f16 [%r4], %a, %b, %r5, {FOUR}, %p, 3;
tcgen05.mma.cta_group::1.kind::tf32.collector::a::fill [%r4], [%r6], %b, %r5, !%p;
tcgen05.mma.cta_group::1.kind::i8 [%r4], %a, %b, %r5, 1;
tcgen05.mma.cta_group::1.kind::f8f6f4 [%r4], %a, %b, %r5, %p;
tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%r4], %a, %b, %r5, [%r6], [%r7+4], %p;
tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block32 [%r4], [%r6], %b, %r5, [%r6], [%r7], %p;
tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%r4], %a, %b, %r5, [%r6], [%r7], %p;
tcgen05.mma.ws.cta_group::1.kind::f16.collector::b1::fill [%r4], %a, %b, %r5, %p, %o;
tcgen05.mma.cta_group::2.kind::f16 [%r4], %a, %b, %r5, {EIGHT}, %p;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r4];
tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%a];
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r4], %h;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32;
tcgen05.alloc.cta_group::2.sync.aligned.b32 [%a], %r5;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;
tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
{TMA}.cta_group::2 [%r4], [%a, {{%r5, %r6}}], [%r7];
"""


@pytest.mark.parametrize("text", TENSOR_SPELLINGS.split("\n")[1:-1])
def test_spellings_of_tensor_memory(text: str) -> None:
    registers = ".reg .b64 %a, %b, %o; .reg .pred %p; .reg .b32 %r<8>; .reg .b16 %h;"
    ptx = kernel(text, registers=registers, head=".version 9.0\n.target sm_100a")
    assert assemble_module(ptx, "sm_100a").remarks == ()
    parse_module(ptx)
    for part in text.rstrip(";").split("; "):
        instruction = parse_module(kernel(f"{part};", registers=registers)).entries[0].body[-2]
        assert isinstance(instruction, Instruction)
        assert check_instruction(instruction, "sm_100a", "9.0") is None


def test_a_missing_fence_is_injected() -> None:
    ptx = kernel(SET_UP, MMA, COMMIT, WAIT, STORE)
    (remark,) = assemble_module(ptx, "sm_90a").remarks
    assert (remark.kind, remark.code, remark.entry) == ("inserted-wait", "C7519", "k")
    assert remark.ptx_line == line_of(ptx, MMA)


def test_a_read_before_the_wait_injects_one() -> None:
    early = "add.f32 %d0, %d0, %d1;"
    ptx = kernel(SET_UP, FENCE, MMA, COMMIT, early, WAIT, STORE)
    (remark,) = assemble_module(ptx, "sm_90a").remarks
    assert (remark.kind, remark.code, remark.ptx_line) == ("inserted-wait", "C7517", line_of(ptx, early))


def test_the_line_is_that_of_the_ptx_even_with_loc() -> None:
    early = "add.f32 %d0, %d0, %d1;"
    body = [SET_UP, FENCE, ".loc 1 14 9", MMA, COMMIT, early, WAIT, STORE]
    ptx = kernel(*body).replace(".address_size 64", '.address_size 64\n.file 1 "gemm.tl"')
    (remark,) = assemble_module(ptx, "sm_90a").remarks
    assert remark.ptx_line == line_of(ptx, early)


def _loop(last: str) -> str:
    return kernel(
        SET_UP, "mov.u32 %r1, 0;", "$again:",
        FENCE, MMA, MMA, COMMIT, "wgmma.wait_group.sync.aligned 1;", last,
        "add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, 10; @%p bra $again;", WAIT, STORE,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("touch", "code"),
    [
        ("ld.global.f32 %d0, [%o];", "C7515"),  # defines an accumulator
        ("st.global.f32 [%o], %d0;", "C7514"),  # reads one
    ],
)
def test_an_accumulator_touched_while_a_group_is_in_flight_serialises_the_loop(touch: str, code: str) -> None:
    (remark,) = assemble_module(_loop(touch), "sm_90a").remarks
    assert (remark.kind, remark.code, remark.entry, remark.ptx_line) == ("wgmma-serialised", code, "k", None)
    assert remark.text.startswith("wgmma.mma_async instructions are serialized")


def test_wgmma_under_a_divergent_branch_is_serialised() -> None:
    branch = "mov.u32 %r1, %tid.x; setp.lt.u32 %p, %r1, 64; @%p bra $skip;"
    ptx = kernel(SET_UP, branch, MMA, "$skip:", COMMIT, WAIT, STORE, directives=".maxntid 128, 1, 1")
    assert [(r.kind, r.code) for r in assemble_module(ptx, "sm_90a").remarks] == [("wgmma-serialised", "C7520")]


def test_spills_are_counted() -> None:
    count = 128
    registers = f".reg .b64 %o; .reg .f32 %f<{count}>;"
    load = "\n".join(f"ld.global.f32 %f{i}, [%o+{4 * i}];" for i in range(count))
    store = "\n".join(f"st.global.f32 [%o+{4 * (count - 1 - i)}], %f{i};" for i in range(count))
    ptx = kernel("ld.param.u64 %o, [out];", load, "bar.sync 0;", store, directives=".maxnreg 32", registers=registers)
    assembled = assemble_module(ptx, "sm_90a")
    (report,) = assembled.entries
    assert report.registers == 32
    assert report.spill_store_bytes > 0
    assert report.spill_load_bytes > 0
    assert report.stack_bytes >= report.spill_store_bytes
    (remark,) = assembled.remarks
    assert (remark.kind, remark.code, remark.entry) == ("register-spill", "spill", "k")


def test_setmaxnreg_is_honoured() -> None:
    ptx = kernel("setmaxnreg.dec.sync.aligned.u32 40;", directives=".reqntid 384, 1, 1\n.minnctapersm 1")
    assembled = assemble_module(ptx, "sm_90a")
    assert assembled.remarks == ()
    assert assembled.entries[0].registers == 168, "65536 registers over 384 threads, in eights"


def test_setmaxnreg_without_a_known_count_at_entry_is_ignored_and_said() -> None:
    ptx = kernel("setmaxnreg.dec.sync.aligned.u32 40;", directives=".maxntid 384, 1, 1")
    assert [(r.kind, r.code) for r in assemble_module(ptx, "sm_90a").remarks] == [("setmaxnreg-ignored", "C7508")]


def test_the_same_text_gives_the_same_bytes() -> None:
    ptx = kernel(SET_UP, FENCE, MMA, COMMIT, WAIT, STORE)
    assert assemble_module(ptx, "sm_90a").cubin == assemble_module(ptx, "sm_90a").cubin


def test_level_0_is_the_assemblers_too() -> None:
    ptx = kernel(SET_UP, STORE)
    assert len(assemble_module(ptx, "sm_90a", opt_level=0).cubin) > len(assemble_module(ptx, "sm_90a").cubin)


def test_static_shared_memory_is_reported() -> None:
    ptx = kernel("mov.u32 %r1, tile; st.shared.u32 [%r1], %r1;").replace(
        "{\n", "{\n.shared .align 16 .b8 tile[512];\n", 1
    )
    # sm_90 reserves 1024 bytes a CTA for the system.
    assert assemble_module(ptx, "sm_90a").entries[0].smem_bytes == 512 + 1024


def test_refused_ptx_is_our_bug_and_shows_the_line() -> None:
    with pytest.raises(InternalError) as error:
        assemble_module(kernel("add.u32 %r1, %nothing;"), "sm_90a")
    assert "Arguments mismatch for instruction 'add'" in str(error.value)
    assert "| add.u32 %r1, %nothing;" in str(error.value)


def test_an_architecture_it_does_not_know_is_our_bug() -> None:
    with pytest.raises(InternalError, match="-arch=sm_91a"):
        assemble_module(kernel(""), "sm_91a")


@pytest.mark.parametrize(
    ("line", "remark"),
    [
        (
            "ptxas info    : (C7504) Potential Performance Loss: 'setmaxnreg' ignored to maintain compatibility.",
            Remark("setmaxnreg-ignored", "C7504", "'setmaxnreg' ignored to maintain compatibility."),
        ),
        (
            "ptxas info    : (C7599) something new in function 'k'",
            Remark("assembler-warning", "C7599", "something new in function 'k'", "k"),
        ),
        (
            "ptxas kernel.ptx, line 12; warning : Double is not supported. Demoting to float",
            Remark("assembler-warning", "warning", "Double is not supported. Demoting to float", None, 12),
        ),
        ("ptxas warning : something odd", Remark("assembler-warning", "warning", "something odd")),
    ],
)
def test_log_lines(line: str, remark: Remark) -> None:
    assert parse_remarks(line, ()) == (remark,)
