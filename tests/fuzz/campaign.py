"""Fuzzing: so many mutants of what tilec reads, each accepted or refused with a diagnostic; anything else is a finding.

    python tests/fuzz/campaign.py kernels --count 100000
    python tests/fuzz/campaign.py weekly

The mutant of a number is the same one as long as the files are the same that it is made of, samples and mistakes:
`--first N --count 1 --show` prints it, and what it leads to.

What has been run: 100,000 kernels, 10,000 each of targets, problems, manifests and cubins, 5,000 each of tiles and PTX,
and 1,000 checks; of each other file that tilec reads, and of what stands in it, 3,000, and 1,500 builds for changed
targets. Each place that was found has been mended: all mutants of targets and manifests have been tried again, and of
the kernels that were found at each place, one or two.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import resource
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from bounded_time import Hang, bounded_time
from corpus import Corpus
from lines import Lines
from subjects import SUBJECTS, Subject

SECONDS = 20
"""Of the processor's, after which a mutant hangs: others may keep it busy."""
LEAST = 50
"""Mutants of each subject that are tried whatever the minutes: some take so long that few would be."""
ROOT = Path(__file__).parents[2]
MEMORY = 2 << 30
"""Bytes beyond those that the process had, after which memory runs away."""


@dataclass
class Outcome:
    """How many mutants were `accepted` and `refused`; for what went wrong otherwise, the first number and the text, by
    where it did."""

    accepted: int = 0
    refused: int = 0
    slowest: tuple[float, int] = (0.0, 0)
    findings: dict[str, tuple[int, str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


def run(name: str, count: int, first: int = 0, is_loud: bool = False) -> Outcome:
    """Mutants `first` to `first + count` of a subject."""
    subject, outcome = SUBJECTS[name], Outcome()
    corpus = subject.corpus()
    with _bounded_memory():
        for number in range(first, first + count):
            known = len(outcome.findings)
            _try(subject, corpus, name, number, outcome)
            if is_loud and len(outcome.findings) > known:
                where, (_, text) = list(outcome.findings.items())[-1]
                print(f"---- mutant {number}: {where}\n{text}", flush=True)
            if is_loud and (number - first) % 1000 == 999:
                _tell(number - first + 1, outcome)
    return outcome


def run_for(name: str, seconds: float, first: int, folder: Path, least: int = LEAST) -> Outcome:
    """Mutants from `first` on for so long, and `least` at least, also of those that `folder` keeps: all of them lead to
    lines of their own, and whoever does not any longer is deleted. Each finding is written beside the folder."""
    subject, outcome, lines = SUBJECTS[name], Outcome(), Lines()
    bases = list(subject.corpus())
    kept = Corpus(folder / name, is_text=isinstance(bases[0], str))
    until = time.monotonic() + seconds
    with _bounded_memory():
        # The good inputs before all: the caches that they fill are no finding of a mutant's.
        for base in bases[:20]:
            if time.monotonic() < until - seconds / 2:
                _watch(subject, base, lines)
        for path, value in kept:
            if _watch(subject, value, lines):
                bases.append(value)
            else:
                path.unlink()
        number = first
        while number < first + least or time.monotonic() < until:
            mutant, findings, reached = subject.mutant(bases, f"{name} {number}"), len(outcome.findings), lines.count
            with lines.watched():
                _try_mutant(subject, mutant, number, outcome)
            if len(outcome.findings) > findings:
                Corpus(folder / f"{name}-findings", kept.is_text).keep(mutant)
            elif lines.count > reached:
                kept.keep(mutant)
                bases.append(mutant)
            number += 1
    return outcome


def _watch(subject: Subject, value: Any, lines: Lines) -> int:
    """How many lines it leads to that none before it has led to."""
    before = lines.count
    with lines.watched():
        _try_mutant(subject, value, 0, Outcome())
    return lines.count - before


def _try(subject: Subject, corpus: list[Any], name: str, number: int, outcome: Outcome) -> None:
    _try_mutant(subject, subject.mutant(corpus, f"{name} {number}"), number, outcome)


def _try_mutant(subject: Subject, mutant: Any, number: int, outcome: Outcome) -> None:
    began = time.monotonic()
    try:
        with bounded_time(SECONDS):
            accepted = subject.read(mutant)
        outcome.accepted += accepted
        outcome.refused += not accepted
    except (Exception, Hang) as error:
        where = _where(error)
        outcome.counts[where] += 1
        outcome.findings.setdefault(where, (number, "".join(traceback.format_exception(error)[-6:])))
    outcome.slowest = max(outcome.slowest, (time.monotonic() - began, number))


def _where(error: BaseException) -> str:
    """The kind of a finding: the exception, and the line of tilec that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if f"{os.sep}tilec{os.sep}" in f.filename] or frames
    at = inside[-1]
    return f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}"


@contextmanager
def _bounded_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _tell(done: int, outcome: Outcome) -> None:
    seconds, number = outcome.slowest
    print(
        f"{done}: {outcome.accepted} accepted, {outcome.refused} refused, {sum(outcome.counts.values())} findings of "
        f"{len(outcome.findings)} kinds; slowest {number}, {seconds:.1f} s",
        flush=True,
    )


def weekly(minutes: float, folder: Path, profile: str, least: int = LEAST) -> int:
    """Every subject for so long, each in a process of its own, with other mutants each week; then the properties that
    tests draw cases for. A line for each, and 1 where something was found."""
    year, week, _ = datetime.date.today().isocalendar()
    first = (year * 100 + week) * 1_000_000
    failed: list[str] = []
    total = minutes * len(SUBJECTS)
    print(
        f"{len(SUBJECTS)} subjects, {minutes:g} minutes and {least} mutants of each at least: about {total:g} minutes, "
        f"then the properties, {profile}",
        flush=True,
    )
    for name in SUBJECTS:
        child = multiprocessing.get_context("spawn").Process(
            target=_report, args=(name, 60 * minutes, first, folder, least), daemon=True
        )
        child.start()
        child.join(60 * minutes + least * SECONDS + 600)
        if child.is_alive():
            child.kill()
        if child.exitcode != 0:
            failed.append(name)
    modules = [str(path) for path in sorted(ROOT.glob("tests/**/test_*.py")) if "hypothesis" in path.read_text()]
    drawn = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--full", f"--hypothesis-profile={profile}", *modules], cwd=ROOT
    )
    if drawn.returncode:
        failed.append(f"properties, {profile}")
    print(f"found something: {', '.join(failed)}" if failed else "found nothing", flush=True)
    return 1 if failed else 0


def _report(name: str, seconds: float, first: int, folder: Path, least: int) -> None:
    outcome = run_for(name, seconds, first, folder, least)
    kept = len(list((folder / name).iterdir()))
    print(f"{name}: from {first}, {kept} inputs kept; ", end="")
    _tell(outcome.accepted + outcome.refused, outcome)
    for where, (number, text) in outcome.findings.items():
        print(f"---- {outcome.counts[where]} times, first {number}: {where}\n{text}", flush=True)
    sys.exit(1 if outcome.findings else 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=(*SUBJECTS, "weekly"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print the mutants")
    parser.add_argument(
        "--minutes", type=float, default=10, help="weekly: for each subject, so that all take as many times as long"
    )
    parser.add_argument("--corpus", type=Path, default=ROOT / ".fuzz", help="weekly: where what is found is kept")
    parser.add_argument(
        "--profile", choices=("quick", "thorough", "full"), default="thorough", help="weekly: drawn cases"
    )
    parser.add_argument("--least", type=int, default=LEAST, help="weekly: mutants of each subject whatever the minutes")
    asked = parser.parse_args()
    if asked.subject == "weekly":
        return weekly(asked.minutes, asked.corpus, asked.profile, asked.least)
    if asked.show:
        subject = SUBJECTS[asked.subject]
        for number in range(asked.first, asked.first + asked.count):
            print(subject.mutant(subject.corpus(), f"{asked.subject} {number}"))
    outcome = run(asked.subject, asked.count, asked.first, is_loud=True)
    _tell(asked.count, outcome)
    for where, count in outcome.counts.most_common():
        print(f"{count} times: {where}")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
