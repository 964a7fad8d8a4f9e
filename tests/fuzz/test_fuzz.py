"""A few hundred mutants of each thing that tilec reads. More: `python tests/fuzz/campaign.py SUBJECT --count N`."""

from __future__ import annotations

import pytest
from campaign import run

COUNTS = {
    "kernels": 150, "checks": 50, "targets": 200, "tiles": 300, "traces": 150, "problems": 300, "ptx": 100,
    "manifests": 400,
    "cubins": 400,
}  # fmt: skip


@pytest.mark.parametrize("subject", COUNTS)
def test_mutants_are_accepted_or_refused(subject: str) -> None:
    outcome = run(subject, COUNTS[subject])
    said = [f"mutant {number}: {where}\n{text}" for where, (number, text) in outcome.findings.items()]
    assert not said, "\n".join(said)
    assert outcome.accepted, "some mutants mean something"
    assert outcome.refused
