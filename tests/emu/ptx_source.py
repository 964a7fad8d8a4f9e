"""Hand-written kernels, and the frame around short pieces of PTX."""

from __future__ import annotations


def kernel(
    body: str,
    params: str = ".param .u64 out",
    *,
    registers: str = "",
    variables: str = "",
    target: str = "sm_90a",
    version: str = "8.6",
    directives: str = "",
) -> str:
    """A module with one entry `k` around a body; `%r`, `%rd`, `%f`, `%h` and `%p` are declared."""
    return f"""
.version {version}
.target {target}
.address_size 64
.file 1 "kernel.tl"
{variables}
.visible .entry k({params}) {directives}
{{
    .reg .b32 %r<64>;
    .reg .b64 %rd<32>;
    .reg .f32 %f<64>;
    .reg .f64 %fd<8>;
    .reg .b16 %h<16>;
    .reg .pred %p<16>;
    {registers}
{body}
    ret;
}}
"""


def gemm_sm90(k_tiles: int, stages: int = 4, *, n: int = 128) -> str:
    """C[128·y, n·x] = A·Bᵀ in bf16 with f32 output: a producer warp with TMA, two consumer warpgroups with wgmma.

    Parameters: maps of A (128 x 64 boxes) and B (n x 64 boxes), both swizzled by 128 bytes, C, and its row length.
    """
    accumulators = ", ".join(f"%acc{index}" for index in range(n // 2))
    a_bytes, b_bytes = 128 * 64 * 2, n * 64 * 2
    stage_bytes = a_bytes + b_bytes
    products = []
    for step in range(4):
        keeps = "%first" if step == 0 else "1"
        products.append(
            f"    wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{accumulators}}}, "
            f"%da, %db, {keeps}, 1, 1, 0, 0;\n"
            "    add.s64 %da, %da, 2;\n    add.s64 %db, %db, 2;\n"
        )
    stores = []
    for group in range(n // 8):
        for half in range(2):
            base = 4 * group + 2 * half
            pointer = "%out" if half == 0 else "%out8"
            stores.append(f"    st.global.v2.f32 [{pointer}+{32 * group}], {{%acc{base}, %acc{base + 1}}};\n")
    return f"""
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.shared .align 8 .b64 full[{stages}];
.shared .align 8 .b64 empty[{stages}];
.shared .align 8 .b64 rest[{128 - 2 * stages}];  // dynamic shared memory begins a KiB behind the first barrier
.visible .entry gemm(.param .align 64 .b8 a_map[128], .param .align 64 .b8 b_map[128], .param .u64 c, .param .u32 width)
.reqntid 384, 1, 1
.minnctapersm 1
{{
    .reg .b32 %thread, %warp, %group, %base, %slot, %parity, %k, %stage, %x, %y, %bar, %addr, %kk, %lane, %row, %col;
    .reg .b32 %t, %w;
    .reg .b64 %da, %db, %am, %bm, %out, %out8, %wide;
    .reg .pred %p, %q, %elected, %done, %first;
    .reg .f32 %acc<{n // 2}>;
    mov.u32 %thread, %tid.x;
    shr.u32 %warp, %thread, 5;
    shfl.sync.idx.b32 %warp, %warp, 0, 31, -1;
    shr.u32 %group, %warp, 2;
    mov.u32 %x, %ctaid.x;
    mov.u32 %y, %ctaid.y;
    mov.u32 %base, smem;
    setp.ne.u32 %p, %thread, 0;
    @%p bra initialised;
    mov.u32 %slot, 0;
init:
    mov.u32 %bar, full;
    mad.lo.u32 %bar, %slot, 8, %bar;
    mbarrier.init.shared::cta.b64 [%bar], 1;
    mov.u32 %bar, empty;
    mad.lo.u32 %bar, %slot, 8, %bar;
    mbarrier.init.shared::cta.b64 [%bar], 2;
    add.u32 %slot, %slot, 1;
    setp.lt.u32 %p, %slot, {stages};
    @%p bra init;
    fence.mbarrier_init.release.cluster;
initialised:
    bar.sync 0;
    mov.u32 %slot, 0;
    mov.u32 %k, 0;
    setp.ne.u32 %p, %group, 0;
    @%p bra consumer;
    setmaxnreg.dec.sync.aligned.u32 40;
    setp.ne.u32 %p, %warp, 0;
    @%p bra finished;
    elect.sync _|%elected, -1;
    @!%elected bra finished;
    mov.u64 %am, a_map;
    cvta.param.u64 %am, %am;
    mov.u64 %bm, b_map;
    cvta.param.u64 %bm, %bm;
    mov.u32 %parity, 1;
    shl.b32 %y, %y, 7;
    mul.lo.u32 %x, %x, {n};
produce:
    mov.u32 %bar, empty;
    mad.lo.u32 %bar, %slot, 8, %bar;
wait_empty:
    mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], %parity;
    @!%done bra wait_empty;
    mov.u32 %bar, full;
    mad.lo.u32 %bar, %slot, 8, %bar;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {stage_bytes};
    mad.lo.u32 %addr, %slot, {stage_bytes}, %base;
    shl.b32 %kk, %k, 6;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%addr], [%am, {{%kk, %y}}], [%bar];
    add.u32 %addr, %addr, {a_bytes};
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%addr], [%bm, {{%kk, %x}}], [%bar];
    add.u32 %slot, %slot, 1;
    setp.eq.u32 %p, %slot, {stages};
    selp.u32 %slot, 0, %slot, %p;
    @%p xor.b32 %parity, %parity, 1;
    add.u32 %k, %k, 1;
    setp.lt.u32 %p, %k, {k_tiles};
    @%p bra produce;
    bra finished;
consumer:
    setmaxnreg.inc.sync.aligned.u32 232;
    mov.u32 %parity, 0;
    sub.u32 %group, %group, 1;
    setp.ne.u32 %first, 0, 0;
consume:
    mov.u32 %bar, full;
    mad.lo.u32 %bar, %slot, 8, %bar;
wait_full:
    mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], %parity;
    @!%done bra wait_full;
    mad.lo.u32 %addr, %slot, {stage_bytes}, %base;
    add.u32 %stage, %addr, {a_bytes};
    shr.u32 %stage, %stage, 4;
    mad.lo.u32 %addr, %group, 8192, %addr;
    shr.u32 %addr, %addr, 4;
    cvt.u64.u32 %da, %addr;
    cvt.u64.u32 %db, %stage;
    or.b64 %da, %da, 0x4000004000010000;
    or.b64 %db, %db, 0x4000004000010000;
    wgmma.fence.sync.aligned;
{"".join(products)}    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 1;
    setp.eq.u32 %first, 0, 0;
    and.b32 %t, %thread, 127;
    setp.ne.u32 %p, %k, 0;
    setp.eq.and.u32 %q, %t, 0, %p;
    add.u32 %t, %slot, {stages - 1};
    rem.u32 %t, %t, {stages};
    mov.u32 %bar, empty;
    mad.lo.u32 %bar, %t, 8, %bar;
    @%q mbarrier.arrive.shared::cta.b64 _, [%bar];
    add.u32 %slot, %slot, 1;
    setp.eq.u32 %p, %slot, {stages};
    selp.u32 %slot, 0, %slot, %p;
    @%p xor.b32 %parity, %parity, 1;
    add.u32 %k, %k, 1;
    setp.lt.u32 %p, %k, {k_tiles};
    @%p bra consume;
    wgmma.wait_group.sync.aligned 0;
    and.b32 %lane, %thread, 31;
    and.b32 %w, %warp, 3;
    shl.b32 %row, %y, 7;
    mad.lo.u32 %row, %group, 64, %row;
    mad.lo.u32 %row, %w, 16, %row;
    shr.u32 %t, %lane, 2;
    add.u32 %row, %row, %t;
    and.b32 %t, %lane, 3;
    shl.b32 %col, %t, 1;
    mad.lo.u32 %col, %x, {n}, %col;
    ld.param.u32 %w, [width];
    mad.lo.u32 %t, %row, %w, %col;
    ld.param.u64 %out, [c];
    cvta.to.global.u64 %out, %out;
    mad.wide.u32 %out, %t, 4, %out;
    shl.b32 %w, %w, 5;
    cvt.u64.u32 %wide, %w;
    add.s64 %out8, %out, %wide;
{"".join(stores)}finished:
    ret;
}}
"""


def gemm_sm80(k_tiles: int, stages: int = 3) -> str:
    """C[64·y, 64·x] = A·Bᵀ in f16 with f32 output, for four warps: cp.async ring, ldmatrix, mma.sync.

    Parameters: A and B (row-major, K contiguous), C, the row length of A and B, and that of C.
    """
    row = 80  # 32 halves and 16 bytes of padding, so that the rows of a matrix lie in different banks
    tile = 64 * row
    stage = 2 * tile
    products = []
    for k in (0, 32):
        products.append(f"    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%a0, %a1, %a2, %a3}}, [%ra+{k}];\n")
        for n in range(8):
            d = ", ".join(f"%c{4 * n + index}" for index in range(4))
            products.append(
                f"    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%b0, %b1}}, [%rb+{n * 8 * row + k}];\n"
                f"    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{d}}}, {{%a0, %a1, %a2, %a3}}, "
                f"{{%b0, %b1}}, {{{d}}};\n"
            )
    zeros = "".join(f"    mov.f32 %c{index}, 0f00000000;\n" for index in range(32))
    stores = "".join(
        f"    st.global.v2.f32 [%out{half}+{32 * n}], {{%c{4 * n + 2 * half}, %c{4 * n + 2 * half + 1}}};\n"
        for n in range(8)
        for half in range(2)
    )
    copies = "".join(
        f"    cp.async.cg.shared.global [%to+{offset}], [%from{name}+0], 16;\n"
        f"    cp.async.cg.shared.global [%to+{offset + 32 * row}], [%from{name}32], 16;\n"
        for name, offset in (("a", 0), ("b", tile))
    )
    advance = "".join(f"    add.s64 %from{name}, %from{name}, 64;\n" for name in ("a", "a32", "b", "b32"))
    issue = f"""
    mad.lo.u32 %to, %next, {stage}, %mine;
{copies}{advance}
    add.u32 %next, %next, 1;
    setp.eq.u32 %p, %next, {stages};
    selp.u32 %next, 0, %next, %p;
"""
    prologue = "".join(
        (issue if index < k_tiles else "") + "    cp.async.commit_group;\n" for index in range(stages - 1)
    )
    return f"""
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry gemm(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 depth, .param .u32 width)
.reqntid 128, 1, 1
{{
    .reg .b32 %thread, %warp, %lane, %mine, %to, %next, %now, %k, %x, %y, %row, %chunk, %depth, %width, %s, %ra, %rb;
    .reg .b32 %a0, %a1, %a2, %a3, %b0, %b1, %base;
    .reg .b64 %froma, %froma32, %fromb, %fromb32, %wide, %out0, %out1;
    .reg .f32 %c<32>;
    .reg .pred %p, %more;
    mov.u32 %thread, %tid.x;
    and.b32 %lane, %thread, 31;
    shr.u32 %warp, %thread, 5;
    mov.u32 %x, %ctaid.x;
    mov.u32 %y, %ctaid.y;
    shl.b32 %x, %x, 6;
    shl.b32 %y, %y, 6;
    ld.param.u32 %depth, [depth];
    ld.param.u32 %width, [width];
    mov.u32 %base, smem;
    // Thread t copies chunk t % 4 of rows t / 4 and t / 4 + 32.
    shr.u32 %row, %thread, 2;
    and.b32 %chunk, %thread, 3;
    mad.lo.u32 %mine, %row, {row}, %base;
    mad.lo.u32 %mine, %chunk, 16, %mine;
    shl.b32 %chunk, %chunk, 4;
    cvt.u64.u32 %wide, %chunk;
    ld.param.u64 %froma, [a];
    cvta.to.global.u64 %froma, %froma;
    add.s64 %froma, %froma, %wide;
    add.u32 %s, %y, %row;
    mul.lo.u32 %s, %s, %depth;
    mad.wide.u32 %froma, %s, 2, %froma;
    ld.param.u64 %fromb, [b];
    cvta.to.global.u64 %fromb, %fromb;
    add.s64 %fromb, %fromb, %wide;
    add.u32 %s, %x, %row;
    mul.lo.u32 %s, %s, %depth;
    mad.wide.u32 %fromb, %s, 2, %fromb;
    mul.wide.u32 %wide, %depth, 64;
    add.s64 %froma32, %froma, %wide;
    add.s64 %fromb32, %fromb, %wide;
{zeros}
    mov.u32 %next, 0;
    mov.u32 %now, 0;
    mov.u32 %k, 0;
{prologue}
loop:
    cp.async.wait_group {stages - 2};
    bar.sync 0;
    add.u32 %s, %k, {stages - 1};
    setp.lt.u32 %more, %s, {k_tiles};
    @!%more bra issued;
{issue}
issued:
    cp.async.commit_group;
    // A: lanes 0-15 give rows, lanes 16-31 the same rows 8 columns on. B: lanes 0-7 and 8-15.
    and.b32 %row, %lane, 15;
    mad.lo.u32 %row, %warp, 16, %row;
    mad.lo.u32 %ra, %now, {stage}, %base;
    mad.lo.u32 %ra, %row, {row}, %ra;
    shr.u32 %s, %lane, 4;
    mad.lo.u32 %ra, %s, 16, %ra;
    and.b32 %row, %lane, 7;
    mad.lo.u32 %rb, %now, {stage}, %base;
    mad.lo.u32 %rb, %row, {row}, %rb;
    bfe.u32 %s, %lane, 3, 1;
    mad.lo.u32 %rb, %s, 16, %rb;
    add.u32 %rb, %rb, {tile};
{"".join(products)}
    add.u32 %now, %now, 1;
    setp.eq.u32 %p, %now, {stages};
    selp.u32 %now, 0, %now, %p;
    add.u32 %k, %k, 1;
    setp.lt.u32 %p, %k, {k_tiles};
    @%p bra loop;
    cp.async.wait_all;
    shr.u32 %row, %lane, 2;
    mad.lo.u32 %row, %warp, 16, %row;
    add.u32 %row, %row, %y;
    and.b32 %s, %lane, 3;
    mad.lo.u32 %s, %s, 2, %x;
    mad.lo.u32 %s, %row, %width, %s;
    ld.param.u64 %out0, [c];
    cvta.to.global.u64 %out0, %out0;
    mad.wide.u32 %out0, %s, 4, %out0;
    mul.wide.u32 %wide, %width, 32;
    add.s64 %out1, %out0, %wide;
{stores}
    ret;
}}
"""
