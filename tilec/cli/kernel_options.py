"""The options of every command that compiles a kernel, made from the fields of `CompileOptions`, and the conversion of
their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tilec.cli.arguments import get_response_files
from tilec.cli.completion import complete_several
from tilec.cli.console import fail_usage, set_format, show_diagnostics
from tilec.cli.diagnostics import FORMATS
from tilec.cli.other_spellings import FormerSpellings, remember_former, take_former_spellings
from tilec.host.machines import find_compatible_targets, parse_capability
from tilec.support import files, options, resources
from tilec.support.diagnostics import raise_error
from tilec.support.option_fields import Option, deprecation_warning, find_word, parse_value
from tilec.support.options import DECISION_OPTIONS, OPTIONS, CompileOptions

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = CompileOptions()
_COMPLETIONS = {"target": complete_several(lambda: (*resources.target_names(), *_TARGET_WORDS))}
"""Completions of values that no field lists."""


def add_kernel_options(command: Command) -> Command:
    """Add to a click command the options of every command that compiles a kernel, and return it."""
    decorators = [
        *(_make_click_option(field, spec) for field, spec in OPTIONS.items()),
        click.option(
            "--target-file",
            multiple=True,
            metavar="FILE",
            help="Compile for the machine that this file describes (format: targets/README.md); may be given several "
            "times, and with --target.",
        ),
        click.option("--tuned", metavar="FILE", help="Compile with the result of tilec tune, after verifying it."),
        click.option(
            "--warn",
            "-W",
            multiple=True,
            metavar="WORD",
            help="-Wno-CODE silences a warning, -Wno-all every one; -Werror=CODE makes one an error, -Werror all.",
        ),
        click.option(
            "--diagnostics-format",
            type=click.Choice(FORMATS),
            default=FORMATS[0],
            show_default=True,
            is_eager=True,
            expose_value=False,
            callback=set_format,
            help="The format of errors and warnings: text, JSON lines, one SARIF log, or annotations that GitHub "
            "shows at the lines of a change.",
        ),
        click.option("--verbose", "-v", is_flag=True, help="Also print the assembler's report; tracebacks for bugs."),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def _make_click_option(field: str, spec: Option) -> Callable[[Command], Command]:
    """Return the click option of one `CompileOptions` field, named as the field.

    `make_compile_options` converts its value.
    """
    default = getattr(_DEFAULTS, field)
    spelled = f"{spec.switch}/{spec.negated_switch}" if default is True else spec.switch
    more: dict[str, Any] = {}
    if isinstance(default, bool):
        more |= {"is_flag": True, "default": default}
    elif spec.many:
        more |= {"multiple": True}
    else:
        more |= {"type": _get_click_type(spec), "default": _get_shown_default(spec, default)}
    if field in _COMPLETIONS:
        more |= {"shell_complete": _COMPLETIONS[field]}
    return click.option(
        field,
        spelled,
        *spec.short,
        cls=FormerSpellings,
        former=spec.former,
        metavar=spec.metavar,
        help=_format_help(spec),
        show_default=not spec.default_text and more.get("default") not in (None, True, False),
        **more,
    )


def _get_click_type(spec: Option) -> click.ParamType[Any]:
    """Return click's type of an option's value: one of its words, a bounded number, or a text."""
    if spec.is_closed:
        return click.Choice(list(spec.words))
    return click.STRING if spec.bounds is None else click.IntRange(*spec.bounds)


def _get_shown_default(spec: Option, default: object) -> object:
    """Return an option's default as the user would spell it; None where the help text states it."""
    return None if spec.default_text else find_word(spec, default) or default


def _format_help(spec: Option) -> str:
    """Return an option's help text, with what -O3 decides filled in and its default appended."""
    text = spec.help.format(decides="; ".join(of.decides for of in DECISION_OPTIONS.values()))
    return f"{text}  [{spec.default_text}]" if spec.default_text else text


def make_compile_options(given: dict[str, Any], target: str | None = None) -> CompileOptions:
    """Return the `CompileOptions` of the command line for one target; raise a usage error for clashing options.

    The target is `target` or the only one named. Former spellings get a warning. --tuned adds its file's constants,
    options and schedule.
    """
    if target is None:
        target, *others = parse_target_names(given)
        if others:
            fail_usage(f"--target {given['target']}: this command takes one target")
    options.check_documentation_url()
    words = [_parse_warning_word(word) for word in given["warn"]]
    tuned = given["tuned"]
    if given["schedule"] is not None and tuned is not None:
        fail_usage("--schedule and --tuned exclude each other: each gives a schedule")
    compiler_options = CompileOptions(
        **{field: _convert_value(field, spec, given[field]) for field, spec in OPTIONS.items()} | {"target": target},
        cache_dir=options.cache_folder(),
        switches=options.read_switches(),
        silenced=tuple(word.removeprefix("no-") for word in words if word.startswith("no-")),
        errors=tuple(word.removeprefix("error=") for word in words if word.startswith("error=")),
        warnings_are_errors="error" in words,
    )
    _warn_of_former_spellings(compiler_options)
    if tuned is None:
        return compiler_options
    from tilec.tune import tuned as tuned_file

    return tuned_file.apply_tuned(tuned_file.read_tuned(files.read_text(tuned), tuned), compiler_options, tuned)


def _convert_value(field: str, spec: Option, given: Any) -> Any:
    """Return the value of a `CompileOptions` field for what the command line gives, its default for nothing."""
    if spec.many:
        return tuple(parse_value(spec, (), one) for one in given)
    default = getattr(_DEFAULTS, field)
    return default if given is None else parse_value(spec, default, given)


def _warn_of_former_spellings(compiler_options: CompileOptions) -> None:
    """Show a warning, as -W asks, for each former spelling of an option that was given."""
    if not (former := take_former_spellings()):
        return
    from tilec.driver.observer import Observer

    observer = Observer()
    for old, new in former.items():
        observer.warn(deprecation_warning(old, new), compiler_options)
    show_diagnostics(observer.warnings, None)


def _parse_warning_word(word: str) -> str:
    """Return the word behind -W with the present name of its code; raise `unknown-code` for another word."""
    from tilec.driver.explanations import EXPLANATIONS, FORMER_CODES

    if word in ("error", "no-all"):
        return word
    kind = next((kind for kind in ("no-", "error=") if word.startswith(kind)), "")
    code = word.removeprefix(kind)
    now = FORMER_CODES.get(code, code)
    if not kind or now not in EXPLANATIONS:
        advice = "write -Wno-CODE, -Wno-all, -Werror=CODE or -Werror"
        raise_error("unknown-code", f"-W{word} is not a warning option", help=advice)
    if now != code:
        remember_former(f"-W{word}", f"-W{kind}{now}")
    return f"{kind}{now}"


def _list_all_targets() -> tuple[str, ...]:
    """Return the names of all machines that ship, the oldest first."""
    return tuple(sorted(resources.target_names(), key=parse_capability))


def _list_major_targets() -> tuple[str, ...]:
    """Return the oldest machine of each generation, whose code runs on the generation's others.

    That is so unless the code is for one machine alone.
    """
    first = {parse_capability(name)[0]: name for name in reversed(_list_all_targets())}
    return tuple(first[generation] for generation in sorted(first))


def _find_native_target() -> tuple[str, ...]:
    """Return the best target for this machine's GPU, alone in a tuple; raise an error if there is no GPU or target."""
    from tilec.host import runtime

    if not runtime.has_gpu():
        title = "--target native: there is no GPU, or no driver"
        raise_error("no-gpu", title, help="name a machine that tilec targets lists")
    major, minor = runtime.compute_capability()
    known = find_compatible_targets((major, minor), resources.target_names())
    if not known:
        raise_error("unknown-target", f"no target has code for sm_{major}{minor}")
    return (known[0],)


_TARGET_WORDS: dict[str, Callable[[], tuple[str, ...]]] = {
    "all": _list_all_targets,
    "all-major": _list_major_targets,
    "native": _find_native_target,
}
"""Words for several targets, as in nvcc's -arch."""


def parse_target_names(given: dict[str, Any]) -> tuple[str, ...]:
    """Return the targets that --target and --target-file name, each once; raise a usage error for an empty or bad name.

    Machines are not looked up; a bad name is that of a file that does not end in .toml. Words such as `all` are
    expanded.
    """
    names = [name.strip() for name in given["target"].split(",")]
    if "" in names:
        fail_usage(f"--target {given['target'] or repr('')} has an empty name: write --target sm_80,sm_90a")
    names = [name for word in names for name in (_TARGET_WORDS[word]() if word in _TARGET_WORDS else (word,))]
    if own := given["target_file"]:
        for path in own:
            if not resources.is_own_target(path):
                fail_usage(f"--target-file {path}: a target file must end in .toml")
        source = click.get_current_context().get_parameter_source("target")
        names = [*(names if source is not ParameterSource.DEFAULT else []), *own]
    return tuple(dict.fromkeys(names))


def list_input_files(kernels: Sequence[str], given: dict[str, Any]) -> list[str]:
    """Return the files that the options make a command read, and its @FILEs, which no output may replace."""
    named = (given[name] for name in ("schedule", "tuned") if given[name] is not None)
    return [*kernels, *named, *get_response_files()]
