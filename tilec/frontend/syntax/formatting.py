"""Formatting of kernel files by ruff, which keeps comments and text under `# fmt: off`."""

from __future__ import annotations

import ast as python
import codecs
import subprocess
from dataclasses import fields, is_dataclass
from pathlib import Path

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.parse import parse_file
from tilec.support.diagnostics import raise_error
from tilec.support.files import refuse_other_languages
from tilec.support.source import SourceFile


def format_kernel(source: SourceFile) -> str:
    """Return a kernel file's text formatted by ruff; raise an error if ruff fails or would change its meaning.

    Raise a `CompileError` if the file is not in the language, if ruff is missing or fails, and if the result would be
    another kernel.
    """
    refuse_other_languages(source.path, source.text)
    before = parse_file(source)
    text = _run_ruff(source)
    after = parse_file(SourceFile(source.path, text))
    if _normalise_tree(before.body) != _normalise_tree(after.body):
        title = f"ruff would change the meaning of {source.path}"
        way_out = "put `# fmt: off` and `# fmt: on` around these lines, and please report it"
        raise_error("formatting-changes", title, notes=("the file is not changed",), help=way_out)
    return text


def format_kernel_bytes(data: bytes, source: SourceFile) -> bytes:
    """Return a file's formatted text as UTF-8 bytes, keeping the byte order mark that `data` may begin with."""
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    return mark + format_kernel(source).encode()


def _run_ruff(source: SourceFile) -> str:
    """Return the text as ruff formats it; raise `no-formatter` if ruff is missing, `formatting-failed` if it fails."""
    try:
        from ruff import find_ruff_bin

        program = find_ruff_bin()
    except (ImportError, FileNotFoundError):
        raise_error("no-formatter", "ruff is not installed here", help="pip install '.[fmt]'")
    file = Path(source.path).resolve()
    done = subprocess.run(
        [
            program, "format", "--quiet", "--no-cache", "--extension", "tl:python", "--stdin-filename", str(file),
            "--config", "format.line-ending='auto'", "-",
        ],
        input=source.text.encode(),
        capture_output=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        messages = done.stderr.decode(errors="replace").strip().splitlines()
        raise_error("formatting-failed", f"ruff cannot format {source.path}", notes=tuple(messages[:5]))
    return done.stdout.decode()


def _normalise_tree(value: object) -> object:
    """Return a comparable tree without what formatting may change: spans, docstring spaces, foreign Python's layout."""
    match value:
        case tuple():
            return tuple(_normalise_tree(item) for item in value)
        case ast.Evaluate(ast.String(text)):
            return "docstring", *text.split()
        case ast.Foreign(names, text):
            return names, _normalise_python(text)
        case _ if is_dataclass(value):
            return type(value), *(_normalise_tree(getattr(value, f.name)) for f in fields(value) if f.compare)
        case _:
            return type(value), value


def _normalise_python(text: str) -> str:
    """Return a dump of foreign Python's tree with docstring spaces merged, or the text if it cannot be parsed."""
    try:
        tree = python.parse(text)
    except SyntaxError:
        return text
    for node in python.walk(tree):
        if isinstance(node, python.Expr) and isinstance(node.value, python.Constant):
            docstring = node.value
            if isinstance(docstring.value, str):
                docstring.value = " ".join(docstring.value.split())
    return python.dump(tree)
