"""What Lark does for the kernel language: its tables, from the grammar, and what could have stood where a text goes
wrong.

Only a text with a mistake, and a grammar without tables, get here.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from pathlib import Path
from typing import Any, NoReturn

import lark
from lark.grammar import Rule as LarkRule
from lark.parse_tree_builder import maybe_create_child_filter
from lark.parsers.lalr_analysis import Shift

from tilec.frontend.syntax.explain import explain_character, explain_token
from tilec.frontend.syntax.lalr import Rule, Tables
from tilec.frontend.syntax.lines import Lines
from tilec.support.diagnostics import CompileError, InternalError
from tilec.support.kept_files import keep, kept
from tilec.support.resources import grammar

_made: dict[str, lark.Lark] = {}
"""The parser of this process, by its grammar."""


def explain(text: str, cache_dir: Path | None = None) -> NoReturn:
    """Say what is wrong with a text that is not in the language."""
    parser = _parser(grammar("tile.lark"), cache_dir)
    try:
        parser.parse(text)
    except lark.UnexpectedCharacters as error:
        explain_character(text, error)
    except lark.UnexpectedToken as error:
        explain_token(text, error, _tokens(parser, text[: error.pos_in_stream or 0]))
    raise InternalError("the tables do not hold what the grammar does")


def _tokens(parser: lark.Lark, text: str) -> list[lark.Token]:
    tokens: list[lark.Token] = []
    try:
        for token in parser.lex(text):
            tokens.append(token)
    except CompileError:
        # The text stops inside a bracket; what came before is all that is wanted.
        return tokens
    return tokens


def _parser(text: str, cache_dir: Path | None) -> lark.Lark:
    if text not in _made:
        _made[text] = _load(text, cache_dir)
        # Otherwise Lark makes one whenever it is asked for tokens, and a file may have many mistakes.
        _made[text].lexer = _made[text]._build_lexer()
    return _made[text]


def _load(text: str, cache_dir: Path | None) -> lark.Lark:
    if cache_dir is None:
        return _build(text)
    version = f"{lark.__version__} {sys.version_info[:2]} {Lines.__module__}.{Lines.__qualname__}\n"
    path = cache_dir / f"lark-{hashlib.sha256((version + text).encode()).hexdigest()[:24]}.tables"
    try:
        return lark.Lark.load(_plain_data(kept(path, path.name)))
    except Exception:  # it is absent; or Lark, which believes what it loads, stumbles over it
        parser, file = _build(text), io.BytesIO()
    parser.save(file)
    keep(path, path.name, file.getvalue())
    return parser


class _PlainData(pickle.Unpickler):
    """Reads data that makes no objects but the one that Lark's tables contain: nothing of an entry is executed."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != (Lines.__module__, Lines.__qualname__):
            raise pickle.UnpicklingError(f"an entry does not contain {module}.{name}")
        return Lines


def _plain_data(data: bytes) -> Any:
    return _PlainData(io.BytesIO(data)).load()


def _build(text: str) -> lark.Lark:
    return lark.Lark(text, parser="lalr", lexer="basic", start="module", postlex=Lines(), propagate_positions=True)


# ---- tables ----------------------------------------------------------------------------------------------------------


def tables_of(text: str) -> Tables:
    """The tables of a grammar, as plain data."""
    parser = _parser(text, None)
    table: Any = parser.parser.parser._parse_table
    rules: dict[LarkRule, int] = {}

    def step(action: Any, target: Any) -> int:
        return target if action is Shift else ~rules.setdefault(target, len(rules))

    states = tuple(
        {str(name): step(*taken) for name, taken in sorted(table.states[state].items(), key=lambda entry: entry[0])}
        for state in range(len(table.states))
    )
    lexer: Any = parser.lexer
    keywords = {
        str(kind): {str(t.pattern.value): str(t.name) for t in callback.scanner.terminals}
        for kind, callback in lexer.scanner and sorted(lexer.callback.items())
    }
    return Tables(
        states,
        tuple(_rule(rule) for rule in rules),
        table.start_states["module"],
        table.end_states["module"],
        "|".join(f"(?P<{t.name}>{t.pattern.to_regexp()})" for t in lexer.scanner.terminals),
        keywords,
        tuple(sorted(map(str, lexer.ignore_types))),
        tuple(sorted(map(str, lexer.newline_types))),
    )


def _rule(rule: LarkRule) -> Rule:
    options, expansion = rule.options, rule.expansion
    kept: Any = maybe_create_child_filter(expansion, options.keep_all_tokens, False, list(options.empty_indices))
    included, trailing = (None, 0) if kept is None else (kept.args[0], kept.args[1] if len(kept.args) > 1 else 0)
    is_single = options.expand1 and not rule.alias
    only = expansion[0] if len(expansion) == 1 else None
    return Rule(
        str(rule.origin.name),
        len(expansion),
        str(rule.alias or options.template_source or rule.origin.name),
        None if included is None else tuple((e[0], bool(e[1]), e[2] if len(e) > 2 else 0) for e in included),
        trailing,
        bool(is_single),
        bool(is_single and only is not None and not only.is_term and not only.name.startswith("_")),
    )
