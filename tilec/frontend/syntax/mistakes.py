"""Uses of Lark: parser tables from the grammar, block tokens from line feeds, and messages for texts that are not in
the language, from the state of the parser, as "expected `)`, found the end of the line".

Lark is only imported for a text with a mistake, and for a grammar without tables.

`syntax.lalr` does the same for a text without mistakes.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

import lark
from lark.grammar import Rule as LarkRule
from lark.lark import PostLex
from lark.parse_tree_builder import maybe_create_child_filter
from lark.parsers.lalr_analysis import Shift

from tilec.frontend.syntax.lalr import Rule, Tables
from tilec.support.diagnostics import CompileError, InternalError, Label, raise_error
from tilec.support.resources import grammar_text
from tilec.support.source import Span
from tilec.support.staging import read_entry, write_entry

_built_parsers: dict[str, lark.Lark] = {}
"""The parsers of this process, by grammar text."""


def explain_mistake(text: str, cache_dir: Path | None = None) -> NoReturn:
    """Parse a wrong text again with Lark, and raise the `syntax` error that explains its first mistake."""
    parser = _get_parser(grammar_text("tile.lark"), cache_dir)
    try:
        parser.parse(text)
    except lark.UnexpectedCharacters as error:
        explain_character(text, error)
    except lark.UnexpectedToken as error:
        explain_token(text, error, _lex_tokens(parser, text[: error.pos_in_stream or 0]))
    raise InternalError("the tables do not hold what the grammar does")


def _lex_tokens(parser: lark.Lark, text: str) -> list[lark.Token]:
    """Return Lark's tokens of a text, up to the first indentation or bracket error."""
    tokens: list[lark.Token] = []
    with suppress(CompileError):  # the text stops inside a bracket; only the tokens before are needed
        for token in parser.lex(text):
            tokens.append(token)
    return tokens


def _get_parser(text: str, cache_dir: Path | None) -> lark.Lark:
    """Return Lark's parser of a grammar, made once in each process."""
    if text not in _built_parsers:
        _built_parsers[text] = _load_parser(text, cache_dir)
        # Otherwise Lark builds a lexer for each call of `lex`, and a file may have many mistakes.
        _built_parsers[text].lexer = _built_parsers[text]._build_lexer()
    return _built_parsers[text]


def _load_parser(text: str, cache_dir: Path | None) -> lark.Lark:
    """Load Lark's parser of a grammar from the cache folder, or build it and store it there. Without a folder it is
    built.
    """
    if cache_dir is None:
        return _build_parser(text)
    lexer = f"{IndentationPostLex.__module__}.{IndentationPostLex.__qualname__}"
    version = f"{lark.__version__} {sys.version_info[:2]} {lexer}\n"
    path = cache_dir / f"lark-{hashlib.sha256((version + text).encode()).hexdigest()[:24]}.tables"
    try:
        return lark.Lark.load(_PlainDataUnpickler(io.BytesIO(read_entry(path, path.name))).load())
    except Exception:  # absent, or damaged: Lark does not check what it loads
        parser, file = _build_parser(text), io.BytesIO()
    parser.save(file)
    write_entry(path, path.name, file.getvalue())
    return parser


class _PlainDataUnpickler(pickle.Unpickler):
    """An unpickler that makes no object but the postlexer in Lark's tables, so that an entry cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the indentation postlexer's class, and raise an error for any other class in a cache entry."""
        if (module, name) != (IndentationPostLex.__module__, IndentationPostLex.__qualname__):
            raise pickle.UnpicklingError(f"an entry does not contain {module}.{name}")
        return IndentationPostLex


def _build_parser(text: str) -> lark.Lark:
    """Build Lark's LALR parser of a grammar, with the indentation postlexer."""
    return lark.Lark(
        text, parser="lalr", lexer="basic", start="module", postlex=IndentationPostLex(), propagate_positions=True
    )


# ---- tables ----------------------------------------------------------------------------------------------------------


def extract_tables(text: str) -> Tables:
    """Return the parser and scanner tables that Lark makes of a grammar, as plain data."""
    parser = _get_parser(text, None)
    table: Any = parser.parser.parser._parse_table
    rules: dict[LarkRule, int] = {}

    def encode_action(action: Any, target: Any) -> int:
        """Return a shift's next state, or `~n` for a reduction by rule n, which is numbered at first sight."""
        return target if action is Shift else ~rules.setdefault(target, len(rules))

    sorted_states = (sorted(table.states[n].items(), key=lambda entry: entry[0]) for n in range(len(table.states)))
    states = tuple({str(name): encode_action(*taken) for name, taken in steps} for steps in sorted_states)
    lexer: Any = parser.lexer
    keywords = {
        str(kind): {str(t.pattern.value): str(t.name) for t in callback.scanner.terminals}
        for kind, callback in lexer.scanner and sorted(lexer.callback.items())
    }
    return Tables(
        states,
        tuple(_extract_rule(rule) for rule in rules),
        table.start_states["module"],
        table.end_states["module"],
        "|".join(f"(?P<{t.name}>{t.pattern.to_regexp()})" for t in lexer.scanner.terminals),
        keywords,
        tuple(sorted(map(str, lexer.ignore_types))),
        tuple(sorted(map(str, lexer.newline_types))),
    )


def _extract_rule(rule: LarkRule) -> Rule:
    """Return one rule of Lark's grammar as a `Rule` of plain data."""
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


_TAB_WIDTH = 8


class IndentationPostLex(PostLex):
    """Turns line feeds outside brackets into INDENT and DEDENT, and drops them inside. It has no state."""

    always_accept = ("_NEWLINE",)

    def process(self, stream: Iterator[lark.Token]) -> Iterator[lark.Token]:
        """Yield the tokens with indentation tokens added and line feeds in brackets dropped; refuse what does not fit.
        Errors: brackets and indentation that do not fit.
        """
        indents = [0]
        opened: list[lark.Token] = []
        last: lark.Token | None = None
        for token in stream:
            if last is None and token.type != "_NEWLINE" and token.column != 1:
                white = Span(1, 1, 1, token.column or 1)
                raise_error("syntax", "unexpected indentation", white, "no block was opened above")
            last = token
            if token.type == "_NEWLINE":
                if not opened:
                    yield token
                    yield from _emit_block_tokens(token, indents)
                continue
            if token.type in CLOSING_BRACKETS:
                opened.append(token)
            elif token.type in CLOSING_BRACKETS.values():
                _close_bracket(token, opened)
            yield token
        if opened:
            raise_error("syntax", f"`{opened[-1]}` is never closed", token_span(opened[-1]), "opened here")
        for _ in indents[1:]:
            assert last is not None
            yield lark.Token.new_borrow_pos("_DEDENT", "", last)


def _emit_block_tokens(newline: lark.Token, indents: list[int]) -> Iterator[lark.Token]:
    """Yield the indentation tokens that a line feed's white space means, and update `indents`; refuse a dedent to no
    level.
    """
    white = newline.rsplit("\n", 1)[1]
    column = white.count(" ") + white.count("\t") * _TAB_WIDTH
    if column > indents[-1]:
        indents.append(column)
        yield lark.Token.new_borrow_pos("_INDENT", white, newline)
        return
    while column < indents[-1]:
        indents.pop()
        yield lark.Token.new_borrow_pos("_DEDENT", white, newline)
    if column != indents[-1]:
        line = newline.end_line or 1
        note = f"indented by {column}, the enclosing blocks by {', '.join(map(str, indents))}"
        raise_error("syntax", "indentation matches no enclosing block", Span(line, 1, line, len(white) + 1), note)


def _close_bracket(token: lark.Token, opened: list[lark.Token]) -> None:
    """Remove from `opened` the bracket that a token closes; raise a `syntax` error if none or another is open."""
    if not opened:
        raise_error("syntax", f"`{token}` closes nothing", token_span(token), "no bracket is open here")
    opener = opened.pop()
    if CLOSING_BRACKETS[opener.type] != token.type:
        label = Label(token_span(opener), "opened here")
        raise_error("syntax", f"`{token}` does not close `{opener}`", token_span(token), secondary=(label,))


# ---- messages --------------------------------------------------------------------------------------------------------


CLOSING_BRACKETS = {"LPAR": "RPAR", "LSQB": "RSQB", "LBRACE": "RBRACE"}

# Expected terminals, most likely first. Operators are left out: they may follow nearly everywhere.
_EXPECTED_WORDS = {
    "_INDENT": "an indented block", "COLON": "`:`", "RPAR": "`)`", "RSQB": "`]`", "RBRACE": "`}`", "COMMA": "`,`",
    "EQUAL": "`=`", "IN": "`in`", "DEF": "`def`", "LPAR": "`(`", "IMPORT": "`import`",
    "_NEWLINE": "the end of the line", "NAME": "a name",
}  # fmt: skip

_FOUND_WORDS = {
    "_NEWLINE": "the end of the line", "_DEDENT": "the end of the block", "$END": "the end of the file",
    "STRING": "a string", "LONG_STRING": "a string",
}  # fmt: skip
"""Descriptions of found tokens by type; the others are shown as they are."""

_RESERVED_WORD_HELP = {"class": "a kernel file holds constants and @T.prim_func functions"}
_RESERVED_WORD = re.compile(r"(async|await|class|del|except|finally|global|nonlocal|try|yield)\b")


def token_span(token: lark.Token) -> Span:
    return Span(token.line or 1, token.column or 1, token.end_line or 1, token.end_column or 1)


def explain_character(text: str, error: lark.UnexpectedCharacters) -> NoReturn:
    """Raise the `syntax` error for text that is no token: a reserved word, an open string or a wrong character."""
    position = cast(int, error.pos_in_stream)
    reserved = _RESERVED_WORD.match(text, position)
    character = text[position]
    width = len(reserved[0]) if reserved else 1
    span = Span(error.line, error.column, error.line, error.column + width)
    if reserved:
        word = reserved[0]
        raise_error("syntax", f"`{word}` is not part of the kernel language", span, help=_RESERVED_WORD_HELP.get(word))
    if character in "\"'":
        raise_error("syntax", "the string is never closed", span, "starts here")
    if character == "!":
        raise_error("syntax", "`!` is not an operator", span, help="write `not` or `!=`")
    shown = character if character.isprintable() else f"U+{ord(character):04X}"
    title = f"`{shown}` is not allowed in a kernel file"
    raise_error("syntax", title, span, "outside strings and comments, text is ASCII")


def explain_token(text: str, error: lark.UnexpectedToken, before: list[lark.Token]) -> NoReturn:
    """Raise the `syntax` error for an unexpected token: what was expected, what was found, which bracket is open.
    `before` are the tokens that the parser had accepted.
    """
    token = error.token
    span = _get_found_span(token)
    last = next((t for t in reversed(before) if t.type not in ("_NEWLINE", "_INDENT", "_DEDENT")), None)
    if token.type == "_INDENT":
        line = token.end_line or 1
        white = Span(line, 1, line, len(token) + 1)
        raise_error("syntax", "unexpected indentation", white, "no block was opened above")
    if token.type in ("STRING", "LONG_STRING") and last is not None and last.end_pos == token.start_pos:
        raise_error("syntax", f"{last}-strings are not part of the kernel language", span)

    if token.type == "COLON" and text[token.end_pos : (token.end_pos or 0) + 1] == "=":
        way_out = "use a separate assignment"
        raise_error("syntax", "`:=` is not part of the kernel language", span, help=way_out)

    wanted = _describe_expected(error.accepts or set())
    opened = _find_open_bracket(before)
    is_far = opened is not None and opened.line != token.line
    secondary = (Label(_get_found_span(opened), "this bracket is still open"),) if opened and is_far else ()
    title = f"expected {wanted}, found {_FOUND_WORDS.get(token.type, f'`{token}`')}"
    raise_error("syntax", title, span, secondary=secondary)


def _get_found_span(token: lark.Token) -> Span:
    """Return the span of an unexpected token; at the end of a line, block or file only one character of it."""
    line, column = token.line or 1, token.column or 1
    if token.type in ("_NEWLINE", "_DEDENT", "$END"):
        # A line feed token includes the blank lines and comments after it: point at its start.
        return Span(line, column, line, column + 1)
    return Span(line, column, token.end_line or line, token.end_column or column + 1)


def _describe_expected(accepts: set[str]) -> str:
    """Return in words what the parser would accept: a block, an expression, or up to three likely tokens."""
    if "_INDENT" in accepts:
        return _EXPECTED_WORDS["_INDENT"]
    if "INT" in accepts:
        return "an expression" if "PASS" not in accepts else "a statement"
    if "_NEWLINE" in accepts:
        return _EXPECTED_WORDS["_NEWLINE"]
    if "LSQB" in accepts:
        # Any value may be called, so a missing `(` is never the mistake.
        accepts = accepts - {"LPAR"}
    words = [word for terminal, word in _EXPECTED_WORDS.items() if terminal in accepts][:3]
    if not words:
        return "an operator"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _find_open_bracket(tokens: list[lark.Token]) -> lark.Token | None:
    """Return the innermost bracket that these tokens leave open, or None."""
    opened: list[lark.Token] = []
    for token in tokens:
        if token.type in CLOSING_BRACKETS:
            opened.append(token)
        elif token.type in CLOSING_BRACKETS.values() and opened:
            opened.pop()
    return opened[-1] if opened else None
