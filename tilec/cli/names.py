"""The table of commands, with their modules: a command costs only its own imports."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

COMMANDS = {
    "emulate": "commands.emulate:emulate",
    "simulate": "commands.simulate:simulate",
    "compare": "commands.compare:compare",
    "schedule": "dispatch:schedule",
    "report": "commands.report:report",
    "diff": "commands.diff:diff",
    "targets": "commands.show:targets",
    "calibrate": "commands.calibrate:calibrate",
    "tune": "commands.tune:tune",
    "check": "commands.check:check",
    "explain": "commands.explain:explain",
    "explain pipeline": "commands.explain:explain_pipeline",
    "inspect": "commands.show:inspect",
    "fmt": "commands.fmt:fmt",
    "lsp": "commands.serve:lsp",
    "serve": "commands.serve:serve",
    "new": "commands.new:new",
    "completion": "completion:completion",
    "help": "help:help_",
}
"""The module of `tilec.cli` and the function of each command."""

_COMPILER = "commands.build:build"


def find_command(arguments: Sequence[str]) -> tuple[click.Command, list[str]]:
    """Import and return the command that the first words name, or the compiler proper; and the words after it."""
    words = next((n for n in (2, 1) if " ".join(arguments[:n]) in COMMANDS), 0)
    module, _, name = COMMANDS.get(" ".join(arguments[:words]), _COMPILER).partition(":")
    command = getattr(import_module(f"tilec.cli.{module}"), name)
    assert isinstance(command, click.Command)
    return command, list(arguments[words:])
