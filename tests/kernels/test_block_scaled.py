"""Products with block scales, kind::mxf8f6f4, mxf4 and mxf4nvf4: emulated PTX and reference against numpy."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from harness import HERE, built
from numpy.typing import NDArray

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.emu import Fault
from tilec.ir.elements import decode_values, encode_values, storage_shape
from tilec.ir.text import print_kernel
from tilec.ir.tile import Buffer
from tilec.ir.types import FLOAT8_E4M3, FLOAT8_E8M0

KERNEL = HERE / "block_scaled.tl"
TARGET = "sm_100a"
KINDS = {
    "mxf8": {"dtype": "float8_e4m3fn", "dtype_b": "float8_e4m3fn", "step": 32, "BK": 128, "K": 256},
    "mixed": {"dtype": "float8_e5m2", "dtype_b": "float8_e4m3fn", "step": 64, "BK": 64, "K": 320},
    "coarse": {"dtype": "float8_e4m3fn", "dtype_b": "float8_e5m2", "step": 128, "BK": 64, "K": 640},
    "mxf4": {"dtype": "float4_e2m1fn", "dtype_b": "float4_e2m1fn", "step": 32, "BK": 128, "K": 384},
    "nvf4": {"dtype": "float4_e2m1fn", "dtype_b": "float4_e2m1fn", "step": 16, "BK": 64, "K": 192},
}


def arguments(made: Build, step: int) -> tuple[emulate.KernelArguments, NDArray[np.floating]]:
    """Random operands with random scales, and the product that they mean."""
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    buffers = {p.name: p for p in made.kernel.params if isinstance(p, Buffer)}
    generator = np.random.default_rng(step)
    scaled = {}
    for name in "AB":
        buffer = buffers[name]
        rows, k = buffer.shape
        dense = encode_values(generator.standard_normal((rows, k)).astype(np.float32), buffer.dtype)
        assert dense.shape == storage_shape(buffer.shape, buffer.dtype)
        given.tensors[name] = dense
        words, height = given.tensors[f"SF{name}"].shape
        low, high, kind = (40, 72, FLOAT8_E4M3) if step == 16 else (124, 131, FLOAT8_E8M0)
        octets = generator.integers(low, high, (words, height, 4)).astype(np.uint8)
        given.tensors[f"SF{name}"] = np.ascontiguousarray(octets).view(np.uint32)[..., 0]
        # Scale number s of a row is byte s % 4 of word s // 4.
        factors = decode_values(octets, kind).transpose(1, 0, 2).reshape(height, -1)[:rows, np.arange(k) // step]
        scaled[name] = decode_values(dense, buffer.dtype).reshape(rows, k).astype(np.float64) * factors
    return given, scaled["A"] @ scaled["B"].T


def made_for(kind: str, entry: str) -> Build:
    _, made = built(KERNEL, TARGET, entry=entry, **KINDS[kind])
    return made


@pytest.mark.parametrize("entry", ["one_role", "pipelined"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_numpy(kind: str, entry: str) -> None:
    made = made_for(kind, entry)
    assert made.cubin and not made.warnings
    word = {"mxf4": "mxf4.block_scale.scale_vec::2X", "nvf4": "mxf4nvf4.block_scale.scale_vec::4X"}
    assert f"kind::{word.get(kind, 'mxf8f6f4.block_scale.scale_vec::1X')}" in made.ptx
    given, wanted = arguments(made, int(KINDS[kind]["step"]))
    reference = given.copy()
    emulate.run_reference(made.kernel, reference)
    runs = [reference]
    for adversary in (None, 1):
        runs.append(given.copy())
        emulate.emulate_build(made, runs[-1], options=RunOptions(adversary=adversary))
    for run in runs:
        np.testing.assert_allclose(run.tensors["C"], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_pairs_of_blocks(steps: int) -> None:
    """Each block has the scales of its rows of A and of all of B; what threads write for the other's tensor cores, they
    release to the cluster."""
    _, made = built(HERE / "block_scaled_pair.tl", TARGET, K=128 * steps)
    assert "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale" in made.ptx
    assert "mbarrier.arrive.release.cluster.shared::cluster" in made.ptx
    given, wanted = arguments(made, 32)
    reference = given.copy()
    emulate.run_reference(made.kernel, reference)
    runs = [reference]
    for adversary in (None, 1):
        runs.append(given.copy())
        emulate.emulate_build(made, runs[-1], options=RunOptions(adversary=adversary))
    for run in runs:
        np.testing.assert_allclose(run.tensors["C"], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("pattern", [r"tcgen05\.cp", r"tcgen05\.commit", r"fence\.proxy\.async", r"mbarrier\.try_wait"])
def test_each_piece_is_needed(pattern: str) -> None:
    made = made_for("mxf8", "one_role")
    given, wanted = arguments(made, 32)
    places = [m.start() for m in re.finditer(pattern, made.ptx)]
    assert places
    for place in places:
        start, end = made.ptx.rindex("\n", 0, place), made.ptx.index("\n", place)
        mutant = made.ptx[:start] + made.ptx[end:]
        assert not all(right(made, mutant, given, wanted, n) for n in (None, 1, 2)), made.ptx[start:end]


def right(
    made: Build, ptx: str, given: emulate.KernelArguments, wanted: NDArray[np.floating], adversary: int | None
) -> bool:
    from tilec.emu import launch

    found, manifest = given.copy(), made.manifest
    try:
        launch(ptx, manifest.entry, manifest.grid, manifest.block, emulate.build_launch_arguments(manifest, found),
               cluster=manifest.cluster, dynamic_smem=manifest.dynamic_smem, adversary=adversary)  # fmt: skip
    except Fault:
        return False
    return bool(np.allclose(found.tensors["C"], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max()))


def test_tile_ir(golden: Callable[[str, str, str], None]) -> None:
    """What the kernel says of its scales: where they come to lie, and of which step a product takes them."""
    golden("tile", "block_scaled", print_kernel(made_for("mxf8", "one_role").kernel))
