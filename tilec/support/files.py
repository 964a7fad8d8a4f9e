"""Reads and writes the files a command names: kernels come in as `SourceFile`, outputs appear whole or not at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from stat import S_IMODE
from typing import BinaryIO

from tilec.support.diagnostics import fail
from tilec.support.recognise import check_no_binary
from tilec.support.source import SourceFile

LARGEST_SOURCE = 1 << 20
LARGEST_TEXT = 1 << 26
LARGEST = 1 << 31
"""Bytes of a kernel file, of other text, and of any file that is read: more takes long, or does not end."""
_PIECE = 1 << 20


def read_source(path: str) -> SourceFile:
    """The kernel file at `path`; a missing file, a directory or text that is not UTF-8 is the user's mistake."""
    data = read_bytes(path, LARGEST_SOURCE)
    check_no_binary(path, data)
    return SourceFile(path, text_of(path, data))


def read_text(path: str) -> str:
    return text_of(path, read_bytes(path, LARGEST_TEXT))


def text_of(path: str, data: bytes) -> str:
    """What `data`, read from `path`, says as UTF-8, without the mark that some editors put in front."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fail("not-utf8", f"{path} is not UTF-8 text: byte 0x{data[error.start]:02x} on line {line} cannot be read")


def read_bytes(path: str, largest: int = LARGEST) -> bytes:
    note(path)
    try:
        with Path(path).open("rb") as file:
            data = _at_most(largest + 1, file)
    except FileNotFoundError:
        fail("no-such-file", f"{path} does not exist")
    except IsADirectoryError:
        fail("not-a-file", f"{path} is a directory, not a file")
    except (OSError, ValueError) as error:
        fail("unreadable-file", f"cannot read {path}: {_reason(error)}")
    if len(data) > largest:
        fail("file-too-large", f"{path} has more than {largest:,} bytes")
    return data


def _at_most(largest: int, file: BinaryIO) -> bytes:
    """Piece by piece: Python takes memory for as much as it is asked for, however short the file is."""
    pieces = bytearray()
    while piece := file.read(min(_PIECE, largest - len(pieces))):
        pieces += piece
    return bytes(pieces)


# ---- what was read ---------------------------------------------------------------------------------------------------

State = tuple[int, int, int] | None
"""By which a file is told from what it was: time of its last change in nanoseconds, bytes, and which file it is."""

_noted: ContextVar[dict[str, State] | None] = ContextVar("_noted", default=None)


def state(path: str) -> State:
    """None where there is no such file."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def note(path: str) -> None:
    """The file is about to be read, there or not."""
    if (noted := _noted.get()) is not None and path not in noted:
        noted[path] = state(path)


@contextmanager
def noted() -> Iterator[dict[str, State]]:
    """The files that are read inside, as they were before that."""
    found: dict[str, State] = {}
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


# ---- what is written -------------------------------------------------------------------------------------------------


def check_outputs(outputs: Iterable[str], inputs: Iterable[str]) -> None:
    """Refuse, before any work is done, an output that cannot be written or that would replace an input or another."""
    taken = {_identity(path): f"it is the input {path}" for path in inputs if Path(path).is_file()}
    for path in outputs:
        check_writable(path)
        if _is_special(Path(path)):
            continue
        identity = _identity(path)
        if identity in taken:
            fail("unwritable-output", f"cannot write {path}: {taken[identity]}")
        taken[identity] = "another output goes there"


def check_writable(path: str) -> None:
    """Refuse an output that cannot be written, before any work is done for it."""
    file = Path(path)
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # a new file, or one whose folder is no folder
    except OSError as error:
        fail("unwritable-output", f"cannot write {path}: {_reason(error)}")
    if not path or path.endswith("/") or file.is_dir():
        fail("not-a-file", f"cannot write {path or 'to an empty name'}: it is not the name of a file")
    parent = file.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent  # the folders below it are made when the file is written
    if not parent.is_dir():
        fail("unwritable-output", f"cannot write {path}: {parent} is not a directory")
    if not os.access(file if _is_special(file) else parent, os.W_OK):
        fail("unwritable-output", f"cannot write {path}: permission denied")


_is_over = False


def write_no_more() -> None:
    """From now on `write_all` ends like Ctrl-C: whoever asked for that need not rely on where the exception of a signal
    is raised, which may be where Python ignores it."""
    global _is_over
    _is_over = True


def write_all(contents: Mapping[str, bytes]) -> None:
    """Write every file beside its destination, then rename them all: a failure leaves each destination as it was.
    Who may do what with a file that is replaced stays as it is."""
    pending: list[tuple[Path, Path]] = []
    destination = Path()
    try:
        for path, data in contents.items():
            destination = Path(path)
            if _is_special(destination):
                destination.write_bytes(data)
                continue
            # Through a symbolic link, so that the link stays and its file is replaced.
            destination = destination.resolve()
            destination.parent.mkdir(parents=True, exist_ok=True)
            temporary = destination.with_name(f".{destination.name}.{os.getpid()}.tmp")
            pending.append((temporary, destination))
            temporary.write_bytes(data)
            if destination.exists():
                temporary.chmod(S_IMODE(destination.stat().st_mode))
        with _uninterrupted():
            if _is_over:
                raise KeyboardInterrupt
            while pending:
                temporary, destination = pending[0]
                temporary.replace(destination)
                pending.pop(0)
    except BrokenPipeError:
        raise  # the reader of a pipe has seen enough: no mistake of anyone's
    except OSError as error:
        fail("unwritable-output", f"cannot write {destination}: {_reason(error)}")
    finally:
        for temporary, _ in pending:
            with suppress(OSError):
                temporary.unlink()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Inside, Ctrl-C waits: so that all outputs are replaced, or none."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def make_folder(path: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail("unwritable-output", f"cannot make the folder {path}: {_reason(error)}")


def _identity(path: str) -> tuple[int, int] | Path:
    """Equal for two names of one file, through links and for files yet to be made."""
    try:
        found = Path(path).stat()
    except OSError:
        return Path(path).resolve()
    return found.st_dev, found.st_ino


def _is_special(file: Path) -> bool:
    """A device or a pipe: it is written in place, for renaming onto it would replace it."""
    return file.exists() and not file.is_file()


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
