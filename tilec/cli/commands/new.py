"""`tilec new NAME`: create a starter project: a kernel, its reference in numpy, and a CMake project with a test."""

from __future__ import annotations

import keyword
import re
from contextlib import suppress
from pathlib import Path

import click

from tilec.cli.console import report_mistakes
from tilec.support import files
from tilec.support.diagnostics import raise_error

_FOLDER = Path(__file__).parent / "templates"

# The starter kernels, with constants that make them small enough for the emulator.
TEMPLATES = {"gemm": "-D M=128 -D N=128 -D K=128", "attention": "-D S=128 -D heads=1", "elementwise": "-D N=2048"}


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--template",
    type=click.Choice(tuple(TEMPLATES)),
    default="gemm",
    show_default=True,
    help="The kernel to start from.",
)
def new(name: str, template: str) -> None:
    """Make a folder NAME: a kernel, what it is to compute in numpy, a C++ program, its CMakeLists.txt, and a test."""
    with report_mistakes(None):
        kernel = (_FOLDER / f"{template}.tl.in").read_text(encoding="utf-8")
        _check_name(name, kernel)
        reference = (_FOLDER / f"{template}.py.in").read_text(encoding="utf-8")
        texts = {f"{name}.tl": kernel, "reference.py": reference} | {
            file: (_FOLDER / f"{file}.in").read_text(encoding="utf-8")
            for file in ("CMakeLists.txt", "README.md", "main.cpp")
        }
        body = (_FOLDER / f"{template}.cpp.in").read_text(encoding="utf-8")
        values = {"@BODY@": body, "@NAME@": name, "@SMALL@": TEMPLATES[template]}
        _write_folder(Path(name), {file: _fill_template(text, values).encode() for file, text in texts.items()})
    print(f"{name}: {', '.join(texts)}")


def _check_name(name: str, kernel: str) -> None:
    """Raise `bad-project-name` unless the name is a valid kernel name that the template's text does not use."""
    if re.fullmatch(r"[a-z][a-z0-9_]*", name) is None or keyword.iskeyword(name):
        raise_error("bad-project-name", f"'{name}' cannot be the name of a kernel",
             help="use lower-case letters, digits and _, a letter first, and no Python keyword")  # fmt: skip
    if re.search(rf"\b{name}\b", kernel):
        raise_error("bad-project-name", f"'{name}' already has a meaning in the kernel", help="choose another name")


def _fill_template(text: str, values: dict[str, str]) -> str:
    """Return the text with each placeholder replaced by its value."""
    for place, value in values.items():
        text = text.replace(place, value)
    return text


def _write_folder(folder: Path, contents: dict[str, bytes]) -> None:
    """Create a folder with these files, all or nothing; raise an error if it exists."""
    if folder.exists() or folder.is_symlink():
        raise_error("folder-exists", f"{folder} exists already", help="choose another name, or remove it")
    files.make_folder(str(folder))
    try:
        files.write_all({str(folder / name): data for name, data in contents.items()})
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise
