"""A few hundred mutants of each thing that tilec reads. More: `python tests/fuzz/campaign.py SUBJECT --count N`."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import run, run_for
from subjects import SUBJECTS

COUNTS = {
    "kernels": 150, "checks": 50, "targets": 200, "tiles": 300, "traces": 150, "problems": 300, "ptx": 100,
    "manifests": 400,
    "cubins": 400, "tile-trees": 60, "ptx-trees": 60, "problem-trees": 300, "trace-trees": 40, "target-trees": 100,
    "manifest-trees": 60, "measurements": 60, "measurement-trees": 60, "plans": 60, "tuned": 60, "tuned-trees": 60,
    "spaces": 60, "space-trees": 60, "journals": 40, "journal-rows": 40, "comparisons": 60, "solutions": 60,
    "archives": 300, "target-builds": 30,
}  # fmt: skip


def test_every_subject_is_tested() -> None:
    """But for whole builds of kernels, which take a second each."""
    assert set(SUBJECTS) - set(COUNTS) == {"builds"}


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
