"""Attention whose maxima move seldom: numbers, and what the loop no longer holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import HERE, SAMPLES, built
from sass import disassembled

from tilec.driver.emulation import emulate
from tilec.ir.elements import decode_values, encode_values
from tilec.ir.types import FLOAT8_E4M3, FLOAT16

LAZY = HERE / "attention_lazy.tl"
TYPES = {"float8_e4m3fn": FLOAT8_E4M3, "float16": FLOAT16}
STEP = {"float8_e4m3fn": 2.0**-4, "float16": 2.0**-11}
"""Half a step of the type, relative to a value: the error of a rounding."""


def weigh(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Return the attention of one head: queries, keys and values by rows; zeros for queries without a key."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    seen = np.tri(*scores.shape, k=len(k) - len(q), dtype=bool) if causal else np.ones(scores.shape, bool)
    e = np.exp(np.where(seen, scores - scores.max(1, keepdims=True), -np.inf))
    return e / np.maximum(e.sum(1, keepdims=True), 1e-30) @ v


@pytest.mark.parametrize("growth", [0.0, 40.0])
@pytest.mark.parametrize(("causal", "keys"), [(False, 384), (False, 500), (True, 384), (True, 200)])
@pytest.mark.parametrize("dtype", list(TYPES))
def test_it_weighs_as_numpy_does(dtype: str, causal: bool, keys: int, growth: float) -> None:
    """With `growth` later keys have larger scores, so that maxima move in every block; else hardly any moves twice."""
    _, made = built(LAZY, "sm_90a", heads=1, S=256, keys=keys, D=64, block_N=96, dtype=dtype, causal=causal)
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    generator = np.random.default_rng(2)
    drawn = {name: generator.normal(size=given.tensors[name].shape).astype(np.float32) for name in "QKV"}
    drawn["Q"][..., 0] = 4.0
    drawn["K"][..., 0] = growth * np.arange(keys)[None, :, None] / keys
    given.tensors.update({name: encode_values(values, TYPES[dtype]) for name, values in drawn.items()})
    q, k, v = (decode_values(given.tensors[name], TYPES[dtype]).astype(np.float64)[0, :, 0] for name in "QKV")
    emulate.emulate_build(made, given)
    found = decode_values(given.tensors["O"], TYPES[dtype]).astype(np.float64)[0, :, 0]
    # Weights and results are rounded: errors of weights add up to at most as much of the largest value.
    allowed = 2 * STEP[dtype] * (np.abs(v).max() + np.abs(found))
    assert (np.abs(found - weigh(q, k, v, causal)) <= allowed).all()


def test_its_loop_is_short(tmp_path: Path) -> None:
    """Sums of the weights by tensor cores and a branch around the products of the output, in place of 80 additions; no
    other transposition than that of the values."""

    def list_loop(path: Path) -> list[str]:
        _, made = built(path, "sm_90a", dtype="float8_e4m3fn", D=128, S=8192)
        assert not [w.title for w in made.warnings if w.code != "assembled-interval"]
        cubin = tmp_path / "kernel.cubin"
        cubin.write_bytes(made.cubin)
        return [i.stem for i in disassembled(cubin).around("QGMMA")]

    lazy, usual = list_loop(LAZY), list_loop(SAMPLES / "flash_attention.tl")
    assert len(lazy) <= len(usual) - 55
    assert (lazy.count("VOTE"), usual.count("VOTE")) == (1, 0)
    assert lazy.count("FADD") < 8 < usual.count("FADD")
    assert lazy.count("STSM") == usual.count("STSM")
