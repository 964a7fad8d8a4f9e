"""Loads, stores and atomics, and the faults of memory."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Fault, launch

SMEM = ".extern .shared .align 1024 .b8 smem[];"


def fault(source: str, arguments: list[object], *, block: int = 32, dynamic_smem: int = 0) -> Fault:
    with pytest.raises(Fault) as caught:
        launch(source, "k", 1, block, arguments, dynamic_smem=dynamic_smem)
    return caught.value


def text_of_line(source: str, line: int) -> str:
    return source.split("\n")[line - 1].strip()


def test_vectors_and_extension() -> None:
    data = np.arange(-16, 48, dtype=np.int8)
    out = np.zeros(64, np.int32)
    body = """
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    mad.wide.u32 %rd2, %r1, 16, %rd2;
    ld.global.nc.L1::no_allocate.v4.s8 {%r2, %r3, %r4, %r5}, [%rd1];
    st.global.cs.v4.b32 [%rd2], {%r2, %r3, %r4, %r5};
    """
    launch(kernel(body, ".param .u64 a, .param .u64 out"), "k", 1, 16, [data, out])
    np.testing.assert_array_equal(out, data.astype(np.int32))


def test_views_share_memory_and_scalars_follow_their_type() -> None:
    data = np.zeros((4, 8), np.float32)
    body = """
    ld.param.u64 %rd1, [row];
    ld.param.f32 %f1, [value];
    ld.param.u16 %r1, [index];
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    st.global.f32 [%rd1], %f1;
    ld.param.u64 %rd2, [whole];
    st.global.u32 [%rd2], 0;
    """
    params = ".param .u64 whole, .param .u64 row, .param .f32 value, .param .u16 index"
    launch(kernel(body, params), "k", 1, 1, [data, data[2], 1.5, 3])
    assert data[2, 3] == 1.5
    assert np.count_nonzero(data) == 1


def test_structs_and_null_pointers() -> None:
    out = np.zeros(1, np.uint32)
    body = """
    ld.param.u64 %rd1, [s];
    ld.param.u32 %r1, [s+8];
    ld.param.u64 %rd2, [null];
    cvt.u32.u64 %r2, %rd2;
    add.u32 %r1, %r1, %r2;
    st.global.u32 [%rd1], %r1;
    """
    params = ".param .align 8 .b8 s[16], .param .u64 null"
    launch(kernel(body, params), "k", 1, 1, [(out, np.int32(41)), None])
    assert out[0] == 41


def test_constant_and_local_and_generic_memory() -> None:
    out = np.zeros(4, np.uint32)
    variables = ".const .align 4 .u32 table[4] = {10, 20, 30, 40};\n.shared .align 4 .b8 scratch[16];"
    body = """
    .local .align 4 .b8 stack[16];
    mov.u32 %r1, %tid.x;
    mul.lo.u32 %r2, %r1, 4;
    mov.u64 %rd1, table;
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    ld.const.u32 %r3, [%rd1];
    mov.u64 %rd2, stack;
    cvta.local.u64 %rd2, %rd2;
    st.u32 [%rd2+4], %r3;
    ld.local.u32 %r4, [stack+4];
    mov.u64 %rd3, scratch;
    cvta.shared.u64 %rd3, %rd3;
    mad.wide.u32 %rd3, %r1, 4, %rd3;
    st.u32 [%rd3], %r4;
    mov.u32 %r5, scratch;
    add.u32 %r5, %r5, %r2;
    ld.shared.u32 %r6, [%r5];
    ld.param.u64 %rd4, [out];
    cvta.to.global.u64 %rd4, %rd4;
    mad.wide.u32 %rd4, %r1, 4, %rd4;
    st.u32 [%rd4], %r6;
    """
    launch(kernel(body, variables=variables), "k", 1, 4, [out])
    assert out.tolist() == [10, 20, 30, 40]


@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics_serialise(space: str) -> None:
    out = np.zeros(4, np.uint32)
    old = np.zeros(64, np.uint32)
    body = f"""
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [old];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 st.shared.u32 [%r2], 0;
    bar.sync 0;
    atom.{space}.add.u32 %r3, [{"%rd1" if space == "global" else "%r2"}], 2;
    red.global.max.s32 [%rd1+4], %r1;
    and.b32 %r4, %r1, 3;
    atom.global.gpu.acq_rel.cas.b32 %r5, [%rd1+8], %r4, %r1;
    red.global.or.b32 [%rd1+12], %r1;
    mad.wide.u32 %rd2, %r1, 4, %rd2;
    st.global.u32 [%rd2], %r3;
    """
    params = ".param .u64 out, .param .u64 old"
    launch(kernel(body, params, variables=SMEM), "k", 1, 64, [out, old], dynamic_smem=16)
    assert old.tolist() == list(range(0, 128, 2))
    # cas: thread 0 swaps 0 for 0, thread 4 swaps 0 for 4, and nobody compares with 4.
    assert out.tolist() == [128 if space == "global" else 0, 63, 4, 63]


def test_float_atomics() -> None:
    out = np.zeros(2, np.float32)
    halves = np.zeros(2, np.float16)
    body = """
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [halves];
    red.global.add.f32 [%rd1], 0f3F000000;
    mov.b32 %r1, 0x3C004000;
    atom.global.add.noftz.f16x2 %r2, [%rd2], %r1;
    """
    launch(kernel(body, ".param .u64 out, .param .u64 halves"), "k", 1, 8, [out, halves])
    assert out[0] == 4
    assert halves.tolist() == [16, 8]


def test_out_of_bounds_names_the_line_and_the_source() -> None:
    source = kernel("""
    ld.param.u64 %rd1, [out];
    .loc 1 14 3
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    st.global.u32 [%rd1], %r1;""")
    found = fault(source, [np.zeros(31, np.uint32)])
    assert found.kind == "out-of-bounds"
    assert text_of_line(source, found.line) == "st.global.u32 [%rd1], %r1;"
    assert found.source is not None
    assert (found.source.file, found.source.line) == ("kernel.tl", 14)
    assert "array 0" in found.message


def test_misaligned_access() -> None:
    source = kernel("ld.param.u64 %rd1, [out];\n    ld.global.v2.u32 {%r1, %r2}, [%rd1+4];")
    assert fault(source, [np.zeros(8, np.uint32)]).kind == "misaligned"


def test_shared_memory_starts_unwritten() -> None:
    body = "mov.u32 %r1, smem;\n    st.shared.u16 [%r1], 1;\n    ld.shared.u32 %r2, [%r1];"
    found = fault(kernel(body, variables=SMEM), [None], dynamic_smem=64)
    assert found.kind == "unwritten-read"


def test_shared_memory_has_an_end() -> None:
    body = "mov.u32 %r1, smem;\n    st.shared.u32 [%r1+64], 1;"
    assert fault(kernel(body, variables=SMEM), [None], dynamic_smem=64).kind == "out-of-bounds"


def test_predicated_accesses_touch_nothing() -> None:
    out = np.zeros(4, np.uint32)
    body = """
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [out];
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    setp.lt.u32 %p1, %r1, 4;
    @%p1 st.global.u32 [%rd1], %r1;
    mov.u64 %rd3, 0;
    @!%p1 ld.global.u32 %r2, [%rd3];
    """
    source = kernel(body)
    assert fault(source, [out]).kind == "out-of-bounds"
    launch(source.replace("@!%p1 ld.global.u32 %r2, [%rd3];", ""), "k", 1, 32, [out])
    assert out.tolist() == [0, 1, 2, 3]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="takes 1 arguments, not 0"):
        launch(kernel(""), "k", 1, 1, [])
    with pytest.raises(ValueError, match="blocks of"):
        launch(kernel("", directives=".reqntid 64"), "k", 1, 32, [None])
    with pytest.raises(ValueError, match="clusters of"):
        launch(kernel("", directives=".reqnctapercluster 2, 1, 1"), "k", 2, 32, [None])
    with pytest.raises(ValueError, match="no entry 'nobody'; it has k"):
        launch(kernel(""), "nobody", 1, 1, [None])
