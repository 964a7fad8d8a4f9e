"""`tilec tune --engine dask`: a scheduler and workers of its own, one of which is killed; and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import SAMPLES, tilec

import tilec as package
from tilec.cli.commands import tune_view
from tilec.tune import dask_engine, engines

pytestmark = pytest.mark.weekly

MATMUL = SAMPLES / "alcop" / "matmul.tl"
SPACE = "[constants]\nblock_M = [64, 128]\nblock_N = [64, 128]\nnum_stages = [2, 3, 4]\n"
SEARCH = ("tune", "k.tl", "--space", "s.toml", "--target", "sm_80", "--trials", "10")
NOBODY, STRANGER = "no-scheduler", "wrong-worker"


@pytest.fixture(autouse=True)
def _kernel(_elsewhere: None) -> None:
    Path("k.tl").write_text(MATMUL.read_text(encoding="utf-8"), encoding="utf-8")
    Path("s.toml").write_text(SPACE)


@contextmanager
def started(*arguments: str, until: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of dask's, once it has said that; and the line in which it did."""
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if until in line)
            yield process, line
        finally:
            process.kill()


@contextmanager
def scheduler() -> Iterator[str]:
    """Its address."""
    arguments = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    with started(*arguments, until="Scheduler at:") as (_, line):
        yield line.split("Scheduler at:")[1].strip()


@contextmanager
def worker(address: str) -> Iterator[subprocess.Popen[str]]:
    arguments = ("distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard")
    with started(*arguments, until="Registered to:") as (process, _):
        yield process


def test_a_worker_that_is_killed_costs_no_trial(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with scheduler() as address, worker(address) as first, worker(address):
        found, seen = tune_view.SearchWatcher.found, list[object]()

        def and_kill(*arguments: object) -> None:
            seen.append(arguments)
            if len(seen) == 2:
                first.kill()
                first.wait()
            found(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(tune_view.SearchWatcher, "found", and_kill)
            assert tilec(*SEARCH, "--engine", "dask", "--scheduler", address) == 0
    with_dask, best = capfd.readouterr().out, Path("k.tuned.json").read_bytes()
    assert len(seen) == 10
    assert "10 of 12 variants tried" in with_dask and "refused" not in with_dask

    # The same as in processes of this machine.
    Path("k.tune.sqlite").unlink()
    assert tilec(*SEARCH, "-j2") == 0
    assert capfd.readouterr().out == with_dask
    assert Path("k.tuned.json").read_bytes() == best


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(dask_engine, "PATIENCE_SECONDS", 1)
    # Port 1 is nobody's.
    assert tilec(*SEARCH, "--engine", "dask", "--scheduler", "tcp://127.0.0.1:1") == 1
    said = capfd.readouterr().err
    assert f"error[{NOBODY}]: no dask scheduler answers at tcp://127.0.0.1:1" in said
    assert "start one with `dask scheduler`" in said
    assert "Traceback" not in said
    assert not Path("k.tuned.json").exists()


def test_nobody_works(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(dask_engine, "PATIENCE_SECONDS", 2)
    with scheduler() as address:
        assert tilec(*SEARCH, "--engine", "dask", "--scheduler", address) == 1
    said = capfd.readouterr().err
    assert f"error[{NOBODY}]: the scheduler at {address} has no workers" in said
    assert f"start `dask worker {address}`" in said


def test_a_worker_with_another_version(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(engines, "__version__", "0.0.9")
    with scheduler() as address, worker(address):
        assert tilec(*SEARCH, "--engine", "dask", "--scheduler", address) == 1
    said = capfd.readouterr().err
    assert f"error[{STRANGER}]" in said and f"has tilec {package.__version__}, here it is 0.0.9" in said


def test_dask_is_optional(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert tilec(*SEARCH, "--engine", "dask", "--scheduler", "tcp://127.0.0.1:1") == 1
    assert "pip install '.[dask]'" in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("--engine", "dask"), ("--scheduler", "tcp://127.0.0.1:1"), ("--scheduler", "fastest")]
)
def test_usage(arguments: tuple[str, ...]) -> None:
    assert tilec(*SEARCH, *arguments) == 2
