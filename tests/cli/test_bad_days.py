"""Interruptions, killed processes, full disks, folders that cannot be written, many builds at once, and bugs."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import GEMM, VECTOR_ADD, tilec

from tilec.driver import build as driver
from tilec.support.diagnostics import InternalError

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS.parent)}


def _begun(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tilec", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**ENVIRONMENT, **environment}, **pipes)


@pytest.mark.weekly
@pytest.mark.parametrize("how", ["interrupt", "kill", "fill"])
def test_what_ends_a_build_leaves_nothing_half_written(how: str) -> None:
    """More of it: `python tests/fuzz/interruptions.py kill --count 200`."""
    script = str(TESTS / "fuzz" / "interruptions.py")
    done = subprocess.run(
        [sys.executable, script, how, "--count", "5"], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_a_folder_that_cannot_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() == 0:  # who may write everywhere, but not there
        folder = Path("/proc/sys")
    else:
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o555)
    assert tilec(VECTOR_ADD, "-o", str(folder / "a.cubin")) == 1
    assert capfd.readouterr().err.startswith("error[unwritable-output]: cannot write ")


def test_a_full_disk_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "-o", "/dev/full") == 4
    said = capfd.readouterr().err
    assert said.startswith("error[limit-reached]: out of room on the disk\n")
    assert "it was needed for /dev/full" in said
    (tmp_path / "cache").symlink_to("/dev/full")
    assert tilec(VECTOR_ADD, "-o", "a.cubin") == 0


def test_builds_at_once_share_the_cache(tmp_path: Path) -> None:
    builds = [
        _begun(GEMM, "--scheduler=heuristic", "-o", f"{n}.cubin", TILEC_CACHE_DIR=str(tmp_path / "cache"))
        for n in range(3)
    ]
    for build in builds:
        _, said = build.communicate()
        assert (build.returncode, said) == (0, "")
    assert len({(tmp_path / f"{n}.cubin").read_bytes() for n in range(3)}) == 1
    assert not [p.name for p in (tmp_path / "cache" / "schedules").iterdir() if p.suffix != ".json"]


BLOCKED_WORKERS = """import os, pathlib, signal, sys, time
from tilec.cli.main import main
from tilec.driver import batch
def wait_for_ever(job):
    pathlib.Path(f"{os.getpid()}.begun").touch()
    time.sleep(10 * HANG)
batch.compile_job = wait_for_ever
sys.exit(main(sys.argv[1:]))
"""
"""A build whose processes say that they have begun, and then do nothing."""

HANG = 600
"""Seconds after which a process is taken to hang."""


@contextmanager
def _blocked_build(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a build with two processes that block; give it and the numbers of both, once both have begun."""
    code = BLOCKED_WORKERS.replace("HANG", str(HANG))
    command = [sys.executable, "-c", code, VECTOR_ADD, GEMM, "-j2", "-o", str(folder)]
    build = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + HANG
        while len(begun := list(folder.glob("*.begun"))) < 2 and build.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        yield build, [int(path.stem) for path in begun]
    finally:
        build.kill()
        build.communicate()


def _is_running(process: int) -> bool:
    """Return whether a process is there and no mere entry that its parent has yet to read."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.weekly),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.weekly),
    ],
)
def test_no_process_stays_behind(ending: signal.Signals, code: int, tmp_path: Path) -> None:
    with _blocked_build(tmp_path) as (build, workers):
        assert len(workers) == 2
        build.send_signal(ending)
        assert build.wait(HANG) == code
        until = time.monotonic() + HANG
        while any(map(_is_running, workers)) and time.monotonic() < until:
            time.sleep(0.01)
        assert not any(map(_is_running, workers))
    assert not list(tmp_path.glob("*.cubin"))


def test_a_process_that_is_killed_is_said(tmp_path: Path) -> None:
    with _blocked_build(tmp_path) as (build, workers):
        os.kill(workers[0], signal.SIGKILL)
        _, said = build.communicate(timeout=HANG)
    assert build.returncode == 1
    assert said.startswith("error[" + "process-ended" + "]: ")
    assert not list(tmp_path.glob("*.cubin"))


@pytest.mark.weekly
def test_a_process_that_crashes_is_said_to_have_crashed(tmp_path: Path) -> None:
    with _blocked_build(tmp_path) as (build, workers):
        os.kill(workers[0], signal.SIGSEGV)
        _, said = build.communicate(timeout=HANG)
    assert build.returncode == 3
    assert "\ninternal error: a process that compiled crashed with SIGSEGV" in said


WITHOUT_ASSEMBLER = """import os, pathlib, sys, time
from tilec.cli.main import main
from tilec.ptx import assemble
assemble.LINKER._function = lambda *_: RESULT
sys.exit(main())
"""


def _build_with(result: str, folder: Path) -> subprocess.Popen[str]:
    """Begin a build in whose assembler this expression is computed."""
    command = [sys.executable, "-c", WITHOUT_ASSEMBLER.replace("RESULT", result), str(VECTOR_ADD), "--no-cache"]
    environment = {**ENVIRONMENT, "TMPDIR": str(folder)}
    return subprocess.Popen(
        [*command, "-o", str(folder / "a.cubin")], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True
    )


def test_a_crash_of_the_assembler_is_reported_as_one(tmp_path: Path) -> None:
    build = _build_with("os.kill(os.getpid(), 11)", tmp_path)
    _, said = build.communicate(timeout=HANG)
    assert build.returncode == 3
    assert said.startswith("internal error: the assembler (nvJitLink) crashed with SIGSEGV\n")
    assert list(tmp_path.glob("tilec-bug-*/*.ptx"))


def test_who_ends_a_build_ends_its_assembler(tmp_path: Path) -> None:
    build = _build_with(f"(pathlib.Path('began').write_text(str(os.getpid())), time.sleep({HANG}))", tmp_path)
    began = tmp_path / "began"
    until = time.monotonic() + HANG
    while not (began.exists() and began.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    assembler = int(began.read_text())
    assert assembler != build.pid
    build.send_signal(signal.SIGTERM)
    _, said = build.communicate(timeout=HANG)
    assert (build.returncode, said) == (128 + signal.SIGTERM, "")
    with pytest.raises(ProcessLookupError):
        os.kill(assembler, 0)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_bug_leaves_what_is_to_be_seen_of_it(
    jobs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("tilec.passes.lower.expand_schedules.expand_schedules", broken)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert tilec(VECTOR_ADD, "--target", "sm_80,sm_90a", "-o", "a b", "-j", jobs) == 3
    said = capfd.readouterr().err
    assert "internal error: ZeroDivisionError: oh" in said
    assert "This is a bug in tilec 0." in said
    assert f"  tilec {VECTOR_ADD} --target sm_80,sm_90a -o 'a b'" in said, "as a shell takes it"
    folder = next(found for found in tmp_path.glob("tilec-bug-*") if str(found) in said)  # each process may have one
    assert "ZeroDivisionError: oh" in (folder / "traceback.txt").read_text()
    assert (folder / "05-fold-constants.tile").read_text().startswith("kernel vector_add")


def test_no_memory_is_no_bug(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def large(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(driver, "build_library", large)
    assert tilec(VECTOR_ADD) == 4
    assert capfd.readouterr().err.startswith("error[limit-reached]: out of memory")


RAN_OUT = [
    (OSError(errno.EMFILE, "Too many open files"), "open files (ulimit -n)"),
    (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "processes or threads (ulimit -u)"),
    (RuntimeError("can't start new thread"), "processes or threads (ulimit -u)"),
    (ImportError("libx.so: failed to map segment from shared object"), "memory"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), "room in the disk quota"),
]


@pytest.mark.parametrize(("error", "what"), RAN_OUT)
def test_what_has_run_out_is_said(
    error: Exception, what: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where the error is that of another one."""

    def run_out(*_: object) -> None:
        raise InternalError("the assembler cannot be loaded") from error

    monkeypatch.setattr(driver, "build_library", run_out)
    assert tilec(VECTOR_ADD) == 4
    assert capfd.readouterr().err.startswith(f"error[limit-reached]: out of {what}\n")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("std::bad_alloc")])
def test_a_solver_without_memory_is_no_bug(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As CP-SAT says it, in the middle of a search."""

    def run_out(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("tilec.sched.cp.Program._run", run_out)
    assert tilec(GEMM, "--target", "sm_80", "--no-cache", "-o", "a.cubin") == 4
    assert capfd.readouterr().err.startswith("error[limit-reached]: out of memory\n")
    assert not Path("a.cubin").exists()


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("limit", "size", "jobs", "what"),
    [
        (resource.RLIMIT_NOFILE, 16, "2", "open files (ulimit -n)"),
        (resource.RLIMIT_AS, 60 << 20, "1", "memory"),
        (resource.RLIMIT_AS, 150 << 20, "1", "memory"),
    ],
)
def test_limits_of_the_process_are_said(limit: int, size: int, jobs: str, what: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tilec", VECTOR_ADD, GEMM, "--no-cache", "-j", jobs, "-o", str(tmp_path)],
        env=ENVIRONMENT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(limit, (size, size)),
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith(f"error[limit-reached]: out of {what}\n")
    assert list(tmp_path.iterdir()) == []
