"""Shared memory is reached without bank conflicts."""

from __future__ import annotations

import numpy as np
import pytest
from bank_turns import conflicted, counted, turns
from references import SAMPLES, Sample
from test_every_sample import TARGETS, arguments_of, made

from tilec import emulate
from tilec.target import load

BLOCKS = 2  # the others do the same


def test_turns_are_counted() -> None:
    lanes = np.arange(32)
    assert turns(4 * lanes, 4, lanes) == (1, 1)
    assert turns(128 * lanes, 4, lanes) == (32, 1)
    assert turns(16 * lanes, 16, lanes) == (4, 4)
    assert turns(0 * lanes, 4, lanes) == (1, 1), "one word is given to all"
    assert turns(64 * lanes, 8, lanes) == (16, 2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("known", SAMPLES, ids=lambda known: known.path)
def test_no_conflicts(known: Sample, target: str) -> None:
    if known.feature is not None and not load(target).has(known.feature):
        return  # tests/samples/test_every_sample.py runs it where it can be built
    built = made(known.path, target, dict(known.constants))
    with counted() as seen:
        emulate.run(built, arguments_of(known, built), options=emulate.RunOptions(sample=BLOCKS))
    assert conflicted(known.path, seen) == {}
