"""Functions, indirect calls, branch tables, and what a module declares."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Fault, launch
from tilec.emu.numbers import Array

HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"
FRAME = """
    .reg .b32 %r<16>;
    .reg .b64 %rd<16>;
    .reg .pred %p<4>;
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [out];
    mad.wide.u32 %rd1, %r1, 4, %rd1;
"""
STORE = "    st.global.u32 [%rd1], %r2;\n    ret;\n"


def run(functions: str, body: str, threads: int = 64, adversary: int | None = None) -> list[int]:
    out = np.zeros(threads, np.int32)
    source = f"{HEADER}{functions}\n.visible .entry k(.param .u64 out)\n{{{FRAME}{body}{STORE}}}\n"
    launch(source, "k", 1, threads, [out], adversary=adversary)
    values: list[int] = out.tolist()
    return values


SQUARE = """
.func (.param .b32 result) square(.param .b32 x)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [x];
    mul.lo.s32 %r2, %r1, %r1;
    st.param.b32 [result], %r2;
    ret;
}
"""


@pytest.mark.parametrize("adversary", [None, 3])
def test_a_call_in_a_branch(adversary: int | None) -> None:
    body = """
    mov.u32 %r2, 7;
    setp.lt.u32 %p1, %r1, 20;
    @%p1 bra skip;
    { .param .b32 param0; .param .b32 retval0;
      st.param.b32 [param0+0], %r1;
      call.uni (retval0), square, (param0);
      ld.param.b32 %r2, [retval0+0];
    }
skip:
    // All of the warp is here again.
    shfl.sync.bfly.b32 %r2, %r2, 1, 31, -1;
    """
    expected = [7 if t < 20 else t * t for t in range(64)]
    assert run(SQUARE, body, adversary=adversary) == [expected[t ^ 1] for t in range(64)]


def test_registers_as_parameters_and_predicated_calls() -> None:
    functions = """
.func (.reg .u32 rv) scale (.reg .u32 x, .reg .u32 y) { mad.lo.u32 rv, x, y, 1; }
"""
    body = """
    mov.u32 %r2, 0;
    setp.gt.u32 %p1, %r1, 9;
    @%p1 call (%r2), scale, (%r1, 3);
    """
    assert run(functions, body) == [3 * t + 1 if t > 9 else 0 for t in range(64)]


RECURSION = """
.func (.param .b32 result) sum(.param .b32 n, .param .b64 above);
.func (.param .b32 result) sum(.param .b32 n, .param .b64 above)
{
    .local .align 8 .b8 frame[16];
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .reg .pred %p<2>;
    ld.param.b32 %r1, [n];
    ld.param.b64 %rd2, [above];
    mov.u64 %rd1, frame;
    cvta.local.u64 %rd3, %rd1;
    st.local.u32 [frame+4], %r1;
    ld.u32 %r5, [%rd2+4];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra leaf;
    sub.u32 %r2, %r1, 1;
    { .param .b32 a; .param .b64 b; .param .b32 back;
      st.param.b32 [a], %r2;
      st.param.b64 [b], %rd3;
      call.uni (back), sum, (a, b);
      ld.param.b32 %r3, [back];
    }
    // The own frame and registers are as they were; those of the caller can be read through the pointer.
    ld.local.u32 %r4, [%rd1+4];
    add.u32 %r3, %r3, %r4;
    mad.lo.u32 %r3, %r5, 1000, %r3;
    st.param.b32 [result], %r3;
    ret;
leaf:
    mul.lo.u32 %r5, %r5, 1000;
    st.param.b32 [result], %r5;
    ret;
}
"""


def test_recursion_with_a_frame() -> None:
    body = """
    .local .align 8 .b8 first[8];
    .param .b32 a; .param .b64 b; .param .b32 back;
    mov.u64 %rd2, first;
    mov.u32 %r3, 1;
    st.local.u32 [%rd2+4], %r3;
    cvta.local.u64 %rd3, %rd2;
    rem.u32 %r4, %r1, 7;
    st.param.b32 [a], %r4;
    st.param.b64 [b], %rd3;
    call (back), sum, (a, b);
    ld.param.b32 %r2, [back];
    """

    def total(n: int, above: int) -> int:
        return above * 1000 + (total(n - 1, n) + n if n else 0)

    assert run(RECURSION, body) == [total(t % 7, 1) for t in range(64)]


def test_endless_recursion_ends_in_a_fault() -> None:
    functions = ".func loop() { call.uni loop, (); ret; }\n"
    with pytest.raises(Fault, match="nested more than"):
        run(functions, "call loop; mov.u32 %r2, 0;")


TABLE = """
.func (.reg .b32 r) twice(.reg .b32 x) { add.u32 r, x, x; ret; }
.func (.reg .b32 r) next(.reg .b32 x) { add.u32 r, x, 1; ret; }
.visible .global .align 8 .u64 table[2] = {twice, next};
.global .align 8 .b8 packed[8] = {0xff(next), 0xff00(next), 0xff0000(next), 0xff000000(next), 0xff00000000(next),
                                  0xff0000000000(next), 0xff000000000000(next), 0xff00000000000000(next)};
"""


def test_calls_through_a_table() -> None:
    body = """
    and.b32 %r3, %r1, 1;
    mov.u64 %rd2, table;
    mad.wide.u32 %rd2, %r3, 8, %rd2;
    ld.global.u64 %rd3, [%rd2];
    proto : .callprototype (.reg .b32 _) _ (.reg .b32 _);
    call (%r2), %rd3, (%r1), proto;
    ld.global.u64 %rd4, [packed];
    call (%r2), %rd4, (%r2), proto;
    """
    assert run(TABLE, body) == [(2 * t if t % 2 == 0 else t + 1) + 1 for t in range(64)]


def test_a_call_to_no_function() -> None:
    body = "mov.u64 %rd3, 64;\n proto: .callprototype (.reg .b32 _) _ (.reg .b32 _);\n call (%r2), %rd3, (%r1), proto;"
    with pytest.raises(Fault, match="not the address of a function"):
        run(TABLE, body)


def test_branch_tables() -> None:
    body = """
    rem.u32 %r3, %r1, 3;
targets: .branchtargets a, b, c;
    setp.ne.u32 %p1, %r1, 5;
    mov.u32 %r2, 99;
    @%p1 brx.idx %r3, targets;
    bra done;
a:  mov.u32 %r2, 10; bra.uni done;
b:  mov.u32 %r2, 20; bra.uni done;
c:  mov.u32 %r2, 30;
done:
    """
    assert run("", body) == [99 if t == 5 else (10, 20, 30)[t % 3] for t in range(64)]
    with pytest.raises(Fault, match="table of 3 labels"):
        run("", body.replace("rem.u32 %r3, %r1, 3", "mov.u32 %r3, %r1"))


def test_a_function_without_a_body_is_only_missed_where_it_is_called() -> None:
    functions = ".extern .func (.param .b32 r) elsewhere(.param .b64 f, .param .b64 a);\n"
    call = """
    .param .b32 r; .param .b64 f; .param .b64 a;
    setp.eq.u32 %p1, %r1, THREAD;
    mov.u32 %r2, 1;
    @%p1 call.uni (r), elsewhere, (f, a);
    """
    assert run(functions, call.replace("THREAD", "99")) == [1] * 64
    with pytest.raises(Fault) as caught:
        run(functions, call.replace("THREAD", "3"))
    assert caught.value.kind == "unsupported"
    assert "a call of 'elsewhere', which has no body" in str(caught.value)
    assert "call.uni (r), elsewhere, (f, a)" in str(caught.value)


def test_an_unknown_instruction_is_named_before_anything_runs() -> None:
    body = (
        "    st.global.u32 [%rd1], 5;\n    mov.u32 %r2, 0;\n    tex.1d.v4.f32.s32 {%r2, %r3, %r4, %r5}, [t, {%r1}];\n"
    )
    out = np.zeros(1, np.int32)
    source = f"{HEADER}.visible .entry k(.param .u64 out)\n{{{FRAME}{body}{STORE}}}\n"
    with pytest.raises(Fault) as caught:
        launch(source, "k", 1, 1, [out])
    assert (caught.value.kind, out[0]) == ("unsupported", 0)
    assert "unknown instruction tex.1d.v4.f32.s32" in str(caught.value)
    assert source.split("\n")[caught.value.line - 1].strip().startswith("tex.1d")


# -- declarations ------------------------------------------------------------------------------------------------------


def load_all(declaration: str, name: str, space: str, size: int) -> Array:
    """The bytes of a variable."""
    out = np.zeros(size, np.uint8)
    body = f"""
    mov.u32 %r1, %tid.x;
    cvt.u64.u32 %rd3, %r1;
    mov.u64 %rd2, {name};
    add.s64 %rd2, %rd2, %rd3;
    ld.{space}.u8 %r2, [%rd2];
    ld.param.u64 %rd1, [out];
    add.s64 %rd1, %rd1, %rd3;
    st.global.u8 [%rd1], %r2;
    """
    launch(kernel(body, variables=declaration), "k", 1, size, [out])
    return out


@pytest.mark.parametrize(
    ("type_name", "values", "dtype", "expected"),
    [
        ("u8", "1, 0xFF", np.uint8, [1, 255]),
        ("s8", "-1, 5", np.int8, [-1, 5]),
        ("b16", "0x8000, 7", np.uint16, [0x8000, 7]),
        ("s32", "-2, 010", np.int32, [-2, 8]),
        ("u64", "0xFFFFFFFFFFFFFFFF, 3U", np.uint64, [2**64 - 1, 3]),
        ("s64", "-9223372036854775808, 0b101", np.int64, [-(2**63), 5]),
        ("f32", "0f3F800000, -1.5", np.float32, [1.0, -1.5]),
        ("f32", "1e3, 0d4000000000000000", np.float32, [1000.0, 2.0]),
        ("f64", "0d3FF8000000000000, 2", np.float64, [1.5, 2.0]),
        ("f16", "1.5, -2", np.float16, [1.5, -2.0]),
    ],
)
@pytest.mark.parametrize("space", ["global", "const"])
def test_initialisers(space: str, type_name: str, values: str, dtype: type, expected: list[float]) -> None:
    size = np.dtype(dtype).itemsize
    found = load_all(f".{space} .align 8 .{type_name} v[3] = {{{values}}};", "v", space, 3 * size)
    np.testing.assert_array_equal(found.view(dtype), np.array([*expected, 0], dtype))


def test_nested_vector_and_listed_declarations() -> None:
    declaration = ".weak .global .align 4 .u32 a[2][2] = {{1, 2}, {3, 4}}, b = 5;\n.common .global .v4 .u16 c;"
    assert load_all(declaration, "a", "global", 16).view(np.uint32).tolist() == [1, 2, 3, 4]
    assert load_all(declaration, "b", "global", 4).view(np.uint32).tolist() == [5]
    assert load_all(declaration, "c", "global", 8).tolist() == [0] * 8


def test_addresses_in_initialisers() -> None:
    declaration = ".global .u32 data[4] = {10, 20, 30, 40};\n.global .u64 where[2] = {generic(data)+8, data+4};"
    out = np.zeros(2, np.uint32)
    body = """
    mov.u32 %r1, %tid.x;
    mov.u64 %rd1, where;
    mad.wide.u32 %rd1, %r1, 8, %rd1;
    ld.global.u64 %rd2, [%rd1];
    ld.u32 %r2, [%rd2];
    ld.param.u64 %rd3, [out];
    mad.wide.u32 %rd3, %r1, 4, %rd3;
    st.global.u32 [%rd3], %r2;
    """
    launch(kernel(body, variables=declaration), "k", 1, 2, [out])
    assert out.tolist() == [30, 20]
    with pytest.raises(Fault, match="the address of 'nowhere'"):
        launch(kernel("", variables=".global .u64 p = nowhere;"), "k", 1, 1, [None])


def test_vector_registers() -> None:
    x = np.arange(8, dtype=np.float32)
    body = """
    ld.param.u64 %rd1, [out];
    ld.global.v4.f32 v, [%rd1];
    add.f32 v.x, v.y, v.w;
    mov.f32 %w0.b, v.z;
    mul.f32 v.z, %w0.z, %w0.z;
    st.global.v4.f32 [%rd1+16], v;
    """
    launch(kernel(body, registers=".reg .v4 .f32 v, %w<2>;"), "k", 1, 1, [x])
    assert x[4:].tolist() == [4.0, 1.0, 4.0, 3.0]


def text(name: str, value: str) -> str:
    return f".global .align 1 .b8 {name}[{len(value) + 1}] = {{{', '.join(map(str, value.encode()))}}};\n"


PRINT = (
    ".extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 arguments);\n"
    + text("said", "%5.2f|%-4d|%+x %c%% %lld %s %u|%#o %p %e %*d\n")
    + text("word", "word")
)


@pytest.mark.parametrize("jobs", [1, 2])
def test_printf_has_the_conversions_of_c(jobs: int) -> None:
    source = f"""{HEADER}{PRINT}
.visible .entry k()
{{
    .local .align 8 .b8 depot[88];
    .reg .b32 %r<4>; .reg .b64 %rd<8>; .reg .pred %p;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    setp.ge.u32 %p, %r1, 2;
    st.local.f64 [depot], 0d3FF8000000000000;
    st.local.u32 [depot+8], %r1;
    st.local.u32 [depot+12], 255;
    st.local.u32 [depot+16], 122;
    st.local.u64 [depot+24], -5;
    mov.u64 %rd1, word; cvta.global.u64 %rd1, %rd1;
    st.local.u64 [depot+32], %rd1;
    st.local.u32 [depot+40], %r2;
    st.local.u32 [depot+44], 8;
    st.local.u64 [depot+48], 4096;
    st.local.f64 [depot+56], 0d3FF8000000000000;
    st.local.u32 [depot+64], 4;
    st.local.u32 [depot+68], -7;
    mov.u64 %rd2, said; cvta.global.u64 %rd2, %rd2;
    mov.u64 %rd3, depot; cvta.local.u64 %rd3, %rd3;
    @%p bra done;
    call.uni (%r3), vprintf, (%rd2, %rd3);
done:
    ret;
}}
"""
    report = launch(source, "k", 3, 32, [], jobs=jobs)
    assert report.printed == "".join(
        f" 1.50|{t:<4}|ff z% -5 word {block}|010 0x1000 1.500000e+00   -7\n" for block in range(3) for t in range(2)
    )


def test_a_string_without_an_end_is_a_fault() -> None:
    source = f"""{HEADER}
.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 arguments);
.visible .entry k(.param .u64 text)
{{
    .reg .b32 %r; .reg .b64 %rd;
    ld.param.u64 %rd, [text];
    call.uni (%r), vprintf, (%rd, 0);
    ret;
}}
"""
    with pytest.raises(Fault, match="out-of-bounds"):
        launch(source, "k", 1, 1, [np.full(64, ord("a"), np.uint8)])
