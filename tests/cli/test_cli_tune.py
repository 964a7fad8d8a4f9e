"""`tilec tune` and `--tuned`: a search, begun and gone on with; what it finds, compiled; and what is refused."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import SAMPLES, tilec

import tilec as package
from tilec.tune import engines

MATMUL = SAMPLES / "alcop" / "matmul.tl"
SPACE = "[constants]\nblock_M = [64, 128]\nnum_stages = [2, 3, 1000]\nthreads = [128, 2048]\n"
SEARCH = ("tune", "k.tl", "--space", "s.toml", "--target", "sm_80", "-j2")


@pytest.fixture(autouse=True)
def _kernel(_elsewhere: None) -> None:
    Path("k.tl").write_text(MATMUL.read_text(encoding="utf-8"), encoding="utf-8")
    Path("s.toml").write_text(SPACE)


def test_a_search(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert tilec(*SEARCH, "--trials", "3") == 0
    said = capfd.readouterr().out
    assert "best trials, modelled" in said
    assert "3 of 13 variants tried; the best: " in said
    assert "the file as written: " in said and "as written" in said[: said.index("variants tried")]
    assert "no GPU here runs sm_80 code: variants are ranked by the model and their solved intervals" in said
    assert "6 variants: " in said and "threads" in said
    best = Path("k.tuned.json").read_bytes()
    record = json.loads(best)
    assert record["target"] == "sm_80" and record["entry"] == "matmul"
    assert record["constants"]["block_M"] in (64, 128) and record["constants"]["threads"] == 128
    assert record["tuned"].endswith("modelled, not measured")

    # All of it is in the journal: nothing is carried out again, and the same comes out.
    def never(*_: object) -> None:
        raise AssertionError("everything is known")

    with monkeypatch.context() as patched:
        patched.setattr(engines.LocalEngine, "_make_pool", never)
        patched.setattr(engines.LocalEngine, "__init__", lambda self, processes: None)
        patched.setattr(engines.LocalEngine, "close", lambda self: None)
        patched.setattr(engines.LocalEngine, "run", lambda self, function, tasks: iter([never() for _ in tasks]))
        assert tilec(*SEARCH, "--trials", "3") == 0
    assert capfd.readouterr().out == said
    assert Path("k.tuned.json").read_bytes() == best

    # What was found is what is compiled, and verified as any schedule.
    assert tilec("--tuned", "k.tuned.json", "k.tl", "--target", "sm_80", "--emit", "schedule", "-o", "t.json") == 0
    assert json.loads(Path("t.json").read_text())["tilec"]["loops"]
    capfd.readouterr()

    assert tilec("--tuned", "k.tuned.json", "k.tl", "-o", "t.cubin") == 1
    assert "error[tuned-for-another]" in capfd.readouterr().err
    Path("k.tl").write_text(Path("k.tl").read_text() + "\n")
    assert tilec("--tuned", "k.tuned.json", "k.tl", "--target", "sm_80", "-o", "t.cubin") == 1
    assert "k.tl is not the kernel that was tuned" in capfd.readouterr().err
    assert tilec(*SEARCH, "--trials", "3") == 1
    assert "k.tune.sqlite is the journal of another kernel" in capfd.readouterr().err
    assert not Path("t.cubin").exists()
    assert Path("k.tuned.json").read_bytes() == best


def test_nothing_that_can_be_built(capfd: pytest.CaptureFixture[str]) -> None:
    Path("s.toml").write_text("[constants]\nthreads = [2048, 3]\n")
    assert tilec(*SEARCH, "-D", "block_N=63") == 1
    said = capfd.readouterr().err
    assert "error[no-variant]: none of the 3 variants can be built" in said
    assert not Path("k.tuned.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("tune", "k.tl", "--space", "absent.toml"), "no-such-file"),
        (("tune", "k.tl", "--space", "k.tl"), "bad-space"),
        (("tune", "k.tl", "--space", "s.toml", "--journal", "s.toml"), "unwritable-output"),
        (("tune", "k.tl", "-o", "k.tl/t.json"), "unwritable-output"),
        (("tune", "k.tl", "--target", "sm_91"), "unknown-target"),
        (("--tuned", "s.toml", "k.tl"), "bad-tuned-file"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], code: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(*arguments) == 1
    assert f"error[{code}]" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "title", "help"),
    [
        (
            "".join(f"{name} = {list(range(1, 400))}\n" for name in ("block_M", "block_N", "threads")),
            "s.toml has 63,521,199 variants, too many to predict each",
            "take values out until at most 100,000 are left",
        ),
        ('[options]\ncluster = ["2x1", "two"]\n', "s.toml tries cluster = 'two'", "write --cluster 2x1"),
        ("block_M = []\n", "s.toml: 'block_M' has no values", "give each name at least one value"),
    ],
    ids=["huge", "no value of an option", "empty"],
)
def test_spaces_that_cannot_be_searched(text: str, title: str, help: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("s.toml").write_text(text if text.startswith("[") else f"[constants]\n{text}")
    assert tilec(*SEARCH) == 1
    said = capfd.readouterr().err
    assert f"error[bad-space]: {title}" in said and f"help: {help}" in said
    assert not Path("k.tune.sqlite").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("tune", "k.tl", "--trials", "0"),
        ("tune", "k.tl", "--schedule", "t.json"),
        ("tune", "k.tl", "--tuned", "t.json"),
        ("k.tl", "--schedule", "t.json", "--tuned", "t.json"),
    ],
)
def test_usage(arguments: tuple[str, ...]) -> None:
    Path("t.json").write_text("{}")
    assert tilec(*arguments) == 2


def test_the_result_is_never_slower_than_the_file_as_written(capfd: pytest.CaptureFixture[str]) -> None:
    """All that the space has is worse: the file stays as it is."""
    Path("s.toml").write_text("[constants]\nblock_M = [16]\nblock_N = [32]\n")
    assert tilec(*SEARCH, "--scheduler", "heuristic") == 0
    said = capfd.readouterr().out
    assert "2 of 2 variants tried" in said and "no variant is better" in said
    assert json.loads(Path("k.tuned.json").read_text())["constants"] == {}
    assert tilec("--tuned", "k.tuned.json", "k.tl", "--target", "sm_80", "-o", "t.cubin") == 0


def test_a_trial_that_takes_too_long_is_tried_again_by_the_next_command(capfd: pytest.CaptureFixture[str]) -> None:
    Path("s.toml").write_text("[constants]\nthreads = [128]\n")
    search = (*SEARCH[:-1], "-j1", "--scheduler", "heuristic")
    assert tilec(*search, "--trial-limit", "0.001") == 1
    assert "1 variants: its process ended: it may have taken more than 0.001 s" in capfd.readouterr().err
    assert tilec(*search, "--trial-limit", "300") == 0
    assert "1 of 1 variants tried" in capfd.readouterr().out and done() == 1


def done() -> int:
    """How many trials the journal of k.tl knows."""
    try:
        with sqlite3.connect("k.tune.sqlite") as base:
            return int(base.execute("SELECT count(outcome) FROM trials").fetchone()[0])
    except sqlite3.OperationalError:  # there are no tables yet
        return 0


@pytest.mark.weekly
def test_ctrl_c_keeps_what_is_done(capfd: pytest.CaptureFixture[str]) -> None:
    """The search has minutes of work when it is interrupted, after its first trial."""
    many = "block_M = [32, 64, 96, 128]\nblock_N = [32, 64, 96, 128]\nnum_stages = [1, 2, 3, 4, 5, 6]\n"
    Path("s.toml").write_text(f"[constants]\n{many}block_K = [32, 64]\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-m", "tilec", *SEARCH, "--trials", "192"]
    # As from a terminal: every process of the group is interrupted.
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
    ) as process:
        while done() == 0 and process.poll() is None:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=600)
        assert process.returncode == 130, said
    kept = done()
    assert 0 < kept < 192
    assert f"stopped: k.tune.sqlite has {kept} trials, and the same command goes on from there" in said
    assert "Traceback" not in said
    assert not Path("k.tuned.json").exists()
    assert tilec(*SEARCH, "--trials", str(kept + 1)) == 0
    assert f"{kept + 1} of " in capfd.readouterr().out
    assert done() == kept + 1
