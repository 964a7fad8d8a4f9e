"""Writes files in a private folder beside their destination and renames them from there; and keeps files in a cache
folder.

The private folder is made by this process alone (`mkdir` follows no link), nobody else may look into it, and it is
named by random digits, however long the names of the files are. Files are opened and renamed relative to open folders,
so that a folder that is moved or replaced meanwhile does not redirect them.

The folder is locked for the life of the process. An unlocked one was left by a killed process: the next writer there
removes it.

An entry is sealed with the version of tilec that wrote it and its key, so that an entry copied to another name is not
used there. A seal is no secret: readers still check the content of an entry, and nothing in it is ever executed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE, S_ISREG

from tilec import __version__

_NAME = re.compile(r"\.tilec-[0-9a-f]{16}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_TRIES = 100


class Staging:
    """A private folder inside another one, with its files, numbered from 0."""

    def __init__(self, parent: int, private: int) -> None:
        self._parent, self._private, self._count = parent, private, 0

    def write(self, data: bytes, name: str) -> int:
        """Write a file into the private folder, later to become `name`, and return its number.

        It takes the permissions of a file of this user that it replaces, not those of a file of someone else.
        """
        number = self._count
        handle = os.open(str(number), _NEW_FILE, 0o666, dir_fd=self._private)
        self._count += 1
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            found = self._stat(name)
            if found is not None and found.st_uid == os.geteuid():
                os.fchmod(handle, S_IMODE(found.st_mode) & 0o777)
        return number

    def check_replaceable(self, name: str) -> None:
        """Raise FileExistsError if the destination has something of this name that is no regular file."""
        found = self._stat(name)
        if found is not None and not S_ISREG(found.st_mode):
            raise FileExistsError(errno.EEXIST, "it is not a regular file")

    def place(self, number: int, name: str) -> None:
        """Rename a written file from the private folder to `name` in the destination folder.

        A link with that name is replaced, never followed.
        """
        os.rename(str(number), name, src_dir_fd=self._private, dst_dir_fd=self._parent)

    def remove_files(self) -> None:
        """Remove the written files that were not renamed out of the private folder."""
        for number in range(self._count):
            with suppress(OSError):
                os.unlink(str(number), dir_fd=self._private)

    def _stat(self, name: str) -> os.stat_result | None:
        """Return the status of a name in the destination folder; None if the name is free."""
        try:
            return os.stat(name, dir_fd=self._parent, follow_symlinks=False)
        except FileNotFoundError:
            return None


@contextmanager
def open_staging(folder: Path) -> Iterator[Staging]:
    """Yield a new private folder in `folder`, removed after the block with the files that were not placed."""
    parent = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_strays(folder, parent)
        name, private = _make_private(parent)
        made = Staging(parent, private)
        try:
            yield made
        finally:
            made.remove_files()
            with suppress(OSError):
                os.rmdir(name, dir_fd=parent)
            os.close(private)
    finally:
        os.close(parent)


def _make_private(parent: int) -> tuple[str, int]:
    """Make and lock a private folder with a random name; return name and open handle, or raise FileExistsError."""
    for _ in range(_MOST_TRIES):
        name = f".tilec-{os.urandom(8).hex()}"
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
            private = os.open(name, _FOLDER, dir_fd=parent)
        except (FileExistsError, FileNotFoundError):
            continue  # the name is taken, or the folder was removed as a stray before it could be locked
        if _try_lock(private) and _is_private(private) and _is_same_folder(name, parent, private):
            return name, private
        os.close(private)
    raise FileExistsError(errno.EEXIST, "no name is free for a temporary folder")


def _try_lock(private: int) -> bool:
    """Lock a private folder; return False if another process has locked it.

    Where there are no file locks it counts as locked.
    """
    try:
        fcntl.flock(private, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_private(private: int) -> bool:
    """Return whether the open folder belongs to this user and nobody else may look into it."""
    found = os.fstat(private)
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _is_same_folder(name: str, parent: int, private: int) -> bool:
    """Return whether the name in `parent` still belongs to the open folder."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(private))
    except FileNotFoundError:
        return False


# ---- leftovers of killed processes -----------------------------------------------------------------------------------


def remove_strays(folder: Path, parent: int) -> None:
    """Remove this user's private folders in `folder` whose process has ended, as they are not locked."""
    try:
        names = [entry.name for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
    except OSError:
        return  # a folder that may be written but not listed
    for name in names:
        with suppress(OSError):
            private = os.open(name, _FOLDER, dir_fd=parent)
            try:
                if _is_private(private):
                    _remove_stray(name, parent, private)
            finally:
                os.close(private)


def _remove_stray(name: str, parent: int, private: int) -> None:
    """Remove one private folder if it has only files that this module writes; raise OSError if it is locked."""
    fcntl.flock(private, fcntl.LOCK_EX | fcntl.LOCK_NB)
    inside = os.listdir(private)
    if all(file.isdecimal() for file in inside):
        for file in inside:
            os.unlink(file, dir_fd=private)
        os.rmdir(name, dir_fd=parent)


LARGEST_ENTRY = 1 << 26
"""The largest size of an entry in bytes; tilec's own have some hundred thousand."""
_SEAL = 65  # a hash in hexadecimal digits, and a line feed


def read_entry(path: Path, key: str) -> bytes:
    """Return the data written under this key; raise ValueError for a wrong entry, OSError for a missing one.

    Files that are not regular or too large are not read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not S_ISREG(found.st_mode) or found.st_size > LARGEST_ENTRY:
            raise ValueError("it is not an entry of a cache")
        whole = file.read(LARGEST_ENTRY + 1)
    data = whole[_SEAL:]
    if whole[:_SEAL] != _make_seal(data, key):
        raise ValueError("its contents have changed")
    return data


def add_seal(data: bytes, key: str) -> bytes:
    """Return the data with its seal in front: a hash of it, the key and the version of tilec."""
    return _make_seal(data, key) + data


def _make_seal(data: bytes, key: str) -> bytes:
    """Return a line with a hash of data, key and tilec's version."""
    return sha256(repr((__version__, key)).encode() + b"\n" + data).hexdigest().encode() + b"\n"


def write_entry(path: Path, key: str, data: bytes) -> None:
    """Write a sealed cache entry, at once for other readers; errors are ignored.

    A cache that cannot be written only costs time.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_staging(path.parent) as staged:
            staged.place(staged.write(add_seal(data, key), path.name), path.name)
    except OSError:
        return
