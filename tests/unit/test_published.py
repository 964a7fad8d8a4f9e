"""benchmarks/published/: every measurement is complete, has its source, and enough of them are held out."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import gpu_cases
import published_rows
import pytest

from tilec.ir.types import TYPES_BY_NAME
from tilec.support import schema
from tilec.target.table import evaluate_formula

SOURCES, GROUPS = published_rows.read()
ROWS = [(name, row) for name, group in GROUPS.items() for row in group.rows]


def test_there_are_enough_rows_from_enough_sources() -> None:
    assert len(ROWS) >= 120
    assert len({row.source for _, row in ROWS}) >= 8
    assert {row.source for _, row in ROWS} == set(SOURCES), "a source without a row, or a row without its source"


@pytest.mark.parametrize("name", GROUPS)
def test_a_third_of_each_group_is_held_out(name: str) -> None:
    held_out = [row.held_out for row in GROUPS[name].rows]
    assert abs(sum(held_out) - len(held_out) / 3) < 1
    # Evenly: of any three neighbours, one.
    assert all(sum(held_out[at : at + 3]) == 1 for at in range(len(held_out) - 2))


@pytest.mark.parametrize("name", GROUPS)
def test_every_row_can_be_predicted(name: str) -> None:
    group = GROUPS[name]
    assert {row.ours for row in group.rows} == set(group.ours)
    for row in group.rows:
        assert published_rows.target_of(row.gpu)
        assert group.microseconds(row) > 0
    for ours in group.ours.values():
        assert all((gpu_cases.ROOT / part.file).is_file() for part in ours.kernels)


@pytest.mark.parametrize("name", GROUPS)
def test_rates_are_below_what_the_machine_can_do(name: str) -> None:
    """A shape or a figure that was copied wrongly is far off: no kernel moves or multiplies more than is there."""
    for row in GROUPS[name].rows:
        ours, time = GROUPS[name].ours[row.ours], GROUPS[name].microseconds(row)
        values = {**row.shape, "size": TYPES_BY_NAME[row.dtype].bits / 8}
        peak = {"A": 312, "H": 990, "B": 2250}[row.gpu[0]] * 2 / values["size"]
        assert evaluate_formula(ours.flop, values) / time / 1e6 < peak, row
        if row.unit != "TFLOP/s":
            bandwidth = {"A": 2039, "H": 3350, "B": 8000}[row.gpu[0]]
            in_cache = evaluate_formula(ours.bytes, values) < 2 * {"A": 40e6, "H": 50e6, "B": 126e6}[row.gpu[0]]
            assert in_cache or evaluate_formula(ours.bytes, values) / time / 1e3 < bandwidth, row


def test_no_measurement_is_there_twice() -> None:
    said = Counter((row.source, row.where, row.kernel) for _, row in ROWS)
    assert [key for key, times in said.items() if times > 1] == []


def test_what_may_be_fitted() -> None:
    for _, row in ROWS:
        assert row.is_fit == (not row.held_out and not row.differs and row.read_from == "text")
    assert any(row.is_fit for _, row in ROWS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('source = "me"\n', "'where' is missing"),
        ('source = "me"\nwhere = ""\n', "a string that is not empty"),
        ('source = "me"\nwhere = "x"\nfrom = "y"\n', "unknown member 'from'"),
    ],
)
def test_a_row_that_is_not_complete_is_refused(line: str, message: str, tmp_path: Path) -> None:
    row = 'kernel = "k"\nours = "o"\nshape = { M = 1 }\ndtype = "float16"\ngpu = "H200"\nfigure = 1\nunit = "us"\n'
    (tmp_path / "sources.toml").write_text('[me]\ndocument = "d"\naddress = "https://d"\n')
    (tmp_path / "g.toml").write_text(f'what = "w"\n[ours]\n[[rows]]\n{row}held_out = false\n{line}')
    with pytest.raises(schema.SchemaError, match=message):
        published_rows.read(tmp_path)


def test_the_files_are_what_toml_says() -> None:
    """Nothing in a folder of data is anything else."""
    for path in published_rows.FOLDER.iterdir():
        assert path.suffix == ".toml" and tomllib.loads(path.read_text(encoding="utf-8"))
