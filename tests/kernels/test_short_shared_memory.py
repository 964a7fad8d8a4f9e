"""What is done in a kernel that does not fit into shared memory otherwise: scratch is shared, padding left out."""

from __future__ import annotations

import numpy as np
import pytest
from harness import SAMPLES

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TEXT = """@T.prim_func
def kernel(A: T.Tensor((ROWS, 1024), "float16"), X: T.Tensor((2, 1024), "float32"), B: T.Tensor((2, 1024), "float32")):
    with T.Kernel(1, threads=256) as bx:
        large = T.alloc_shared((ROWS, 1024), "float16")
        x = T.alloc_fragment((2, 1024), "float32")
        top = T.alloc_fragment((2,), "float32")
        total = T.alloc_fragment((2,), "float32")
        T.copy(A, large)
        T.copy(X, x)
        for _ in T.serial(2):
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(2, 1024):
                x[i, j] = T.exp2(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(2, 1024):
                x[i, j] = x[i, j] / total[i] + large[ROWS - 1 - i, j]
        T.copy(x, B)
"""


def test_two_reductions_share_their_scratch() -> None:
    """Check the result and the size of a kernel of which only one reduction's scratch fits beside its tile."""
    source = SourceFile("kernel.tl", TEXT.replace("ROWS", "113"))
    made = build_kernel(source, CompileOptions(target="sm_90a"), Observer())
    assert [t.buffer.name for t in made.program.shared if t.buffer.name.startswith("scratch")] == ["scratch.0"]
    given = emulate.draw_arguments(made.kernel, made.manifest, 3)
    emulate.emulate_build(made, given)
    expected, large = given.tensors["X"].astype(np.float64), given.tensors["A"].astype(np.float64)
    for _ in range(2):
        powers = np.exp2(expected - expected.max(axis=1, keepdims=True))
        expected = powers / powers.sum(axis=1, keepdims=True) + large[[112, 111]]
    np.testing.assert_allclose(given.tensors["B"], expected, rtol=1e-4, atol=1e-5)


def test_scratch_is_not_shared_where_all_fits() -> None:
    source = SourceFile("kernel.tl", TEXT.replace("ROWS", "16"))
    made = build_kernel(source, CompileOptions(target="sm_90a"), Observer())
    assert sum(t.buffer.name.startswith("scratch") for t in made.program.shared) == 2


def test_a_kernel_that_does_not_fit_all_the_same_is_refused() -> None:
    source = SourceFile("kernel.tl", TEXT.replace("ROWS", "114"))
    with pytest.raises(CompileError, match="shared-memory-overflow"):
        build_kernel(source, CompileOptions(target="sm_90a"), Observer())


SMALL_TILES = """@T.prim_func
def kernel(A: T.Tensor((111, 1024), "float16"), B: T.Tensor((6, 64), "float32")):
    with T.Kernel(1, threads=256) as bx:
        large = T.alloc_shared((111, 1024), "float16")
        full = T.alloc_barrier(128)
        done = T.alloc_barrier(128)
        tx = T.get_thread_binding()
        a = T.alloc_shared((64,), "float32")
        b = T.alloc_shared((64,), "float32")
        c = T.alloc_shared((64,), "float32")
        d = T.alloc_shared((64,), "float32")
        e = T.alloc_shared((64,), "float32")
        f = T.alloc_shared((64,), "float32")
        if tx < 128:
            T.tma_copy(A, large, barrier=full)
            T.barrier_arrive(full)
            T.barrier_wait(done, 0)
            T.copy(a, B[0, :])
            T.copy(b, B[1, :])
            T.copy(c, B[2, :])
            T.copy(d, B[3, :])
            T.copy(e, B[4, :])
            T.copy(f, B[5, :])
        else:
            T.barrier_wait(full, 0)
            for i in T.Parallel(64):
                a[i] = large[0, i]
                b[i] = large[1, i]
                c[i] = large[2, i]
                d[i] = large[3, i]
                e[i] = large[110, i]
                f[i] = large[110, 960 + i]
            T.barrier_arrive(done)
"""


def test_small_tiles_lie_close_together_where_space_is_short() -> None:
    """Check a kernel of roles that only fits if its small tiles are not rounded up to 1024 bytes."""
    made = build_kernel(SourceFile("kernel.tl", SMALL_TILES), CompileOptions(target="sm_90a"), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 3)
    emulate.emulate_build(made, given)
    a = given.tensors["A"].astype(np.float32)
    np.testing.assert_array_equal(given.tensors["B"], [*a[:4, :64], a[110, :64], a[110, 960:]])


def test_small_tiles_lie_behind_the_rings_where_space_is_short() -> None:
    """Check a kernel that only fits without a gap between its small tiles and the rings behind them."""
    text = (SAMPLES / "attention" / "mla_decode.tl").read_text(encoding="utf-8")
    program = build_kernel(SourceFile("mla_decode.tl", text), CompileOptions(target="sm_90a"), Observer()).program
    small = [tile for tile in program.shared if not tile.layout.swizzle]
    end = max(tile.offset + tile.bytes for tile in program.shared if tile.layout.swizzle)
    assert end == sum(tile.bytes for tile in program.shared if tile.layout.swizzle)
    assert small and all(tile.offset >= end for tile in small)


LATE_TILE = """@T.prim_func
def kernel(A: T.Tensor((64, 512), "float16"), X: T.Tensor((256, 64), "float16"), B: T.Tensor((ROWS, 256), "float32")):
    with T.Kernel(1, threads=256) as bx:
        kept = T.alloc_shared((64, 512), "float16")
        x = T.alloc_shared((64, 64), "float16")
        late = T.alloc_shared((ROWS, 256), "float32")
        total = T.alloc_fragment((ROWS,), "float32")
        T.copy(A, kept)
        T.fill(total, 0)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(X[k * 64, 0], x)
            for i in T.Parallel(ROWS):
                total[i] += x[i % 64, 3] * kept[5, i]
        for i, j in T.Parallel(ROWS, 256):
            late[i, j] = total[i] + j
        T.copy(late, B)
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_tile_behind_the_loop_has_memory_of_one_before_it(target: str) -> None:
    """Check a kernel that does not fit with a tile over the rings, but does where that also lies over `kept`."""
    rows = 110 if target == "sm_80" else 180
    source = SourceFile("kernel.tl", LATE_TILE.replace("ROWS", str(rows)))
    made = build_kernel(source, CompileOptions(target=target), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 3)
    for name in ("A", "X"):
        np.rint(given.tensors[name], out=given.tensors[name])  # products of small integers are exact
    emulate.emulate_build(made, given)
    a, x = given.tensors["A"], given.tensors["X"]
    number = np.arange(rows)
    total = sum(x[k * 64 + number % 64, 3] * a[5, :rows] for k in range(4))
    np.testing.assert_array_equal(given.tensors["B"], total[:, None] + np.arange(256, dtype=np.float32))
