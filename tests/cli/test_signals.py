"""Signals at named steps of writing outputs: they end the command, leave all of them or none, and no temporary."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
STEPS = ["write", "place", "place in a thread"]

STRUCK = """import json, os, signal, sys, threading, time, traceback
from pathlib import Path
from tilec.cli.endings import run_guarded
from tilec.cli.terminal import attend_terminal
from tilec.support import files
from tilec.support.staging import Staging

def work():
    with attend_terminal():
        files.write_all({"one.json": b"{}", "two.json": b"[]", "folder/three.json": b"3"})
    return 0

def strike(number, step, ignored):
    # At the second call of a step, a signal for the process, or one that a thread of a library is given.
    name, calls = step.split()[0], []
    original, interrupt, received = getattr(Staging, name), files.raise_interrupt, []
    def note(reason):
        received.append(reason)
        interrupt(reason)
    files.raise_interrupt = note
    def struck(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            if step.endswith("thread"):
                signal.pthread_kill(thread.ident, number)
                while not received and not hangs():  # until the other thread has been given it
                    time.sleep(0.001)
            else:
                os.kill(os.getpid(), number)
                while name == "write" and not ignored and not hangs():  # until this thread is interrupted
                    time.sleep(0.001)
        return original(*arguments)
    setattr(Staging, name, struck)
    if step.endswith("thread"):
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()

began = time.monotonic()
def hangs():
    return time.monotonic() - began > 120

def ending(number=None, step="", ignored=False):
    child = os.fork()
    if child == 0:
        code = 99
        try:
            if ignored:
                signal.signal(number, signal.SIG_IGN)
            if number is not None:
                strike(number, step, ignored)
            code = run_guarded(work)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def left():
    names = sorted(str(path) for path in Path(".").rglob("*") if path.is_file())
    strays = sum(path.name.startswith(".") for path in Path(".").rglob("*"))
    for path in Path(".").rglob("*"):
        if path.is_file() and not any(part.startswith(".") for part in path.parts):
            path.unlink()
    return names, strays

signal.signal(signal.SIGINT, signal.default_int_handler)
found = {"undisturbed": (ending(), *left())}
for number, step in json.loads(sys.argv[1]):
    found[f"{number} {step}"] = ending(number, step), *left()
found["ignored"] = ending(signal.SIGHUP, "write", ignored=True), *left()
found["killed"] = ending(signal.SIGKILL, "write"), *left()
found["after it"] = ending(), *left()
print(json.dumps(found))
"""
"""Ends one command for each signal and step, each in a process of its own, and says with what code, which files were
there after it, and how many hidden ones."""

Ending = tuple[int, list[str], int]


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ending]:
    asked = json.dumps([(number, step) for number in SIGNALS for step in STEPS])
    done = subprocess.run(
        [sys.executable, "-c", STRUCK, asked],
        cwd=tmp_path_factory.mktemp("struck"),
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Ending] = {
        name: tuple(ending) for name, ending in json.loads(done.stdout.splitlines()[-1]).items()
    }
    return found


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_leaves_all_outputs_or_none(number: signal.Signals, step: str, endings: dict[str, Ending]) -> None:
    code, files, strays = endings[f"{int(number)} {step}"]
    assert (code, strays) == (128 + number, 0)
    assert files == ([] if step == "write" else endings["undisturbed"][1])


def test_a_signal_that_is_ignored_ends_nothing(endings: dict[str, Ending]) -> None:
    """As `nohup` has it."""
    assert endings["ignored"] == endings["undisturbed"]
    assert endings["undisturbed"][0] == 0 and len(endings["undisturbed"][1]) > 1


def test_what_a_killed_process_leaves_is_removed_by_the_next(endings: dict[str, Ending]) -> None:
    code, _, strays = endings["killed"]
    assert code == -signal.SIGKILL and strays
    assert endings["after it"] == endings["undisturbed"]
