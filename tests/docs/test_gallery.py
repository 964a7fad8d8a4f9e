"""docs/gallery.md shows every sample; its facts and pictures are what the compiler gives now, which is tried weekly."""

from __future__ import annotations

import importlib
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCHEDULES = DOCS / "schedules"
SVG = "{http://www.w3.org/2000/svg}"
SAMPLES = sorted(
    path.relative_to(DOCS.parent / "samples").with_suffix("").as_posix()
    for path in (DOCS.parent / "samples").rglob("*.tl")
)


@cache
def module(name: str) -> ModuleType:
    """Return a module beside the documents."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS))


def entries() -> dict[str, str]:
    """Return what the page says of each sample."""
    _, *parts = re.split(r"^### (.*)$", (DOCS / "gallery.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_sample_is_on_the_page_and_every_picture_is_there() -> None:
    facts = module("gallery").read_facts()
    assert sorted(entries()) == sorted(facts) == SAMPLES
    shown = {name: re.findall(r"\]\(schedules/(.*?)\)", text) for name, text in entries().items()}
    assert [name for name in SAMPLES if len(shown[name]) != ("interval" in facts[name])] == []
    pictures = sorted(path.name for path in SCHEDULES.glob("*.svg"))
    assert sorted(file for files in shown.values() for file in files) == pictures
    assert sum((SCHEDULES / file).stat().st_size for file in pictures) < 600_000


def test_every_entry_says_what_was_measured_or_that_nothing_was() -> None:
    rate = r"(about )?[\d.,e+]+ T(FLOP|B)/s on an .*, \d{4}-\d\d-\d\d, with .+"
    told = re.compile(rf"\* Measured: (not measured|{rate})\n")
    assert [name for name, text in entries().items() if not told.search(text)] == []
    assert "samples/gemm.tl" in entries()["gemm"] and "TFLOP/s" in entries()["gemm"]


def test_every_picture_is_an_svg_that_says_its_interval() -> None:
    facts = module("gallery").read_facts()
    for name, told in facts.items():
        if "interval" in told:
            drawn = ElementTree.parse(module("gallery").picture_path(name)).getroot()
            assert drawn.tag == f"{SVG}svg"
            assert f"one every {told['interval']:,} cycles" in drawn.attrib["aria-label"], name


def test_a_picture_has_each_iteration_an_interval_later() -> None:
    load = {"id": 0, "name": "copy A", "role": "producer", "start": 0, "phase": 0, "issue": 10, "latency": 100}
    work = {"id": 1, "name": "gemm A", "role": "consumer", "start": 100, "phase": 20, "issue": 40, "latency": 60}
    loop: dict[str, Any] = {
        "ii": 80, "stages": 2, "rings": [{"producers": [0]}],
        "slots": [{"name": "tc_and_mma", "percent": 75}, {"name": "tma", "percent": 4}],
        # A use that goes on after the end of the interval is two ranges of a trace.
        "ops": [
            {**load, "rows": [{"slot": "tma", "rows": [[0, 3]]}]},
            {**work, "rows": [{"slot": "tc_and_mma", "rows": [[30, 80], [0, 10]]}]},
        ],
    }  # fmt: skip
    drawn = ElementTree.fromstring(module("schedule_picture").draw_schedule(loop, "k"))
    at = {int(text.attrib["y"]): text.text for text in drawn.iter(f"{SVG}text") if "x" not in text.attrib}
    assert list(at.values())[1:] == ["copy A", "producer", "consumer", "tensor cores, 75%"]
    left, scale = 176, (960 - 176) / 320
    for title, start, end in (("consumer", 100, 140), ("tensor cores, 75%", 110, 170), ("copy A", 0, 100)):
        y = next(y for y, text in at.items() if text == title) - 12
        found = [
            re.fullmatch(rf"M(\d+) {y}h(\d+)v16h-\d+z", path.attrib["d"])
            for path in drawn.iter(f"{SVG}path")
            if f" {y}h" in path.attrib["d"]
        ]
        expected = [
            (left + round((start + n * 80) * scale), min(left + round((end + n * 80) * scale), 960))
            for n in range(4)
            if start + n * 80 < 320
        ]
        assert [(int(m[1]), int(m[1]) + int(m[2])) for m in found if m] == expected, title


@pytest.mark.weekly
@pytest.mark.parametrize("name", SAMPLES)
def test_facts_and_picture_are_what_the_compiler_gives_now(name: str) -> None:
    gallery = module("gallery")
    facts, picture = gallery.compile_sample(name)
    path = gallery.picture_path(name)
    assert gallery.read_facts()[name] == facts, "run `python docs/gallery.py`, and `python docs/generate.py`"
    assert (path.read_text(encoding="utf-8") if path.exists() else None) == picture
