"""What a terminal sees while something takes long, and that Ctrl-C ends it, whatever it is at."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilec.sched.budget import Budget
from tilec.sched.problem import Problem
from tilec.sched.solve import solve_problem
from tilec.support import progress

SAMPLES = Path(__file__).parents[2] / "samples"
GEMM = str(SAMPLES / "gemm.tl")
ATTENTION = str(SAMPLES / "attention" / "gqa.tl")
BACKSTOP = 600
"""Seconds. How fast it is, the machine has a say in."""

SLOW = """import functools, sys, time
from tilec.cli import terminal
from tilec.cli.main import main
from tilec.passes.lower import expand_schedules as slow
terminal._SILENCE = {silence}
before = slow.expand_schedules
@functools.wraps(before)
def expand(*given, **named):
    time.sleep({seconds})
    return before(*given, **named)
slow.expand_schedules = expand
sys.exit(main(sys.argv[1:]))
"""
"""A compilation in which one pass takes long."""


def _on_terminal(
    code: str, *words: str, environment: dict[str, str] | None = None, stop_at: str = ""
) -> tuple[int, str]:
    """The exit code, and all that the terminal is sent; Ctrl-C once it is sent `stop_at`."""
    ours, theirs = pty.openpty()
    given = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **(environment or {})}
    if "CI" not in (environment or {}):
        given.pop("CI", None)
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=theirs, stderr=theirs, env=given)
    os.close(theirs)
    seen = b""
    until = time.monotonic() + BACKSTOP
    while time.monotonic() < until:
        if not select.select([ours], [], [], 0.1)[0]:
            continue
        try:
            read = os.read(ours, 1 << 16)
        except OSError:  # nobody has the other end any more
            break
        if not read:
            break
        seen += read
        if stop_at and stop_at.encode() in seen:
            process.send_signal(signal.SIGINT)
            stop_at = ""
    os.close(ours)
    return process.wait(BACKSTOP), seen.decode()


def _left_on_screen(text: str) -> str:
    """What is seen at the end, of lines that are erased and written anew."""
    return "\n".join(line.rpartition("\x1b[2K")[2] for line in text.replace("\r\n", "\n").split("\n"))


def test_a_status_line_says_what_takes_long_and_goes(tmp_path: Path) -> None:
    words = (GEMM, "--target", "sm_80", "-o", str(tmp_path / "x.cubin"))
    code, seen = _on_terminal(SLOW.format(silence=0, seconds=1), *words)
    assert code == 0
    assert re.search(r"tilec: pass [a-z-]+ of gemm\.tl for sm_80", seen)
    assert "tilec: pass" not in _left_on_screen(seen)


PROBLEM = {
    "name": "loop", "limits": {"alu": 1},
    "ops": [{"name": "a", "resource": "alu", "duration": 2}, {"name": "b", "resource": "alu", "duration": 1}],
    "edges": [[0, 1, 9, 0]],
}  # fmt: skip
SLOW_CALL = """import functools, sys, time
import importlib
slow = importlib.import_module("{module}")
from tilec.cli import terminal
from tilec.cli.main import main
terminal._SILENCE = 0
before = slow.{function}
@functools.wraps(before)
def function(*given, **named):
    time.sleep(0.5)
    return before(*given, **named)
slow.{function} = function
sys.exit(main(sys.argv[1:]))
"""


SMALL = ("--target", "sm_80", "-D", "M=128", "-D", "N=128", "-D", "K=64")
SLOW_CALLS = {
    "problem": (
        ("tilec.cli.commands.problem", "solve_problem"),
        ("schedule", "--problem", "problem.json"),
        "solving loop",
    ),
    "explained": (
        ("tilec.cli.commands.problem", "explain_solution"),
        ("schedule", "--problem", "problem.json"),
        "why loop has no better schedule",
    ),
    "simulate": (("tilec.driver.simulate", "simulate_build"), ("simulate", GEMM, *SMALL), "simulating gemm"),
    "reference": (
        ("tilec.interp.run", "run_kernel"),
        ("emulate", GEMM, *SMALL),
        "running gemm in numpy, to compare",
    ),
    "jobs": (
        ("tilec.passes.lower.expand_schedules", "expand_schedules"),
        (GEMM, "-j", "2", "--target", "sm_80,sm_90a", "-o", "out.fatbin"),
        "pass expand-schedules of gemm.tl for sm_",
    ),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", SLOW_CALLS)
def test_no_command_is_silent_for_long(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, words, said = SLOW_CALLS[name]
    monkeypatch.chdir(tmp_path)
    Path("problem.json").write_text(json.dumps(PROBLEM))
    code, seen = _on_terminal(SLOW_CALL.format(module=slow[0], function=slow[1]), *words)
    assert code == 0, seen
    assert f"tilec: {said}" in seen
    assert "tilec: " not in _left_on_screen(seen)


def test_a_watch_says_what_it_is_at_and_is_quiet_while_it_waits(tmp_path: Path) -> None:
    words = (GEMM, "--watch", "--target", "sm_80", "-o", str(tmp_path / "x.cubin"))
    code, seen = _on_terminal(SLOW.format(silence=0, seconds=0.5), *words, stop_at="Ctrl-C ends")
    assert code == 130
    assert "tilec: pass expand-schedules of gemm.tl for sm_80" in seen
    assert _left_on_screen(seen).rstrip().endswith("Ctrl-C ends")


def test_the_bars_of_a_search_stand_alone(tmp_path: Path) -> None:
    words = ("tune", GEMM, "--target", "sm_80", "--journal", str(tmp_path / "x.sqlite"))
    code, seen = _on_terminal(SLOW.format(silence=0, seconds=0), *words, stop_at="trying")
    assert code == 130
    assert "tilec: pass" not in _left_on_screen(seen)


def test_the_line_waits_for_a_second(tmp_path: Path) -> None:
    """The silence is measured, not the line's place among others: no test depends on how fast the machine is."""
    from tilec.cli import terminal

    assert terminal._SILENCE == 1.0
    words = (GEMM, "--target", "sm_80", "-o", str(tmp_path / "x.cubin"))
    code, seen = _on_terminal(SLOW.format(silence=BACKSTOP, seconds=0.3), *words)
    assert (code, seen) == (0, "")


def test_a_warning_stands_alone(tmp_path: Path) -> None:
    (tmp_path / "wrong.tl").write_text(Path(GEMM).read_text().replace("T.gemm(", "T.gem("))
    code, seen = _on_terminal(SLOW.format(silence=0, seconds=0), str(tmp_path / "wrong.tl"), "--target", "sm_80")
    assert code == 1
    left = _left_on_screen(seen)
    assert "error" in left
    assert "tilec: pass" not in left


@pytest.mark.weekly
@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}])
def test_nothing_comes_and_goes_where_nobody_looks(environment: dict[str, str], tmp_path: Path) -> None:
    words = (GEMM, "--target", "sm_80", "-o", str(tmp_path / "x.cubin"))
    assert _on_terminal(SLOW.format(silence=0, seconds=0.5), *words, environment=environment) == (0, "")


def test_without_a_terminal_nothing_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW.format(silence=0, seconds=0.5), GEMM, "-o", str(tmp_path / "x.cubin")]
    done = subprocess.run([*command, "--target", "sm_80"], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_what_is_said_is_refined() -> None:
    reader, writer = os.pipe()
    with progress.report_to(writer):
        progress.report_activity("pass solve of x.tl")
        progress.report_detail("interval 12")
        progress.report_activity("")
        progress.report_detail("interval 13")
    progress.report_activity("nobody hears it")
    os.close(writer)
    with os.fdopen(reader) as text:
        said = [line.partition(" ")[2] for line in text.read().splitlines()]
    assert said == ["pass solve of x.tl", "pass solve of x.tl, interval 12", ""]


def test_the_solver_tells_the_interval() -> None:
    tried: list[int] = []
    solution = solve_problem(Problem("empty", (), (), ()), budget=Budget(tried=tried.append))
    assert tried[-1] == solution.schedule.ii


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------

# Each says that it has begun, and then takes longer than anybody waits.
IN_THE_SOLVER = """import tilec.sched.cp as cp
before = cp.Program._run
def run(self, effort, *given, **named):
    print("begun", flush=True)
    return before(self, effort, *given, **named)
cp.Program._run = run
"""
IN_MACHINE_CODE = """import ctypes
import tilec.ptx.assemble as assemble
def call(*given):
    print("begun", flush=True)
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(256)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
assemble.LINKER._function = call
"""
IN_THE_EMULATOR = """import tilec.emu.machine.blocks as blocks
before = blocks.run_clusters
def run(*given):
    print("begun", flush=True)
    while True:
        before(*given)
blocks.run_clusters = run
"""
# As from a terminal, also where whatever runs the tests ignores Ctrl-C.
RUN = """import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tilec.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (IN_THE_SOLVER, (ATTENTION, "--target", "sm_90a", "--no-cache", "-o", "x.cubin")),
        (IN_MACHINE_CODE, (GEMM, "--target", "sm_80", "-o", "x.cubin")),
        (IN_THE_EMULATOR, ("emulate", str(SAMPLES / "vector_add.tl"), "--target", "sm_80", "-D", "N=1024")),
    ],
    ids=["solver", "assembler", "emulator"],
)
def test_control_c_ends_it(phase: str, words: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-c", phase + RUN, *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "TILEC_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=BACKSTOP)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*.cubin"))
    assert not list(tmp_path.glob(".*.tmp"))
