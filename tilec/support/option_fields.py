"""The metadata of a field of `CompileOptions`: its spelling for people, and its values.

The click option with its line of `--help`, the tuner's knob, the checks of values given from Python, the "options" of a
trace and docs/options.md are all made from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tilec.support.diagnostics import Diagnostic, raise_error
from tilec.support.records import dataclass

AUTO = "auto"
"""The word for None: the kernel or the compiler decides."""

_META = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """The spelling and the values of a field of `CompileOptions`.

    switch    the long spelling on the command line; a switch that is on by default has --no-… beside it
    help      its line in `--help`; {decides} stands for what the compiler decides from -O3 on
    default_text  what `--help` says of the default, where the value alone does not
    short     other spellings that are as good
    former    older spellings, and what is written now instead: hidden, taken with a warning that names the new one
    words     the words that it takes, with the values they stand for
    bounds    it takes numbers: the least, and the most or None
    read      makes a value of any other text; raises `CompileError`
    many      may be given several times
    metavar   what stands for the value in `--help`
    tuned     a search may turn it, over `words`, the numbers within `bounds`, on and off, or what a space names
    decides   what the compiler decides by it from -O3 on; below, it is as if `undecided` were asked for
    undecided the value by which nothing is decided
    is_code   code depends on it, so a trace says where it differs from the default
    """

    switch: str
    help: str
    default_text: str = ""
    short: tuple[str, ...] = ()
    former: Mapping[str, str] = MappingProxyType({})
    words: Mapping[str, Any] = MappingProxyType({})
    bounds: tuple[int, int | None] | None = None
    read: Callable[[str], Any] | None = None
    many: bool = False
    metavar: str | None = None
    tuned: bool = False
    decides: str = ""
    undecided: Any = None
    is_code: bool = True

    @property
    def negated_switch(self) -> str:
        """Return the switch that turns the option off: --no- and its name."""
        return f"--no-{self.switch.removeprefix('--')}"

    @property
    def is_closed(self) -> bool:
        """Return whether the option takes its listed words only."""
        return bool(self.words) and self.bounds is None and self.read is None

    @property
    def name(self) -> str:
        """Return the switch without its dashes, as in a space of variants, a trace, or a file of `tilec tune`."""
        return self.switch.removeprefix("--")


def option_field(default: Any, switch: str, help: str, **more: Any) -> Any:
    """Return a dataclass field of `CompileOptions` with a default and an `Option` as metadata."""
    return dataclasses.field(default=default, metadata={_META: Option(switch, help, **more)})


def build_word_choices(*words: str) -> dict[str, str]:
    """Return a mapping of each word to itself, for options whose words are their values."""
    return {word: word for word in words}


def collect_options(record: type[Any]) -> dict[str, Option]:
    """Return a class's `Option` metadata by field name, in the order of the fields."""
    return {f.name: f.metadata[_META] for f in dataclasses.fields(record) if _META in f.metadata}


def parse_value(option: Option, default: object, given: object) -> Any:
    """Return the field's value for a user's word, number or boolean; raise an error for one it does not take.

    It raises `CompileError`, or `ValueError` with a message that continues the option's name ("must be one of …").
    """
    if isinstance(default, bool):
        if not isinstance(given, bool):
            raise ValueError("must be true or false")
        return given
    if str(given) in option.words:
        return option.words[str(given)]
    if option.is_closed:
        raise ValueError(f"must be one of {', '.join(option.words)}")
    if option.bounds is not None:
        return _check_number(option, given)
    return given if option.read is None else option.read(str(given))


def _check_number(option: Option, given: object) -> int:
    """Return a whole number if it is within the option's bounds; raise ValueError for anything else."""
    assert option.bounds is not None
    least, most = option.bounds
    if isinstance(given, bool) or not isinstance(given, int) or given < least or (most is not None and given > most):
        within = f"from {least} on" if most is None else f"from {least} to {most}"
        raise ValueError(f"must be {''.join(f'{word}, or ' for word in option.words)}a number {within}")
    return given


def check_value(name: str, option: Option, default: object, value: object) -> None:
    """Raise ValueError if a field's value from Python is not one of its few values or out of its bounds."""
    values = (False, True) if isinstance(default, bool) else tuple(option.words.values())
    if (isinstance(default, bool) or option.is_closed) and value not in values:
        raise ValueError(f"{name} is {' or '.join(map(repr, values))}, not {value!r}")
    if option.bounds is not None and value is not None:
        try:
            _check_number(option, value)
        except ValueError as reason:
            raise ValueError(f"{name} {reason}, not {value!r}") from None


def deprecation_warning(old: str, new: str) -> Diagnostic:
    """Return the warning that `old` is an older spelling of `new`."""
    return Diagnostic("deprecated-spelling", f"{old} is an older spelling", help=f"write {new}", severity="warning")


def format_value(value: object) -> str:
    """Return an option's value as traces write it: in lower case, tuples joined by x."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def spell_undecided(option: Option) -> str:
    """Return the spelling on the command line by which the compiler decides nothing for an option."""
    if option.undecided is False:
        return option.negated_switch
    return f"{option.switch} {find_word(option, option.undecided)}"


def find_word(option: Option, value: object) -> str | None:
    """Return the word that stands for an option's value; None if it has none."""
    return next((word for word, of in option.words.items() if of == value), None)


# ---- parsers of values -----------------------------------------------------------------------------------------------


def parse_cluster(text: str) -> tuple[int, int, int]:
    """Return the extents written as `XxY`, `XxYxZ` or with commas, 1 where missing; raise `bad-cluster` if wrong."""
    parts = text.lower().replace(",", "x").split("x")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise_error("bad-cluster", f"--cluster {text} is not XxY", help="write --cluster 2x1")
    x, y, z = (*map(int, parts), 1, 1)[:3]
    return x, y, z


def parse_rasterisation(text: str) -> int:
    """Return the rows of a panel that --rasterisation gives; raise `bad-rasterisation` for any other text."""
    if not (text.isdecimal() and int(text)):
        advice = "write auto, none, or the rows of a panel, as in --rasterisation 8"
        raise_error("bad-rasterisation", f"--rasterisation {text} is not a panel height", help=advice)
    return int(text)


def parse_subtile(text: str) -> int:
    """Return the number of parts that --subtile gives; raise `bad-subtile` for any other text."""
    if not (text.isdecimal() and int(text)):
        advice = "write auto, none, or --subtile 2"
        raise_error("bad-subtile", f"--subtile {text} is not a number of parts", help=advice)
    return int(text)
