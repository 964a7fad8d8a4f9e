"""Reads and writes the files that a command names: kernels are read as `SourceFile`, files of another kind are
recognised, outputs appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from stat import S_ISFIFO, S_ISREG
from typing import NoReturn

from tilec.support.diagnostics import raise_error
from tilec.support.exhaustion import find_exhausted_resource
from tilec.support.processes import ENDING_SIGNALS
from tilec.support.source import SourceFile
from tilec.support.staging import Staging, open_staging

LARGEST_SOURCE = 1 << 20
LARGEST_TEXT = 1 << 26
LARGEST = 1 << 31
"""The largest sizes in bytes of a kernel file, of other text, and of any file that is read."""
_PIECE = 1 << 20
_MOST_LINKS = 40  # as Linux follows


def read_source(path: str) -> SourceFile:
    """Return the kernel file at `path`; raise an error if it is missing, a directory, large, binary or not UTF-8."""
    data = read_bytes(path, LARGEST_SOURCE)
    refuse_binary(path, data)
    return SourceFile(path, decode_text(path, data))


def read_text(path: str, largest: int = LARGEST_TEXT) -> str:
    """Return the text of a file; raise `CompileError` if it cannot be read, is too large or not UTF-8."""
    return decode_text(path, read_bytes(path, largest))


def decode_text(path: str, data: bytes) -> str:
    """Return `data`, read from `path`, decoded as UTF-8 without a byte order mark; raise `not-utf8` if it is not."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        place = f"byte 0x{data[error.start]:02x} on line {line}"
        raise_error("not-utf8", f"{path} is not UTF-8 text: {place} cannot be read")


def read_bytes(path: str, largest: int = LARGEST) -> bytes:
    """Return a file's bytes, and record the read; raise `CompileError` if it cannot be read or is too large.

    A named pipe is refused.
    """
    record_read(path)
    try:
        with FileIO(path, opener=_open_without_blocking) as file:
            # /dev/fd/63, as shells name a pipe, leads to no name in a folder.
            if S_ISFIFO(os.fstat(file.fileno()).st_mode) and Path(path).resolve().exists():
                advice = f"write - instead, and < {path} at the end"
                raise_error("not-a-file", f"{path} is a pipe, not a file", help=advice)
            os.set_blocking(file.fileno(), True)
            data = _read_at_most(largest + 1, file)
    except FileNotFoundError:
        raise_error("no-such-file", f"{path} does not exist")
    except IsADirectoryError:
        raise_error("not-a-file", f"{path} is a directory, not a file")
    except (OSError, ValueError) as error:
        if find_exhausted_resource(error):
            raise
        raise_error("unreadable-file", f"cannot read {path}: {_error_text(error)}")
    if len(data) > largest:
        raise_error("file-too-large", f"{path} has more than {largest:,} bytes")
    return data


def _open_without_blocking(path: str, flags: int) -> int:
    """Open a file and return its descriptor, without waiting where a pipe has no writer."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _read_at_most(largest: int, file: FileIO) -> bytes:
    """Read at most `largest` bytes of a file, in pieces.

    Python allocates as much memory as is asked for, however short the file is.
    """
    pieces = bytearray()
    while piece := file.read(min(_PIECE, largest - len(pieces))):
        pieces += piece
    return bytes(pieces)


# ---- record of reads -------------------------------------------------------------------------------------------------

FileState = tuple[int, int, int] | None
"""Identifies a version of a file: time of its last change in nanoseconds, size in bytes, inode."""

_recorded_reads: ContextVar[dict[str, FileState] | None] = ContextVar("_noted", default=None)


def file_state(path: str) -> FileState:
    """Return a file's time of change, size and inode, which identify its version; None if it does not exist."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def record_read(path: str) -> None:
    """Record that the file is about to be read, with its present version, if a block records reads."""
    if (noted := _recorded_reads.get()) is not None and path not in noted:
        noted[path] = file_state(path)


@contextmanager
def record_reads() -> Iterator[dict[str, FileState]]:
    """Yield a dictionary that collects the files read in the block, each with its version before that."""
    found: dict[str, FileState] = {}
    token = _recorded_reads.set(found)
    try:
        yield found
    finally:
        _recorded_reads.reset(token)


# ---- writing ---------------------------------------------------------------------------------------------------------


def check_outputs(outputs: Iterable[str], inputs: Iterable[str]) -> None:
    """Raise an error for an output that cannot be written or would replace an input or another output."""
    taken = {_file_identity(path): f"it is the input {path}" for path in inputs if Path(path).is_file()}
    for path in outputs:
        check_writable(path)
        if _is_special(Path(path)):
            continue
        identity = _file_identity(path)
        if identity in taken:
            raise_error("unwritable-output", f"cannot write {path}: {taken[identity]}")
        taken[identity] = "another output has the same path"


def check_writable(path: str) -> None:
    """Raise an error if an output cannot be written: a directory, a bad parent, or no permission."""
    file = Path(path)
    try:
        _resolve_links(file)
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # a new file, or a parent that is no folder
    except OSError as error:
        raise_error("unwritable-output", f"cannot write {path}: {_error_text(error)}")
    if not path or path.endswith("/") or file.is_dir():
        raise_error("not-a-file", f"cannot write {path or 'to an empty name'}: it is not the name of a file")
    parent = file.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent  # the folders below it are made when the file is written
    if not parent.is_dir():
        raise_error("unwritable-output", f"cannot write {path}: {parent} is not a directory")
    if not os.access(file if _is_special(file) else parent, os.W_OK):
        raise_error("unwritable-output", f"cannot write {path}: permission denied")


class _Renames:
    """State of the renames of outputs. `lock` is held meanwhile: code that ends the process at once takes it first. A
    signal that is delivered all the same – to a thread of a library, which does not block it – is kept for later."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: int | None = None
        self.kept: KeyboardInterrupt | None = None


_renames = _Renames()
_is_over = False


def forbid_writing() -> None:
    """Make `write_all` raise KeyboardInterrupt from now on.

    A signal's own exception may be raised where Python ignores it, so that callers cannot rely on it.
    """
    global _is_over
    _is_over = True


def raise_interrupt(reason: KeyboardInterrupt) -> None:
    """Raise the exception of a signal handler, but after the renames if this thread is at them."""
    if _renames.thread == threading.get_ident():
        _renames.kept = reason
        return
    raise reason


def end_process(code: int) -> NoReturn:
    """End this process at once with an exit code, but not between two renames of outputs."""
    with _renames.lock:
        os._exit(code)


def write_all(contents: Mapping[str, bytes]) -> None:
    """Write all files, then rename them into place: a failure leaves every destination as it was.

    Raises `CompileError` where a file cannot be written, `OSError` where the machine runs out of a resource (see
    `support.exhaustion`).
    """
    destination = Path()
    try:
        with ExitStack() as stack:
            folders: dict[Path, Staging] = {}
            pending: list[tuple[Staging, int, Path]] = []
            for path, data in contents.items():
                destination = Path(path)
                # Through a symbolic link, so that the link stays and its file is replaced.
                real = _resolve_links(destination)
                if _is_special(destination):
                    _overwrite_file(destination, data)
                    continue
                destination = real
                folder = destination.parent
                if folder not in folders:
                    folder.mkdir(parents=True, exist_ok=True)
                    folders[folder] = stack.enter_context(open_staging(folder))
                pending.append((folders[folder], folders[folder].write(data, destination.name), destination))
            with _block_ending_signals():
                if _is_over:
                    raise KeyboardInterrupt
                for staged, _, destination in pending:
                    staged.check_replaceable(destination.name)
                for staged, number, destination in pending:
                    staged.place(number, destination.name)
    except BrokenPipeError:
        raise  # the reader of a pipe has closed it, which is no error
    except OSError as error:
        if find_exhausted_resource(error):
            raise OSError(error.errno, error.strerror, str(destination)) from error
        raise_error("unwritable-output", f"cannot write {destination}: {_error_text(error)}")


def _overwrite_file(destination: Path, data: bytes) -> None:
    """Write data to a device or a pipe in place; raise an error if a regular file has appeared there meanwhile."""
    with os.fdopen(os.open(destination, os.O_WRONLY | os.O_CLOEXEC), "wb") as file:
        if S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileExistsError(errno.EEXIST, "a regular file has appeared there meanwhile")
        file.write(data)


def _resolve_links(path: Path) -> Path:
    """Return the file that a symbolic link leads to; raise an error for a link of another user.

    Others may plant links in folders that they can write: only links of this user, of the folder's owner and of root
    are followed.
    """
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            return path.parent.resolve() / path.name
        if _link_owner(path) not in (os.geteuid(), path.parent.stat().st_uid, 0):
            raise PermissionError(errno.EACCES, "it is a link of another user")
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _link_owner(path: Path) -> int:
    return path.lstat().st_uid


@contextmanager
def _block_ending_signals() -> Iterator[None]:
    """Block the ending signals during the block; one that arrived all the same is raised at the end.

    So all outputs are replaced, or none.
    """
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
    """Make a folder and those above it, unless they exist; raise `CompileError` if that fails."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if find_exhausted_resource(error):
            raise
        raise_error("unwritable-output", f"cannot make the folder {path}: {_error_text(error)}")


def _file_identity(path: str) -> tuple[int, int] | Path:
    """Return a value that is equal for two names of one file, through links and for files yet to be made."""
    try:
        found = Path(path).stat()
    except OSError:
        return Path(path).resolve()
    return found.st_dev, found.st_ino


def _is_special(file: Path) -> bool:
    """Return whether the file exists and is no regular file, such as a device or pipe, which is written in place."""
    return file.exists() and not file.is_file()


def _error_text(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


_BINARY = (
    (b"\x7fELF", "machine code", "use tilec inspect to show how a cubin is launched"),
    (b"\x50\xed\x55\xba", "a fatbin", "it is compiled from a kernel file: give that file"),
    (b"PK\x03\x04", "an archive", "pass arrays by --inputs of tilec emulate"),
)
"""The first bytes of such files."""

_PTX = re.compile(r"\s*(?:(?://[^\n]*|/\*.*?\*/)\s*)*\.version\s", re.DOTALL)
_C = re.compile(
    r"\s*(?://|/\*|#\s*(?:include\s*[<\"]|pragma\s+once\b|ifndef\s+\w+\s*\n)"
    r"|(?:extern\s+\"C\"\s*\{?\s*)?(?:__global__|__device__|template\s*<))"
)


def refuse_binary(path: str, data: bytes) -> None:
    """Raise `not-a-kernel` if the bytes begin as machine code, a fatbin or an archive does."""
    for first, what, help_text in _BINARY:
        if data.startswith(first):
            raise_error("not-a-kernel", f"{path} is {what}, not text", help=help_text)


def refuse_other_languages(path: str, text: str) -> None:
    """Raise `not-a-kernel` if the text is PTX, C, C++, CUDA or JSON."""
    if _PTX.match(text):
        raise_error("not-a-kernel", f"{path} is PTX, not a kernel file", help="use tilec emulate FILE.ptx to run it")
    if _C.match(text):
        title = f"{path} is {'CUDA C++' if '__global__' in text else 'C, C++ or CUDA'}, not a kernel file"
        raise_error("not-a-kernel", title, help="use tilec new NAME to make a kernel file")
    if text.lstrip().startswith("{"):
        raise_error("not-a-kernel", f"{path} is JSON, not a kernel file", help="pass a schedule trace by --schedule")
