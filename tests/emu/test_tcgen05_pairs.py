"""tcgen05 over a pair of blocks: products of both blocks' shared memory, commits and copies for both."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel
from tensor_source import AFTER, REGISTERS, SMEM, SMEM_BYTES, codes, dump, run, smem_start, values_of, wait
from test_tcgen05_mma import A_AT, B_AT, K, Layout, bits_as, idesc, place

from tilec.emu import Fault, TensorMap, launch

ADVERSARIES = [None, 1, 2]
CLUSTER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
ALLOCATE = """
    @%p4 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], COLUMNS;
    @%p4 tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
"""
RELEASE = "@%p4 tcgen05.dealloc.cta_group::2.sync.aligned.b32 %taddr, COLUMNS;"
COMMIT = """
    mov.b16 %h1, 3;
    @%p6 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [mbar], %h1;
"""


def pair_kernel(body: str, columns: int, params: str = "") -> str:
    """Each block copies its half of `image` and dumps into its half of `out`; %p6 is thread 0 of the even block."""
    text = f"""
    ld.param.u64 %rd0, [out];
    ld.param.u64 %rd1, [image];
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    mov.u32 %r60, %cluster_ctarank;
    setp.eq.u32 %p1, %r0, 0;
    setp.eq.u32 %p4, %r1, 0;
    setp.eq.and.u32 %p6, %r60, 0, %p1;
    mul.wide.u32 %rd2, %r60, {SMEM_BYTES};
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r2, 0;
COPY:
    shl.b32 %r3, %r0, 4;
    add.u32 %r3, %r3, %r2;
    cvt.u64.u32 %rd2, %r3;
    add.u64 %rd2, %rd1, %rd2;
    ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd2];
    mov.u32 %r8, smem;
    add.u32 %r8, %r8, %r3;
    st.shared.v4.b32 [%r8], {{%r4, %r5, %r6, %r7}};
    add.u32 %r2, %r2, 2048;
    setp.lt.u32 %p0, %r2, {SMEM_BYTES};
    @%p0 bra COPY;
    fence.proxy.async.shared::cta;
    @%p1 mbarrier.init.shared::cta.b64 [mbar], 1;
    fence.mbarrier_init.release.cluster;
    {ALLOCATE}
    {CLUSTER}
    ld.shared.b32 %taddr, [slot];
    shl.b32 %mine, %r1, 21;
    add.u32 %mine, %mine, %taddr;
    {body}
    tcgen05.fence::before_thread_sync;
    {CLUSTER}
    {RELEASE}
    """
    return kernel(
        text.replace("COLUMNS", str(columns)),
        params or ".param .u64 out, .param .u64 image, .param .u64 fill",
        registers=REGISTERS,
        variables=SMEM,
        target="sm_100a",
        version="9.0",
    )


def pair_body(a_bits: int, b_bits: int, instruction: int, kind: str, d: int, n_columns: int, extra: str = "") -> str:
    rows = f"mul.wide.u32 %rd6, %r60, {128 * 4 * n_columns}; add.u64 %rd0, %rd0, %rd6;"
    return f"""
    mov.b64 %da, {a_bits};
    mov.b64 %db, {b_bits};
    mov.b32 %idesc, {instruction};
    setp.eq.u32 %p2, 0, 1;
    {extra}
    @%p6 tcgen05.mma.cta_group::2.kind::{kind} [%taddr+{d}], %da, %db, %idesc, %p2;
    {COMMIT}
    {wait()}
    {AFTER}
    {rows}
    {dump(d, n_columns)}
    """


@pytest.mark.parametrize(("m", "n"), [(256, 32), (256, 256), (128, 32), (128, 128)])
@pytest.mark.parametrize(
    ("kind", "element", "result"),
    [("f16", "bf16", "f32"), ("tf32", "tf32", "f32"), ("f8f6f4", "e4m3", "f32"), ("i8", "s8", "s32")],
)
@pytest.mark.parametrize("adversary", [None, 1])
def test_products(m: int, n: int, kind: str, element: str, result: str, adversary: int | None) -> None:
    generator = np.random.default_rng(m + n)
    a, b = codes(generator, element, (m, K[kind])), codes(generator, element, (n, K[kind]))
    memory = np.zeros((2, SMEM_BYTES), np.uint8)
    la, lb = Layout("K", 32, m // 2), Layout("K", 32, n // 2)
    for rank in range(2):
        place(memory[rank], a[rank * m // 2 :][: m // 2], element, la, A_AT)
        place(memory[rank], b[rank * n // 2 :][: n // 2], element, lb, B_AT)
    start = smem_start()
    columns = n if m == 256 else n // 2
    bits = idesc(kind, m, n, element, element, result)
    body = pair_body(la.bits(start + A_AT), lb.bits(start + B_AT), bits, kind, 0, columns)
    out = np.zeros((2, 128, columns), np.uint32)
    run(pair_kernel(body, 256), out, memory, grid=2, cluster=2, adversary=adversary)
    product = values_of(a, element) @ values_of(b, element).T
    expected = np.empty((2, 128, columns))
    for row in range(m):
        for column in range(n):
            if m == 256:
                expected[row // 128, row % 128, column] = product[row, column]
            else:
                expected[row // 64, row % 64 + 64 * (column // (n // 2)), column % (n // 2)] = product[row, column]
    found = bits_as(out, result)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(product).max())


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_each_block_copies_its_own(adversary: int | None) -> None:
    generator = np.random.default_rng(1)
    memory = generator.integers(0, 256, (2, SMEM_BYTES), np.uint8)
    start = smem_start()
    body = f"""
    mov.b64 %da, {start >> 4 | 1 << 46 | 8 << 32};
    @%p6 tcgen05.cp.cta_group::2.32x128b.warpx4 [%taddr], %da;
    @%p6 tcgen05.cp.cta_group::2.32x128b.warpx4 [%taddr+4], %da;
    {COMMIT}
    {wait()}
    {AFTER}
    mul.wide.u32 %rd6, %r60, 4096; add.u64 %rd0, %rd0, %rd6;
    {dump(0, 8)}
    """
    out = np.zeros((2, 128, 8), np.uint32)
    run(pair_kernel(body, 32), out, memory, grid=2, cluster=2, adversary=adversary)
    for rank in range(2):
        block = memory[rank, :512].view(np.uint32).reshape(32, 4)
        np.testing.assert_array_equal(out[rank], np.tile(block, (4, 2)))


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_scales_of_a_pair(adversary: int | None) -> None:
    """Each block has the scales of its own rows of A, and of all columns of B."""
    m, n, kind = 256, 64, "mxf8f6f4"
    generator = np.random.default_rng(3)
    a, b = codes(generator, "e4m3", (m, 32)), codes(generator, "e4m3", (n, 32))
    sa, sb = (generator.integers(120, 134, count).astype(np.uint8) for count in (m, n))
    memory = np.zeros((2, SMEM_BYTES), np.uint8)
    la, lb = Layout("K", 32, 128), Layout("K", 32, n // 2)
    at = 48 * 1024
    for rank in range(2):
        place(memory[rank], a[128 * rank :][:128], "e4m3", la, A_AT)
        place(memory[rank], b[32 * rank :][:32], "e4m3", lb, B_AT)
        for row in range(128):
            memory[rank, at + row % 32 * 16 + row // 32 * 4] = sa[128 * rank + row]
        for row in range(n):
            memory[rank, at + 512 + row % 32 * 16 + row // 32 * 4] = sb[row]
    start = smem_start()
    bits = (start + at) >> 4 | 1 << 46 | 8 << 32
    extra = f"""
    mov.b64 %dz, {bits};
    @%p6 tcgen05.cp.cta_group::2.32x128b.warpx4 [%taddr], %dz;
    add.u64 %dz, %dz, 32;
    @%p6 tcgen05.cp.cta_group::2.32x128b.warpx4 [%taddr+8], %dz;
    """
    product = idesc(kind, m, n, "e4m3", "e4m3")
    body = pair_body(la.bits(start), lb.bits(start + B_AT), product, f"{kind}.block_scale", 16, n, extra)
    body = body.replace("%idesc, %p2", "%idesc, [%taddr], [%taddr+8], %p2")
    out = np.zeros((2, 128, n), np.uint32)
    run(pair_kernel(body, 128), out, memory, grid=2, cluster=2, adversary=adversary)
    scaled = [values_of(x, "e4m3") * 2.0 ** (s.astype(float) - 127)[:, None] for x, s in ((a, sa), (b, sb))]
    expected = scaled[0] @ scaled[1].T
    np.testing.assert_allclose(
        out.view(np.float32).reshape(256, n), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()
    )


TMA = """
    ld.param.u64 %rd0, [out];
    mov.b64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    mov.u32 %r0, %tid.x;
    mov.u32 %r60, %cluster_ctarank;
    setp.eq.u32 %p1, %r0, 0;
    setp.eq.and.u32 %p6, %r60, 0, %p1;
    @%p1 mbarrier.init.shared::cta.b64 [mbar], 1;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @%p6 mbarrier.arrive.expect_tx.shared::cta.b64 _, [mbar], 4096;
    mov.u32 %r1, mbar;
    mapa.shared::cluster.u32 %r2, %r1, 0;
    mov.u32 %r3, smem;
    shl.b32 %r4, %r60, 4;
    mov.u32 %r5, 0;
    @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2
        [%r3], [%rd1, {%r5, %r4}], [%r2];
    mov.u32 %r6, 0;
WAITING:
    @!%p6 bra JOIN;
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [mbar], 0;
    @!%p3 bra WAITING;
JOIN:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mul.lo.u32 %r7, %r0, 16;
    add.u32 %r3, %r3, %r7;
    ld.shared.v4.b32 {%r8, %r9, %r10, %r11}, [%r3];
    mad.lo.u32 %r7, %r60, 2048, %r7;
    cvt.u64.u32 %rd2, %r7;
    add.u64 %rd0, %rd0, %rd2;
    st.global.v4.b32 [%rd0], {%r8, %r9, %r10, %r11};
"""


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_loads_of_both_blocks_report_to_one_barrier(adversary: int | None) -> None:
    """Both blocks load a box of 16 rows of 128 bytes; the barrier of the even block expects both."""
    source = kernel(
        TMA, ".param .u64 out, .param .align 64 .b8 map[128]", variables=SMEM, target="sm_100a", version="9.0"
    )
    data = np.random.default_rng(1).integers(0, 2**16, (32, 64)).astype(np.uint16)
    out = np.zeros((32, 64), np.uint16)
    tensor = TensorMap(data, (16, 64), 0)
    launch(source, "k", 2, 128, [out, tensor], cluster=2, dynamic_smem=SMEM_BYTES, adversary=adversary)
    np.testing.assert_array_equal(out, data)


@pytest.mark.parametrize(
    ("old", "new", "kind", "message"),
    [
        # One block's warp does not take part.
        (
            RELEASE,
            f"setp.eq.and.u32 %p7, %r60, 0, %p4; {RELEASE.replace('@%p4', '@%p7')}",
            "deadlock",
            "to run tcgen05",
        ),
        (ALLOCATE.split("\n")[1], ALLOCATE.split("\n")[1].replace("COLUMNS", "%r59"), "bad-tmem-allocation", "64"),
    ],
)
def test_pairs_allocate_together(old: str, new: str, kind: str, message: str) -> None:
    source = pair_kernel("", 32)
    old, new = (text.replace("COLUMNS", "32") for text in (old, new))
    assert old in source
    head = "shl.b32 %r59, %r60, 5; add.u32 %r59, %r59, 32;"
    source = source.replace(old, f"{head} {new}")
    with pytest.raises(Fault, match=message) as fault:
        run(source, np.zeros(4, np.uint32), np.zeros((2, SMEM_BYTES), np.uint8), grid=2, cluster=2)
    assert fault.value.kind == kind


MEETING = f"{CLUSTER}\n    {RELEASE}"


def told(by_both: bool) -> str:
    """The first block, or each, tells the other one by an mbarrier there that all its warps are done."""
    who = "0, 0" if by_both else "%r60, 0"
    return f"""
    bar.sync 0;
    setp.eq.and.u32 %p7, {who}, %p1;
    setp.eq.u32 %p8, {"0, 0" if by_both else "%r60, 1"};
    xor.b32 %r51, %r60, 1;
    mov.u32 %r50, mbar;
    mapa.shared::cluster.u32 %r50, %r50, %r51;
    @%p7 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r50+8];
TOLD:
    @!%p8 bra HEARD;
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [mbar+8], 0;
    @!%p3 bra TOLD;
HEARD:
    bar.warp.sync -1;
    {RELEASE}"""


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize(
    ("rendezvous", "is_right"),
    [(MEETING, True), (told(by_both=True), True), (told(by_both=False), False), (f"bar.sync 0; {RELEASE}", False)],
    ids=["at a barrier", "by messages", "one-sided", "not"],
)
def test_pairs_meet_before_they_give_back(rendezvous: str, is_right: bool, adversary: int | None) -> None:
    body = f"""
    @%p1 mbarrier.init.shared::cta.b64 [mbar+8], 1;
    fence.mbarrier_init.release.cluster;
    {CLUSTER}
    mov.b64 %da, {smem_start() >> 4 | 1 << 46 | 8 << 32};
    @%p6 tcgen05.cp.cta_group::2.32x128b.warpx4 [%taddr], %da;
    @%p6 tcgen05.cp.cta_group::2.32x128b.warpx4 [%taddr+4], %da;
    {COMMIT}
    {wait()}
    {AFTER}
    mul.wide.u32 %rd6, %r60, 4096; add.u64 %rd0, %rd0, %rd6;
    {dump(0, 8)}
    """
    source = pair_kernel(body, 32)
    old, new = (text.replace("COLUMNS", "32") for text in (MEETING, rendezvous))
    assert old in source
    source = source.replace(old, new)
    out, memory = np.zeros((2, 128, 8), np.uint32), np.zeros((2, SMEM_BYTES), np.uint8)
    if is_right:
        run(source, out, memory, grid=2, cluster=2, adversary=adversary)
        return
    with pytest.raises(Fault, match="of a pair while") as fault:
        run(source, out, memory, grid=2, cluster=2, adversary=adversary)
    assert fault.value.kind == "data-race"


ENDED = """
    setp.ne.u32 %p7, %r60, 0;
    @%p7 exit;
    mov.u32 %r59, 0;
WAIT_A_WHILE:
    add.u32 %r59, %r59, 1;
    setp.lt.u32 %p7, %r59, 200;
    nanosleep.u32 100;
    @%p7 bra WAIT_A_WHILE;
"""


@pytest.mark.parametrize(
    "asked",
    [
        "tcgen05.mma.cta_group::2.kind::f16 [%r61], %da, %db, %idesc, %p2;",
        "tcgen05.cp.cta_group::2.32x128b.warpx4 [%r61], %da;",
        "tcgen05.shift.cta_group::2.down [%r61];",
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [mbar];",
    ],
)
def test_the_peer_block_must_run(asked: str) -> None:
    """ "Issue Granularity": the peer should be active and should not have exited."""
    start = smem_start()
    text = f"""
    mov.u32 %r60, %cluster_ctarank;
    mov.u32 %r61, 0;
    mov.b64 %da, {Layout("K", 32, 128).bits(start)};
    mov.b64 %db, {Layout("K", 32, 16).bits(start + B_AT)};
    mov.b32 %idesc, {idesc("f16", 256, 32, "f16", "f16")};
    setp.eq.u32 %p2, 0, 1;
    mbarrier.init.shared::cta.b64 [mbar], 1;
    {ENDED}
    {asked}
    """
    source = kernel(text, ".param .u64 out", registers=REGISTERS, variables=SMEM, target="sm_100a", version="9.0")
    with pytest.raises(Fault, match="pair of blocks, of which block") as fault:
        launch(source, "k", 2, 1, [np.zeros(4, np.uint32)], cluster=2, dynamic_smem=SMEM_BYTES)
    assert fault.value.kind == "ended-block"


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_a_load_signals_another_block_only_in_a_pair(adversary: int | None) -> None:
    source = kernel(
        TMA.replace(".cta_group::2", ""),
        ".param .u64 out, .param .align 64 .b8 map[128]", variables=SMEM, target="sm_100a", version="9.0",
    )  # fmt: skip
    data = np.zeros((32, 64), np.uint16)
    with pytest.raises(Fault, match="another block than its destination") as fault:
        launch(source, "k", 2, 128, [data, TensorMap(data, (16, 64), 0)], cluster=2, dynamic_smem=SMEM_BYTES,
               adversary=adversary)  # fmt: skip
    assert fault.value.kind == "bad-barrier"
