"""The table of commands, with their modules: a command costs only its own imports."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

COMMANDS = {
    "emulate": "emulate:emulate",
    "simulate": "simulate:simulate",
    "compare": "compare:compare",
    "schedule": "commands:schedule",
    "report": "report:report",
    "diff": "diff:diff",
    "targets": "show:targets",
    "calibrate": "calibrate:calibrate",
    "tune": "tune:tune",
    "check": "check:check",
    "explain": "explain:explain",
    "explain pipeline": "explain:explain_pipeline",
    "inspect": "show:inspect",
    "fmt": "fmt:fmt",
    "lsp": "lsp:lsp",
    "serve": "serve:serve",
    "new": "new:new",
    "completion": "completion:completion",
    "help": "help:help_",
}
"""The module of `tilec.cli` and the function of each command."""

_COMPILER = "build:build"


def find_command(arguments: Sequence[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the first words name, or the compiler proper; and the words after its name."""
    words = next((n for n in (2, 1) if " ".join(arguments[:n]) in COMMANDS), 0)
    module, _, name = COMMANDS.get(" ".join(arguments[:words]), _COMPILER).partition(":")
    command = getattr(import_module(f"tilec.cli.{module}"), name)
    assert isinstance(command, click.Command)
    return command, list(arguments[words:])
