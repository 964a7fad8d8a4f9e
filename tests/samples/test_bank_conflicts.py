"""Shared memory is reached without bank conflicts: by the samples' own test, and here."""

from __future__ import annotations

import numpy as np
import pytest
from bank_turns import conflicted, counted, turns
from references import SAMPLES
from test_every_sample import bank_conflicts, made

from tilec.driver.emulation import emulate

ONE_BLOCK = emulate.RunOptions(sample=1)


def test_turns_are_counted() -> None:
    lanes = np.arange(32)
    assert turns(4 * lanes, 4, lanes) == (1, 1)
    assert turns(128 * lanes, 4, lanes) == (32, 1)
    assert turns(16 * lanes, 16, lanes) == (4, 4)
    assert turns(0 * lanes, 4, lanes) == (1, 1), "one word is given to all"
    assert turns(64 * lanes, 8, lanes) == (16, 2)


def test_no_conflicts_without_tensor_memory() -> None:
    """Where test_every_sample builds the sample with it."""
    (known,) = (known for known in SAMPLES if known.path == "gemm/pipeline_objects")
    assert bank_conflicts(known, made(known.path, "sm_100a", dict(known.constants))) == {}


@pytest.mark.parametrize(("target", "tile"), [("sm_80", 64), ("sm_90a", 128)])
@pytest.mark.parametrize("causal", [False, True])
def test_no_conflicts_in_attention(target: str, tile: int, causal: bool) -> None:
    """With the tiles that the file has, which tests/kernels/test_flash_attention.py compares with numpy."""
    sizes = {"batch": 1, "heads": 1, "S": 256, "block_N": tile, "causal": causal}
    built = made("flash_attention", target, sizes)
    with counted() as seen:
        emulate.emulate_build(built, emulate.draw_arguments(built.kernel, built.manifest, 0), options=ONE_BLOCK)
    assert seen and conflicted("flash_attention", seen) == {}
