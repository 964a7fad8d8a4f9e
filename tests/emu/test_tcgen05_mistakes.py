"""Mistakes with tensor memory, planted in a GEMM that is right: roles by warp, a ring of two stages filled by TMA, and
one accumulator that is used again for every tile."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ptx_source import kernel
from tensor_source import AFTER, BEFORE, COMMIT, SMEM_BYTES, dump, fill, run, smem_start, wait
from test_tcgen05_mma import FINISH, Layout, idesc, image, mma, set_up, whole

from tilec.emu import Fault, TensorMap, launch
from tilec.emu.numbers import bf16_to_f32, f32_to_bf16

ADVERSARIES = [None, 1, 2, 3]
VARIABLES = ".extern .shared .align 1024 .b8 smem[];\n.shared .align 8 .b64 mbar[126];\n.shared .align 16 .b32 slot[4];"
FULL, EMPTY, ACC_FULL, ACC_EMPTY = 0, 16, 32, 40
K_TILES, TILES = 3, 3
WAIT_LD = "tcgen05.wait::ld.sync.aligned;"
TMA = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"


def poll(barrier: str, parity: str, label: str) -> str:
    return f"""
{label}:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [{barrier}], {parity};
    @!%p3 bra {label};"""


def commit(barrier: str) -> str:
    return f"tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{barrier}];"


PRODUCTS = "\n".join(
    f"""
    {"setp.ne.u32 %p2, %r13, 0;" if step == 0 else "setp.eq.u32 %p2, 0, 0;"}
    tcgen05.mma.cta_group::1.kind::f16 [%r20], %rd6, %rd7, %r23, %p2;
    add.s64 %rd6, %rd6, 2;
    add.s64 %rd7, %rd7, 2;"""
    for step in range(4)
)
STAGE = """
    and.b32 %r14, %r12, 1;
    shr.u32 %r15, %r12, 1;
    and.b32 %r15, %r15, 1;
    mov.u32 %r16, mbar;
    mad.lo.u32 %r16, %r14, 8, %r16;
    mov.u32 %r17, smem;
    mad.lo.u32 %r17, %r14, 32768, %r17;
"""
"""%r14, the stage of step %r12; %r15, its parity; %r16, the full barrier; %r17, the stage's memory."""
LOADS = "\n".join(f"%v{index}" for index in range(16)).replace("\n", ", ")
STORES = "\n".join(f"    st.global.f32 [%rd4+{4 * index}], %v{index};" for index in range(16))

GEMM = f"""
    mov.b64 %rd0, ma; cvta.param.u64 %rd0, %rd0;
    mov.b64 %rd1, mb; cvta.param.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [c];
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra INITIALISED;
    mbarrier.init.shared::cta.b64 [mbar], 1;
    mbarrier.init.shared::cta.b64 [mbar+8], 1;
    mbarrier.init.shared::cta.b64 [mbar+16], 1;
    mbarrier.init.shared::cta.b64 [mbar+24], 1;
    mbarrier.init.shared::cta.b64 [mbar+32], 1;
    mbarrier.init.shared::cta.b64 [mbar+40], 128;
INITIALISED:
    setp.eq.u32 %p5, %r1, 5;
    @%p5 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 128;
    bar.sync 0;
    ld.shared.b32 %r20, [slot];
    mov.u32 %r11, 0; // tile
    mov.u32 %r12, 0; // step of the ring
    @%p5 bra MULTIPLY;
    setp.eq.u32 %p6, %r1, 4;
    @%p6 bra PRODUCE;

    // Warps 0 to 3: tensor memory to global memory.
    shl.b32 %r21, %r1, 21;
    add.u32 %r21, %r21, %r20;
    mad.lo.u32 %r22, %r0, {128 * TILES * 4}, 0;
    cvt.u64.u32 %rd3, %r22;
    add.u64 %rd3, %rd3, %rd2;
EPILOGUE:
    and.b32 %r15, %r11, 1;
    {poll("mbar+32", "%r15", "ACC_FULL")}
    {AFTER} // epilogue
    mov.u32 %r24, 0;
    mov.u64 %rd4, %rd3;
COLUMNS:
    add.u32 %r25, %r21, %r24;
    tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{LOADS}}}, [%r25];
    {WAIT_LD}
{STORES}
    add.u64 %rd4, %rd4, 64;
    add.u32 %r24, %r24, 16;
    setp.lt.u32 %p0, %r24, 128;
    @%p0 bra COLUMNS;
    {BEFORE} // epilogue
    mbarrier.arrive.shared::cta.b64 _, [mbar+40];
    add.u64 %rd3, %rd3, 512;
    add.u32 %r11, %r11, 1;
    setp.lt.u32 %p0, %r11, {TILES};
    @%p0 bra EPILOGUE;
    bra END;

PRODUCE:
    setp.ne.u32 %p0, %r0, 128;
    @%p0 bra END;
NEXT_LOAD_TILE:
    mov.u32 %r13, 0;
NEXT_LOAD:
    {STAGE}
    xor.b32 %r18, %r15, 1;
    {poll("%r16+16", "%r18", "STAGE_EMPTY")}
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r16], 32768;
    shl.b32 %r30, %r13, 6;
    mov.u32 %r31, 0;
    {TMA} [%r17], [%rd0, {{%r30, %r31}}], [%r16];
    add.u32 %r17, %r17, 16384;
    shl.b32 %r31, %r11, 7;
    {TMA} [%r17], [%rd1, {{%r30, %r31}}], [%r16];
    add.u32 %r12, %r12, 1;
    add.u32 %r13, %r13, 1;
    setp.lt.u32 %p0, %r13, {K_TILES};
    @%p0 bra NEXT_LOAD;
    add.u32 %r11, %r11, 1;
    setp.lt.u32 %p0, %r11, {TILES};
    @%p0 bra NEXT_LOAD_TILE;
    bra END;

MULTIPLY:
    setp.ne.u32 %p0, %r0, 160;
    @%p0 bra END;
    mov.u32 %r23, {idesc("f16", 128, 128, "bf16", "bf16")};
NEXT_TILE:
    and.b32 %r15, %r11, 1;
    xor.b32 %r18, %r15, 1;
    {poll("mbar+40", "%r18", "ACC_EMPTY")}
    {AFTER} // multiply
    mov.u32 %r13, 0;
NEXT_PRODUCT:
    {STAGE}
    {poll("%r16", "%r15", "STAGE_FULL")}
    shr.u32 %r17, %r17, 4;
    cvt.u64.u32 %rd6, %r17;
    or.b64 %rd6, %rd6, 0x4000404000010000;
    add.s64 %rd7, %rd6, 1024;
{PRODUCTS}
    {commit("%r16+16")} // stage
    add.u32 %r12, %r12, 1;
    add.u32 %r13, %r13, 1;
    setp.lt.u32 %p0, %r13, {K_TILES};
    @%p0 bra NEXT_PRODUCT;
    {commit("mbar+32")} // accumulator
    add.u32 %r11, %r11, 1;
    setp.lt.u32 %p0, %r11, {TILES};
    @%p0 bra NEXT_TILE;
END:
    bar.sync 0;
    @%p5 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    @%p5 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 128;
"""
SOURCE = kernel(
    GEMM,
    ".param .align 64 .b8 ma[128], .param .align 64 .b8 mb[128], .param .u64 c",
    registers=".reg .b32 %v<16>;",
    variables=VARIABLES,
    target="sm_100a",
    version="9.0",
)


def run_gemm(source: str, adversary: int | None, *, races: bool = True, swizzle: int = 128) -> None:
    generator = np.random.default_rng(1)
    a = f32_to_bf16(generator.standard_normal((128, 64 * K_TILES)).astype(np.float32))
    b = f32_to_bf16(generator.standard_normal((128 * TILES, 64 * K_TILES)).astype(np.float32))
    c = np.zeros((128, 128 * TILES), np.float32)
    maps = [TensorMap(matrix, (128, 64), swizzle, "bfloat16") for matrix in (a, b)]
    launch(source, "k", 1, 192, [*maps, c], dynamic_smem=66 * 1024, adversary=adversary, races=races)
    np.testing.assert_allclose(c, bf16_to_f32(a) @ bf16_to_f32(b).T, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("adversary", [*ADVERSARIES, 4, 5])
@pytest.mark.parametrize("races", [True, False])
def test_gemm(adversary: int | None, races: bool) -> None:
    run_gemm(SOURCE, adversary, races=races)


def without(text: str) -> str:
    assert text in SOURCE, text
    return SOURCE.replace(text, "")


def unpolled(label: str) -> str:
    """Nobody waits at this label."""
    mutant, count = re.subn(rf"mbarrier\.try_wait[^;]*;\s*@!%p3 bra {label};", "", SOURCE)
    assert count == 1
    return mutant


def changed(old: str, new: str) -> str:
    assert old in SOURCE, old
    return SOURCE.replace(old, new)


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        # 11: the version in bits 48:46.
        (changed("0x4000404000010000", "0x4000004000010000"), {"bad-descriptor"}),
        # 1: the swizzle code of wgmma, and one that TMA did not use.
        (changed("0x4000404000010000", "0x6000404000010000"), {"bad-descriptor"}),
        (changed("0x4000404000010000", "0x8000404000010000"), {"swizzle-mismatch"}),
        # 12: nobody gives the columns back.
        (without("@%p5 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 128;"), {"tmem-leak"}),
        # Nobody waits for the warp that allocates before the address is read.
        (changed("bar.sync 0;\n    ld.shared.b32 %r20", "ld.shared.b32 %r20"), {"data-race", "bad-barrier"}),
        # 13: the fences, one by one.
        (without(f"{AFTER} // epilogue"), {"missing-tcgen05-fence"}),
        (without(f"{AFTER} // multiply"), {"missing-tcgen05-fence"}),
        (without(f"{BEFORE} // epilogue"), {"missing-tcgen05-fence"}),
        # 14: every warp reads the lanes of the first.
        (without("add.u32 %r21, %r21, %r20;").replace("shl.b32 %r21, %r1, 21;", "mov.u32 %r21, %r20;"),
         {"foreign-lanes"}),
        # The loads of the accumulator are not waited for.
        (without(WAIT_LD), {"missing-tcgen05-wait"}),
        # The commit of the accumulator comes before its last product.
        (changed(f"{commit('mbar+32')} // accumulator", "mbarrier.arrive.shared::cta.b64 _, [mbar+32];"),
         {"unarrived-read", "data-race"}),
        # Nobody waits for the accumulator to be full, or to be empty again.
        (unpolled("ACC_FULL"), {"unarrived-read", "unwritten-read", "data-race"}),
        (unpolled("ACC_EMPTY"),
         {"unarrived-write", "unarrived-read", "missing-tcgen05-fence", "missing-tcgen05-wait", "barrier-overflow"}),
        # Nobody waits for a stage to be full, or to be empty again.
        (unpolled("STAGE_FULL"), {"unarrived-read", "unwritten-read", "data-race", "early-reuse"}),
        (unpolled("STAGE_EMPTY"),
         {"early-reuse", "unarrived-write", "barrier-overflow", "data-race"}),
        # The stage is released by the thread, not by a commit: the matrix unit may still read it.
        (changed(f"{commit('%r16+16')} // stage", "mbarrier.arrive.shared::cta.b64 _, [%r16+16];"), {"early-reuse"}),
        # Columns and addresses.
        (changed("add.u32 %r25, %r21, %r24;", "add.u32 %r25, %r21, %r24; add.u32 %r25, %r25, 8;"), {"out-of-bounds"}),
        (changed("[%r20], %rd6, %rd7", "[%r20+64], %rd6, %rd7"), {"out-of-bounds"}),
        (changed("add.s64 %rd7, %rd6, 1024;", "add.s64 %rd7, %rd6, 4096;"), {"out-of-bounds", "unwritten-read"}),
        # A reserved bit of the instruction descriptor, and M = 96.
        (changed(str(idesc("f16", 128, 128, "bf16", "bf16")), str(idesc("f16", 128, 128, "bf16", "bf16") | 1 << 6)),
         {"bad-descriptor"}),
        (changed(str(idesc("f16", 128, 128, "bf16", "bf16")), str(idesc("f16", 96, 128, "bf16", "bf16"))),
         {"bad-descriptor"}),
        # 17: the generic target.
        (changed(".target sm_100a", ".target sm_100"), {"unsupported"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_mistakes(source: str, kinds: set[str], adversary: int | None) -> None:
    with pytest.raises((Fault, AssertionError)) as error:
        run_gemm(source, adversary)
    kind = error.value.kind if isinstance(error.value, Fault) else "AssertionError"
    assert kind in kinds, str(error.value)
    if isinstance(error.value, Fault):
        assert error.value.line > 0


# -- one product at a time ---------------------------------------------------------------------------------------------

K_MAJOR = Layout("K", 32, 128).bits(smem_start())


def product(kind: str = "f16", *, bits: int | None = None, a: int = K_MAJOR, b: int = K_MAJOR, d: str = "0") -> str:
    found = idesc("f16", 128, 16, "f16", "f16") if bits is None else bits
    return set_up(a, b, found, d) + mma(kind)


F16 = idesc("f16", 128, 16, "f16", "f16")


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (product(a=K_MAJOR | 1 << 14), "bad-descriptor", "must be zero"),
        (product(b=K_MAJOR | 1 << 53), "bad-descriptor", "must be zero"),
        (product(a=K_MAJOR | 1 << 52), "bad-descriptor", "absolute"),
        (product(a=K_MAJOR & ~(7 << 61) | 3 << 61), "bad-descriptor", "swizzle 3"),
        (product(a=K_MAJOR + 8), "bad-descriptor", "inside a pattern"),
        (product(a=K_MAJOR & ~(7 << 61) | 1 << 61), "bad-descriptor", "MN-major operands only"),
        (product(a=Layout("K", 32, 128).bits(smem_start() + SMEM_BYTES)), "out-of-bounds", "past the end"),
        (product(bits=F16 | 1 << 23), "bad-descriptor", "must be zero"),
        (product(bits=F16 | 1 << 2), "bad-descriptor", "sparse"),
        (product(bits=F16 | 1 << 30), "bad-descriptor", "must be zero"),
        (product(bits=F16 | 2 << 7), "bad-descriptor", "type 2 for A"),
        (product(bits=F16 | 2 << 4), "bad-descriptor", "for D"),
        (product(bits=F16 | 1 << 3), "bad-descriptor", "saturates"),
        (product("tf32"), "bad-descriptor", "type 0 for A"),
        (product(bits=F16 & ~(0x3F << 17)), "bad-descriptor", "N = 0"),
        (product(d="0x100000"), "misaligned", "lane 16"),
        (product(d="0x1f8"), "out-of-bounds", "columns 0x1f8 to 0x208"),
        (product() + "setp.eq.u32 %p2, 0, 0;" + mma("f16").replace("[%d0]", "[%d0+64]"), "unwritten-read", "D of"),
        (product() + mma("f16").replace("%idesc", "%idesc").replace("[%d0]", "[%d0+8]"),
         "unarrived-write", "before a tcgen05.commit"),
        (product() + wait(), "deadlock", "mbarrier"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("adversary", [None, 1])
def test_wrong_products(body: str, kind: str, message: str, adversary: int | None) -> None:
    with pytest.raises(Fault, match=message) as fault:
        run(whole(body), np.zeros(4, np.uint32), image(), adversary=adversary)
    assert fault.value.kind == kind


def test_operands_written_by_threads_need_a_proxy_fence() -> None:
    source = whole(product(), FINISH)
    run(source, np.zeros(4, np.uint32), image())
    with pytest.raises(Fault) as fault:
        run(source.replace("fence.proxy.async.shared::cta;", ""), np.zeros(4, np.uint32), image())
    assert fault.value.kind == "missing-proxy-fence"


@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_operands_copied_by_threads_need_a_proxy_fence(adversary: int | None) -> None:
    """cp.async writes by the generic proxy, whoever waits for it."""
    source = whole(product(), FINISH).replace("ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd2];", "")
    stored, fence = "st.shared.v4.b32 [%r8], {%r4, %r5, %r6, %r7};", "fence.proxy.async.shared::cta;"
    assert stored in source and fence in source
    source = source.replace(stored, "cp.async.cg.shared.global [%r8], [%rd2], 16;")
    run(source.replace(fence, f"cp.async.wait_all; {fence}"), np.zeros(4, np.uint32), image(), adversary=adversary)
    for wrong in ("cp.async.wait_all;", f"{fence} cp.async.wait_all;"):
        with pytest.raises(Fault) as fault:
            run(source.replace(fence, wrong), np.zeros(4, np.uint32), image(), adversary=adversary)
        assert fault.value.kind == "missing-proxy-fence"


@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_operands_must_stay_until_the_commit(adversary: int | None) -> None:
    late = "@%p1 st.shared.b32 [smem], 0;"
    run(whole(product(), FINISH, late), np.zeros(4, np.uint32), image(), adversary=adversary)
    with pytest.raises(Fault, match=r"overwritten while tcgen05\.mma of PTX line") as fault:
        run(whole(product(), late, FINISH), np.zeros(4, np.uint32), image(), adversary=adversary)
    assert fault.value.kind == "early-reuse"


@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_a_store_before_the_product_must_be_waited_for(adversary: int | None) -> None:
    body = fill(0, 8) + set_up(0, K_MAJOR, F16, "8") + mma("f16", a="[%taddr]") + FINISH
    run(whole(body), np.zeros(4, np.uint32), image(), np.zeros((128, 8), np.uint32), adversary=adversary)
    for part, kinds in (
        ("tcgen05.wait::st.sync.aligned;", {"missing-tcgen05-wait"}),
        (BEFORE, {"missing-tcgen05-fence"}),
        ("bar.sync 0;", {"missing-tcgen05-fence", "missing-tcgen05-wait", "unwritten-read", "data-race"}),
        (AFTER, {"missing-tcgen05-fence"}),
    ):
        mutant = whole(body.replace(part, "", 1))
        with pytest.raises(Fault) as fault:
            run(mutant, np.zeros(4, np.uint32), image(), np.zeros((128, 8), np.uint32), adversary=adversary)
        assert fault.value.kind in kinds, part


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_a_commit_is_for_all_that_came_before_it(adversary: int | None) -> None:
    """What is over when the thread commits is "prior" too: whoever waits for this commit alone may read it."""
    body = (
        product()
        + "@%p1 mbarrier.init.shared::cta.b64 [mbar+8], 1;\nbar.sync 0;\n@!%p1 bra OTHERS;"
        + f"{COMMIT} {wait(label='FIRST')}"
        + COMMIT.replace("[mbar]", "[mbar+8]")
        + f"OTHERS: {wait('mbar+8', label='SECOND')} {AFTER}"
        + dump(8, 8)
    )
    source = whole(body)
    run(source, np.zeros(128 * 8, np.uint32), image(), adversary=adversary)
    with pytest.raises(Fault) as fault:
        run(source.replace(wait("mbar+8", label="SECOND"), ""), np.zeros(128 * 8, np.uint32), image())
    assert fault.value.kind in {"unarrived-read", "data-race"}


def test_a_commit_that_comes_after_inval_is_no_fault() -> None:
    """Triton ends its barriers while the last commit to one that nobody waits for is on its way."""
    body = (
        product()
        + FINISH
        + """
    @%p1 mbarrier.init.shared::cta.b64 [mbar+8], 1;
    @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [mbar+8];
    @%p1 mbarrier.inval.shared::cta.b64 [mbar+8];
    """
    )
    run(whole(body), np.zeros(4, np.uint32), image())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tcgen05.mma.sp.cta_group::1.kind::f16 [%taddr], %da, %db, [%r1], %idesc, %p2;", "sparse"),
        ("tcgen05.mma.cta_group::1.kind::f16.ashift [%taddr], [%r1], %db, %idesc, %p2;", "a shift of A"),
        ("tcgen05.mma.cta_group::1.kind::f8f6f4 [%taddr], %da, %db, %idesc, %p2, 3;", "operands too many"),
        ("tcgen05.mma.cta_group::1.kind::f16 [%taddr], %da, %db, %idesc, {%r1, %r2}, %p2;", "2 registers instead of 4"),
        ("tcgen05.mma.ws.cta_group::1.kind::mxf4 [%taddr], %da, %db, %idesc, %p2;", "this kind"),
        ("tcgen05.cp.cta_group::1.64x128b [%taddr], %da;", "multicast"),
        ("tcgen05.ld.sync.aligned.16x256b.x64.b32 {%r1, %r2}, [%taddr];", "x64"),
        ("tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%r1, %r2}, [%taddr];", "this shape or type"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(text: str, message: str) -> None:
    with pytest.raises(Fault, match=message) as fault:
        run(whole(text), np.zeros(4, np.uint32), image())
    assert fault.value.kind == "unsupported"
