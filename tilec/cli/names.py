"""The table of commands, with their modules: a command costs only its own imports."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

COMMANDS = {
    "emulate": ("commands.emulate:emulate", "FILE.tl", "run the PTX on the CPU and compare with the reference"),
    "simulate": ("commands.simulate:simulate", "FILE.tl", "count the cycles of the PTX, and show where they go"),
    "compare": ("commands.compare:compare", "CSV FILE", "compare the simulation with a profile of Nsight Compute"),
    "schedule": ("dispatch:schedule", "FILE.tl", "show the solved pipeline"),
    "report": ("commands.report:report", "FILE.tl", "print predicted times and bounds; --html: as a page"),
    "diff": ("commands.diff:diff", "OLD NEW", "show what changed between two schedule traces, and why"),
    "targets": ("commands.show:targets", "[NAME]", "list the machines"),
    "calibrate": ("commands.calibrate:calibrate", "", "measure a GPU, and rewrite its target file"),
    "tune": ("commands.tune:tune", "FILE.tl", "search for the best constants and options"),
    "check": ("commands.check:check", "FILE.tl…", "report errors and warnings only"),
    "explain": ("commands.explain:explain", "CODE", "more about an error or warning"),
    "explain pipeline": (
        "commands.explain:explain_pipeline",
        "FILE",
        "show which loads are prefetched, and why others are not",
    ),
    "inspect": ("commands.show:inspect", "CUBIN", "show the launch manifest in a cubin"),
    "fmt": ("commands.fmt:fmt", "FILE.tl…", "format kernels as ruff formats Python"),
    "lsp": ("commands.serve:lsp", "", "serve an editor: errors, hover, completion"),
    "serve": ("commands.serve:serve", "[FOLDER]", "serve a playground in the browser, on this machine"),
    "new": ("commands.new:new", "NAME", "make a folder with a first kernel"),
    "completion": ("completion:completion", "SHELL", "print the completion script of a shell"),
    "help": ("help:help_", "[COMMAND]", "show the options of a command"),
}
"""Each command with its module of `tilec.cli` and function, its arguments, and its purpose."""

_COMPILER = "commands.build:build"


def find_command(arguments: Sequence[str]) -> tuple[click.Command, list[str]]:
    """Import and return the command that the first words name, or the compiler proper; and the words after it."""
    words = next((n for n in (2, 1) if " ".join(arguments[:n]) in COMMANDS), 0)
    place = COMMANDS[" ".join(arguments[:words])][0] if words else _COMPILER
    module, _, name = place.partition(":")
    command = getattr(import_module(f"tilec.cli.{module}"), name)
    assert isinstance(command, click.Command)
    return command, list(arguments[words:])
