"""The options of every command that compiles a kernel, made from the fields of `CompileOptions`, and what their values
ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tilec.cli.arguments import response_files
from tilec.cli.console import set_format, show, usage
from tilec.cli.diagnostics import FORMATS
from tilec.cli.former import FormerSpellings, former_spellings, remember_former
from tilec.cli.words import several_of
from tilec.support import files, options, resources
from tilec.support.diagnostics import raise_error
from tilec.support.option_fields import Option, deprecation_warning, find_word, parse_value
from tilec.support.options import DECISION_OPTIONS, OPTIONS, CompileOptions

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = CompileOptions()
_COMPLETED = {"target": several_of(lambda: (*resources.target_names(), *_TARGET_WORDS))}
"""What a shell proposes for values that no field lists."""


def kernel_options(command: Command) -> Command:
    """The options of every command that compiles a kernel."""
    decorators = [
        *(_click_option(field, stated) for field, stated in OPTIONS.items()),
        click.option(
            "--target-file",
            multiple=True,
            metavar="FILE",
            help="Compile for the machine that this file describes, as targets/README.md says; may be given several "
            "times, and beside --target.",
        ),
        click.option("--tuned", metavar="FILE", help="Compile with what tilec tune found, after verifying it."),
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
            help="How errors and warnings are written: for people, as JSON lines, as one SARIF log, or for GitHub to "
            "show beside the lines of a change.",
        ),
        click.option("--verbose", "-v", is_flag=True, help="Also say what the assembler reports; tracebacks for bugs."),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def _click_option(field: str, stated: Option) -> Callable[[Command], Command]:
    """One option, under the name of its field; what it is given is read by `compile_options`."""
    default = getattr(_DEFAULTS, field)
    spelled = f"{stated.switch}/{stated.negated_switch}" if default is True else stated.switch
    more: dict[str, Any] = {}
    if isinstance(default, bool):
        more |= {"is_flag": True, "default": default}
    elif stated.many:
        more |= {"multiple": True}
    else:
        more |= {"type": _type(stated), "default": _default(stated, default)}
    if field in _COMPLETED:
        more |= {"shell_complete": _COMPLETED[field]}
    return click.option(
        field,
        spelled,
        *stated.short,
        cls=FormerSpellings,
        former=stated.former,
        metavar=stated.metavar,
        help=_help(stated),
        show_default=not stated.default_text and more.get("default") not in (None, True, False),
        **more,
    )


def _type(stated: Option) -> click.ParamType[Any]:
    if stated.is_closed:
        return click.Choice(list(stated.words))
    return click.STRING if stated.bounds is None else click.IntRange(*stated.bounds)


def _default(stated: Option, default: object) -> object:
    """As a person would give it: None where `default` says it in words."""
    return None if stated.default_text else find_word(stated, default) or default


def _help(stated: Option) -> str:
    text = stated.help.format(decides="; ".join(of.decides for of in DECISION_OPTIONS.values()))
    return f"{text}  [{stated.default_text}]" if stated.default_text else text


def compile_options(given: dict[str, Any], target: str | None = None) -> CompileOptions:
    """The values of `kernel_options` as one value: of this target, or of the only one that they name."""
    if target is None:
        target, *others = target_names(given)
        if others:
            usage(f"--target {given['target']}: this is about one machine at a time, so name one")
    options.check_documentation_url()
    words = [_warning_word(word) for word in given["warn"]]
    tuned = given["tuned"]
    if given["schedule"] is not None and tuned is not None:
        usage("--schedule and --tuned exclude each other: both have a schedule")
    asked = CompileOptions(
        **{field: _value(field, stated, given[field]) for field, stated in OPTIONS.items()} | {"target": target},
        cache_dir=options.cache_folder(),
        switches=options.read_switches(),
        silenced=tuple(word.removeprefix("no-") for word in words if word.startswith("no-")),
        errors=tuple(word.removeprefix("error=") for word in words if word.startswith("error=")),
        warnings_are_errors="error" in words,
    )
    _warn_of_former(asked)
    if tuned is None:
        return asked
    from tilec.tune import tuned as tuned_file

    return tuned_file.apply_tuned(tuned_file.read_tuned(files.read_text(tuned), tuned), asked, tuned)


def _value(field: str, stated: Option, given: Any) -> Any:
    if stated.many:
        return tuple(parse_value(stated, (), one) for one in given)
    default = getattr(_DEFAULTS, field)
    return default if given is None else parse_value(stated, default, given)


def _warn_of_former(asked: CompileOptions) -> None:
    """Say what is written now in place of old spellings."""
    if not (former := former_spellings()):
        return
    from tilec.driver.observer import Observer

    observer = Observer()
    for old, new in former.items():
        observer.warn(deprecation_warning(old, new), asked)
    show(observer.warnings, None)


def _warning_word(word: str) -> str:
    """What stands behind -W, with the code that it names as it is called now."""
    from tilec.driver.explanations import EXPLANATIONS, FORMER_CODES

    if word in ("error", "no-all"):
        return word
    kind = next((kind for kind in ("no-", "error=") if word.startswith(kind)), "")
    code = word.removeprefix(kind)
    now = FORMER_CODES.get(code, code)
    if not kind or now not in EXPLANATIONS:
        raise_error(
            "unknown-code",
            f"-W{word} is no warning option",
            help="write -Wno-CODE, -Wno-all, -Werror=CODE or -Werror",
        )
    if now != code:
        remember_former(f"-W{word}", f"-W{kind}{now}")
    return f"{kind}{now}"


def _all() -> tuple[str, ...]:
    """Every machine that ships, the oldest first."""
    from tilec.host.machines import parse_capability

    return tuple(sorted(resources.target_names(), key=parse_capability))


def _all_major() -> tuple[str, ...]:
    """The oldest machine of each generation: what is not made for one alone runs on the others too."""
    from tilec.host.machines import parse_capability

    first = {parse_capability(name)[0]: name for name in reversed(_all())}
    return tuple(first[generation] for generation in sorted(first))


def _native() -> tuple[str, ...]:
    """What runs best on the GPU of this machine."""
    from tilec.host import runtime
    from tilec.host.machines import find_compatible_targets

    if not runtime.has_gpu():
        raise_error(
            "no-gpu", "--target native: there is no GPU, or no driver", help="name a machine that tilec targets lists"
        )
    major, minor = runtime.compute_capability()
    known = find_compatible_targets((major, minor), resources.target_names())
    if not known:
        raise_error("unknown-target", f"no target makes code that runs on sm_{major}{minor}")
    return (known[0],)


_TARGET_WORDS: dict[str, Callable[[], tuple[str, ...]]] = {
    "all": _all,
    "all-major": _all_major,
    "native": _native,
}
"""Words that stand for targets, as in nvcc's -arch."""


def target_names(given: dict[str, Any]) -> tuple[str, ...]:
    """The targets that the values of `kernel_options` name, each once, where a command takes several."""
    names = [name.strip() for name in given["target"].split(",")]
    if "" in names:
        usage(f"--target {given['target'] or repr('')} has an empty name: write --target sm_80,sm_90a")
    names = [name for word in names for name in (_TARGET_WORDS[word]() if word in _TARGET_WORDS else (word,))]
    if own := given["target_file"]:
        for path in own:
            if not resources.is_own_target(path):
                usage(f"--target-file {path}: the name of a target file ends in .toml")
        source = click.get_current_context().get_parameter_source("target")
        names = [*(names if source is not ParameterSource.DEFAULT else []), *own]
    return tuple(dict.fromkeys(names))


def input_files(kernels: Sequence[str], given: dict[str, Any]) -> list[str]:
    """The files that the values of `kernel_options` make a command read, and those that these come from: none of them
    may be an output."""
    named = (given[name] for name in ("schedule", "tuned") if given[name] is not None)
    return [*kernels, *named, *response_files()]
