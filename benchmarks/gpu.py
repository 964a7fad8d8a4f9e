"""Run prebuilt kernels on the GPU of this machine: is each right, and how fast beside its peers?

    python benchmarks/gpu.py FOLDER [--only PATTERN] [--repeat 50] [--budget-seconds 540] [--alone] [--json FILE]

`gpu_cases.py` makes the folder. Here are needed numpy, PyTorch and cuda-python's bindings, and Triton if it is to be
compared with. Nothing is compiled, and nothing of tilec but what loads and launches a cubin is imported.

Right: a sample gives what numpy computed of random inputs when the folder was made. A workload of fresh random inputs,
into outputs of NaN (integers: of two different fillings), is within the rounding of its type of the same in higher
precision, and the same twice. Fast: kernels take turns on the same inputs, timed with events, over as many copies of
the operands as the L2 cache cannot hold; the median, and the spread from the tenth to the ninetieth percentile.

Cases run in the order of `gpu_case.GROUPS`, each group in a process of its own; after a case that breaks it, another
goes on with the next. What is known is written after every case, and nothing begins when the budget is spent.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_case import GROUPS, MARK, Case, read_cases

CHILD = Path(__file__).parent / "gpu_child.py"
PATIENCE = 120.0
"""Seconds without a word after which a case counts as hanging: PyTorch is imported and Triton compiles in that time."""
PATIENCE_WITH_SMALL = 20.0
"""The same for samples and drawn kernels, which take milliseconds."""
PATIENCE_WITH_VARIANTS = 40.0
"""The same for variants of a workload: PyTorch is imported, and nothing is compiled."""
OUT_OF_TIME = "is out of time"


@dataclass
class Record:
    """What is known so far, by name of case, and where it is kept."""

    asked: Mapping[str, Any]
    machine: dict[str, Any]
    cases: Sequence[Case]
    file: Path | None = None
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    clocks: list[dict[str, str]] = field(default_factory=list)
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)
    """By case, the variants that ended a process, and how: the next process leaves them out."""

    def add(self, name: str, found: Mapping[str, Any]) -> None:
        self.results[name] = dict(found)
        self.save()

    def save(self) -> None:
        if self.file is None:
            return
        whole = {
            "machine": self.machine,
            **self.asked,
            "clocks": self.clocks,
            "cases": [
                {"name": case.name, "group": case.group, "kind": case.kind, "sha256": case.sha256,
                 "parameters": case.parameters, **self.results[case.name]}
                for case in self.cases if case.name in self.results
            ],
            "not_run": self.missing(),
        }  # fmt: skip
        beside = self.file.with_name(f"{self.file.name}.part")
        beside.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.file)

    def missing(self) -> list[str]:
        return [case.name for case in self.cases if case.name not in self.results]

    def wrong(self) -> dict[str, str]:
        return {name: found["fault"] for name, found in self.results.items() if found["fault"]}


class NoGpu(Exception):
    """There is none, or no driver, or a package is missing: what the process wrote on standard error says it."""


# ---- processes -------------------------------------------------------------------------------------------------------


def run_group(folder: Path, names: list[str], record: Record, deadline: float, patience: float = PATIENCE) -> None:
    """All of these cases, in as many processes as it takes. A case in which a process ends, or falls silent, is at
    fault itself; those after it run in the next one."""
    left = list(names)
    while left and time.monotonic() < deadline:
        begun, variant, finished, ending, lost, spoke = None, None, 0, "", "", False
        for said in _talk(folder, left, {**record.asked, "skipped": record.skipped}, deadline, patience):
            spoke = spoke or "ended" not in said
            if "begins" in said:
                begun, variant = said["begins"], said.get("variant")
            elif "name" in said:
                begun, finished = None, finished + 1
                left.remove(said["name"])
                record.add(said["name"], {key: value for key, value in said.items() if key != "name"})
            elif "lost" in said:
                lost = said["lost"]
            elif "ended" in said:
                ending = said["ended"]
            else:
                record.machine |= said
        if ending == OUT_OF_TIME:
            return
        if not spoke:
            raise NoGpu(f"no process can use the GPU: the first one {ending} before it said anything")
        # A process that got nowhere would get nowhere again.
        at_fault = begun or (left[0] if left and not finished else None)
        if at_fault is None:
            continue
        why = lost or f"its process {ending or 'ended'}"
        if variant is not None and variant not in record.skipped.setdefault(at_fault, {}):
            record.skipped[at_fault][variant] = why
            continue
        left.remove(at_fault)
        record.add(at_fault, {"fault": why})


def _talk(
    folder: Path, names: list[str], asked: Mapping[str, Any], deadline: float, patience: float
) -> Iterator[dict[str, Any]]:
    """What a child says, and at last how it ended."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
        errors="replace",
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()

    def read(stream: Any) -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, args=(child.stdout,), daemon=True).start()
    try:
        child.stdin.write(json.dumps({"folder": str(folder), "names": names, **asked}))
        child.stdin.close()
        yield from _lines(lines, deadline, patience)
        yield {"ended": f"ended with code {child.wait(timeout=patience)}"}
    except BrokenPipeError:
        yield {"ended": f"ended with code {child.wait()}"}
    except TimeoutError as late:
        yield {"ended": str(late)}
    finally:
        child.kill()
        child.wait()


def _lines(lines: queue.Queue[str | None], deadline: float, patience: float) -> Iterator[dict[str, Any]]:
    while True:
        left = deadline - time.monotonic()
        try:
            line = lines.get(timeout=max(min(patience, left), 0.01))
        except queue.Empty:
            raise TimeoutError(OUT_OF_TIME if left < patience else f"said nothing for {patience:.0f} s") from None
        if line is None:
            return
        if line.startswith(MARK):
            yield json.loads(line.removeprefix(MARK))


# ---- the report ------------------------------------------------------------------------------------------------------


def rate(found: Mapping[str, Any], contender: str) -> float:
    """In the unit of the case: TFLOP/s or TB/s."""
    return float(found["work"]) / found["milliseconds"][contender]["median"] / 1e9


def peaks(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """By ceiling, the best that any contender reached in this run: of a type, of the copy."""
    found: dict[str, float] = {}
    for one in results.values():
        for contender in one.get("milliseconds", {}):
            found[one["ceiling"]] = max(found.get(one["ceiling"], 0.0), rate(one, contender))
    return found


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Rates of ours and of every peer, our share of the best peer's, and of the measured peak."""
    timed = {name: found for name, found in results.items() if found.get("milliseconds")}
    best = peaks(timed)
    width = max((len(name) for name in timed), default=0)
    lines = [f"{'case':{width}}  {'tilec':>8} {'ratio':>6} {'of peak':>8} {'spread':>7}   peers"]
    for name, found in timed.items():
        others = {one: rate(found, one) for one in found["milliseconds"] if one != "tilec"}
        peers = ", ".join(f"{one} {value:.4g}" for one, value in others.items())
        if "tilec" not in found["milliseconds"]:
            lines.append(f"{name:{width}}  {'–':>8} {'–':>6} {'–':>8} {'–':>7}   {peers} {found['unit']}")
            continue
        ours, timing = rate(found, "tilec"), found["milliseconds"]["tilec"]
        ratio = f"{ours / max(others.values()):.2f}" if others else "–"
        spread = (timing["high"] - timing["low"]) / timing["median"] / 2
        share = f"{ours / best[found['ceiling']]:.1%}"
        lines.append(f"{name:{width}}  {ours:8.4g} {ratio:>6} {share:>8} {spread:>7.1%}   {peers} {found['unit']}")
    return lines


def machine() -> dict[str, Any]:
    return {"date": datetime.date.today().isoformat(), **_query("name,driver_version,clocks.max.sm,power.limit")}


def _query(fields: str) -> dict[str, str]:
    """What nvidia-smi says of these; nothing where there is none."""
    asked = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [part.strip() for part in said[0].split(",")] if said else []
    return dict(zip(fields.split(","), values, strict=False))


def ordered(cases: Sequence[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: GROUPS.index(case.group))


def patience_with(cases: Sequence[Case], group: str) -> float:
    """Return after how many seconds of silence a case of the group counts as hanging."""
    kinds = {case.kind for case in cases if case.group == group}
    if kinds <= {"sample", "drawn"}:
        return PATIENCE_WITH_SMALL
    return PATIENCE_WITH_VARIANTS if kinds == {"variants"} else PATIENCE


def run_all(folder: Path, record: Record, deadline: float, note: Callable[[str], None] = print) -> None:
    for group in GROUPS:
        names = [case.name for case in record.cases if case.group == group]
        if not names or time.monotonic() >= deadline:
            continue
        began = time.monotonic()
        run_group(folder, names, record, deadline, patience_with(record.cases, group))
        record.clocks.append({"after": group, **_query("clocks.sm,clocks.mem,temperature.gpu,power.draw")})
        record.save()
        note(f"{group}: {time.monotonic() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases whose name matches, such as 'sample *'")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--budget-seconds", type=float, default=540.0, help="begin nothing after so long (540)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="of the inputs")
    parser.add_argument("--alone", action="store_true", help="without peers: to compare versions of one's own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all there is to know, after every case")
    given = parser.parse_args()
    deadline = time.monotonic() + given.budget_seconds
    chosen = ordered([case for case in read_cases(given.folder) if fnmatch.fnmatch(case.name, given.only)])
    asked = {"repeat": given.repeat, "seed": given.seed, "alone": given.alone}
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
    record = Record(asked, machine(), chosen, given.json)
    try:
        run_all(given.folder, record, deadline)
    except NoGpu as missing:
        sys.exit(str(missing))
    wrong, missing = record.wrong(), record.missing()
    for name, fault in wrong.items():
        print(f"WRONG {name}: {fault}")
    if missing:
        print(f"not run, for want of time: {', '.join(missing)}")
    print(f"{len(record.results) - len(wrong)} of {len(chosen)} right")
    print("\n".join(table(record.results)))
    sys.exit(1 if wrong or missing else 0)


if __name__ == "__main__":
    main()
