"""`--time-limit` and `--memory-limit`: what fits is as without them, what does not fails and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import GEMM, VECTOR_ADD, tilec

# Decided at compile time, statement by statement, until the file's budget ends: seconds of work for little text.
LONG = """import tilelang.language as T

def count():
    n = 0
    for a in range(400):
        for b in range(400):
            n = n + a
    return n

N = 1024 + 0 * count()

@T.prim_func
def main(A: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=128) as bx:
        for i in T.Parallel(128):
            A[i] = A[i] + 1.0
"""


def _tilec(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "tilec", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.weekly
def test_what_fits_is_the_same_as_without_a_limit(tmp_path: Path) -> None:
    limits = ("--time-limit", "300", "--memory-limit", "8G")
    assert _tilec(VECTOR_ADD, "-o", "a.cubin").returncode == 0
    done = _tilec(VECTOR_ADD, "-o", "b.cubin", *limits)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "a.cubin").read_bytes() == (tmp_path / "b.cubin").read_bytes()


def test_the_time_limit_says_what_took_so_long(tmp_path: Path) -> None:
    (tmp_path / "long.tl").write_text(LONG)
    (tmp_path / "long.cubin").write_bytes(b"old")
    began = time.monotonic()
    done = _tilec("long.tl", "--target", "sm_80", "-o", "long.cubin", "--time-limit", "0.2")
    assert done.returncode == 4
    assert done.stderr.startswith("error[limit-reached]: the time limit of 0.2 s is reached\n")
    assert "= note: it was running pass " in done.stderr
    assert " of long.tl for sm_80\n" in done.stderr
    assert time.monotonic() - began < 30
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "long.tl": LONG.encode(),
        "long.cubin": b"old",
    }


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_memory_limit_is_that_of_all_processes(jobs: str, tmp_path: Path) -> None:
    done = _tilec(VECTOR_ADD, GEMM, "--no-cache", "-o", ".", "-j", jobs, "--memory-limit", "10M")
    assert done.returncode == 4, done.stderr
    assert "error[limit-reached]: the memory limit of 10 MB is reached" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_check_can_be_bounded_and_says_so_in_every_format() -> None:
    bounded = ("check", GEMM, "--time-limit", "0.001", "--diagnostics-format")
    assert json.loads(_tilec(*bounded, "json").stderr)["code"] == "limit-reached"
    (run,) = json.loads(_tilec(*bounded, "sarif").stderr)["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["limit-reached"]
    assert _tilec(*bounded, "github").stderr.startswith("::error title=tilec[limit-reached]::")


@pytest.mark.parametrize("size", ["0", "", "8X", "-1", "1e9", "lots", "9" * 400])
def test_what_is_no_size(size: str) -> None:
    assert _tilec(VECTOR_ADD, "--memory-limit", size).returncode == 2


@pytest.mark.parametrize("limit", [("--time-limit", "0.5"), ("--memory-limit", "10M")])
def test_what_has_no_end_has_no_limit(limit: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "--watch", *limit) == 2
    assert "--watch goes on until Ctrl-C" in capfd.readouterr().err


def test_mistakes_are_what_they_are_without_a_limit(tmp_path: Path) -> None:
    (tmp_path / "wrong.tl").write_text("M = \n")
    bounded, free = (_tilec("wrong.tl", *limit) for limit in (("--time-limit", "300"), ()))
    assert (bounded.returncode, bounded.stderr) == (free.returncode, free.stderr) == (1, free.stderr)
    bounded, free = (_tilec("wrong.tl", "--sarif", *limit) for limit in (("--time-limit", "300"), ()))
    assert (bounded.returncode, bounded.stderr) == (free.returncode, free.stderr) == (2, free.stderr)
    bounded, free = (
        _tilec("wrong.tl", "--diagnostics-format=sarif", *limit) for limit in (("--time-limit", "300"), ())
    )
    assert (bounded.returncode, bounded.stderr) == (free.returncode, free.stderr) == (1, free.stderr)
