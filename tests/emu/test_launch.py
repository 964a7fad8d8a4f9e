"""The call `tilec.emu.launch`: its arguments, what it refuses, and what it reports."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from ptx_source import kernel

import tilec.emu
from tilec.emu import Fault, TensorMap, launch
from tilec.emu.machine.cluster import Clusters

ONE = "ld.param.u64 %rd1, [out];\n st.global.u32 [%rd1], 7;"


def test_it_is_exported_and_loads_nothing_before_its_use() -> None:
    assert tilec.emu.launch is launch
    program = "import sys, tilec.emu; sys.exit('numpy' in sys.modules or 'lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    with pytest.raises(AttributeError):
        _ = tilec.emu.nothing


def test_every_kind_of_argument() -> None:
    body = """
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [null];
    st.global.u64 [%rd1], %rd2;
    ld.param.f32 %f1, [number];
    st.global.f32 [%rd1+8], %f1;
    ld.param.u64 %rd3, [pair];
    ld.param.s32 %r1, [pair+8];
    ld.global.u32 %r2, [%rd3];
    st.global.u32 [%rd1+12], %r2;
    st.global.s32 [%rd1+16], %r1;
    ld.param.u16 %h1, [raw];
    cvt.u32.u16 %r3, %h1;
    st.global.u32 [%rd1+20], %r3;
    ld.param.b32 %f2, [bits];
    st.global.f32 [%rd1+24], %f2;
    """
    params = (
        ".param .u64 out, .param .u64 null, .param .f32 number, .param .align 8 .b8 pair[16],"
        " .param .align 2 .b8 raw[3], .param .b32 bits"
    )
    out, other = np.zeros(8, np.uint32), np.array([41, 42], np.uint32)
    source = kernel(body, params)
    for null in (None, 0):
        launch(source, "k", 1, 1, [out, null, 1.5, (other[1:], np.int32(-3)), b"\x01\x02\x03", np.float32(2.5)])
        assert out[:2].tolist() == [0, 0]
        assert out[2:3].view(np.float32)[0] == 1.5
        assert out[3:6].view(np.int32).tolist() == [42, -3, 0x0201]
        assert out[6:7].view(np.float32)[0] == 2.5


def test_arrays_may_be_views_and_of_foreign_types() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    body = "ld.param.u64 %rd1, [out];\n ld.global.b16 %h1, [%rd1];\n st.global.b16 [%rd1+4], %h1;"
    whole = np.arange(24, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(4, 6)
    launch(kernel(body), "k", 1, 1, [whole[1:, ::2]])
    assert float(whole[1, 2]) == 6
    TensorMap(np.zeros((8, 8), ml_dtypes.bfloat16), (8, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"takes 2 arguments, not 0: out \(\.u64\), n \(\.u32\)"),
        (
            [np.zeros(1), np.zeros(2)],
            r"argument 1 \(n\): the parameter is \.u32, not the address of an array of 8 bytes",
        ),
        ([np.zeros(1), 1 << 32], r"argument 1 \(n\): 4294967296 does not fit the parameter, which is \.u32"),
        ([np.zeros(1), 1.5], r"argument 1 \(n\): 1\.5 is not a whole number"),
        ([np.zeros(1), "7"], r"argument 1 \(n\): a str, where an array, a number, a TensorMap"),
        ([np.zeros(1), b"12345"], r"argument 1 \(n\): the parameter is \.u32, not bytes of 5 bytes"),
        ([np.zeros((4, 4), object), 1], "Python objects"),
        ([TensorMap(np.zeros((8, 8), np.float32), (8,)), 1], r"argument 0 \(out\): .*rank 2 with a box of rank 1"),
        ([TensorMap(np.zeros((8, 8), np.float32), (8, 8)), 1], "the parameter is .u64, not a tensor map of 128 bytes"),
    ],
)
def test_arguments_that_do_not_fit(arguments: list[object], message: str) -> None:
    source = kernel(ONE, ".param .u64 out, .param .u32 n")
    with pytest.raises(ValueError, match=message):
        launch(source, "k", 1, 1, arguments)


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        ({"grid": 0}, "grid is 0, expected one to three positive numbers"),
        ({"block": (8, -1)}, r"block is \(8, -1\)"),
        ({"grid": (1, 1, 1, 1)}, r"grid is \(1, 1, 1, 1\)"),
        ({"block": 2048}, "a block of 2048 threads: a block has at most 1024"),
        ({"cluster": 3}, r"a grid of \(4, 1, 1\) is not made of clusters of \(3, 1, 1\)"),
        ({"grid": 32, "cluster": 32}, "a cluster of 32 blocks: there are at most 16"),
        ({"dynamic_smem": -1}, "-1 bytes of dynamic shared memory"),
        ({"dynamic_smem": 1 << 20}, "a block has at most 232448"),
        ({"entry": "j"}, "the module has no entry 'j'; it has k"),
        ({"on_fault": "ignore"}, "on_fault is 'raise' or 'report', not 'ignore'"),
    ],
)
def test_launches_that_do_not_fit(geometry: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "ptx": kernel(ONE),
        "entry": "k",
        "grid": 4,
        "block": 1,
        "args": [np.zeros(1, np.uint32)],
    } | geometry
    with pytest.raises(ValueError, match=message):
        launch(**given)


def test_blocks_that_the_kernel_is_not_made_for() -> None:
    with pytest.raises(ValueError, match="made for at most 64"):
        launch(kernel(ONE, directives=".maxntid 64"), "k", 1, 65, [None])


def test_a_report_may_have_the_fault() -> None:
    body = """
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    setp.eq.u32 %p1, %r1, 2;
    @%p1 trap;
    st.global.u32 [%rd1], 7;
    """
    out = np.zeros(4, np.uint32)
    report = launch(kernel(body), "k", 4, 1, [out], on_fault="report", timeline=True)
    assert [fault.kind for fault in report.faults] == ["trap"]
    assert isinstance(report.faults[0], Fault)
    assert report.faults[0].where.startswith("block (2, 0, 0)")
    assert report.blocks == 2
    assert report.counts["st"] == 2
    assert out.tolist() == [7, 7, 0, 0]
    assert launch(kernel(ONE), "k", 1, 1, [out], on_fault="report").faults == ()


def test_arguments_lie_as_cudamalloc_would_put_them() -> None:
    """Wherever numpy has them: views of one array share memory only where they share elements."""
    arena = np.zeros(4096, np.uint8)
    scratch = np.zeros(3, np.uint8)
    first, second, inside = arena[3:131], arena[200:300], arena[64:96]
    outside = np.zeros(4, np.uint64)
    params = ".param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d"
    stores = "".join(
        f"ld.param.u64 %rd2, [{name}]; st.global.u64 [%rd1+{8 * place}], %rd2;\n" for place, name in enumerate("abcd")
    )
    body = (
        f"ld.param.u64 %rd1, [out];\n{stores} st.global.u8 [%rd2], 9; ld.param.u64 %rd2, [c]; st.global.u8 [%rd2+1], 8;"
    )
    launch(kernel(body, params), "k", 1, 1, [outside, first, second, scratch, inside])
    one, two, three, within = outside.tolist()
    assert [address % 256 for address in (one, two, three)] == [0, 0, 0]
    assert within - one == 61
    assert (arena[64], first[61], scratch[1]) == (9, 9, 8)


def test_faults_that_are_allowed_are_counted() -> None:
    body = """
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    st.global.u32 [%rd1], %r1;
    """
    out = np.zeros(4, np.uint32)
    with pytest.raises(Fault) as caught:
        launch(kernel(body), "k", 2, 32, [out])
    assert caught.value.kind == "data-race"
    assert launch(kernel(body), "k", 1, 32, [out], allow=["data-race"]).allowed == {"data-race": 1}
    assert out[0] < 32
    # Each block for itself, and the second against the first.
    for jobs in (1, 2):
        assert launch(kernel(body), "k", 2, 32, [out], allow=["data-race"], jobs=jobs).allowed["data-race"] >= 2
    assert not launch(kernel(ONE), "k", 2, 32, [out]).allowed
    with pytest.raises(ValueError, match="what can be allowed is data-race"):
        launch(kernel(ONE), "k", 1, 32, [out], allow=["deadlock"])
    with pytest.raises(Fault):
        launch(kernel("trap;"), "k", 1, 32, [None], allow=["data-race"])


@pytest.mark.parametrize(("jobs", "options"), [(1, {}), (2, {}), (1, {"sample": (3, 0)})])
def test_a_large_grid_takes_no_memory_of_its_size(jobs: int, options: dict[str, Any]) -> None:
    """A million blocks begin as one does: the first of them faults, and by then no list of them has been made."""
    source = kernel("ld.param.u64 %rd1, [out];\n st.global.u32 [%rd1+4], %r1;")
    peaks = []
    for grid in ((2, 1), (2, 1), (1000, 1000)):
        tracemalloc.start()
        with pytest.raises(Fault, match="out-of-bounds: 4 bytes"):
            launch(source, "k", grid, 1, [np.zeros(1, np.uint32)], jobs=jobs, **options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 100_000


def test_clusters_are_made_in_order_x_fastest() -> None:
    clusters = Clusters((4, 2, 3), (2, 1, 3))
    assert len(clusters) == 4
    assert [of[0] for of in clusters] == [(0, 0, 0), (2, 0, 0), (0, 1, 0), (2, 1, 0)]
    assert clusters[1] == [(x, 0, z) for z in range(3) for x in (2, 3)]
    assert len(Clusters((2**31 - 1, 65_535, 65_535), (1, 1, 1))) == (2**31 - 1) * 65_535**2


@pytest.mark.parametrize(
    ("grid", "says"), [((2**31, 1), "along x"), ((1, 65_536), "along y"), ((1, 1, 65_536), "along z")]
)
def test_a_grid_larger_than_the_hardware_takes(grid: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=f"blocks {says}: there are at most"):
        launch(kernel("ret;"), "k", grid, 1, [np.zeros(1, np.uint32)])
