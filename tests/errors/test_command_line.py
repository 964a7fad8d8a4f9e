"""Mistakes on the command line and in files: a diagnostic, the right exit code, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.cli import main

SAMPLES = Path(__file__).parents[2] / "samples"
VECTOR_ADD = str(SAMPLES / "vector_add.tl")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test works in a folder of its own; parser tables and schedules are shared between them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


def tilec(*arguments: str) -> int:
    return main(list(arguments))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["absent.tl"], "no-such-file"),
        (["emulat"], "no-such-file"),
        ([str(SAMPLES)], "not-a-file"),
        ([VECTOR_ADD, "-o", "absent/a.cubin"], "unwritable-output"),
        ([VECTOR_ADD, "-o", "."], "not-a-file"),
        ([VECTOR_ADD, "--schedule-trace-file", "absent/a.json"], "unwritable-output"),
        ([VECTOR_ADD, "--target", "sm_90"], "unknown-target"),
        ([VECTOR_ADD, "-D", "N"], "bad-define"),
        ([VECTOR_ADD, "-D", "Q=3"], "unknown-define"),
        ([VECTOR_ADD, "--entry", "other"], "unknown-entry"),
        ([VECTOR_ADD, "--schedule", "absent.json"], "no-such-file"),
        (["latin.tl"], "not-utf8"),
        (["check", "absent.tl"], "no-such-file"),
        (["inspect", VECTOR_ADD], "not-a-cubin"),
        (["explain", "no-such-code"], "unknown-code"),
        (["targets", "sm_91"], "unknown-target"),
        (["emulate", VECTOR_ADD, "--inputs", VECTOR_ADD], "bad-inputs"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_a_mistake_is_a_diagnostic(
    arguments: list[str], code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.tl").write_bytes(b"# caf\xe9\n")
    assert tilec(*arguments) == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error[{code}]: ")
    assert "Traceback" not in captured.err
    assert [p.name for p in tmp_path.iterdir()] == ["latin.tl"]


def test_a_mistake_leaves_old_outputs_alone(tmp_path: Path) -> None:
    (tmp_path / "wrong.tl").write_text("M = \n")
    (tmp_path / "wrong.cubin").write_bytes(b"old")
    assert tilec("wrong.tl", "-o", "wrong.cubin") == 1
    assert (tmp_path / "wrong.cubin").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["wrong.cubin", "wrong.tl"]


def test_a_mistyped_command_is_met(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("emulat") == 1
    assert "did you mean 'tilec emulate'?" in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [VECTOR_ADD, "--no-such-option"],
        [VECTOR_ADD, "-O", "4"],
        [VECTOR_ADD, "--emit", "llvm"],
        [VECTOR_ADD, "--stop-after", "tile", "--emit", "ptx"],
        [VECTOR_ADD, "--pipeline-strategy", "magic"],
        [VECTOR_ADD, "second.tl"],
        ["check"],
    ],
)
def test_usage_errors_exit_with_2(arguments: list[str], tmp_path: Path) -> None:
    assert tilec(*arguments) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_bug_asks_for_a_report(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from tilec import driver

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(driver, "build", broken)
    assert tilec(VECTOR_ADD) == 3
    quiet = capfd.readouterr().err
    assert "internal error: ZeroDivisionError: oh" in quiet
    assert f"tilec {VECTOR_ADD}" in quiet
    assert "Traceback" not in quiet
    assert tilec(VECTOR_ADD, "-v") == 3
    assert "Traceback" in capfd.readouterr().err
