"""The parser that `grammar/tile.lark` describes.

Building its LALR tables takes a quarter of a second, loading them ten milliseconds: a `cache_dir` keeps them there.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tempfile
from operator import itemgetter
from pathlib import Path

import lark
from lark.grammar import Rule

from tilec.diag import CompileError
from tilec.resources import grammar, tables_folder
from tilec.syntax.explain import explain_character, explain_token
from tilec.syntax.lines import Lines
from tilec.syntax.tree import Branch

_made: dict[str, lark.Lark] = {}
"""The parser of this process, under the name of its tables."""


def read(text: str, cache_dir: Path | None = None) -> Branch:
    """The tree of a text, or a `CompileError` that says what was expected instead."""
    # Every line, also the last, ends in a line feed: the grammar counts on it.
    text += "\n"
    parser = _parser(cache_dir)
    try:
        return parser.parse(text)
    except lark.UnexpectedCharacters as error:
        explain_character(text, error)
    except lark.UnexpectedToken as error:
        explain_token(error, _tokens(parser, text[: error.pos_in_stream or 0]))


def _tokens(parser: lark.Lark, text: str) -> list[lark.Token]:
    tokens: list[lark.Token] = []
    try:
        for token in parser.lex(text):
            tokens.append(token)
    except CompileError:
        # The text stops inside a bracket; what came before is all that is wanted.
        return tokens
    return tokens


# ---- tables ----------------------------------------------------------------------------------------------------------


def _parser(cache_dir: Path | None) -> lark.Lark:
    text = grammar("tile.lark")
    name = _tables_name(text)
    if name not in _made:
        _made[name] = _direct(_load(text, name, cache_dir))
    return _made[name]


def _load(text: str, name: str, cache_dir: Path | None) -> lark.Lark:
    """From the tables that the wheel carries, or those of an earlier run; else made now and left for the next run."""
    for folder in (tables_folder(), cache_dir):
        if folder is None:
            continue
        try:
            with (folder / name).open("rb") as file:
                return lark.Lark.load(file)
        except (
            OSError,
            pickle.UnpicklingError,
            EOFError,
            LookupError,
            AttributeError,
            ImportError,
            TypeError,
            ValueError,
        ):
            continue  # absent, or not whole
    parser = _build(text)
    if cache_dir is not None:
        _keep(parser, cache_dir / name)
    return parser


def _direct(parser: lark.Lark) -> lark.Lark:
    """Let the levels of an expression that have one operand hand it on as it is. Lark would look at its position again
    at each of fifteen levels, which is half of the time that parsing takes."""
    callbacks = parser.parser.parser.parser.callbacks
    for rule in callbacks:
        if isinstance(rule, Rule) and rule.options.expand1 and rule.alias is None and len(rule.expansion) == 1:
            symbol = rule.expansion[0]
            if not symbol.is_term and not symbol.name.startswith("_"):
                callbacks[rule] = itemgetter(0)
    return parser


def _tables_name(text: str) -> str:
    """Tables hold for one grammar, one release of Lark and one of Python."""
    version = f"{lark.__version__} {sys.version_info[:2]} {Lines.__module__}.{Lines.__qualname__}\n"
    return f"tile-{hashlib.sha256((version + text).encode()).hexdigest()[:24]}.tables"


def write_tables(folder: Path) -> Path:
    """Make the tables and save them in `folder`, as the build of the wheel does."""
    text = grammar("tile.lark")
    path = folder / _tables_name(text)
    with path.open("wb") as file:
        _build(text).save(file)
    return path


def _build(text: str) -> lark.Lark:
    return lark.Lark(text, parser="lalr", lexer="basic", start="module", postlex=Lines(), propagate_positions=True)


def _keep(parser: lark.Lark, path: Path) -> None:
    """Write beside the destination and rename: another process may be reading or writing the same file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                parser.save(file)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
    except OSError:
        # A cache that cannot be written costs time, nothing else.
        return
