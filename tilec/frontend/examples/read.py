"""The examples of the language reference: `tilec explain T.copy` and docs/language/ show them.

Each page has a file of kernels, in which a line `# ---- T.copy, T.fill ----` begins the example of these names.
Each line of `values.txt` has a call and its value. The files are read at the first use.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tilec.support.records import dataclass

FOLDER = Path(__file__).parent
HEAD = "import tilelang.language as T\n\n\n"
"""The first lines of each example."""
_TITLE = re.compile(r"^# ---- (.*?) ----\n", re.MULTILINE | re.DOTALL)
_LANGUAGE_NAME = re.compile(r"(?:T|tilelang)\.\w+")


@dataclass(frozen=True, slots=True)
class ExampleKernel:
    """An example of `names`, for `target` or for the default one."""

    names: tuple[str, ...]
    text: str
    target: str | None


@cache
def read_kernels(page: str) -> tuple[ExampleKernel, ...]:
    """Read and return the example kernels in a page's `.tl` file, in order; none if the page has no file."""
    path = FOLDER / f"{page}.tl"
    if not path.is_file():
        return ()
    _, *parts = _TITLE.split(path.read_text(encoding="utf-8"))
    return tuple(_parse_kernel(title, text.strip() + "\n") for title, text in zip(parts[::2], parts[1::2], strict=True))


def _parse_kernel(title: str, text: str) -> ExampleKernel:
    """Build an example from its title line of names and its text; a `# tilec --target` comment gives the target."""
    target = re.match(r"# tilec --target (\w+)\n", text)
    return ExampleKernel(tuple(re.split(r", |,\n# ", title)), text, target[1] if target else None)


@cache
def read_values() -> dict[str, str]:
    """Return the lines of `values.txt` by name: for each name the first line that uses it."""
    found: dict[str, str] = {}
    for line in (FOLDER / "values.txt").read_text(encoding="utf-8").splitlines():
        for name in _LANGUAGE_NAME.findall(line):
            found.setdefault(name, line)
    return found


def list_pages() -> tuple[str, ...]:
    """Return the sorted names of the reference's pages that have a `.tl` file of example kernels."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.tl")))


@cache
def _index_by_name() -> dict[str, str]:
    """Return, by name, the text of the example kernel for it (the last one of several), from the files of all pages."""
    return {name: kernel.text for page in list_pages() for kernel in read_kernels(page) for name in kernel.names}


def find_example(*names: str) -> str | None:
    """Return the example text of the first of these names that has one, a kernel before a `values.txt` line; else
    None.
    """
    return next((found for name in names if (found := _index_by_name().get(name) or read_values().get(name))), None)
