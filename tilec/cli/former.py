"""Older spellings of options: hidden, and taken with a warning that names the new one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource


class FormerSpellings(click.Option):
    """An option that is also taken by the spellings in `former`, each with what is written now in its place:
    `{"--no-cluster": "--cluster none"}`. A spelling now that has a value of its own takes none from the old one."""

    def __init__(self, *args: Any, former: Mapping[str, str] = {}, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.former = dict(former)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        for old, new in self.former.items():
            _, *value = shlex.split(new)
            constant = value[0] if value else new in self.opts
            taken = {"action": "store_const", "const": constant} if self.is_flag or value else {"action": "store"}
            parser.add_option(obj=self, opts=[old], dest=old, **taken)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value, source = super().consume_value(ctx, opts)
        for old, new in self.former.items():
            if old in opts:
                remember_former(old, new, ctx)
                if source is not ParameterSource.COMMANDLINE:
                    value, source = opts[old], ParameterSource.COMMANDLINE
        return value, source


_META = "tilec.former"
"""Under it, a command knows which old spellings it was given, and what is written now."""


def remember_former(old: str, new: str, context: click.Context | None = None) -> None:
    """That the command in hand was given an old spelling."""
    context = context or click.get_current_context(silent=True)
    if context is not None:
        context.meta.setdefault(_META, {})[old] = new


def former_spellings() -> Mapping[str, str]:
    """The old spellings that the command in hand was given and has not been told of, with the new ones."""
    context = click.get_current_context(silent=True)
    found: Mapping[str, str] = {} if context is None else context.meta.pop(_META, {})
    return found
