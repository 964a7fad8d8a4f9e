"""Some mutants of each thing that tilec reads. More: `python tests/fuzz/campaign.py SUBJECT --count N`."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import run, run_for
from subjects import SUBJECTS

COUNTS = {
    "kernels": 50, "checks": 30, "targets": 66, "tiles": 100, "traces": 50, "problems": 100, "ptx": 33,
    "manifests": 133,
    "cubins": 133, "tile-trees": 20, "ptx-trees": 20, "problem-trees": 100, "trace-trees": 15, "target-trees": 33,
    "manifest-trees": 20, "measurements": 20, "measurement-trees": 20, "plans": 20, "tuned": 20, "tuned-trees": 20,
    "spaces": 20, "space-trees": 20, "journals": 15, "journal-rows": 15, "comparisons": 20, "solutions": 20,
    "archives": 100, "target-builds": 15,
}  # fmt: skip


def test_every_subject_is_tested() -> None:
    """But for whole builds of kernels, which take a second each."""
    assert set(SUBJECTS) - set(COUNTS) == {"builds"}


@pytest.mark.some(10)
@pytest.mark.parametrize("subject", COUNTS)
def test_mutants_are_accepted_or_refused(subject: str) -> None:
    outcome = run(subject, COUNTS[subject])
    said = [f"mutant {number}: {where}\n{text}" for where, (number, text) in outcome.findings.items()]
    assert not said, "\n".join(said)
    assert outcome.accepted, "some mutants mean something"
    assert outcome.refused


def test_a_corpus_keeps_what_leads_somewhere_new(tmp_path: Path) -> None:
    outcome = run_for("manifests", 1.0, 0, tmp_path)
    assert not outcome.findings
    kept = {path.name: path.read_bytes() for path in (tmp_path / "manifests").iterdir()}
    assert 2 < len(kept) < outcome.accepted + outcome.refused
    again, first = tmp_path / "manifests" / "again", next(iter(kept.values()))
    again.write_bytes(first + b" " * 10)  # the same once more, only longer
    run_for("manifests", 0.0, 0, tmp_path, least=0)
    assert not again.exists()
    assert {path.name for path in (tmp_path / "manifests").iterdir()} <= set(kept)


def test_some_mutants_are_tried_whatever_the_time(tmp_path: Path) -> None:
    outcome = run_for("manifests", 0.0, 0, tmp_path, least=5)
    assert outcome.accepted + outcome.refused == 5
