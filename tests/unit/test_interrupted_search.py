"""Ctrl-C while a search starts its processes, or writes its journal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilec.support.processes import block_terminal_signals
from tilec.tune.journal import Journal


def test_processes_that_are_started_never_hear_of_it() -> None:
    asked = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    command = [sys.executable, "-c", asked]
    with block_terminal_signals():
        inside = subprocess.run(command, capture_output=True, text=True, check=True)
    outside = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (inside.stdout.strip(), outside.stdout.strip()) == ("True", "False")


def test_ctrl_c_behind_the_last_statement_of_a_transaction(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "k.sqlite"), {"kernel": "k"})
    with pytest.raises(KeyboardInterrupt), journal._write_transaction() as cursor:
        cursor.execute("INSERT INTO predictions VALUES ('a point', 'an answer')")
        cursor.execute("COMMIT")
        raise KeyboardInterrupt
    with journal._write_transaction() as cursor:
        assert cursor.execute("SELECT found FROM predictions").fetchall() == [("an answer",)]
    journal.close()
