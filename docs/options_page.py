"""docs/options.md: every option of a compilation, from the fields of `CompileOptions`."""

from __future__ import annotations

from tilec.support.option_fields import Option, find_word, format_value, spell_undecided
from tilec.support.options import DECIDING_LEVEL, DECISION_OPTIONS, OPTIONS, CompileOptions

INTRODUCTION = """# Options

*Made by `python docs/generate.py` from the fields of `CompileOptions` in `tilec/support/options.py`; edit them there,
not here.*

What a compilation can be asked to do, on the command line of every command that compiles a kernel, and from Python as
`switches={"field": value}` of `tilec.compile`. What a search may turn is an option of a space
([tuning.md](tuning.md)) under its name without dashes. A command's own options are in its `--help`.

"""


def options() -> str:
    return INTRODUCTION + "\n".join(_entry(field, stated) for field, stated in OPTIONS.items())


def _entry(field: str, stated: Option) -> str:
    default = getattr(CompileOptions(), field)
    lines = [f"## {stated.switch}", "", _spelled(stated, default), ""]
    lines += [stated.help.format(decides="; ".join(of.decides for of in DECISION_OPTIONS.values())), ""]
    lines += ["| | |", "| --- | --- |", f"| field | `{field}` |", f"| default | {_default(stated, default)} |"]
    if stated.decides:
        lines.append(f"| from -O{DECIDING_LEVEL} on | {stated.decides}; not with `{spell_undecided(stated)}` |")
    if stated.tuned:
        lines.append(f"| a search may turn it | {_tuned(stated, default)} |")
    if stated.former:
        lines.append(f"| once spelled | {', '.join(f'`{old}`' for old in stated.former)} |")
    return "\n".join(lines) + "\n"


def _spelled(stated: Option, default: object) -> str:
    if isinstance(default, bool):
        return f"`{stated.switch}`" + (f", `{stated.negated_switch}`" if default else "")
    value = f"[{'|'.join(stated.words)}]" if stated.is_closed else (stated.metavar or "N")
    return ", ".join(f"`{one} {value}`" for one in (stated.switch, *stated.short))


def _default(stated: Option, default: object) -> str:
    if stated.default_text:
        return stated.default_text
    if isinstance(default, bool):
        return "yes" if default else "no"
    return (
        "none"
        if default in (None, ()) and find_word(stated, default) is None
        else find_word(stated, default) or format_value(default)
    )


def _tuned(stated: Option, default: object) -> str:
    words = ["true", "false"] if isinstance(default, bool) else list(stated.words)
    if stated.bounds is not None:
        least, most = stated.bounds
        words.append(f"{least} to {most}")
    elif not stated.is_closed and not isinstance(default, bool):
        words.append(f"any {stated.metavar}")
    return ", ".join(words)
