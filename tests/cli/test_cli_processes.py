"""The command line as a whole process: its streams, its terminal, what it loads, and what its output depends on."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command import GEMM, SMALL, VECTOR_ADD, tilec


def _process(
    *arguments: str, stdout: Any = subprocess.PIPE, stderr: Any = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tilec", *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path, **environment}, stdout=stdout, stderr=stderr, check=False
    )


def _on_a_terminal(*arguments: str, **environment: str) -> str:
    """What a person would see of standard output and errors."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", 0) as screen, ThreadPoolExecutor(1) as reader:
        with os.fdopen(theirs, "wb", 0) as terminal:
            shown = reader.submit(_until_closed, screen)
            _process(*arguments, stdout=terminal, stderr=terminal, **{"TERM": "xterm", **environment})
        return shown.result().decode()


def _until_closed(screen: Any) -> bytes:
    read = b""
    with suppress(OSError):  # how Linux reports that the other side has closed
        while part := screen.read(65536):
            read += part
    return read


def test_output_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        files = ("-o", f"{seed}.cubin", "--emit", "cubin,ptx", "--schedule-trace-file", f"{seed}.json", "--no-cache")
        done = _process(GEMM, *files, PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr.decode()
    for suffix in (".cubin", ".ptx", ".json"):
        assert (tmp_path / f"1{suffix}").read_bytes() == (tmp_path / f"2{suffix}").read_bytes(), suffix


def test_check_says_on_a_terminal_that_nothing_is_wrong() -> None:
    words = ("check", VECTOR_ADD, "--target", "sm_80,sm_90a")
    assert "1 file: no mistakes" in _on_a_terminal(*words)
    piped = _process(*words)
    assert (piped.stdout, piped.stderr) == (b"", b"")


def shown(arguments: list[str]) -> str:
    """Return the words without the folders of files: which forms are run must not depend on where the checkout is."""
    return " ".join(Path(word).name if word.startswith("/") else word for word in arguments)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "a.cubin"],
        ["explain"],
        ["explain", "syntax"],
        ["targets", "sm_90a"],
        ["schedule", GEMM],
        ["emulate", VECTOR_ADD, *SMALL],
        [VECTOR_ADD, "--stop-after", "ptx"],
        [VECTOR_ADD, "-o", "/dev/stdout"],
        ["--help"],
        ["--version"],
    ],
    ids=shown,
)
def test_a_reader_that_leaves_early_is_no_error(arguments: list[str]) -> None:
    assert tilec(VECTOR_ADD, "-o", "a.cubin") == 0
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody:
        done = _process(*arguments, stdout=nobody)
    assert (done.returncode, done.stderr) == (141, b""), "as a shell reports a process ended by SIGPIPE"


def test_errors_that_nobody_reads() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody:
        for arguments in (["absent.tl"], ["--no-such-option"], [VECTOR_ADD, "-o", "/dev/null", "--time"]):
            done = _process(*arguments, stderr=nobody)
            assert (done.returncode, done.stdout) == (141, b"")


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "syntax"], ["--version"]], ids=" ".join)
def test_a_full_disk_is_no_bug(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = _process(*arguments, stdout=full)
    assert done.returncode == 4
    assert done.stderr.count(b"out of room on the disk\n") == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"), [("explain syntax", 0), ("targets", 0), ("absent.tl", 1), ("--version", 0)]
)
def test_streams_that_are_not_open(arguments: str, code: int, closed: str) -> None:
    command = f"{sys.executable} -m tilec {arguments} {closed}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run(command, shell=True, env=environment, capture_output=True, check=False).returncode == code


def test_a_terminal_without_our_characters_is_no_error() -> None:
    done = _process("schedule", GEMM, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"copy A ? A_shared" in done.stdout


def test_what_start_up_loads() -> None:
    """numpy, pandas and rich cost more than a compilation; ortools is for schedules that are not cached."""
    assert tilec(GEMM, "-o", "a.cubin") == 0
    script = (
        "import sys; from tilec.cli.main import main; "
        f"code = main([{GEMM!r}, '-o', 'a.cubin']); "
        "print(code, *sorted({'numpy', 'pandas', 'rich', 'ortools', 'click'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "click"], done.stderr


PRINTING = [["absent.tl"], ["schedule", GEMM], ["targets", "sm_90a"], ["explain"], ["--no-such-option"]]


@pytest.mark.some(1)
@pytest.mark.parametrize("arguments", PRINTING, ids=shown)
def test_colour_only_on_a_terminal_that_wants_it(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    done = _process(*arguments)
    assert b"\x1b" not in done.stdout + done.stderr
    assert "\x1b" not in _on_a_terminal(*arguments, NO_COLOR="1")
    assert "\x1b" not in _on_a_terminal(*arguments, TERM="dumb")
    done = _process(*arguments, NO_COLOR="1", FORCE_COLOR="1")
    assert b"\x1b" not in done.stdout + done.stderr, "NO_COLOR wins"


def test_colour_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b[" in _on_a_terminal("absent.tl")
    assert b"\x1b[" in _process("absent.tl", FORCE_COLOR="1").stderr
