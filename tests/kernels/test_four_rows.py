"""Rows by their indices: T.tma_gather4 and T.tma_scatter4 equal numpy, and each piece of their protocol is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.emu import Fault, launch
from tilec.ir.elements import decode_values
from tilec.ir.text import print_kernel
from tilec.ir.types import TYPES_BY_NAME
from tilec.ir.warp_text import show_program
from tilec.support.diagnostics import CompileError

KERNELS = HERE / "four_rows.tl"
TARGET = "sm_100a"


def computed(made: Build, ptx: str, adversary: int | None, indices: np.ndarray, seed: int = 0) -> bool:
    """Whether the PTX gives what numpy does."""
    found = emulate.draw_arguments(made.kernel, made.manifest, seed)
    found.tensors["Ids"][:] = indices
    if made.kernel.name in ("scattered", "doubled"):
        found.tensors["C"][:] = 0
    dtype = TYPES_BY_NAME[next(t.dtype for t in made.manifest.tensors if t.name == "A")]
    a = np.array(decode_values(found.tensors["A"], dtype), np.float32)
    inside = (indices >= 0) & (indices < len(a))
    lines = np.where(inside[:, None], a[np.where(inside, indices, 0)], 0)
    if made.kernel.name == "product":
        wanted = lines @ np.array(decode_values(found.tensors["B"], dtype), np.float32).T
    elif made.kernel.name == "gathered":
        wanted = lines
    else:
        wanted = np.array(decode_values(found.tensors["C"], dtype), np.float32)
        here = (indices >= 0) & (indices < len(wanted))
        wanted[indices[here]] = a[here] if made.kernel.name == "scattered" else 2 * lines[here]
    manifest = made.manifest
    launch(
        ptx, manifest.entry, manifest.grid, manifest.block, emulate.build_launch_arguments(manifest, found),
        dynamic_smem=manifest.dynamic_smem, adversary=adversary,
    )  # fmt: skip
    c = next(t for t in made.manifest.tensors if t.name == "C")
    return bool(np.allclose(decode_values(found.tensors["C"], TYPES_BY_NAME[c.dtype]), wanted, rtol=1e-2, atol=1e-2))


def some(count: int, rows: int, seed: int, *, once: bool) -> np.ndarray:
    """Indices of rows, also outside of them; each at most once where that matters."""
    random = np.random.default_rng(seed)
    if not once:
        return random.integers(-3, rows + 3, count).astype(np.int32)
    return random.permutation(np.arange(-count // 2, rows + count))[:count].astype(np.int32)


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8"])
@pytest.mark.parametrize(("columns", "rows"), [(32, 3), (64, 16), (384, 5)])
def test_gathered(dtype: str, columns: int, rows: int) -> None:
    """Also tiles of several panels."""
    _, made = built(KERNELS, TARGET, entry="gathered", dtype=dtype, K=columns, rows=rows)
    for adversary in (None, 1, 2):
        assert computed(made, made.ptx, adversary, some(4 * rows, 64, rows, once=False))


@pytest.mark.parametrize("columns", [64, 128, 320])
def test_product(columns: int) -> None:
    """Blocks of four rows in a swizzled tile, in turns of two versions."""
    _, made = built(KERNELS, TARGET, entry="product", K=columns)
    for adversary in (None, 1, 2):
        assert computed(made, made.ptx, adversary, some(128, 64, columns, once=False))


@pytest.mark.parametrize("entry", ["scattered", "doubled"])
@pytest.mark.parametrize(("columns", "rows", "dtype"), [(64, 8, "float16"), (256, 16, "bfloat16"), (32, 8, "float32")])
def test_scattered(entry: str, columns: int, rows: int, dtype: str) -> None:
    _, made = built(KERNELS, TARGET, entry=entry, K=columns, rows=rows, dtype=dtype)
    for adversary in (None, 1, 2):
        assert computed(made, made.ptx, adversary, some(4 * rows, 64, rows, once=True))


def test_the_reference_is_numpy_too() -> None:
    for entry in ("gathered", "product", "doubled"):
        _, made = built(KERNELS, TARGET, entry=entry)
        found = emulate.draw_arguments(made.kernel, made.manifest, 1)
        found.tensors["Ids"][:] = some(len(found.tensors["Ids"]), 64, 1, once=True)
        expected = found.copy()
        emulate.emulate_build(made, found)
        emulate.run_reference(made.kernel, expected)
        assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.parametrize(
    ("entry", "pattern"),
    [
        ("product", r"mbarrier\.arrive\.expect_tx"),
        ("product", r"tile::gather4"),
        ("product", r"mbarrier\.try_wait"),
        ("product", r"mbarrier\.arrive\.shared"),
        ("gathered", r"mbarrier\.expect_tx"),
        ("gathered", r"mbarrier\.try_wait"),
        ("doubled", r"tile::scatter4"),
        ("doubled", r"fence\.proxy\.async"),
        ("doubled", r"commit_group"),
        ("scattered", r"wait_group"),
    ],
)
def test_each_piece_is_needed(entry: str, pattern: str) -> None:
    _, made = built(KERNELS, TARGET, entry=entry, K=256)
    indices = some(made.manifest.tensor("Ids").shape[0], 64, 7, once=entry != "product")
    assert computed(made, made.ptx, None, indices)
    lines = made.ptx.split("\n")
    places = [i for i, line in enumerate(lines) if re.search(pattern, line)]
    assert places
    assert any(_is_faulty(made, "\n".join([*lines[:i], *lines[i + 1 :]]), indices) for i in places)


def test_other_rows_and_other_bytes_are_noticed() -> None:
    _, made = built(KERNELS, TARGET, entry="gathered")
    indices = some(64, 64, 3, once=True)
    (four,) = re.findall(r"\{(%r\d+), (%r\d+), (%r\d+), (%r\d+), (%r\d+)\}", made.ptx)
    swapped = made.ptx.replace("{" + ", ".join(four) + "}", "{" + ", ".join([four[0], *reversed(four[1:])]) + "}")
    assert _is_faulty(made, swapped, indices)
    assert _is_faulty(made, re.sub(r"(expect_tx.*), 1024;", r"\1, 2048;", made.ptx), indices)


def _is_faulty(made: Build, ptx: str, indices: np.ndarray) -> bool:
    with suppress(Fault):
        return not all(computed(made, ptx, adversary, indices) for adversary in (None, 1, 2))
    return True


@pytest.mark.parametrize("entry", ["gathered", "scattered"])
def test_what_lacks_it_is_named(entry: str) -> None:
    with pytest.raises(CompileError) as raised:
        built(KERNELS, "sm_90a", entry=entry)
    (found,) = raised.value.diagnostics
    assert found.code == "unsupported-operand"
    assert found.primary is not None and "sm_90a has no TMA copies of rows by index" in found.primary.text


def test_text(golden: Callable[[str, str, str], None]) -> None:
    _, made = built(KERNELS, TARGET, entry="doubled")
    golden("tile", "four_rows", print_kernel(made.kernel))
    golden("warp", "four_rows", show_program(made.program))
