"""The result file of a search: the best variant's constants and options, and the schedule of its loops (JSON).

It holds for one kernel text and one target. `tilec --tuned FILE` compiles with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilec.support import readers, schema
from tilec.support.diagnostics import raise_error
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.tune import knobs
from tilec.tune.space import Point, Value


@dataclass(frozen=True, slots=True)
class TunedVariant:
    """The content of a tuned file. `kernel` is the digest of the tuned text (`SourceFile.digest`), `said` a summary of
    the variant for readers, `schedule` a trace."""

    kernel: str
    target: str
    entry: str
    point: Point
    said: str
    schedule: str


@dataclass(frozen=True, slots=True)
class _File:
    tuned: str
    kernel: str
    target: str
    entry: str
    constants: Mapping[str, Value]
    options: Mapping[str, Value]
    schedule: Mapping[str, Any]


def write_tuned(tuned: TunedVariant) -> str:
    """Return a tuned variant as the JSON text of its file."""
    constants = {name: value for name, value in tuned.point if not name.startswith(knobs.OPTION_PREFIX)}
    prefix = knobs.OPTION_PREFIX
    options = {name.removeprefix(prefix): value for name, value in tuned.point if name.startswith(prefix)}
    schedule = json.loads(tuned.schedule)
    record = _File(tuned.said, tuned.kernel, tuned.target, tuned.entry, constants, options, schedule)
    return json.dumps(schema.to_plain(record), indent=1, ensure_ascii=False) + "\n"


def read_tuned(text: str, path: str) -> TunedVariant:
    """Return the variant in a tuned file's text; raise `bad-tuned-file` for other text, `bad-space` for its options."""
    try:
        found = schema.read_record(_File, readers.parse_json(text), "")
    except ValueError as error:
        title = f"{path} is not a file of tilec tune: {error}"
        raise_error("bad-tuned-file", title, help="write it again with tilec tune")
    chosen = {knobs.find_current_name(name): value for name, value in found.options.items()}
    for name, value in chosen.items():
        knobs.check_knob(name, [value], path)
    options = ((f"{knobs.OPTION_PREFIX}{name}", value) for name, value in chosen.items())
    schedule = json.dumps(found.schedule, ensure_ascii=False)
    point = (*found.constants.items(), *options)
    return TunedVariant(found.kernel, found.target, found.entry, point, found.tuned, schedule)


def apply_tuned(tuned: TunedVariant, base: CompileOptions, path: str) -> CompileOptions:
    """Return `base` with a tuned file's constants, options, schedule; raise `tuned-for-another` for another target.

    `-D` of the command line overrides the file's constants, the file's options override those of the command line.
    """
    if base.target != tuned.target:
        advice = f"compile with --target {tuned.target}, or tune for {base.target}"
        raise_error("tuned-for-another", f"{path} was tuned for {tuned.target}, not for {base.target}", help=advice)
    chosen = knobs.apply_point(tuned.point, replace(base, defines=()))
    defines, entry = (*chosen.defines, *base.defines), base.entry or tuned.entry
    return replace(chosen, defines=defines, entry=entry, schedule=tuned.schedule, tuned_for=tuned.kernel)
