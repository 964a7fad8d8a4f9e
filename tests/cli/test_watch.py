"""`--watch`: a real process that is saved to, sees mistakes come and go, and is ended by Ctrl-C."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import GEMM, VECTOR_ADD, tilec

from tilec.cli import watch
from tilec.cli.console import CommandExit
from tilec.support import files, resources
from tilec.target import table as target

_SECONDS = 600
"""Only against hanging."""


class Watch:
    """A watching process and what it says, in the order in which it says it."""

    def __init__(self, *arguments: str) -> None:
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "tilec", *arguments]
        self.process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._said: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)

    def result(self) -> str:
        """What it says until it waits."""
        lines: list[str] = []
        while not lines or "; Ctrl-C ends" not in lines[-1]:
            lines.append(self._said.get(timeout=_SECONDS))
        return "".join(lines)

    def end(self) -> tuple[int, str]:
        """Its exit code after Ctrl-C, and what it still says."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(_SECONDS)
        self._reader.join(_SECONDS)
        return code, "".join(iter(lambda: self._said.get_nowait() if not self._said.empty() else "", ""))


@contextmanager
def watching(*arguments: str) -> Iterator[Watch]:
    watch = Watch(*arguments)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.wait()


def test_it_builds_again_when_a_file_is_saved() -> None:
    kernel, text = Path("k.tl"), Path(VECTOR_ADD).read_text(encoding="utf-8")
    kernel.write_text(text)
    with watching("k.tl", "--watch", "-D", "N=2048") as watch:
        first = watch.result()
        assert "vector_add on sm_90a: " in first and "bound by" in first
        assert first.splitlines()[-1] == "watching k.tl, sm_90a.toml; Ctrl-C ends"
        before = Path("k.cubin").read_bytes()

        kernel.write_text(text.replace("def vector_add", "def renamed"))
        assert "renamed on sm_90a: " in watch.result()
        built = Path("k.cubin").read_bytes()
        assert built != before

        kernel.write_text(text + "\n    this is wrong\n")
        broken = watch.result()
        assert "error[" in broken and "k.tl:" in broken and "µs" not in broken
        assert broken.splitlines()[-1].startswith("not built; watching k.tl")
        assert Path("k.cubin").read_bytes() == built, "what was built last stays"

        # As editors save: another file takes its place.
        Path("k.new").write_text(text)
        Path("k.new").replace(kernel)
        assert "vector_add on sm_90a: " in watch.result()
        assert Path("k.cubin").read_bytes() == before
        assert watch.end() == (130, "")


@pytest.mark.weekly
def test_what_is_imported_is_watched_even_before_it_is_there() -> None:
    parts = "import tilelang.language as T\n\n\n@T.macro\ndef add(A, B, C, i):\n    C[i] = A[i] {} B[i]\n"
    text = Path(VECTOR_ADD).read_text(encoding="utf-8")
    Path("k.tl").write_text(
        text.replace("import tilelang.language as T", "import tilelang.language as T\nfrom .parts import N")
    )
    with watching("report", "k.tl", "--html", "k.html", "--watch") as watch:
        assert "no-such-file" in watch.result()
        Path("parts.tl").write_text("N = 2048\n" + parts.format("+"))
        said = watch.result()
        assert "vector_add on sm_90a: " in said and "watching k.tl, parts.tl, sm_90a.toml" in said
        page = Path("k.html").read_text(encoding="utf-8")
        Path("parts.tl").write_text("N = 4096\n")
        watch.result()
        assert Path("k.html").read_text(encoding="utf-8") != page
        assert watch.end() == (130, "")


@pytest.mark.weekly
def test_several_files_in_several_processes() -> None:
    for name in ("a.tl", "b.tl"):
        Path(name).write_text("from .parts import size\n" + Path(VECTOR_ADD).read_text(encoding="utf-8"))
    Path("parts.tl").write_text("size = 1\n")
    with watching("a.tl", "b.tl", "-j2", "--watch") as watch:
        said = watch.result()
        watched = re.search("watching (.*);", said)
        assert watched is not None and {"a.tl", "b.tl", "parts.tl", "sm_90a.toml"} <= set(watched[1].split(", "))
        assert watch.end()[0] == 130


@pytest.mark.weekly
def test_words_of_the_command_line_are_read_again() -> None:
    Path("k.tl").write_text(Path(VECTOR_ADD).read_text(encoding="utf-8"))
    Path("how.txt").write_text("--target sm_80 @sizes.txt")
    Path("sizes.txt").write_text("-D N=2048")
    with watching("k.tl", "@how.txt", "--watch", "-MD", "--emit", "json") as watch:
        said = watch.result()
        assert "vector_add on sm_80: " in said and "watching how.txt, sizes.txt, k.tl, sm_80.toml;" in said
        assert " how.txt sizes.txt " in Path("k.d").read_text()
        Path("sizes.txt").write_text("-D N=4096")
        assert "vector_add on sm_80: " in watch.result()
        Path("how.txt").write_text("--target sm_90a")
        said = watch.result()
        assert "vector_add on sm_90a: " in said and "watching how.txt, k.tl, sm_90a.toml;" in said
        Path("how.txt").write_text("--no-such-option")
        assert watch.process.wait(_SECONDS) == 2, "mistakes in options end it"


@pytest.mark.parametrize(
    "arguments",
    [
        ["k.tl", "--watch", "--diagnostics-format", "sarif"],
        ["k.tl", "--watch", "-MF", "d", "--emit", "nothing"],
        ["k.tl", "--watch", "--time-limit", "100"],
    ],
)
def test_options_that_are_wrong_end_it(arguments: list[str]) -> None:
    Path("k.tl").write_text("")
    assert tilec(*arguments) == 2


# ---- the loop itself -------------------------------------------------------------------------------------------------


def rounds(*commands: Callable[[], None]) -> list[int]:
    """Watches the commands, one a round; after the last somebody presses Ctrl-C. Which were carried out."""
    carried: list[int] = []

    def command() -> None:
        if len(carried) == len(commands):
            raise KeyboardInterrupt
        carried.append(len(carried))
        commands[len(carried) - 1]()

    with pytest.raises(KeyboardInterrupt):
        watch.run_and_watch(command)
    return carried


def test_a_target_file_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / "sm_90a.toml"
    copy.write_bytes(resources.target_file("sm_90a").read_bytes())
    monkeypatch.setattr(resources, "target_file", lambda _: copy)
    sms: list[int] = []

    def look() -> None:
        sms.append(target.load_target("sm_90a").limit("sms"))
        copy.write_text(re.sub(r"(?m)^sms = .*?132", lambda m: m[0].replace("132", "131"), copy.read_text()))

    try:
        assert rounds(look, look) == [0, 1]
    finally:
        target.load_target.cache_clear()
    assert sms == [132, 131]


def test_a_change_while_it_is_building_is_not_missed(tmp_path: Path) -> None:
    file = tmp_path / "k.tl"
    file.write_text("1")
    read: list[str] = []

    def build() -> None:
        read.append(files.read_text(str(file)))
        file.write_text(f"{len(read) + 1} and more")
        if len(read) == 1:
            raise CommandExit(1)

    assert rounds(build, build) == [0, 1]
    assert read == ["1", "2 and more"]


def test_a_bug_does_not_end_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.tl"
    file.write_text("1")

    def build() -> None:
        files.read_text(str(file))
        file.write_text("another")
        raise ZeroDivisionError("of the compiler")

    assert rounds(build) == [0]
    said = capfd.readouterr().err
    assert "internal error: ZeroDivisionError: of the compiler" in said and "not built; watching k.tl" in said
    assert "Traceback" not in said


def test_a_terminal_is_drawn_afresh(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "k.tl"
    file.write_text("1")

    def build() -> None:
        print(f"read {files.read_text(str(file))}")
        file.write_text("2")

    assert rounds(build) == [0]
    assert capsys.readouterr().out == "read 1\n", "no control characters for a program that reads"
    file.write_text("1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert rounds(build) == [0]
    assert capsys.readouterr().out.split("\x1b[H\x1b[2J\x1b[3J") == ["", "read 1\n", ""]


def test_nothing_is_noted_unless_somebody_asks() -> None:
    with files.record_reads() as outer:
        files.read_text(GEMM)
    files.read_text(VECTOR_ADD)
    assert list(outer) == [GEMM] and outer[GEMM] == files.file_state(GEMM)
