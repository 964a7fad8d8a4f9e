"""The page of machines has a cell for every sample on every machine; `benchmarks/machines.py --page` writes it."""

from __future__ import annotations

import json
import re

from fenced import ROOT

from tilec.support.resources import target_names

PAGE = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
SAMPLES = ROOT / "samples"


def rows(name: str) -> list[list[str]]:
    _, _, rest = PAGE.partition(f"<!-- begin: {name}, made by benchmarks/machines.py -->")
    lines = rest.partition("<!-- end -->")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_every_machine_is_told_of() -> None:
    for target in target_names():
        assert f"\n| {target} |" in PAGE


def test_every_sample_has_a_cell_for_every_machine() -> None:
    (_, *targets), _, *found = rows("samples")
    assert sorted(targets) == sorted(target_names())
    paths = [match[1] for name, *_ in found if (match := re.fullmatch(r"\[.*\]\(\.\./samples/(.*)\.tl\)", name))]
    assert sorted(paths) == sorted(
        path.relative_to(SAMPLES).with_suffix("").as_posix() for path in SAMPLES.rglob("*.tl")
    )
    for name, *cells in found:
        for cell in cells:
            assert re.fullmatch(r"(100|\d\d?)%|needs [\w.]+", cell), (name, cell)


def test_the_gallery_predicts_the_same() -> None:
    facts = json.loads((ROOT / "docs" / "schedules" / "facts.json").read_text(encoding="utf-8"))
    (_, *targets), _, *found = rows("samples")
    shares = {name.split("]")[0].lstrip("["): dict(zip(targets, cells, strict=True)) for name, *cells in found}
    told = {name: f"{one['share']:.0%}" for name, one in facts.items()}
    assert told == {name: shares[name][one["target"]] for name, one in facts.items()}


def test_both_samples_are_read_on_every_machine() -> None:
    _, _, *found = rows("schedules")
    assert [row[1] for row in found] == [target for _ in range(2) for target in rows("samples")[0][1:]]
