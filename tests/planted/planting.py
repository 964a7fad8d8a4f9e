"""Plants each fault of `faults.py` in a copy of this tree, and says which tests find it, in which tier.

    python tests/planted/planting.py --journal planted.jsonl               # default tier; what it leaves, full tier
    python tests/planted/planting.py --journal planted.jsonl --only NAME   # one fault, again
    python tests/planted/planting.py --journal planted.jsonl --table planted-faults.json

The tests run in slices, those near the fault first, and stop at the first that fails: once all faults have met the
tests near them, those that are left meet all others. A test that fails without the fault, too, finds nothing. A journal
goes on where it was: what it knows of a fault holds as long as the fault is the same. What takes longer than the limit
of a tier hangs, or nobody has found it yet: neither counts as found.
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
TIERS: dict[str, tuple[str, ...]] = {"default": (), "full": ("--full",)}
SLICES = (
    ("unit", "sched", "emu", "errors", "sass", "simulate"),
    ("kernels",),
    ("samples", "generate"),
    ("api", "cli", "docs", "fuzz", "lsp"),
)
"""Folders of tests, the quickest first."""

UNDECIDED = "no test near it finds it"

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
        """Which tests fail, up to the first one; None where they take longer than `limit` seconds."""
        with tempfile.TemporaryDirectory() as scratch:
            found = Path(scratch, "failures")
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
                "PYTHONPATH": os.pathsep.join((str(self.folder), str(self.folder / "tests" / "planted"))),
                "PYTHONPYCACHEPREFIX": str(self.folder / "compiled"),
                "TILEC_CACHE_DIR": str(Path(scratch, "cache")),
                "TILEC_GENERATED": "1",
                "PLANTED_FAILURES": str(found),
            }
            spread = ("-n", str(self.jobs)) if self.jobs > 1 else ("-p", "no:xdist")
            command = [sys.executable, "-m", "pytest", "-x", "--tb=no", "-p", "failures", "-p", "no:cacheprovider"]
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


def slices(fault: Fault, root: Path) -> Iterator[list[str]]:
    """What is run one after the other: the tests near the fault, then everything else."""
    module = fault.file.removesuffix(".py").replace("/", ".")
    parent, _, name = module.rpartition(".")
    naming = (module, f"from {parent} import {name}")
    near = [f"tests/{path}" for path in fault.near]
    for path in sorted(path for folder in SLICES[0] for path in (root / "tests" / folder).glob("test_*.py")):
        if any(text in path.read_text(encoding="utf-8") for text in naming):
            near.append(path.relative_to(root).as_posix())
    yield list(dict.fromkeys(near))
    for folders in SLICES:
        yield [f"tests/{folder}" for folder in folders]


def tried(tree: Tree, fault: Fault, tier: str, limit: float, is_near: bool) -> Entry:
    """Plant it and run the tier's tests until one finds it: those near it, or all others."""
    begun, ignored = time.monotonic(), list[str]()
    outcome = UNDECIDED if is_near else "survives"
    entry: Entry = {"fault": fault.name, "digest": digest(fault), "tier": tier, "outcome": outcome, "by": None}
    near, *others = slices(fault, tree.folder)
    for tests in [near] if is_near else others:
        while True:
            more = [*TIERS[tier], *(f"--deselect={test}" for test in ignored)]
            left = limit - (time.monotonic() - begun)
            with tree.planted(fault):
                failed = tree.failing(tests, more, max(left, 1.0))
            if failed is None:
                return entry | {"outcome": "limit", "by": " ".join(tests), "seconds": round(time.monotonic() - begun)}
            known = [test for test in failed if "::" in test]
            innocent = set(known) & set(tree.failing(known, (), limit) or ()) if known else set()
            guilty = [test for test in failed if test not in innocent]
            if guilty:
                seconds = round(time.monotonic() - begun)
                return entry | {"outcome": "found", "by": guilty[0], "seconds": seconds, "ignored": ignored}
            if not innocent:
                break
            ignored += sorted(innocent)
    return entry | {"seconds": round(time.monotonic() - begun), "ignored": ignored}


def digest(fault: Fault) -> str:
    return hashlib.sha256(repr((fault.file, fault.old, fault.new)).encode()).hexdigest()[:12]


def read(journal: Path) -> dict[tuple[str, str], Entry]:
    """The last entry for each fault, as it is now, and tier."""
    known = {fault.name: digest(fault) for fault in FAULTS}
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    entries = [json.loads(line) for line in lines]
    return {(e["fault"], e["tier"]): e for e in entries if known.get(e["fault"]) == e["digest"]}


def table(entries: dict[tuple[str, str], Entry]) -> Entry:
    """What each tier finds. What the default tier finds, the full one does: its tests are among the full one's."""
    rows = []
    for fault in FAULTS:
        first = entries.get((fault.name, "default"))
        then = first if first is not None and first["outcome"] == "found" else entries.get((fault.name, "full"))
        outcome = {"default": first and first["outcome"], "full": then and then["outcome"]}
        outcome = {t: None if known == UNDECIDED else known for t, known in outcome.items()}
        by = None if then is None else then["by"] if then["outcome"] == "found" else None
        rows.append({"fault": fault.name, "file": fault.file, **outcome, "by": by})
    found = {tier: sum(row[tier] == "found" for row in rows) for tier in TIERS}
    return {"faults": len(rows), "found": found, "not tried": sum(row["default"] is None for row in rows), "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of faults, tried again")
    parser.add_argument("--tier", choices=TIERS, help="only this one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for one fault in one tier")
    parser.add_argument("--table", type=Path, help="write what the journal knows, and run nothing")
    given = parser.parse_args()
    if given.table is not None:
        given.table.write_text(json.dumps(table(read(given.journal)), indent=1) + "\n", encoding="utf-8")
        return 0
    chosen = [fault for fault in FAULTS if given.only is None or fault.name in given.only]
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Tree(Path(folder), given.jobs)
        rounds = [(tier, near) for tier in (TIERS if given.tier is None else (given.tier,)) for near in (True, False)]
        for tier, is_near in rounds:
            for fault in chosen:
                known = {t: read(given.journal).get((fault.name, t), {}).get("outcome") for t in TIERS}
                is_again = given.only is not None and is_near
                if not is_again and (known["default"] == "found" or known[tier] not in (None, UNDECIDED)):
                    continue
                if is_near and known[tier] == UNDECIDED and not is_again:
                    continue
                entry = tried(tree, fault, tier, given.limit, is_near)
                with given.journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
                print(f"{tier} {fault.name}: {entry['outcome']} {entry['by'] or ''} ({entry['seconds']} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
