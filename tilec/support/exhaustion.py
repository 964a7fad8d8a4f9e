"""Recognises errors that mean that the machine, or a limit of the process, has run out of a resource."""

from __future__ import annotations

import errno
from collections.abc import Iterator

_BY_NUMBER = {
    errno.ENOMEM: "memory",
    errno.EMFILE: "open files (ulimit -n)",
    errno.ENFILE: "open files of the system",
    errno.EAGAIN: "processes or threads (ulimit -u)",
    errno.ENOSPC: "room on the disk",
    errno.EDQUOT: "room in the disk quota",
    errno.EFBIG: "room in a file (ulimit -f)",
}
# Messages of libraries without error numbers: the loader of shared libraries, nvJitLink, and threads.
_BY_WORDS = {
    "cannot allocate memory": "memory",
    "failed to map segment": "memory",
    "out of memory": "memory",
    "out_of_memory": "memory",
    "std::bad_alloc": "memory",
    "too many open files": "open files (ulimit -n)",
    "can't start new thread": "processes or threads (ulimit -u)",
    "no space left on device": "room on the disk",
    "database or disk is full": "room on the disk",
}


def find_exhausted_resource(error: BaseException) -> str | None:
    """Return the resource that ran out and caused an error, directly or through its causes; None for another error."""
    return next((what for one in _exception_chain(error) if (what := _resource_of_error(one)) is not None), None)


def _exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, then the errors that it was raised from, each once."""
    seen: list[BaseException] = []
    while error is not None and not any(error is one for one in seen):
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _resource_of_error(error: BaseException) -> str | None:
    """Return the resource whose exhaustion this one error reports, by its number or its words; else None."""
    if isinstance(error, MemoryError):
        return "memory"
    # A full pipe raises BlockingIOError too, with the number of characters written.
    if isinstance(error, OSError) and not hasattr(error, "characters_written"):
        return _BY_NUMBER.get(error.errno or 0)
    if isinstance(error, ImportError | RuntimeError) or type(error).__module__.partition(".")[0] in ("sqlite3", "cuda"):
        text = str(error).lower()
        return next((what for words, what in _BY_WORDS.items() if words in text), None)
    return None
