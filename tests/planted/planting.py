"""Plants faults in a copy of this tree, and says which tests find them, in which tier.

    python tests/planted/planting.py --journal planted.jsonl                # those of faults.py, default tier
    python tests/planted/planting.py --journal planted.jsonl --drawn 100    # a hundred drawn at random
    python tests/planted/planting.py --journal planted.jsonl --exhaustive   # what the default tier left, in all forms
    python tests/planted/planting.py --journal planted.jsonl --only NAME    # one fault, again
    python tests/planted/planting.py --journal planted.jsonl --table planted-faults.json

First each fault meets the tests near it, which stop at the first that fails. Then those that are left are planted all
together, the whole tier runs, and each test that fails runs again with one fault at a time: it finds those with which
it fails alone. This is repeated without them until nothing fails. A test that fails without any fault finds nothing.

A journal goes on where it was: what it knows of a fault holds as long as the fault is the same. What takes longer than
the limit hangs, or nobody has found it yet: neither counts as found.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from drawn_faults import draw_fault
from faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
TIERS: dict[str, tuple[str, ...]] = {"default": (), "exhaustive": ("--exhaustive",)}
QUICK = ("unit", "sched", "emu", "errors", "sass", "simulate")
"""Folders of tests in which those near a fault are looked for."""

BY_FOLDER = {
    "calibrate": ("unit/test_calibrate.py", "unit/test_calibrate_probes.py"),
    "cli": ("cli",),
    "codegen": ("unit/test_emit.py", "unit/test_codegen_scalar.py", "kernels/test_kernels.py"),
    "driver": ("unit/test_driver.py", "cli/test_cli.py", "errors/test_command_line.py", "cli"),
    "emu": ("emu",),
    "frontend": ("unit/test_elaborate.py", "unit/test_parse.py", "errors/test_errors.py"),
    "host": ("api", "cli/test_header.py"),
    "interp": ("kernels/test_kernels.py",),
    "ir": ("unit/test_tile_read.py", "unit/test_warp_verify.py", "kernels/test_kernels.py"),
    "ops": ("unit/test_ops.py", "errors/test_errors.py", "kernels/test_kernels.py"),
    "passes": ("kernels/test_kernels.py", "errors/test_errors.py", "samples/test_every_sample.py"),
    "ptx": ("unit/test_ptx_text.py", "unit/test_assemble.py"),
    "report": ("cli/test_report_page.py", "cli/test_schedule_page.py"),
    "sass": ("sass",),
    "sched": ("sched",),
    "simulate": ("simulate", "cli/test_cli_simulate.py"),
    "support": ("cli/test_cli.py",),
    "target": ("unit/test_target.py",),
    "tune": ("cli/test_cli_tune.py", "unit/test_tune_search.py", "unit/test_tune_report.py"),
}
"""By folder of tilec/, the tests that do most with it."""

NOT_YET = "no test near it finds it"

Entry = dict[str, Any]


class Tree:
    """A copy of the tree, faults come and go in it."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder, self.jobs = folder, jobs
        self._times = itertools.count(1_000_000_000)
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Plant a fault for a while, others may be there already."""
        text = (self.folder / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, f"{fault.name}: {fault.file} does not have it once"
        self._write(fault.file, text.replace(fault.old, fault.new))
        yield
        self._write(fault.file, text)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")
        at = next(self._times)  # compiled modules are known by the time and the size of their source
        os.utime(self.folder / name, (at, at))

    def failing(self, tests: Sequence[str], more: Sequence[str], limit: float) -> list[str] | None:
        """Return the tests that fail, or None where they take longer than `limit` seconds."""
        if not tests:
            return []
        with tempfile.TemporaryDirectory() as scratch:
            found = Path(scratch, "failures")
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
                "PYTHONPATH": os.pathsep.join((str(self.folder), str(self.folder / "tests" / "planted"))),
                "PYTHONPYCACHEPREFIX": str(self.folder / "compiled"),
                "TILEC_CACHE_DIR": str(Path(scratch, "cache")),
                "PLANTED_FAILURES": str(found),
            }
            spread = ("-n", str(self.jobs)) if self.jobs > 1 else ("-p", "no:xdist")
            command = [sys.executable, "-m", "pytest", "--tb=no", "-p", "failures", "-p", "no:cacheprovider"]
            command += ["--basetemp", str(Path(scratch, "tests")), *spread, *more, *tests]
            try:
                done = subprocess.run(
                    command, cwd=self.folder, env=environment, timeout=limit, capture_output=True, text=True
                )
            except subprocess.TimeoutExpired:
                return None
            failed = found.read_text(encoding="utf-8").splitlines() if found.exists() else []
            if not failed and done.returncode not in (0, 5):  # 5: no tests, as where all of them are deselected
                failed = [f"exit code {done.returncode}: {done.stdout[-500:]}"]
            return failed


def near_tests(fault: Fault, root: Path) -> list[str]:
    """Return the tests that the fault names, those of quick folders that import its module, and those of its folder."""
    module = fault.file.removesuffix(".py").replace("/", ".")
    parent, _, name = module.rpartition(".")
    naming = (module, f"from {parent} import {name}")
    near = [f"tests/{path}" for path in fault.near]
    for path in sorted(path for folder in QUICK for path in (root / "tests" / folder).glob("test_*.py")):
        if any(text in path.read_text(encoding="utf-8") for text in naming):
            near.append(path.relative_to(root).as_posix())
    near += [f"tests/{path}" for path in BY_FOLDER.get(fault.file.split("/")[1], ())]
    return list(dict.fromkeys(near))


def try_near_tests(tree: Tree, fault: Fault, tier: str, limit: float) -> Entry:
    """Plant a fault and run the tests near it, up to the first that finds it."""
    begun, ignored = time.monotonic(), list[str]()
    entry: Entry = {"fault": fault.name, "digest": digest(fault), "tier": tier, "outcome": NOT_YET, "by": None}
    tests = near_tests(fault, tree.folder)
    while tests:
        more = ["-x", *TIERS[tier], *(f"--deselect={test}" for test in ignored)]
        with tree.planted(fault):
            failed = tree.failing(tests, more, max(limit - (time.monotonic() - begun), 1.0))
        if failed is None:
            return entry | {"outcome": "limit", "by": " ".join(tests)}
        innocent = set(tree.failing([test for test in failed if "::" in test], (), limit) or ())
        guilty = [test for test in failed if test not in innocent]
        if guilty:
            return entry | {"outcome": "found", "by": guilty[0], "seconds": round(time.monotonic() - begun)}
        if not innocent:
            break
        ignored += sorted(innocent)
    return entry | {"seconds": round(time.monotonic() - begun)}


def try_whole_tier(tree: Tree, faults: Sequence[Fault], tier: str, limit: float) -> Iterator[Entry]:
    """Plant all faults together, run the tier, and say of each fault which failing test fails with it alone."""
    left, innocent = list(faults), set[str]()
    while left:
        with ExitStack() as planted:
            for fault in left:
                planted.enter_context(tree.planted(fault))
            failed = tree.failing(["tests"], ("--ignore=tests/planted", *TIERS[tier]), limit)
        failed = sorted({*(failed or ())} - innocent)
        print(f"{tier}: {len(left)} faults together, failing: {' '.join(failed)}", flush=True)
        innocent |= set(tree.failing(failed, TIERS[tier], limit) or ())
        guilty = [test for test in failed if test not in innocent]
        found: dict[str, str] = {}
        for fault in left if guilty else ():
            with tree.planted(fault):
                alone = tree.failing(guilty, ("-x", *TIERS[tier]), limit)
            if alone is None or alone:
                found[fault.name] = alone[0] if alone else "a test that does not end"
        for fault in left:
            outcome = "found" if fault.name in found else "survives"
            if found and outcome == "survives":
                continue  # tried again, without those that are found
            yield {
                "fault": fault.name, "digest": digest(fault), "tier": tier, "outcome": outcome,
                "by": found.get(fault.name),
            }  # fmt: skip
        left = [fault for fault in left if fault.name not in found] if found else []


def digest(fault: Fault) -> str:
    return hashlib.sha256(repr((fault.file, fault.old, fault.new)).encode()).hexdigest()[:12]


def read(journal: Path, faults: Sequence[Fault]) -> dict[tuple[str, str], Entry]:
    """Return the last entry for each fault, as it is now, and tier."""
    known = {fault.name: digest(fault) for fault in faults}
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    entries = [json.loads(line) for line in lines]
    return {(e["fault"], e["tier"]): e for e in entries if known.get(e["fault"]) == e["digest"]}


def make_table(entries: dict[tuple[str, str], Entry], faults: Sequence[Fault]) -> Entry:
    """Say what each tier finds. What the default tier finds, the exhaustive one does: it has all its tests."""
    rows = []
    for fault in faults:
        first = entries.get((fault.name, "default"))
        then = first if first is not None and first["outcome"] == "found" else entries.get((fault.name, "exhaustive"))
        outcome = {"default": first and first["outcome"], "exhaustive": then and then["outcome"]}
        outcome = {tier: None if known == NOT_YET else known for tier, known in outcome.items()}
        by = None if then is None else then["by"] if then["outcome"] == "found" else None
        rows.append({"fault": fault.name, "file": fault.file, **outcome, "by": by})
    found = {tier: sum(row[tier] == "found" for row in rows) for tier in TIERS}
    return {"faults": len(rows), "found": found, "not tried": sum(row["default"] is None for row in rows), "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of faults, tried again")
    parser.add_argument("--drawn", type=int, default=0, help="so many drawn at random, not those of faults.py")
    parser.add_argument("--first", type=int, default=0, help="the number of the first that is drawn")
    parser.add_argument("--exhaustive", action="store_true", help="in all forms, those that the default tier left")
    parser.add_argument("--near", action="store_true", help="only the tests near each fault")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for one run of tests")
    parser.add_argument("--table", type=Path, help="write what the journal knows, and run nothing")
    given = parser.parse_args()
    drawn = range(given.first, given.first + given.drawn)
    faults = [draw_fault(number, ROOT) for number in drawn] if drawn else list(FAULTS)
    if given.table is not None:
        text = json.dumps(make_table(read(given.journal, faults), faults), indent=1)
        given.table.write_text(f"{text}\n", encoding="utf-8")
        return 0
    tier = "exhaustive" if given.exhaustive else "default"
    faults = [fault for fault in faults if given.only is None or fault.name in given.only]

    def outcome(fault: Fault, tier: str) -> str | None:
        entry = read(given.journal, faults).get((fault.name, tier))
        return None if entry is None else str(entry["outcome"])

    def note(entry: Entry) -> None:
        with given.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        print(f"{entry['tier']} {entry['fault']}: {entry['outcome']} {entry['by'] or ''}", flush=True)

    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Tree(Path(folder), given.jobs)
        if tier == "default":
            for fault in faults:
                if given.only is not None or outcome(fault, tier) is None:
                    note(try_near_tests(tree, fault, tier, given.limit))
        if not given.near:
            left = [fault for fault in faults if outcome(fault, "default") != "found"]
            left = [fault for fault in left if outcome(fault, tier) in (None, NOT_YET)]
            for entry in try_whole_tier(tree, left, tier, given.limit):
                note(entry)
    return 0


if __name__ == "__main__":
    sys.exit(main())
