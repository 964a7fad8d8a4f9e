"""The file that a search ends with: the best variant's constants and options, and the schedule of its loops (JSON).

It holds for one kernel text and one target. `tilec --tuned FILE` compiles with it."""

from __future__ import annotations

import json
from typing import Any

from tilec.support import readers
from tilec.support.diagnostics import fail
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.tune import knobs
from tilec.tune.space import Point, Value


@dataclass(frozen=True, slots=True)
class Tuned:
    """`kernel` is the digest of the text that was tuned (`SourceFile.digest`), `said` what was found of the variant,
    for a reader; `schedule` is a trace."""

    kernel: str
    target: str
    entry: str
    point: Point
    said: str
    schedule: str


def write(tuned: Tuned) -> str:
    constants = {name: value for name, value in tuned.point if not name.startswith(knobs.DASHES)}
    options = {n.removeprefix(knobs.DASHES): value for n, value in tuned.point if n.startswith(knobs.DASHES)}
    record = {
        "tuned": tuned.said,
        "kernel": tuned.kernel,
        "target": tuned.target,
        "entry": tuned.entry,
        "constants": constants,
        "options": options,
        "schedule": json.loads(tuned.schedule),
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def read(text: str, path: str) -> Tuned:
    try:
        record = readers.json_value(text)
        constants = record["constants"]
        options = {knobs.current(name): value for name, value in record["options"].items()}
        point = (*constants.items(), *((f"{knobs.DASHES}{name}", value) for name, value in options.items()))
        for name, value in options.items():
            knobs.check(name, [value], path)
        words = [str(record[name]) for name in ("kernel", "target", "entry", "tuned")]
        schedule = json.dumps(record["schedule"], ensure_ascii=False)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error).lower()
        fail("bad-tuned-file", f"{path} is not what tilec tune writes: {what}", help="write it again with tilec tune")
    kernel, target, entry, said = words
    return Tuned(kernel, target, entry, _checked(point, path), said, schedule)


def _checked(point: tuple[tuple[str, Any], ...], path: str) -> Point:
    found: list[tuple[str, Value]] = []
    for name, value in point:
        if not isinstance(value, int | float | bool | str):
            fail("bad-tuned-file", f"{path} gives {name} no value that -D takes", help="write it again with tilec tune")
        found.append((name, value))
    return tuple(found)


def applied(tuned: Tuned, base: CompileOptions, path: str) -> CompileOptions:
    """What to compile with: `-D` of the command line counts before the file's constants, the file's options before
    those of the command line."""
    from dataclasses import replace

    if base.target != tuned.target:
        fail(
            "tuned-for-another",
            f"{path} was tuned for {tuned.target}, not for {base.target}",
            help=f"compile with --target {tuned.target}, or tune for {base.target}",
        )
    chosen = knobs.applied(tuned.point, replace(base, defines=()))
    return replace(
        chosen,
        defines=(*chosen.defines, *base.defines),
        entry=base.entry or tuned.entry,
        schedule=tuned.schedule,
        tuned_for=tuned.kernel,
    )
