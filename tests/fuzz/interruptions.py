"""Builds that are interrupted or killed at random calls of functions, or meet a full disk: what they leave is whole, or
not there.

    PYTHONPATH=. python tests/fuzz/interruptions.py kill --count 200

Every build is forked from this process, which has loaded everything. The calls are drawn by `--seed`, so that a fault
can be had again; only what other processes do at that moment is left to chance.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from subjects import ROOT, SMALL

from tilec.cli.main import main as tilec
from tilec.sched.cp import load_solver
from tilec.support.processes import ENDING_SIGNALS

COMMAND = (
    "small.tl", "add.tl", "--target", "sm_80", "--emit", "cubin,json", "-MD", "--no-cache", "-o", "out",
    "--scheduler", "heuristic",
)  # fmt: skip
End = Callable[[random.Random, int], AbstractContextManager[None]]
"""What ends a build around which it is put, by chance and the number of calls in a whole build."""
OUTPUTS = ("add.cubin", "add.d", "add.json", "small.cubin", "small.d", "small.json")


@dataclass
class Left:
    """How builds ended, by exit code, those that a signal ended as -signal; and what is wrong with what they left."""

    ends: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def run(how: str, builds: int, seed: int = 0) -> Left:
    """So many `builds` in a folder of their own."""
    load_solver()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["TILEC_CACHE_DIR"] = "cache"
        try:
            return _runs(_ENDS[how], builds, random.Random(seed), is_killed=how == "kill")
        finally:
            os.chdir(before)


def _runs(end: End, builds: int, chance: random.Random, is_killed: bool) -> Left:
    Path("small.tl").write_text(SMALL, encoding="utf-8")
    Path("add.tl").write_bytes((ROOT / "samples/vector_add.tl").read_bytes())
    Path("out").mkdir()
    assert _run_build(COMMAND) == 0
    assert _run_build(COMMAND, _count_calls(Path("calls"))) == 0  # the first one has filled the cache
    calls = int(Path("calls").read_text(encoding="utf-8"))
    good, cached = _contents("out"), _contents("cache/schedules")
    assert sorted(good) == sorted(OUTPUTS)
    left = Left()
    for number in range(builds):
        for name in good if number % 2 else ():
            Path("out", name).unlink(missing_ok=True)  # else the new ones replace what is there
        command = (*COMMAND, "-j2") if number % 4 == 3 else COMMAND
        left.ends[_run_build(command, end(chance, calls))] += 1
        left.faults += [f"build {number}: {said}" for said in _faults(good, _contents("out"), is_killed)]
        left.faults += [f"build {number}: {said}" for said in _faults(cached, _contents("cache/schedules"), is_killed)]
    code = _run_build(tuple(word for word in COMMAND if word != "--no-cache"))
    if code != 0 or _faults(good, _contents("out"), is_killed=False):
        left.faults.append("a build with that cache makes something else, or leaves what the killed ones have left")
    return left


def _run_build(command: tuple[str, ...], around: AbstractContextManager[None] | None = None) -> int:
    """Run a command in a forked process of a group of its own, inside `around`. Return its exit code, or -signal."""
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
            with around or nullcontext():
                code = tilec(list(command))
        except KeyboardInterrupt:
            code = 130  # before the command has begun, or behind its end
        finally:
            os._exit(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _contents(folder: str) -> dict[str, bytes]:
    """The files of a folder; what is no file, as the private folder of a killed process, counts as empty."""
    return {path.name: path.read_bytes() if path.is_file() else b"" for path in sorted(Path(folder).iterdir())}


def _faults(good: dict[str, bytes], found: dict[str, bytes], is_killed: bool) -> list[str]:
    """Hidden files are what was being written: who is killed cannot remove it."""
    wrong = [f"{name} is another" for name, data in found.items() if name in good and good[name] != data]
    others = [name for name in found if name not in good and not (is_killed and name.startswith("."))]
    return wrong + [f"{name} is left" for name in others]


# ---- how builds end --------------------------------------------------------------------------------------------------


@contextmanager
def _count_calls(file: Path) -> Iterator[None]:
    """Write to a file how often functions were called, or returned, inside."""
    calls = count(1)
    sys.setprofile(lambda *_: next(calls))
    try:
        yield
    finally:
        sys.setprofile(None)
        file.write_text(str(next(calls)), encoding="utf-8")


@contextmanager
def _signal_at(call: int, number: int, send: Callable[[int, int], None]) -> Iterator[None]:
    """Send a signal to this process, or to its group, at a call of a function inside."""
    process, calls = os.getpid(), count(1)

    def notice(*_: object) -> None:
        if next(calls) == call and os.getpid() == process:
            send(process, number)

    sys.setprofile(notice)
    try:
        yield
    finally:
        sys.setprofile(None)


def _interrupt(chance: random.Random, calls: int) -> AbstractContextManager[None]:
    # From a terminal it reaches every process; from another process, one.
    send = chance.choice((os.killpg, os.kill))
    return _signal_at(chance.randint(1, calls), chance.choice(ENDING_SIGNALS), send)


def _kill(chance: random.Random, calls: int) -> AbstractContextManager[None]:
    return _signal_at(chance.randint(1, calls), signal.SIGKILL, os.kill)


def _fill(chance: random.Random, _: int) -> AbstractContextManager[None]:
    return _limit_files(chance.choice((0, 100, 1000, 5000, 20_000, 1_000_000)))


@contextmanager
def _limit_files(size: int) -> Iterator[None]:
    """Leave no file room for more than so many bytes, as on a disk that is nearly full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    yield


_ENDS: dict[str, End] = {"interrupt": _interrupt, "kill": _kill, "fill": _fill}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=_ENDS)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    left = run(asked.how, asked.count, asked.seed)
    print("\n".join([f"exit code {code}: {times} builds" for code, times in sorted(left.ends.items())] + left.faults))
    return 1 if left.faults else 0


if __name__ == "__main__":
    sys.exit(main())
