"""Spellings of options that are not tilec's: those of nvcc, clang and gcc, translated or answered with ours, and former
ones, accepted with a warning."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from tilec.cli.console import show_diagnostics
from tilec.support.diagnostics import Diagnostic
from tilec.support.spelling import nearest_word

_TRANSLATIONS = {
    "-ptx": ("--emit", "ptx"),
    "--ptx": ("--emit", "ptx"),
    "-S": ("--emit", "ptx"),
    "-cubin": ("--emit", "cubin"),
    "--cubin": ("--emit", "cubin"),
    "-fatbin": ("--emit", "fatbin"),
    "--fatbin": ("--emit", "fatbin"),
    "-V": ("--version",),
    "-use_fast_math": ("--fast-math",),
    "--use_fast_math": ("--fast-math",),
}
"""Foreign words and their translations."""

_MACHINES = (
    "-arch", "--arch", "--gpu-architecture", "--gpu-name", "-code", "--gpu-code",
    "-gencode", "--gencode", "--generate-code",
)  # fmt: skip
"""Options that name machines, in the next word or behind a =; nvcc allows each several times."""

_NEEDLESS = {
    "-g": "line information is always there",
    "-G": "line information is always there, and --stop-after shows every stage",
    "-lineinfo": "line information is always there",
    "--generate-line-info": "line information is always there",
    "-Wall": "every warning is on; -Wno-CODE silences one",
    "-c": "each file becomes a cubin of its own",
    "-dc": "each file becomes a cubin of its own, and nothing is linked later",
    "-rdc": "each file becomes a cubin of its own, and nothing is linked later",
    "--relocatable-device-code": "each file becomes a cubin of its own, and nothing is linked later",
    "-std": "a kernel file is TileLang's Python, which has no language standards",
    "--std": "a kernel file is TileLang's Python, which has no language standards",
}
"""Options, with or without a value behind a =, that ask for the default."""

_REGISTERS = (
    "the registers of a thread follow from the threads of a block and the blocks of a multiprocessor; "
    "T.annotate_min_blocks_per_sm(2) in the kernel requests more blocks, and so fewer registers"
)

_ALTERNATIVES = {
    "-maxrregcount": _REGISTERS,
    "--maxrregcount": _REGISTERS,
    "-Xptxas": "the assembler takes its level from -O; --verbose shows its report of registers and spills",
    "--ptxas-options": "the assembler takes its level from -O; --verbose shows its report of registers and spills",
    "-Xcompiler": "no C++ compiler is called; --emit header writes a header for one",
    "--compiler-options": "no C++ compiler is called; --emit header writes a header for one",
}
"""Options for which there is an alternative; each takes a value, behind a = or as the next word."""


def translate_words(command: click.Command, words: Sequence[str]) -> list[str]:
    """Return the command line with nvcc's, clang's and gcc's options translated, or refused with advice.

    Words that the command knows stay, and so do all behind `--`. An option that asks for the default gets a note.
    """
    known = {spelled for param in command.params for spelled in (*param.opts, *param.secondary_opts)}
    translated_words: list[str] = []
    machines: list[str] = []
    rest = list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--size" and len(rest) > 1 and rest[0].isidentifier() and rest[1].isdecimal():
            raise click.UsageError(f"--size takes one word: write --size {rest[0]}={rest[1]}")
        if word in known or name in known:
            translated_words.append(word)
        elif name in _MACHINES and "--target" in known and (equals or rest):
            machines += _parse_machines(value if equals else rest.pop(0))
        elif name in _NEEDLESS and "--target" in known:
            title = f"{word} is not needed: {_NEEDLESS[name]}"
            show_diagnostics([Diagnostic("needless-option", title, severity="note")], None)
        elif name in _ALTERNATIVES and "--target" in known:
            raise click.UsageError(f"tilec has no option {name}: {_ALTERNATIVES[name]}")
        elif word in _TRANSLATIONS and _TRANSLATIONS[word][0] in known:
            translated_words += _TRANSLATIONS[word]
        else:
            translated_words.append(word)
    if machines:
        translated_words += ["--target", ",".join(dict.fromkeys(machines))]
    return translated_words + rest


def _parse_machines(value: str) -> list[str]:
    """Return the targets that an nvcc machine option names, as sm_90a for `compute_90a`; else the word itself."""
    named = re.findall(r"(?:sm|compute|lto)_(\w+)", value)
    return [f"sm_{name}" for name in named] or [value]


def build_usage_diagnostic(error: click.UsageError) -> Diagnostic:
    """Return the diagnostic for a usage error, with the nearest option or value, or where help is, as its fix."""
    context = error.ctx
    path = context.command_path if context is not None else "tilec"
    known = [] if context is None else [o for p in context.command.get_params(context) for o in p.opts]
    asked = f"{path} {'--help-all' if '--help-all' in known else '--help'}"
    if isinstance(error, click.NoSuchOption):
        name = error.option_name
        if (near := nearest_word(name, known)) is not None:
            help_text = f"did you mean {near}?"
        elif (other := _command_with(name)) is not None:
            help_text = f"`tilec {other}` has it"
        else:
            help_text = f"`{asked}` lists them"
        return Diagnostic("command-line", f"{path} has no option {name}", help=help_text)
    text = " ".join(error.format_message().split()).removesuffix(".")
    help_text = f"`{asked}` shows its options"
    if (found := re.search(r"'([^']*)' is not one of (.*)", text)) is not None:
        words = [word.strip("'") for word in found[2].split(", ")]
        meant = _SYNONYMS.get(found[1])
        if (near := meant if meant in words else nearest_word(found[1], words)) is not None:
            help_text = f"did you mean {near}?"
    return Diagnostic("command-line", text[:1].lower() + text[1:], help=help_text)


_SYNONYMS = {"matmul": "gemm", "flash_attention": "attention", "vector_add": "elementwise"}
"""Values that no spelling leads to, and what they are called here."""


def _command_with(option: str) -> str | None:
    """Return a command that has an option of this name, `report` before others; None if there is none."""
    from tilec.cli.names import COMMANDS, find_command

    names = sorted(COMMANDS, key=lambda name: name != "report")
    return next((n for n in names if any(option in param.opts for param in find_command(n.split())[0].params)), None)


class FormerSpellings(click.Option):
    """An option that also accepts the spellings in `former`, each with its replacement: `{"--no-cluster": "--cluster
    none"}`. A replacement that includes a value takes none from the former spelling."""

    def __init__(self, *args: Any, former: Mapping[str, str] = {}, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.former = dict(former)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add the option and its former spellings, each with its replacement's value, to the parser."""
        super().add_to_parser(parser, ctx)
        for old, new in self.former.items():
            _, *value = shlex.split(new)
            constant = value[0] if value else new in self.opts
            action = {"action": "store_const", "const": constant} if self.is_flag or value else {"action": "store"}
            parser.add_option(obj=self, opts=[old], dest=old, **action)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the option's value; take it from a former spelling, which is recorded, if the present one is not
        given.
        """
        value, source = super().consume_value(ctx, opts)
        for old, new in self.former.items():
            if old in opts:
                remember_former(old, new, ctx)
                if source is not ParameterSource.COMMANDLINE:
                    value, source = opts[old], ParameterSource.COMMANDLINE
        return value, source


_META = "tilec.former"
"""The key of a command's former spellings and their replacements."""


def remember_former(old: str, new: str, context: click.Context | None = None) -> None:
    """Record in the click context (None: the current, if any) that a former spelling of an option was given."""
    context = context or click.get_current_context(silent=True)
    if context is not None:
        context.meta.setdefault(_META, {})[old] = new


def take_former_spellings() -> Mapping[str, str]:
    """Return the former spellings not reported yet, with their replacements, and forget them."""
    context = click.get_current_context(silent=True)
    found: Mapping[str, str] = {} if context is None else context.meta.pop(_META, {})
    return found
