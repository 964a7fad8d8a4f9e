"""Attention forward in the tiles that experts take for each head dimension: what the machine code holds, and numbers.

The tiles are those of FlashAttention-3 on Hopper.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import HERE, SAMPLES, built
from numpy.typing import NDArray
from sass import Instruction, disassembled

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.emu import launch
from tilec.ir import warp
from tilec.ir.elements import decode_values
from tilec.ir.tile import Buffer
from tilec.support.options import Value

FLASH = SAMPLES / "flash_attention.tl"
LOCAL = {"LDL", "STL"}

Shape = dict[str, Value]
D64: Shape = {"D": 64, "block_M": 192, "block_N": 128, "threads": 384}
D128: Shape = {"D": 128, "block_M": 128, "block_N": 128}
D128_WIDE: Shape = {"D": 128, "block_M": 128, "block_N": 176, "keys": 176 * 20}
D256: Shape = {"D": 256, "block_M": 128, "block_N": 80, "keys": 80 * 40}
TILES = {"64": D64, "128": D128, "128-wide": D128_WIDE, "256": D256}
INTERVAL = {"64": 1650, "128": 2048, "128-wide": 2816, "256": 2716}
"""Cycles. Of the first the exponentials take 1647, of the next two the tensor cores all. Of the last these take 2560:
its warpgroups stay together, as ping-pong would take longer than it saves."""

CASES = [(name, causal, dtype) for name in TILES for causal in (False, True) for dtype in ("float16", "bfloat16")]


def steady(made: Build, folder: Path) -> tuple[Instruction, ...]:
    """The machine code of the consumers' main loop."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(made.cubin)
    return disassembled(cubin).around("HGMMA")


@pytest.mark.weekly
@pytest.mark.parametrize(("name", "causal", "dtype"), CASES)
def test_the_main_loop(name: str, causal: bool, dtype: str, tmp_path: Path) -> None:
    """An exponential an element and one a row, two shuffles for each of a thread's rows in a sum and in a maximum, and
    no other way between threads or through memory; nothing serialised, nothing spilled, no bank conflict."""
    tile = TILES[name]
    _, made = built(FLASH, "sm_90a", causal=causal, dtype=dtype, **tile)
    assert made.warnings == ()
    (entry,) = made.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
    loop = steady(made, tmp_path)
    found = Counter(i.stem for i in loop)
    elements = 64 * int(tile["block_N"]) // 128  # of a thread, in two rows
    assert found["MUFU"] == elements + 2
    assert found["SHFL"] == 2 * 2 * 2
    assert found["F2FP"] == elements // 2
    assert found["FFMA"] <= elements + 2 and found["FMUL"] <= 64 * int(tile["D"]) // 128 + 4
    assert not found.keys() & (LOCAL | {"LDS", "STS", "LDG", "STG", "LDSM", "STSM", "PRMT", "MEMBAR"})
    assert found["HGMMA"] == (int(tile["D"]) + int(tile["block_N"])) // 16
    # The scores are waited for first: of the two products of an iteration, one is in flight then.
    assert sum(i.opcode.startswith("WARPGROUP.DEPBAR") for i in loop) == 2
    consumers = next(role for role in made.program.roles if role.name == "consumer")
    body = next(
        op.body for op in warp.walk_operations(consumers.body) if isinstance(op, warp.Loop) and op.part == "steady"
    )
    assert [op.pending for op in body if isinstance(op, warp.WgmmaWait)] == [1, 0]
    assert consumers.ping_pong_barrier is not None


@pytest.mark.parametrize("name", TILES)
def test_nothing_but_the_machine_bounds_it(name: str) -> None:
    _, made = built(FLASH, "sm_90a", **TILES[name])
    (schedule,) = made.schedules
    assert (schedule.status, schedule.ii) == ("optimal", INTERVAL[name])


@pytest.mark.weekly
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth", [64, 128])
def test_bytes_stay_in_registers(depth: int, causal: bool, tmp_path: Path) -> None:
    """Of 8-bit floats the second product takes the weights as they were accumulated: the values, which have to be
    turned anyway, are put into the matching order. No thread hands weights to another, by shuffles or shared memory."""
    _, made = built(FLASH, "sm_90a", dtype="float8_e4m3fn", D=depth, causal=causal, block_N=128)
    # Each warpgroup turns the values for itself meanwhile: its products wait.
    assert [w.code for w in made.warnings if w.code != "assembled-interval"] == []
    (entry,) = made.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(made.cubin)
    found = Counter(i.stem for i in disassembled(cubin).around("QGMMA"))
    parts = 2 if '"chosen": "scores (1, 2)"' in made.trace else 1  # each is folded by itself
    assert (found["SHFL"], found["F2FP"], found["MUFU"]) == (8 * parts, 32, 66)
    assert (found["LDSM"], found["STSM"]) == (depth // 16, depth // 16)  # the values, transposed by each warpgroup
    assert not found.keys() & {"LDS", "STS"}
    assert not found.keys() & LOCAL
    consumers = next(role for role in made.program.roles if role.name == "consumer")
    assert consumers.ping_pong_barrier is not None
    assert {t.layout.copies for t in made.program.shared if t.buffer.name.endswith(".turned")} == {2}
    assert '"a copy for each of 2 warpgroups"' in made.trace


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("D", "S", "keys", "causal"), [(64, 130, 40, False), (128, 70, 200, True), (128, 70, 200, False)]
)
def test_bytes_equal_numpy(D: int, S: int, keys: int, causal: bool) -> None:
    _, made = built(FLASH, "sm_90a", dtype="float8_e4m3fn", heads=1, D=D, S=S, keys=keys, causal=causal)
    found, wanted = computed(made, S, causal)
    step = 2.0**-4  # of weights, whose errors are of either sign, and of the output
    np.testing.assert_allclose(found, wanted, rtol=1.5 * step, atol=step / 2)
    assert np.abs(wanted).mean() > step  # what is compared is larger than that


@pytest.mark.parametrize("keys", [128, 256, 512])
def test_halves_equal_numpy(keys: int) -> None:
    _, made = built(HERE / "attention_halves.tl", "sm_90a", S=100, keys=keys)
    assert made.warnings == ()
    found, wanted = computed(made, keys, causal=False)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-9, atol=2.0**-8)


def computed(made: Build, seed: int, causal: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """What a machine that delays what it may, another one for each seed, makes of random numbers; and what is right."""
    m = made.manifest
    arguments = emulate.draw_arguments(made.kernel, m, seed)
    buffers = {p.name: p for p in made.kernel.params if isinstance(p, Buffer)}
    q, k, v = (decode_values(arguments.tensors[n], buffers[n].dtype).astype(np.float64) for n in "QKV")
    given = emulate.build_launch_arguments(m, arguments)
    launch(made.ptx, m.entry, m.grid, m.block, given, dynamic_smem=m.dynamic_smem, adversary=seed)
    found = decode_values(arguments.tensors["O"], buffers["O"].dtype).astype(np.float64)
    return found, softmax_weighted(q, k, v, causal)


def softmax_weighted(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], causal: bool) -> NDArray[Any]:
    """(batch, S, heads, D), in float64; the last key is the last query's."""
    q, k, v = (np.swapaxes(t, 1, 2) for t in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - np.maximum(scores.max(axis=-1, keepdims=True), np.finfo(np.float64).min))
    total = weights.sum(axis=-1, keepdims=True)
    return np.swapaxes(weights / np.where(total > 0, total, 1) @ v, 1, 2)


# Queries and keys: ends inside a tile, one block of keys, two, three and so on, fewer and more queries than keys.
LENGTHS = [(64, 1), (1, 200), (130, 70), (200, 256), (129, 385), (300, 300), (90, 700)]


@pytest.mark.weekly
@pytest.mark.parametrize(("S", "keys"), [(200, 30), (130, 129)])
def test_queries_that_see_no_key(S: int, keys: int) -> None:
    """They get zeros, in a block of their own, which has no iteration, and beside others."""
    _, made = built(FLASH, "sm_90a", heads=1, S=S, keys=keys, causal=True)
    found, wanted = computed(made, S, causal=True)
    assert not found[:, : S - keys].any() and wanted[:, S - keys :].all()
    np.testing.assert_allclose(found, wanted, rtol=2.0**-9, atol=2.0**-8)


@pytest.mark.parametrize(("S", "keys"), LENGTHS)
@pytest.mark.parametrize("name", TILES)
def test_equals_numpy(name: str, S: int, keys: int) -> None:
    """Causal wherever there are keys enough."""
    causal = keys >= S + (name == "128")
    dtype = "bfloat16" if keys % 2 else "float16"
    shape: Shape = {**TILES[name], "heads": 1, "S": S, "keys": keys, "causal": causal, "dtype": dtype}
    _, made = built(FLASH, "sm_90a", **shape)
    found, wanted = computed(made, S + keys, causal)
    step = 2.0**-7 if dtype == "bfloat16" else 2.0**-10  # weights and output are rounded to the type
    np.testing.assert_allclose(found, wanted, rtol=2 * step, atol=4 * step)
