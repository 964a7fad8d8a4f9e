"""`--help`, `--help-all` and `tilec help`: the most wanted options on one screen, the rest on request.

Of the options that many commands share, `--help` shows those in `GROUPS`, one line each; `--help-all` shows all of them
with their full texts.
"""

from __future__ import annotations

import textwrap

import click

from tilec.cli.console import USAGE, fail_usage
from tilec.support.spelling import nearest_word

GROUPS: dict[str, dict[str, str]] = {
    "Output": {
        "output": "output file; its suffix gives the kind; - is standard output",
        "emit": "what to write: ptx, cubin, header, … ; several with commas",
        "header_style": "inline; or declarations, for several source files",
        "namespace": "namespace of C++ for a header",
        "stop_after": "print this stage and stop",
        "schedule_trace_file": "write the schedule trace, for Perfetto",
        "depfile": "write a rule of make; -MF FILE: into that file",
        "report": "also print the predicted time, and what bounds it",
        "jobs": "number of parallel processes",
    },
    "Target": {
        "target": "machines to compile for  [sm_90a]",
        "target_file": "compile for a machine that this file describes",
        "gpu": "the GPU of the target to tune the code for",
        "opt_level": "0, 1: tile IR; 2: as written; 3: choose the rest",
        "defines": "override a constant of the kernel",
        "entry": "the kernel, if the file has several",
        "fast_math": "approximate functions and division",
        "tuned": "compile with the result of tilec tune",
    },
    "Diagnostics": {
        "warn": "-Wno-CODE silences, -Werror=CODE makes an error",
        "lint": "what lints do: warn, fail the build, or nothing",
        "diagnostics_format": "text, json, sarif or github",
        "verbose": "show the assembler's report; tracebacks for bugs",
        "show_time": "print the time of each pass",
        "watch": "run again whenever an input file is saved",
    },
    "Pipelines": {
        "pipeline_strategy": "the form of pipelined loops",
        "scheduler": "exact, with a proof; or heuristic, faster",
        "schedule": "take the schedule from this trace",
        "print_pipeline": "list all passes, and why some do not run",
    },
}
"""The options that `--help` shows, by parameter name."""

HELP_NAMES = ("--help", "-h")

_MAX_UNGROUPED = 24
"""The most options of a command that are shown without groups."""
_INDENT, _COLUMN, _WIDTH = 2, 30, 80


class GroupedCommand(click.Command):
    """A command with many options: one line each in groups for `--help`, full texts for `--help-all`."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return the spellings of the help option, which are the same for every command."""
        # Not left to the context, as click caches the first help option of a process.
        return list(HELP_NAMES)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's parameters, with --help-all before the last one if they need groups."""
        params = super().get_params(ctx)
        if not _needs_groups(params):
            return params
        return [*params[:-1], _help_all_option, params[-1]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups, one line each; in full for --help-all or if they are few."""
        params = self.get_params(ctx)
        if not _needs_groups(params) or ctx.meta.get(_META):
            super().format_options(ctx, formatter)
            return
        options = {_get_option_name(param): param for param in params if isinstance(param, click.Option)}
        shared = _list_shared_options()
        own = [name for name in options if name not in shared and not any(name in group for group in GROUPS.values())]
        _write_section(formatter, "Options", [_make_row(options[name], None) for name in own if name not in _LAST])
        for title, group in GROUPS.items():
            rows = [_make_row(options[name], summary) for name, summary in group.items() if name in options]
            _write_section(formatter, title, rows)
        _write_section(formatter, "More", [_make_row(options[name], None) for name in _LAST if name in options])


_LAST = ("version", "help_all", "help")
_META = "tilec.help-all"


def _show_all_options(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the help with every option and end the command, if --help-all is given."""
    if is_asked and not context.resilient_parsing:
        context.meta[_META] = True
        print(context.get_help())
        context.exit()


_help_all_option = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all_options,
    help="Show every option, with its full text.",
)


def _list_shared_options() -> frozenset[str]:
    """Return the names of the options that every command which compiles a kernel has."""
    from tilec.support.options import OPTIONS

    return frozenset(OPTIONS) | {"time_limit", "memory_limit", "cmake_dir", "dump_ir", "depfile_name"}


def _needs_groups(params: list[click.Parameter]) -> bool:
    return len(params) > _MAX_UNGROUPED


def _get_option_name(option: click.Option) -> str:
    """Return an option's parameter name; `help` for click's own help option."""
    return "help" if "--help" in option.opts else option.name or ""


def _make_row(option: click.Option, summary: str | None) -> tuple[str, str]:
    """Return an option's spellings, the shortest first, and `summary`, or the first sentence of its help."""
    spelled = ", ".join(sorted(option.opts, key=len))
    if not (option.is_flag or option.count):
        spelled += f" {option.make_metavar(click.Context(click.Command('')))}"
    text = summary or (option.help or "").split(".  ")[0].rstrip(".")
    return spelled, text[:1].upper() + text[1:]


def _write_section(formatter: click.HelpFormatter, title: str, rows: list[tuple[str, str]]) -> None:
    """Write a heading and a row for each option, its text wrapped in a column of its own; nothing without rows."""
    if not rows:
        return
    formatter.write_paragraph()
    formatter.write(f"{title}:\n")
    for spelled, text in rows:
        first = f"{'':{_INDENT}}{_shorten_spelling(spelled):{_COLUMN - _INDENT}}"
        lines = textwrap.wrap(text, _WIDTH - _COLUMN) or [""]
        if len(first) > _COLUMN:  # the text begins below
            lines.insert(0, "")
        formatter.write(f"{first}{lines[0]}".rstrip() + "\n")
        for line in lines[1:]:
            formatter.write(f"{'':{_COLUMN}}{line}\n")


def _shorten_spelling(spelled: str) -> str:
    """Return an option's spelling, its list of values replaced by WORD if it is too long for the column."""
    room = _COLUMN - _INDENT - 2
    if len(spelled) > room and "[" in spelled:
        spelled = f"{spelled.partition('[')[0]}WORD"
    return spelled


# ---- commands --------------------------------------------------------------------------------------------------------


def show_introduction() -> int:
    """Print the introduction for `tilec` without arguments, and return the exit code for wrong usage."""
    print(
        "tilec compiles tile kernels to cubins whose software pipelines are solved and explained.\n\n"
        "  tilec FILE.tl            FILE.cubin, here\n"
        "  tilec emulate FILE.tl    run it on the CPU, and compare\n"
        "  tilec new NAME           make a folder with a first kernel\n"
        "  tilec help               commands and options; tilec help COMMAND: of one"
    )
    return USAGE


@click.command("help")
@click.argument("words", metavar="[COMMAND]", nargs=-1)
def help_(words: tuple[str, ...]) -> None:
    """Show what a command takes, or all commands."""
    from tilec.cli.names import COMMANDS, find_command

    if not words:
        print(f"  tilec {'FILE.tl…':24}compile kernels: tilec --help")
        for command, (_, arguments, purpose) in COMMANDS.items():
            print(f"  tilec {f'{command} {arguments}'.rstrip():24}{purpose}")
        print("\ntilec help COMMAND: of one")
        return
    name = " ".join(words)
    if name not in COMMANDS:
        near = nearest_word(name, COMMANDS)
        hint = f"did you mean '{near}'?" if near else "`tilec help` lists them"
        fail_usage(f"there is no command '{name}': {hint}")
    found, _ = find_command(words)
    found.make_context(f"tilec {name}", ["--help"], help_option_names=[*HELP_NAMES])
