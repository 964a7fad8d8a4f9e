"""Signal handling and the status line while a command runs: Ctrl-C, SIGTERM and the like end it at once, and a terminal
shows what takes long.

Solver and assembler are machine code, in which Python handles no signal until they return. So a separate thread also
waits for signals, and ends the process where nothing else does. The same thread draws and erases the status line.
"""

from __future__ import annotations

import io
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from tilec.support import files, progress
from tilec.support.processes import ENDING_SIGNALS, Interrupted

_DEFAULT_HANDLERS = (signal.default_int_handler, signal.SIG_DFL)
_PATIENCE = 0.15
"""Seconds in which Python handles Ctrl-C, unless machine code delays it."""
_SILENCE = 1.0
"""Seconds without output before the status line is drawn."""
_STEP = 0.1
"""Seconds between two updates of the line."""
_ERASE = "\r\x1b[2K"
_LINE_BEGINS = re.compile(r"(?:\n|\x1b\[3J|\r(?:\x1b\[\d*A)*\x1b\[2K)\Z")
"""Matches output that leaves the cursor at the start of a line: also a cleared screen, or an erased bar."""


@contextmanager
def attend_terminal() -> Iterator[None]:
    """Handle ending signals at any moment during the block, and show a status line on a terminal."""
    attendant = _TerminalAttendant(_StatusLine() if _is_for_people() else None)
    try:
        with attendant.at_work():
            yield
    finally:
        attendant.end()


def _is_for_people() -> bool:
    """Return whether standard error is a terminal that can show a status line, and no automated build is running."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb") and not os.environ.get("CI")


class _StatusLine:
    """The status line, on a terminal where others write too. It is drawn only at the start of a line, and erased before
    anything else is written."""

    def __init__(self) -> None:
        self._out = sys.stderr
        self._lock = threading.RLock()
        self._shown = ""
        self._is_at_begin = True
        self._process = os.getpid()

    def draw(self, text: str) -> None:
        """Draw the text, cut to the width, as the status line if the cursor is at the start of a line."""
        with self._lock, suppress(OSError, ValueError):
            width = os.get_terminal_size(self._out.fileno()).columns or 80  # 0 if the terminal does not know it
            text = text[: width - 1]
            if self._is_at_begin and text != self._shown:
                os.write(self._out.fileno(), (_ERASE + text).encode(self._out.encoding, "replace"))
                self._shown = text

    def erase(self) -> None:
        """Remove the status line from the terminal."""
        with self._lock, suppress(OSError, ValueError):
            if self._shown:
                os.write(self._out.fileno(), _ERASE.encode())
                self._shown = ""

    def before(self, text: str) -> None:
        """Erase the status line before another writer's `text` and note if that ends a line; not in a forked process.

        A forked process has no line, and its copy of the lock may never be released.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            self.erase()
            if text:
                self._is_at_begin = _LINE_BEGINS.search(text) is not None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Replace stdout and stderr, if terminals, by streams that erase the status line before they write."""
        before = sys.stdout, sys.stderr
        ours: list[_ErasingStream] = []
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, io.TextIOWrapper) and stream.isatty():
                stream.flush()
                ours.append(_ErasingStream(stream, self))
                setattr(sys, name, ours[-1])
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            for each in ours:
                with suppress(OSError):
                    each.flush()
                with suppress(OSError, ValueError):
                    each.detach()  # otherwise garbage collection would close the terminal
            self.erase()


class _ErasingStream(io.TextIOWrapper):
    """A stream of a terminal that has a status line."""

    def __init__(self, stream: io.TextIOWrapper, line: _StatusLine) -> None:
        super().__init__(stream.buffer, stream.encoding, stream.errors, line_buffering=True)
        self._line = line

    def write(self, text: str, /) -> int:
        """Erase the status line, then write the text to the terminal."""
        self._line.before(text)
        return super().write(text)


class _TerminalAttendant:
    def __init__(self, line: _StatusLine | None) -> None:
        self._line = line
        self._heard_at = float("-inf")
        self._reader, self._writer = _open_pipe()
        self._said_reader, self._said_writer = _open_pipe() if line is not None else (-1, -1)
        self._process = os.getpid()
        self._ended, self._end_writer = _open_pipe()
        # Signals go to the working thread, which defers them while it writes outputs.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        try:
            self._thread = threading.Thread(target=self._run_thread, name="terminal", daemon=True)
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Handle ending signals and show progress messages during the block."""
        with self._handle_signals():
            if self._line is None:
                yield
                return
            with progress.report_to(self._said_writer), self._line.beside():
                yield

    @contextmanager
    def _handle_signals(self) -> Iterator[None]:
        """Handle ending signals by `_note_signal` during the block, if Python's default handlers are set.

        Only in the main thread; other handlers stay.
        """
        is_ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if not is_ours:
            yield
            return
        known = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
        ours = [number for number in ENDING_SIGNALS if known[number] in _DEFAULT_HANDLERS]  # nohup ignores one
        before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in ours:
            signal.signal(number, self._note_signal)
        try:
            yield
        finally:
            for number in ours:
                if signal.getsignal(number) == self._note_signal:
                    signal.signal(number, known[number])
            signal.set_wakeup_fd(before)

    def end(self) -> None:
        """End the thread, then close its pipes; a forked process only closes the pipes."""
        if os.getpid() == self._process:
            os.write(self._end_writer, b"\0")
            self._thread.join()
        for pipe in (self._reader, self._writer, self._ended, self._end_writer, self._said_reader, self._said_writer):
            if pipe >= 0:
                os.close(pipe)

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        """Note the time of an ending signal, so that the thread does not end the process, and raise `Interrupted`."""
        self._heard_at = time.monotonic()
        files.raise_interrupt(Interrupted(number))

    # ---- in the thread -----------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        """Draw progress messages on the status line, and end the process on signals that Python handles too late."""
        messages: dict[int, str] = {}
        unfinished = b""
        quiet_since = time.monotonic()
        sources = [pipe for pipe in (self._reader, self._ended, self._said_reader) if pipe >= 0]
        while True:
            # Poll only while there is a message to show.
            ready = select.select(sources, [], [], _STEP if messages else None)[0]
            if self._ended in ready:
                return
            if self._reader in ready:
                for number in set(os.read(self._reader, 4096)).intersection(ENDING_SIGNALS):
                    self._end_unless_heard(number)
            if self._line is None:
                continue
            if self._said_reader in ready:
                was_idle = not messages
                whole, newline, unfinished = (unfinished + os.read(self._said_reader, 1 << 16)).rpartition(b"\n")
                progress.parse_messages(whole + newline, messages)
                if was_idle:
                    quiet_since = time.monotonic()
            if not messages:
                self._line.erase()
            elif time.monotonic() - quiet_since >= _SILENCE:
                self._line.draw(_format_status(messages))
            if ready and messages:
                time.sleep(_STEP / 4)  # many messages may come at once

    def _end_unless_heard(self, number: int) -> None:
        """End the process for a signal, unless Python handles it within `_PATIENCE` seconds."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            if time.monotonic() - self._heard_at < 1.0:
                return
            time.sleep(0.005)
        if self._line is not None:
            self._line.erase()
        # Outputs are complete, as they get their names atomically. Child processes end with this one.
        files.end_process(128 + number)


def _format_status(messages: dict[int, str]) -> str:
    """Return the text of the status line: the last message, and how many other processes are at work."""
    others = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
    return f"tilec: {list(messages.values())[-1]}{others}"


def _open_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a pipe that never blocks its writer."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    return reader, writer
