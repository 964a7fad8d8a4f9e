"""Fuzzing: so many mutants of what tilec reads, each accepted or refused with a diagnostic; anything else is a finding.

    python tests/fuzz/campaign.py kernels --count 100000

The mutant of a number is the same one as long as the files are the same that it is made of, samples and mistakes:
`--first N --count 1 --show` prints it, and what it leads to.

What has been run: 100,000 kernels, 10,000 each of targets, problems, manifests and cubins, 5,000 each of tiles and PTX,
and 1,000 checks. Each place that was found has been mended: all mutants of targets and manifests have been tried again,
and of the kernels that were found at each place, one or two.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from subjects import SUBJECTS, Subject

SECONDS = 20
"""Of the processor's, after which a mutant hangs: others may keep it busy."""
MEMORY = 2 << 30
"""Bytes beyond those that the process had, after which memory runs away."""


class Hang(BaseException):
    """It took too long. Not an `Exception`: nothing may take it for a mistake."""


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


def _try(subject: Subject, corpus: list[Any], name: str, number: int, outcome: Outcome) -> None:
    mutant = subject.mutant(corpus, f"{name} {number}")
    began = time.monotonic()
    try:
        with _bounded_time():
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
def _bounded_time() -> Iterator[None]:
    def hang(_: int, __: FrameType | None) -> None:
        raise Hang(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print the mutants")
    asked = parser.parse_args()
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
