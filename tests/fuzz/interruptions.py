"""Builds that are interrupted or killed at random moments, full disks among them: what is left is whole, or not there.

    python tests/fuzz/interruptions.py kill --count 200

Every build is forked from this process, which has loaded everything: it takes a tenth of a second.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from subjects import ROOT, SMALL

from tilec.cli import main as tilec
from tilec.sched.cp import load_solver
from tilec.support.processes import ENDING_SIGNALS

COMMAND = (
    "small.tl", "add.tl", "--target", "sm_80", "--emit", "cubin,json", "-MD", "--no-cache", "-o", "out",
    "--scheduler", "heuristic",
)  # fmt: skip
OUTPUTS = ("add.cubin", "add.d", "add.json", "small.cubin", "small.d", "small.json")


@dataclass
class Left:
    """How builds ended, by exit code, those that a signal ended as -signal; and what is wrong with what they left."""

    ends: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def run(how: str, count: int, seed: int = 0) -> Left:
    """`count` builds in a folder of their own."""
    load_solver()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["TILEC_CACHE_DIR"] = "cache"
        try:
            return _runs(_ENDS[how], count, random.Random(seed), is_killed=how == "kill")
        finally:
            os.chdir(before)


def _runs(end: Callable[[int, random.Random, float], None], count: int, chance: random.Random, is_killed: bool) -> Left:
    Path("small.tl").write_text(SMALL, encoding="utf-8")
    Path("add.tl").write_bytes((ROOT / "samples/vector_add.tl").read_bytes())
    Path("out").mkdir()
    began = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(_forked(COMMAND), 0)[1]) == 0
    duration = time.monotonic() - began
    good, cached = _contents("out"), _contents("cache/schedules")
    assert sorted(good) == sorted(OUTPUTS)
    left = Left()
    for number in range(count):
        for name in good if number % 2 else ():
            Path("out", name).unlink(missing_ok=True)  # else the new ones replace what is there
        child = _forked((*COMMAND, "-j2") if number % 4 == 3 else COMMAND)
        end(child, chance, duration)
        left.ends[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
        left.faults += [f"build {number}: {said}" for said in _faults(good, _contents("out"), is_killed)]
        left.faults += [f"build {number}: {said}" for said in _faults(cached, _contents("cache/schedules"), is_killed)]
    code = os.waitstatus_to_exitcode(os.waitpid(_forked([w for w in COMMAND if w != "--no-cache"]), 0)[1])
    if code != 0 or _faults(good, _contents("out"), is_killed=False):
        left.faults.append("a build with that cache makes something else, or leaves what the killed ones have left")
    return left


def _forked(command: list[str] | tuple[str, ...]) -> int:
    # Not to be interrupted as this process, which goes on.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setpgid(0, 0)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
            code = tilec(list(command))
        except KeyboardInterrupt:
            code = 130  # before the command has begun, or behind its end
        finally:
            os._exit(code)
    # Here too: whichever process comes first, the group is there before anything is sent to it.
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(child, child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    return child


def _contents(folder: str) -> dict[str, bytes]:
    """The files of a folder; what is no file, as the private folder of a killed process, counts as empty."""
    return {path.name: path.read_bytes() if path.is_file() else b"" for path in sorted(Path(folder).iterdir())}


def _faults(good: dict[str, bytes], found: dict[str, bytes], is_killed: bool) -> list[str]:
    """Hidden files are what was being written: who is killed cannot remove it."""
    wrong = [f"{name} is another" for name, data in found.items() if name in good and good[name] != data]
    others = [name for name in found if name not in good and not (is_killed and name.startswith("."))]
    return wrong + [f"{name} is left" for name in others]


# ---- how builds end --------------------------------------------------------------------------------------------------


def _interrupt(child: int, chance: random.Random, duration: float) -> None:
    time.sleep(chance.uniform(0, duration * 1.1))
    # From a terminal it reaches every process; from another process, one.
    (os.killpg if chance.random() < 0.5 else os.kill)(child, chance.choice(ENDING_SIGNALS))


def _kill(child: int, chance: random.Random, duration: float) -> None:
    time.sleep(chance.uniform(0, duration * 1.1))
    os.kill(child, signal.SIGKILL)


def _fill(child: int, chance: random.Random, _: float) -> None:
    """As on a disk where no file has room for more than so many bytes."""
    most = chance.choice((0, 100, 1000, 5000, 20_000, 100_000))
    resource.prlimit(child, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


_ENDS = {"interrupt": _interrupt, "kill": _kill, "fill": _fill}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=_ENDS)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    left = run(asked.how, asked.count, asked.seed)
    print("\n".join([f"exit code {code}: {count} builds" for code, count in sorted(left.ends.items())] + left.faults))
    return 1 if left.faults else 0


if __name__ == "__main__":
    sys.exit(main())
