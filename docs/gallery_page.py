"""docs/gallery.md: every sample with its picture, from the facts of docs/gallery.py and the newest results of a GPU."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gallery import ROOT, SAMPLES, list_samples, picture_path, read_facts

INTRODUCTION = """# Every sample, and its schedule

*Made by `python docs/generate.py` from the samples, `docs/schedules/facts.json` and `benchmarks/results`; `python
docs/gallery.py` compiles the samples anew.*

A picture shows the solved schedule of the sample's pipelined loop, or of the one with the longest interval, from the
first iteration on. Time goes to the right, in cycles; a colour is an iteration. Rows are the loads from issue to
arrival, when the warps of each role issue, and the units of the machine that are held longest, with their share of an
interval.
[What a trace says](trace.md) explains intervals and stages.

The interval and the share of the roofline's rate are predictions, for sm_90a unless another machine is named, at the
sizes that stand in the file. What was measured was measured at other sizes, which stand beside it, with the compiler of
that day: [workloads.json](../{results}/workloads.json) has more of them. Libraries were measured in
another run, so that the table of the README differs from these by a few per cent where both have a kernel.
"""

FOLDERS = {
    "": "Start here",
    "alcop": "The kernels of ALCOP",
    "gemm": "Products of matrices",
    "elementwise": "One element, or one index, at a time",
    "rows": "Reductions of rows",
    "attention": "Attention",
    "models": "Layers of other kinds",
}
RESULTS = ROOT / "benchmarks" / "results"


def gallery() -> str:
    facts, results = read_facts(), max(RESULTS.glob("h200-*"))
    measured = json.loads((results / "workloads.json").read_text(encoding="utf-8"))
    parts = [INTRODUCTION.format(results=results.relative_to(ROOT).as_posix())]
    for folder, title in FOLDERS.items():
        parts.append(f"## {title}\n")
        for name in list_samples():
            if name.rpartition("/")[0] == folder:
                parts += _entry(name, facts[name], measured)
    return "\n".join(parts)


def _entry(name: str, facts: Mapping[str, Any], measured: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{_first_sentence(name)} [{name}.tl](../samples/{name}.tl)\n"
    if "interval" in facts:
        yield f"![The schedule of {name}](schedules/{picture_path(name).name})\n"
    machine = "" if facts["target"] == "sm_90a" else f" on {facts['target']}"
    yield f"* Schedule{machine}: {_schedule(facts)}"
    yield f"* Predicted{machine}: {_prediction(facts)}"
    yield f"* Measured: {_measurement(name, measured)}\n"


def _first_sentence(name: str) -> str:
    text = ast.get_docstring(ast.parse((SAMPLES / f"{name}.tl").read_text(encoding="utf-8"))) or ""
    sentence = re.split(r"(?<=[.])\s+(?=[A-Z`])", " ".join(text.split("\n\n")[0].split()))[0]
    return re.sub(r"([*<\[\]])", r"\\\1", sentence)


def _schedule(facts: Mapping[str, Any]) -> str:
    if "interval" not in facts:
        return "no pipelined loop"
    stages = f"{facts['stages']} stage{'s' * (facts['stages'] != 1)}"
    proved = {"optimal": "; no shorter interval is possible", "given": "; as the sample gives it"}
    of = f", the longest of {facts['loops']} loops" if facts["loops"] > 1 else ""
    return f"an iteration every {facts['interval']:,} cycles, in {stages}{of}{proved.get(facts['status'], '')}"


def _prediction(facts: Mapping[str, Any]) -> str:
    if facts["share"] is None:
        return f"no roofline is known; bound by {facts['bound']}"
    if facts["share"] >= 0.995:
        return "the roofline itself, which says little of how near a run comes"
    return f"{facts['share']:.0%} of the roofline's rate; bound by {facts['bound']}"


def _measurement(name: str, measured: Mapping[str, Any]) -> str:
    """Return the fastest rate of a sample that a GPU has measured, or that there is none."""
    file = f"samples/{name}.tl"
    cases = [case for case in measured["cases"] if case.get("kernel") == file and not case["fault"]]
    if not cases:
        return "not measured"
    best = max(cases, key=_rate)
    sizes = ", ".join(f"{size} = {value}" for size, value in best["constants"].items())
    about = "about " if best["work_is_approximate"] else ""
    machine = measured["machine"]
    return f"{about}{_rate(best):,.3g} {best['unit']} on an {machine['name']}, {machine['date']}, with {sizes}"


def _rate(case: Mapping[str, Any]) -> float:
    return float(case["work"] / (case["milliseconds"]["tilec"]["median"] * 1e-3) / 1e12)
