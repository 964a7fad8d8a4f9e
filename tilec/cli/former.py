"""Former spellings of options: hidden, and accepted with a warning that names the present one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource


class FormerSpellings(click.Option):
    """An option that also accepts the spellings in `former`, each with its replacement: `{"--no-cluster": "--cluster
    none"}`. A replacement that includes a value takes none from the former spelling."""

    def __init__(self, *args: Any, former: Mapping[str, str] = {}, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.former = dict(former)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        for old, new in self.former.items():
            _, *value = shlex.split(new)
            constant = value[0] if value else new in self.opts
            action = {"action": "store_const", "const": constant} if self.is_flag or value else {"action": "store"}
            parser.add_option(obj=self, opts=[old], dest=old, **action)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
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
    """Record that the running command was given a former spelling."""
    context = context or click.get_current_context(silent=True)
    if context is not None:
        context.meta.setdefault(_META, {})[old] = new


def take_former_spellings() -> Mapping[str, str]:
    """Return the former spellings that were not reported yet, with their replacements, and forget them."""
    context = click.get_current_context(silent=True)
    found: Mapping[str, str] = {} if context is None else context.meta.pop(_META, {})
    return found
