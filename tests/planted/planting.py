"""Plants faults in a copy of this tree, and says which tests find them, in which tier.

    python tests/planted/reaching.py reach
    python tests/planted/planting.py --journal planted.jsonl --reach reach  # those of faults.py, default tier
    python tests/planted/planting.py --journal planted.jsonl --reach reach --drawn 100    # a hundred drawn at random
    python tests/planted/planting.py --journal planted.jsonl --whole        # what is left, and the whole default tier
    python tests/planted/planting.py --journal planted.jsonl --exhaustive   # what is left, and every test in all forms
    python tests/planted/planting.py --journal planted.jsonl --reach reach --only NAME    # one fault, again
    python tests/planted/planting.py --journal planted.jsonl --table planted-faults.json

Each fault meets the tests that call its function, as the first command writes down, up to the first that fails. Those
that are left are planted all together, a whole tier runs, and each test that fails runs again with one fault at a time:
it finds those with which it fails alone. This is repeated without them until nothing fails. A test that fails without
any fault finds nothing.

A journal goes on where it was: what it knows of a fault holds as long as the fault is the same. What takes longer than
the limit hangs, or nobody has found it yet: neither counts as found.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from drawn_faults import draw_fault
from faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
TIERS: dict[str, tuple[str, ...]] = {"default": (), "exhaustive": ("--exhaustive",)}
MEMORY = 8 << 30
"""Bytes that one process of a run may take: some faults ask for more and more."""
NOT_YET = "no test that calls it finds it"
FIRST_TESTS = (25, 60)
"""So many tests that call a function are run first, then up to so many. All others meet the faults that are left."""

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
                    command, cwd=self.folder, env=environment, timeout=limit, capture_output=True, text=True,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return None
            failed = found.read_text(encoding="utf-8").splitlines() if found.exists() else []
            if not failed and done.returncode not in (0, 5):  # 5: no tests, as where all of them are deselected
                failed = [f"exit code {done.returncode}: {done.stdout[-500:]}"]
            return failed


class Reach:
    """Which tests call a function, as `reaching.py` wrote it down."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.tests: dict[str, list[str]] = {}
        for file in sorted(folder.glob("*.json")):
            for test, known in json.loads(file.read_text(encoding="utf-8")).items():
                self.seconds[test] = known["seconds"]
                for function in known["functions"]:
                    self.tests.setdefault(function, []).append(test)

    def tests_of(self, fault: Fault) -> list[str]:
        """Return the tests that call the function with the fault: one form of each test first, the quickest first."""
        text = (ROOT / fault.file).read_text(encoding="utf-8")
        line = 1 + text.count("\n", 0, _changed_place(text, fault))
        functions = [
            (min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.end_lineno or 0)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef)
        ]
        around = [first for first, last in functions if first <= line <= last]
        name = f"{fault.file.removeprefix('tilec/')}:{max(around, default=0)}"
        tests = sorted(self.tests.get(name, ()), key=lambda test: (self.seconds[test], test))
        forms = Counter[str]()
        turns = {}
        for test in tests:
            function = test.partition("[")[0]
            turns[test] = forms[function]
            forms[function] += 1
        return sorted(tests, key=lambda test: turns[test])


def _changed_place(text: str, fault: Fault) -> int:
    """Return where in a file the first letter stands that the fault changes."""
    same = next((at for at, (x, y) in enumerate(zip(fault.old, fault.new, strict=False)) if x != y), 0)
    return text.index(fault.old) + same


def try_calling_tests(tree: Tree, fault: Fault, reach: Reach, limit: float) -> Entry:
    """Plant a fault and run the tests that call its function, up to the first that finds it."""
    begun = time.monotonic()
    entry: Entry = {"fault": fault.name, "digest": digest(fault), "tier": "default", "outcome": NOT_YET, "by": None}
    calling = reach.tests_of(fault)
    first, last = FIRST_TESTS
    entry["tests"] = len(calling)
    for tests in (calling[:first], calling[first:last]):
        while tests:
            with tree.planted(fault):
                failed = tree.failing(tests, ["-x"], limit)
            if failed is None:
                return entry | {"outcome": "found", "by": "a test that does not end"}
            innocent = set(tree.failing([test for test in failed if "::" in test], (), limit) or ())
            guilty = [test for test in failed if test not in innocent]
            if guilty and "::" not in guilty[0]:  # pytest itself ends so: by the fault, or whatever is planted
                assert not tree.failing(tests, ["-x"], limit), guilty[0]
            if guilty:
                return entry | {"outcome": "found", "by": guilty[0], "seconds": round(time.monotonic() - begun)}
            if not innocent:
                break
            tests = [test for test in tests if test not in innocent]
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
    parser.add_argument("--reach", type=Path, help="the folder with the functions that each test calls")
    parser.add_argument("--whole", action="store_true", help="the whole default tier, with all that are left")
    parser.add_argument("--exhaustive", action="store_true", help="all tests in all forms, with all that are left")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for one run of tests")
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
        if given.reach is not None:
            reach = Reach(given.reach)
            for fault in faults:
                if given.only is not None or outcome(fault, tier) is None:
                    note(try_calling_tests(tree, fault, reach, given.limit))
        if given.whole or given.exhaustive:
            left = [fault for fault in faults if outcome(fault, "default") != "found"]
            left = [fault for fault in left if outcome(fault, tier) in (None, NOT_YET)]
            for entry in try_whole_tier(tree, left, tier, given.limit):
                note(entry)
    return 0


if __name__ == "__main__":
    sys.exit(main())
