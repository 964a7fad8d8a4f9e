"""Reads and writes the files a command names: kernels come in as `SourceFile`, outputs appear whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from stat import S_ISFIFO, S_ISREG
from typing import NoReturn

from tilec.support.diagnostics import fail
from tilec.support.exhaustion import exhausted
from tilec.support.processes import ENDING_SIGNALS
from tilec.support.recognise import check_no_binary
from tilec.support.source import SourceFile
from tilec.support.staging import Staging, staging

LARGEST_SOURCE = 1 << 20
LARGEST_TEXT = 1 << 26
LARGEST = 1 << 31
"""Bytes of a kernel file, of other text, and of any file that is read: more takes long, or does not end."""
_PIECE = 1 << 20
_MOST_LINKS = 40  # as Linux follows


def read_source(path: str) -> SourceFile:
    """Return the kernel file at `path`; a missing file, a directory or text that is not UTF-8 is the user's mistake."""
    data = read_bytes(path, LARGEST_SOURCE)
    check_no_binary(path, data)
    return SourceFile(path, text_of(path, data))


def read_text(path: str, largest: int = LARGEST_TEXT) -> str:
    return text_of(path, read_bytes(path, largest))


def text_of(path: str, data: bytes) -> str:
    """Return what `data`, read from `path`, says as UTF-8, without the mark that some editors put in front."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fail("not-utf8", f"{path} is not UTF-8 text: byte 0x{data[error.start]:02x} on line {line} cannot be read")


def read_bytes(path: str, largest: int = LARGEST) -> bytes:
    note(path)
    try:
        with FileIO(path, opener=_open_at_once) as file:
            # /dev/fd/63, as shells name a pipe, leads to no name in a folder.
            if S_ISFIFO(os.fstat(file.fileno()).st_mode) and Path(path).resolve().exists():
                fail("not-a-file", f"{path} is a pipe, not a file", help=f"write - instead, and < {path} at the end")
            os.set_blocking(file.fileno(), True)
            data = _at_most(largest + 1, file)
    except FileNotFoundError:
        fail("no-such-file", f"{path} does not exist")
    except IsADirectoryError:
        fail("not-a-file", f"{path} is a directory, not a file")
    except (OSError, ValueError) as error:
        if exhausted(error):
            raise
        fail("unreadable-file", f"cannot read {path}: {_reason(error)}")
    if len(data) > largest:
        fail("file-too-large", f"{path} has more than {largest:,} bytes")
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting: a pipe may have nobody who writes to it."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _at_most(largest: int, file: FileIO) -> bytes:
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
        _behind_links(file)
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


class _Renames:
    """Whether outputs are being renamed. `lock` is held meanwhile: whoever ends the process at once takes it first.
    A signal that is heard all the same – by a thread of a library, which does not block it – is kept for later."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: int | None = None
        self.kept: KeyboardInterrupt | None = None


_renames = _Renames()
_is_over = False


def write_no_more() -> None:
    """From now on `write_all` ends like Ctrl-C: whoever asked for that need not rely on where the exception of a signal
    is raised, which may be where Python ignores it."""
    global _is_over
    _is_over = True


def interrupt(reason: KeyboardInterrupt) -> None:
    """Raise what a signal handler has to raise: now, or after the renames that this thread is at."""
    if _renames.thread == threading.get_ident():
        _renames.kept = reason
        return
    raise reason


def end_process(code: int) -> NoReturn:
    """End this process at once, but not between two renames."""
    with _renames.lock:
        os._exit(code)


def write_all(contents: Mapping[str, bytes]) -> None:
    """Write every file beside its destination, then rename them all: a failure leaves each destination as it was.
    Where the machine runs out of something, that is an `OSError`: see `support.exhaustion`."""
    destination = Path()
    try:
        with ExitStack() as stack:
            folders: dict[Path, Staging] = {}
            pending: list[tuple[Staging, int, Path]] = []
            for path, data in contents.items():
                destination = Path(path)
                # Through a symbolic link, so that the link stays and its file is replaced.
                real = _behind_links(destination)
                if _is_special(destination):
                    _overwrite_file(destination, data)
                    continue
                destination = real
                folder = destination.parent
                if folder not in folders:
                    folder.mkdir(parents=True, exist_ok=True)
                    folders[folder] = stack.enter_context(staging(folder))
                pending.append((folders[folder], folders[folder].write(data, destination.name), destination))
            with _uninterrupted():
                if _is_over:
                    raise KeyboardInterrupt
                for staged, _, destination in pending:
                    staged.check_replaceable(destination.name)
                for staged, number, destination in pending:
                    staged.place(number, destination.name)
    except BrokenPipeError:
        raise  # the reader of a pipe has seen enough: no mistake of anyone's
    except OSError as error:
        if exhausted(error):
            raise OSError(error.errno, error.strerror, str(destination)) from error
        fail("unwritable-output", f"cannot write {destination}: {_reason(error)}")


def _overwrite_file(destination: Path, data: bytes) -> None:
    """Write to a device or a pipe. What has become a file since it was looked at stays as it is."""
    with os.fdopen(os.open(destination, os.O_WRONLY | os.O_CLOEXEC), "wb") as file:
        if S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileExistsError(errno.EEXIST, "it has just become another file")
        file.write(data)


def _behind_links(path: Path) -> Path:
    """Return the file that a link leads to. Where others may write, they can plant links: only those of this user, of
    the folder's owner and of root are followed."""
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            return path.parent.resolve() / path.name
        if _link_owner(path) not in (os.geteuid(), path.parent.stat().st_uid, 0):
            raise PermissionError(errno.EACCES, "it is a link that someone else has made")
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _link_owner(path: Path) -> int:
    return path.lstat().st_uid


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Inside, whatever ends the command waits: so that all outputs are replaced, or none."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        with _renames.lock:
            _renames.thread = threading.get_ident()
            try:
                yield
            finally:
                _renames.thread = None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        kept, _renames.kept = _renames.kept, None
        if kept is not None:
            raise kept


def make_folder(path: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if exhausted(error):
            raise
        fail("unwritable-output", f"cannot make the folder {path}: {_reason(error)}")


def _identity(path: str) -> tuple[int, int] | Path:
    """Equal for two names of one file, through links and for files yet to be made."""
    try:
        found = Path(path).stat()
    except OSError:
        return Path(path).resolve()
    return found.st_dev, found.st_ino


def _is_special(file: Path) -> bool:
    """Return a device or a pipe: it is written in place, for renaming onto it would replace it."""
    return file.exists() and not file.is_file()


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
