"""Functions that run in a process of their own: kept from call to call, started anew after a crash, ended with ours."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tilec.support import processes
from tilec.support.processes import Crash, IsolatedFunction


def act(word: str) -> int:
    """Return this process' number; crash or raise where the word says so."""
    if word == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "raise":
        raise ZeroDivisionError(f"in {os.getpid()}")
    return os.getpid()


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[IsolatedFunction]:
    monkeypatch.setattr(processes, "_is_isolating", True)
    monkeypatch.setattr(processes, "_isolated_functions", [])
    function = IsolatedFunction(act, lambda: None)
    yield function
    if function._requests is not None:
        function._kill()


def test_one_process_serves_all_calls(isolated: IsolatedFunction) -> None:
    processes.start_isolated_functions()
    first = isolated._child
    assert first not in (0, os.getpid())
    assert {isolated(""), isolated("")} == {first}


def test_a_crash_ends_one_call(isolated: IsolatedFunction) -> None:
    first = isolated("")
    with pytest.raises(Crash, match="SIGSEGV"):
        isolated("crash")
    assert isolated("") not in (first, os.getpid())


def test_an_exception_is_raised_here(isolated: IsolatedFunction) -> None:
    with pytest.raises(ZeroDivisionError, match=f"in {os.getpid()}"):
        isolated("raise")
    assert isolated("") != os.getpid()


def test_a_process_that_ends_between_calls_is_started_anew(isolated: IsolatedFunction) -> None:
    first = isolated("")
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert isolated("") not in (first, os.getpid())


def test_ignored_signals_stay_ignored(isolated: IsolatedFunction) -> None:
    """As under nohup, where a hangup ends nobody."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        first = isolated("")
        os.kill(first, signal.SIGHUP)
        assert isolated("") == first
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_forked_process_starts_its_own(isolated: IsolatedFunction) -> None:
    first = isolated("")
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, str(isolated("")).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reader, 20)) not in (first, child)
    assert isolated("") == first


def test_without_isolation_it_is_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_is_isolating", False)
    monkeypatch.setattr(processes, "_isolated_functions", [])
    assert IsolatedFunction(act, lambda: None)("") == os.getpid()
