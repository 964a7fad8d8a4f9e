"""atom and red on vectors, halves, 16 and 128 bits, against turns taken in Python."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import launch
from tilec.emu.numbers import Array, bf16_to_f32, f32_to_bf16

FRAME = """
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [out];
    cvt.u64.u32 %rd3, %r1;
    cvt.rn.f32.u32 %f1, %r1;
"""


def run(body: str, x: Array, out: Array, threads: int = 8) -> None:
    launch(kernel(FRAME + body, ".param .u64 x, .param .u64 out"), "k", 1, threads, [x, out])


@pytest.mark.parametrize("stem", ["atom", "red"])
@pytest.mark.parametrize(("vector", "count"), [("v2", 2), ("v4", 4)])
def test_vectors(stem: str, vector: str, count: int) -> None:
    x, out = np.arange(count, dtype=np.float32), np.zeros((8, count), np.float32)
    values = ", ".join(["%f1"] * count)
    results = ", ".join(f"%f{10 + index}" for index in range(count))
    target = f"{{{results}}}, " if stem == "atom" else ""
    body = f"""
    {stem}.relaxed.gpu.global.add.{vector}.f32 {target}[%rd1], {{{values}}};
    mad.wide.u32 %rd2, %r1, {4 * count}, %rd2;
    """
    if stem == "atom":
        body += f"    st.global.{vector}.f32 [%rd2], {{{results}}};"
    run(body, x, out)
    np.testing.assert_array_equal(x, np.arange(count) + 28)
    if stem == "atom":
        before = np.concatenate([[0], np.cumsum(np.arange(8))[:-1]])
        np.testing.assert_array_equal(out, before[:, None] + np.arange(count))


def test_vectors_of_halves() -> None:
    x, out = np.zeros(4, np.float16), np.zeros(1, np.uint32)
    run(
        "red.global.add.noftz.v4.f16 [%rd1], {%h1, %h1, %h2, %h2};".join(
            ["mov.b16 %h1, 0x3C00; mov.b16 %h2, 0x4000; ", ""]
        ),
        x,
        out,
    )
    assert x.tolist() == [8, 8, 16, 16]
    pairs = f32_to_bf16(np.array([1, 2, 3, 4], np.float32))
    run("mov.b32 %r2, 0x3F803F80; red.global.add.noftz.v2.bf16x2 [%rd1], {%r2, %r2};", pairs, out)
    assert bf16_to_f32(pairs).tolist() == [9, 10, 11, 12]


@pytest.mark.parametrize("order", ["", ".acquire.cta", ".release.cluster", ".acq_rel.gpu", ".relaxed.sys"])
def test_every_scope_and_order(order: str) -> None:
    x, out = np.zeros(1, np.int32), np.zeros(8, np.int32)
    run(
        f"atom{order}.global.add.u32 %r2, [%rd1], 2; mad.wide.u32 %rd2, %r1, 4, %rd2; st.global.u32 [%rd2], %r2;",
        x,
        out,
    )
    assert (x[0], out.tolist()) == (16, list(range(0, 16, 2)))


def test_compare_and_swap_of_16_bits() -> None:
    x, out = np.array([3, 9], np.uint16), np.zeros(8, np.uint16)
    body = """
    cvt.u16.u32 %h1, %r1;
    add.u16 %h2, %h1, 1;
    atom.global.cas.b16 %h3, [%rd1], %h1, %h2;
    mad.wide.u32 %rd2, %r1, 2, %rd2;
    st.global.u16 [%rd2], %h3;
    """
    run(body, x, out)
    # From thread 3 on each finds what it expects.
    assert (x.tolist(), out.tolist()) == ([8, 9], [3, 3, 3, 3, 4, 5, 6, 7])


def test_128_bits() -> None:
    x, out = np.array([5, 6], np.uint64), np.zeros((2, 2), np.uint64)
    body = """
    .reg .b128 old, wanted, new;
    mov.u64 %rd4, 5; mov.u64 %rd5, 6; mov.u64 %rd6, 7;
    mov.b128 wanted, {%rd4, %rd5};
    mov.b128 new, {%rd6, %rd3};
    atom.global.cas.b128 old, [%rd1], wanted, new;
    mad.wide.u32 %rd2, %r1, 16, %rd2;
    st.global.b128 [%rd2], old;
    """
    run(body, x, out, 2)
    assert (x.tolist(), out.tolist()) == ([7, 0], [[5, 6], [7, 0]])
    run(body.replace("cas.b128 old, [%rd1], wanted, new", "exch.b128 old, [%rd1], new"), x, out, 2)
    assert (x.tolist(), out.tolist()) == ([7, 1], [[7, 0], [7, 0]])


def test_floats_and_doubles() -> None:
    x, out = np.array([1.0, 10.0]), np.zeros(1, np.uint32)
    run(
        "cvt.f64.f32 %fd1, %f1; red.global.add.f64 [%rd1], %fd1; "
        "red.global.gpu.relaxed.add.f64 [%rd1+8], 0d3FF0000000000000;",
        x,
        out,
    )
    assert x.tolist() == [29.0, 18.0]
