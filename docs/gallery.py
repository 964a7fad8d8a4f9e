"""Compiles the samples and draws their schedules: `python docs/gallery.py [--only gemm/]`, some minutes of CPU time.

docs/schedules/ has a picture for each sample with a pipelined loop, and facts.json what the compiler says of each
sample. docs/gallery.md is made of both by `python docs/generate.py`, which compiles nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from schedule_picture import draw_schedule

from tilec.driver import build as driver
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "samples"
SCHEDULES = ROOT / "docs" / "schedules"
FACTS = SCHEDULES / "facts.json"
TARGETS = ("sm_90a", "sm_100a")
"""Each sample is compiled for the first of these that it compiles for."""


def list_samples() -> list[str]:
    """Return every sample by its path without `.tl`."""
    return sorted(path.relative_to(SAMPLES).with_suffix("").as_posix() for path in SAMPLES.rglob("*.tl"))


def compile_sample(name: str) -> tuple[dict[str, Any], str | None]:
    """Return what the compiler says of a sample at the sizes of its file, and the picture of its longest interval."""
    source = SourceFile(f"{name}.tl", (SAMPLES / f"{name}.tl").read_text(encoding="utf-8"))
    for target in TARGETS:
        try:
            library = driver.build_library(source, CompileOptions(target=target), driver.Observer())
            break
        except CompileError:
            if target == TARGETS[-1]:
                raise
    (report,), (plan,) = driver.build_reports(library), library.plans
    loops = json.loads(plan.trace)["tilec"]["loops"]
    share = round(report.achieved, 4) if report.roofline else None
    facts: dict[str, Any] = {"target": target, "share": share, "bound": report.bound, "loops": len(loops)}
    if not loops:
        return facts, None
    loop = max(loops, key=lambda loop: loop["ii"])
    facts |= {"interval": loop["ii"], "least": loop["mii"], "stages": loop["stages"], "status": loop["status"]}
    return facts, draw_schedule(loop, report.kernel)


def picture_path(name: str) -> Path:
    return SCHEDULES / f"{name.replace('/', '_')}.svg"


def read_facts() -> dict[str, dict[str, Any]]:
    return dict(json.loads(FACTS.read_text(encoding="utf-8"))) if FACTS.exists() else {}


def write_sample(name: str) -> None:
    """Compile a sample and replace its picture and its facts."""
    facts, picture = compile_sample(name)
    picture_path(name).unlink(missing_ok=True)
    if picture is not None:
        picture_path(name).write_text(picture, encoding="utf-8")
    _write_facts(read_facts() | {name: facts})


def _write_facts(facts: dict[str, dict[str, Any]]) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(facts[name], ensure_ascii=False)}" for name in sorted(facts))
    FACTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="samples whose path has this in it")
    parser.add_argument("--missing", action="store_true", help="only samples without facts, after an interruption")
    asked = parser.parse_args()
    SCHEDULES.mkdir(exist_ok=True)
    names = list_samples()
    _write_facts({name: facts for name, facts in read_facts().items() if name in names})
    known = set(read_facts()) if asked.missing else set()
    for name in names:
        if asked.only in name and name not in known:
            write_sample(name)
            print(name, flush=True)


if __name__ == "__main__":
    main()
