"""`benchmarks/lints.py`: how often the advice of a lint is right, counted from measured variants."""

from __future__ import annotations

from typing import Any

import lints
import pytest

CASE: dict[str, Any] = {
    "name": "a product",
    "kernel": "samples/gemm.tl",
    "constants": {},
    "decisions": {"cluster": "2x1"},
    "variants": {
        "as decided": {"us": 100.0},
        "--cluster none": {"us": 50.0, "changed": {"cluster": ["2x1", "none"]}},
        "num_stages=3": {"us": 80.0},
        "num_stages=4": {"us": 81.0, "changed": {"cluster": ["2x1", "none"]}},
    },
}
PAIRS, NONE = {"cluster": "2x1"}, {"cluster": "none"}
COMPILED = {
    "as decided": lints.Compiled(2, PAIRS, 3, 0.4),
    "num_stages=3": lints.Compiled(3, PAIRS, 4, 0.1),
    "num_stages=4": lints.Compiled(4, NONE),
}


def test_only_stages_are_compared() -> None:
    assert [label for label in CASE["variants"] if lints.is_about_stages(label)] == list(COMPILED)


def test_advice_is_compared_with_the_stages_that_it_names() -> None:
    first, second, third = lints.read_cases(CASE, COMPILED)
    assert first.changed == first.best == 0.8 and second.changed == pytest.approx(81 / 80)
    assert third.changed is None and third.best is None
    assert first.is_comparable and second.is_comparable
    (again, *_) = lints.read_cases(CASE, {**COMPILED, "num_stages=3": lints.Compiled(3, NONE)})
    assert not again.is_comparable, "its decisions with three stages are not those that were measured"


def test_precision_and_recall() -> None:
    *_, every = lints.count_lines(list(lints.read_cases(CASE, COMPILED)))
    assert every.startswith("all: 3 kernels; 1 of 2 warnings right, ")
    assert every.endswith("; 1 of 1 found that lose 5%")
