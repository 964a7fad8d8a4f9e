"""`tilec schedule --html`: the same page as that of a report, of schedules alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import drawn
import pytest
from command import GEMM, SAMPLES, tilec
from drawn import text, tree, under

from tilec.sched.problem import UNLIMITED

KERNELS = Path(__file__).parents[1] / "kernels"
FLASH = SAMPLES / "flash_attention.tl"
TEMPLATES = Path(__file__).parents[2] / "tilec" / "report" / "templates"


def recorded(kernel: Path | str) -> dict[str, Any]:
    """What a build writes down of the same schedules."""
    assert tilec(str(kernel), "--schedule-trace-file", "t.json", "-o", "k.cubin") == 0
    record: dict[str, Any] = json.loads(Path("t.json").read_text(encoding="utf-8"))["tilec"]
    return record


@pytest.mark.parametrize("kernel", [Path(GEMM), KERNELS / "attention.tl", FLASH], ids=lambda p: p.stem)
def test_the_page(kernel: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One file that needs nothing else, for light and dark, the same every time."""
    assert tilec("schedule", str(kernel), "--html", "a.html") == 0
    assert tilec("schedule", str(kernel), "--html", "b.html") == 0
    said = capfd.readouterr().out
    page = Path("a.html").read_text(encoding="utf-8")
    assert page == Path("b.html").read_text(encoding="utf-8")
    without = page.replace('"http://www.w3.org/2000/svg"', "")
    for outside in ("http:", "https:", "src=", "href=", "@import", "url(", "<link"):
        assert outside not in without
    assert "color-scheme: light dark" in page
    record = recorded(kernel)
    assert drawn.traces(page) == [record] and drawn.texts(page)["report"] == "null"
    loop = record["loops"][0]
    apart = [f"consumer {group} runs {lag:,} cycles behind" for group, lag in enumerate(loop.get("lags", ()), 1) if lag]
    assert all(line in said for line in apart)

    root = tree(page)
    assert text(next(root.iter("h1"))) == f"{record['kernel']} on sm_90a"
    drawings = list(root.iter("svg"))[:3]
    assert [d.attrib["aria-label"] for d in drawings] == [
        "reservation table",
        "overlapped iterations",
        "ring occupancy",
    ]
    bars = [d.findall("rect") for d in drawings]
    rows = sum(len(held["rows"]) for op in loop["ops"] for held in op["rows"])
    used = sum(slot["held"] > 0 for slot in loop["slots"])
    assert len(bars[0]) == rows + used
    assert len(bars[1]) == 2 * len(loop["ops"]) * (loop["stages"] + 2)
    assert all(int(bar.attrib["width"]) > 0 and int(bar.attrib["x"]) >= 200 for bar in (*bars[0], *bars[1]))
    headings = ("Reservation table", "Iterations", "Bounds on the interval", "Rings", "Pools", "Intervals tried")
    assert {text(heading) for heading in root.iter("h3")} >= set(headings)
    shown = text(root)
    assert all(line in shown for line in apart)
    assert f"II {loop['ii']}" in shown and f"II {loop['ii'] - 1} is impossible" in shown


def test_a_page_without_a_loop() -> None:
    assert tilec("schedule", str(SAMPLES / "softmax.tl"), "--html", "a.html") == 0
    page = Path("a.html").read_text(encoding="utf-8")
    assert drawn.traces(page)[0]["loops"] == []
    assert text(under(tree(page), "Schedule", "p")) == "No pipelined loop."


def test_a_pool_without_a_limit_is_the_same_to_both() -> None:
    """The script has its own word for it: it is no part of a trace."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    assert re.findall(r"const UNLIMITED = 2 \*\* (\d+) - 1;", script) == [str((UNLIMITED + 1).bit_length() - 1)]
