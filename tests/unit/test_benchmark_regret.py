"""`benchmarks/regret.py`: what decisions cost, counted from measured variants."""

from __future__ import annotations

from typing import Any

import pytest
import regret

GEMM = "samples/gemm.tl"
PAIRS, NONE, ALIKE = {"cluster": "2x1"}, {"cluster": "none"}, {"cluster": "none", "roles": "alike"}


def case(**microseconds: float) -> dict[str, Any]:
    """A measured workload that was decided with pairs, and timed without, and with another constant."""
    changed = {"none": {"cluster": ["2x1", "none"]}, "alike": {"cluster": ["2x1", "none"], "roles": [None, "alike"]}}
    labels = {"base": "as decided", "again": "as decided, again", "stages": "num_stages=4"}
    variants = {
        labels.get(name, f"--{name}"): {"us": us, "changed": changed.get(name, {})} for name, us in microseconds.items()
    }
    return {"name": "a product", "kernel": GEMM, "constants": {}, "decisions": PAIRS, "variants": variants}


def counted(now: dict[str, str], predicted: dict[str, float], **microseconds: float) -> regret.Workload:
    """The workload as read if the compiler decides `now`."""
    known = {"as decided": PAIRS, "--none": NONE, "--alike": ALIKE, "num_stages=4": now}
    compiled = {label: (now if label == "as decided" else one, predicted[label]) for label, one in known.items()}
    return regret.read_workload(case(**microseconds), compiled)


PREDICTED = {"as decided": 100.0, "--none": 90.0, "--alike": 120.0, "num_stages=4": 50.0}


def test_what_is_decided_today_is_found_by_its_decisions() -> None:
    found = counted(ALIKE, PREDICTED, base=100, again=104, none=80, alike=90, stages=40)
    assert found.decided is not None and found.decided.label == "--alike"
    assert found.best.label == "--none", "constants are the author's"
    assert found.regret == pytest.approx(90 / 80 - 1)
    assert found.error == pytest.approx(100 / 90 - 1)


def test_a_base_that_was_measured_twice_counts_once() -> None:
    found = counted(PAIRS, PREDICTED, base=100, again=104, none=120)
    assert found.decided is not None and found.decided.measured == 102 and found.regret == 0


def test_decisions_that_were_not_measured_are_said() -> None:
    found = counted({"cluster": "1x2"}, PREDICTED, base=100, none=80)
    assert found.decided is None and found.regret is None
    assert regret.describe_unmatched(found) == "as decided, but cluster: 2x1 → 1x2"


def test_signs_and_orders() -> None:
    """Without pairs it is faster, as predicted; alike slower, as predicted; three hundredths say nothing."""
    found = counted(PAIRS, {**PREDICTED, "num_stages=4": 130.0}, base=100, none=80, alike=103, stages=60)
    score = regret.count_score([found])
    assert (score.signs, score.sign_right) == (2, 0.5)
    assert score.geometric_mean == score.worst == pytest.approx(0.25) and score.worst_name == "a product"
    assert "sign right in 50% of 2" in "\n".join(regret.list_totals([found]))
    assert [line.split()[2] for line in regret.list_wrong_signs([found])] == ["num_stages=4"]
