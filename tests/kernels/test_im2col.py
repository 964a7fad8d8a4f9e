"""T.im2col: the emulated code against numpy, by TMA in its im2col mode, by cp.async and by ordinary accesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate

KERNELS = HERE / "im2col.tl"
TARGETS = ("sm_80", "sm_90a")
DEFAULTS = {"N": 2, "H": 9, "W": 7, "C": 32, "kernel": 3, "stride": 1, "dilation": 1, "pad": 1}

GEOMETRIES: dict[str, dict[str, Any]] = {
    "padding": {},
    "no padding": {"pad": 0},
    "wide padding": {"pad": 4, "H": 5, "W": 6},
    "stride": {"stride": 2},
    "long stride": {"stride": 3, "pad": 0, "H": 11},
    "dilation": {"dilation": 2, "pad": 2},
    "dilation without padding": {"dilation": 3, "pad": 0, "stride": 2, "H": 12},
    "one tap": {"kernel": 1, "pad": 0},
    "one tap and padding": {"kernel": 1, "pad": 1, "stride": 2},
    "even filter": {"kernel": 2, "pad": 1},
    "one pixel": {"H": 1, "W": 1, "kernel": 3, "pad": 1},
    "two taps a channel tile": {"C": 64},
    "odd channels": {"C": 5},
    "channels that straddle tiles": {"C": 24},
    "rows that fill a panel": {"C": 128, "block_K": 128, "kernel": 2},
}


def unfolded(images: np.ndarray, kernel: int, stride: int, dilation: int, pad: int) -> np.ndarray:
    padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    reach = dilation * (kernel - 1) + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), (1, 2))
    seen = windows[:, ::stride, ::stride, :, ::dilation, ::dilation]
    return np.moveaxis(seen, 3, 5).reshape(-1, kernel * kernel * images.shape[3])


def expected(images: np.ndarray, defines: dict[str, Any]) -> np.ndarray:
    chosen = {**DEFAULTS, **defines}
    return unfolded(images, *(chosen[name] for name in ("kernel", "stride", "dilation", "pad")))


def ran(entry: str, target: str, defines: dict[str, Any]) -> tuple[Build, emulate.KernelArguments]:
    _, made = built(KERNELS, target, entry=entry, **defines)
    assert [w.title for w in made.warnings if w.code not in ("bank-conflict", "barriers-exhausted")] == []
    arguments = emulate.draw_arguments(made.kernel, made.manifest, 3)
    emulate.emulate_build(made, arguments)
    return made, arguments


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_matrix(name: str, target: str) -> None:
    defines = GEOMETRIES[name]
    _, arguments = ran("unfold", target, defines)
    np.testing.assert_array_equal(arguments.tensors["Y"], expected(arguments.tensors["X"], defines))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolution(name: str, target: str) -> None:
    """In a pipelined loop; numbers whose sums are exact."""
    defines = {"dtype": "float16", **GEOMETRIES[name]}
    _, made = built(KERNELS, target, entry="convolve", **defines)
    arguments = emulate.draw_arguments(made.kernel, made.manifest, 3)
    generator = np.random.default_rng(4)
    for tensor in ("X", "K"):
        shape = arguments.tensors[tensor].shape
        arguments.tensors[tensor] = generator.integers(-4, 5, shape).astype(np.float16)
    emulate.emulate_build(made, arguments)
    rows = expected(arguments.tensors["X"], defines).astype(np.float64)
    np.testing.assert_array_equal(arguments.tensors["Y"], rows @ arguments.tensors["K"].astype(np.float64).T)
    channels, columns = {**DEFAULTS, **defines}["C"], defines.get("block_K", 32)
    by_tma = target == "sm_90a" and channels % columns == 0
    assert (".im2col.mbarrier" in made.ptx) == by_tma
    by_threads = not by_tma and channels * 2 % 4 == 0
    assert ("cp.async.c" in made.ptx) >= by_threads


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32", "float8_e4m3fn"])
@pytest.mark.parametrize("target", TARGETS)
def test_other_types(dtype: str, target: str) -> None:
    _, arguments = ran("unfold", target, {"dtype": dtype})
    np.testing.assert_array_equal(arguments.tensors["Y"], expected(arguments.tensors["X"], {}))


@pytest.mark.parametrize("target", TARGETS)
def test_the_reference_is_numpys(target: str) -> None:
    """What `tilec emulate` compares with."""
    _, made = built(KERNELS, target, entry="unfold", dilation=2, stride=2, pad=2)
    arguments = emulate.draw_arguments(made.kernel, made.manifest, 5)
    emulate.run_reference(made.kernel, arguments)
    defines = {"dilation": 2, "stride": 2, "pad": 2}
    np.testing.assert_array_equal(arguments.tensors["Y"], expected(arguments.tensors["X"], defines))


def test_the_map_in_the_manifest() -> None:
    from tilec.ir.manifest import Im2colMapParam, from_json, to_json

    _, made = built(KERNELS, "sm_90a", entry="convolve", stride=2, dilation=2, pad=3)
    (found,) = (p for p in made.manifest.params if isinstance(p, Im2colMapParam))
    assert found == Im2colMapParam("X", "float16", (64, 32), 64, -3, -1, 2)
    assert from_json(to_json(made.manifest)) == made.manifest


# ---- volumes ---------------------------------------------------------------------------------------------------------

VOLUMES = HERE / "im2col_volumes.tl"
OF_VOLUMES: dict[str, dict[str, Any]] = {
    "padding": {},
    "stride, dilation and wide padding": {"stride": 2, "dilation": 2, "pad": 3, "D": 5},
    "no padding, an even filter": {"kernel": 2, "pad": 0},
    "channels that straddle tiles": {"C": 24, "D": 3, "H": 3},
    "one tap": {"kernel": 1, "pad": 0, "stride": 2},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", OF_VOLUMES)
def test_convolution_of_volumes(name: str, target: str) -> None:
    """Tap by tap over the padded volumes; numbers whose sums are exact."""
    defines = OF_VOLUMES[name]
    _, made = built(VOLUMES, target, **defines)
    arguments = emulate.draw_arguments(made.kernel, made.manifest, 3)
    generator = np.random.default_rng(4)
    for tensor in ("X", "K"):
        shape = arguments.tensors[tensor].shape
        arguments.tensors[tensor] = generator.integers(-4, 5, shape).astype(np.float16)
    emulate.emulate_build(made, arguments)
    volumes, filters = (arguments.tensors[tensor].astype(np.float64) for tensor in ("X", "K"))
    chosen = {"kernel": 3, "stride": 1, "dilation": 1, "pad": 1, "C": 32, **defines}
    kernel, stride, dilation, pad = (chosen[key] for key in ("kernel", "stride", "dilation", "pad"))
    sides = [(side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for side in volumes.shape[1:4]]
    padded = np.pad(volumes, ((0, 0), (pad, pad), (pad, pad), (pad, pad), (0, 0)))
    taps = filters.reshape(-1, kernel, kernel, kernel, volumes.shape[4])
    wanted = np.zeros((volumes.shape[0], *sides, len(filters)))
    for tap in np.ndindex(kernel, kernel, kernel):
        places = (slice(at * dilation, at * dilation + stride * (side - 1) + 1, stride)
                  for at, side in zip(tap, sides, strict=True))  # fmt: skip
        wanted += padded[(slice(None), *places)] @ taps[(slice(None), *tap)].T
    np.testing.assert_array_equal(arguments.tensors["Y"], wanted.reshape(-1, len(filters)))
    by_tma = target == "sm_90a" and chosen["C"] % 32 == 0
    assert ("5d.shared::cluster.global.im2col.mbarrier" in made.ptx) == by_tma
    assert by_tma or "cp.async.c" in made.ptx


@pytest.mark.parametrize(
    ("defines", "by_tma"),
    [
        ({"pad": 16, "kernel": 2, "D": 1, "H": 1, "W": 1}, True),
        ({"pad": 17, "kernel": 2, "D": 1, "H": 1, "W": 1}, False),
        ({"pad": 15, "kernel": 2, "dilation": 31, "D": 2, "H": 2, "W": 2}, True),
        ({"pad": 16, "kernel": 2, "dilation": 32, "D": 1, "H": 1, "W": 1}, False),
    ],
    ids=["corner -16", "corner -17", "offset 31", "offset 32"],
)
def test_what_a_map_of_volumes_can_reach(defines: dict[str, Any], by_tma: bool) -> None:
    """Corners from -16 to 15, and taps at most 31 pixels from the first one."""
    _, made = built(VOLUMES, "sm_90a", N=1, **defines)
    assert (".im2col." in made.ptx) == by_tma


APART = """
import tilelang.language as T

@T.prim_func
def unfold(
    X: T.StridedTensor((2, 6, 5, 16), (gap + 6 * row, row, pixel, 1), "float16"), Y: T.Tensor((96, 144), "float16")
):
    with T.Kernel(3, 9, threads=64) as (bx, by):
        tile = T.alloc_shared((32, 16), "float16")
        for again in T.Pipelined(2, num_stages=2):
            T.im2col(X, tile, bx, by, 3, 1, 1, 1)
            T.copy(tile, Y[bx * 32, by * 16])
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("pixel", "row", "gap"), [(16, 80, 0), (20, 120, 0), (16, 86, 0), (16, 80, 1), (24, 120, 8)])
def test_pixels_that_lie_apart_are_reached_where_they_are(
    pixel: int, row: int, gap: int, target: str, tmp_path: Path
) -> None:
    """A copy has no more bytes than every pixel is aligned to: by TMA and 16 bytes only where all strides allow it."""
    path = tmp_path / "apart.tl"
    path.write_text(f"pixel, row, gap = {pixel}, {row}, {gap}\n{APART}", encoding="utf-8")
    _, made = built(path, target)
    is_aligned = pixel % 8 == row % 8 == gap % 8 == 0
    assert is_aligned or (".im2col.mbarrier" not in made.ptx and "cp.async.cg" not in made.ptx)
    found = emulate.draw_arguments(made.kernel, made.manifest, 1)
    emulate.emulate_build(made, found)
    assert np.array_equal(found.tensors["Y"][:60], unfolded(found.tensors["X"], 3, 1, 1, 1))


PLACED = """
import tilelang.language as T

@T.prim_func
def unfold(X: T.Tensor((1, 6, 5, 16), "float32"), Y: T.Tensor((32, 16), "float32")):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((32, 16), "float32")
        T.annotate_layout({tile: T.Layout((32, 16), lambda i, j: i * 16 + (j ^ (i % 4)))})
        T.im2col(X, tile, 0, 4, 3, 1, 1, 1)
        T.copy(tile, Y)
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_whose_elements_lie_apart_is_filled_element_by_element(target: str, tmp_path: Path) -> None:
    path = tmp_path / "placed.tl"
    path.write_text(PLACED, encoding="utf-8")
    _, made = built(path, target)
    found = emulate.draw_arguments(made.kernel, made.manifest, 1)
    emulate.emulate_build(made, found)
    assert np.array_equal(found.tensors["Y"][:30], unfolded(found.tensors["X"], 3, 1, 1, 1)[:, 64:80])
