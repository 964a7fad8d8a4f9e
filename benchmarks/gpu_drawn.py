"""Kernels for `gpu_cases.py` that nobody wrote down: those that tests/generate draws by number, with what they mean in
numpy and how far from it each element may lie."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "generate"))

from bounded_time import Hang, bounded_time
from drawing.draw import drawn
from judging import Case, drawn_arguments
from meaning.language import Parameter, meanings
from meaning.numbers import stored, values_of
from meaning.quantity import NoMeaning
from meaning.tiles import Tile

from tilec.driver.build import Build, Observer, build_kernel
from tilec.ir.tile import Var
from tilec.support.diagnostics import CompileError
from tilec.support.source import SourceFile

SECONDS = 30


@dataclass(frozen=True)
class Drawn:
    """`arrays` are `in_NAME` as stored, `out_NAME` as numbers, `allowed_NAME` the largest difference from them. What
    has no `out_NAME` stays as it is."""

    number: int
    built: Build
    scalars: Mapping[str, Any]
    dtypes: Mapping[str, str]
    arrays: Mapping[str, Any]


def kernels(numbers: Iterable[int], targets: Collection[str]) -> Iterator[Drawn]:
    """Those of these numbers that are for one of these targets, are one kernel, mean something and compile."""
    for number in numbers:
        case = Case(drawn(number))
        if case.settings["entry"] or case.options.target not in targets:
            continue
        try:
            with bounded_time(SECONDS):
                found = _made(number, case)
        except (NoMeaning, CompileError, Hang):
            continue
        yield found


def _made(number: int, case: Case) -> Drawn:
    settings = case.settings
    (meaning,) = meanings(case.text, settings["sizes"])
    expected = drawn_arguments(meaning, settings)
    arrays = {
        f"in_{name}": np.ascontiguousarray(stored(tile.v, tile.format))
        for name, tile in expected.items() if isinstance(tile, Tile)
    }  # fmt: skip
    meaning.run(expected)
    built = build_kernel(SourceFile("drawn.tl", case.text), case.options, Observer())
    dtypes = {}
    for name, parameter in meaning.parameters.items():
        if isinstance(parameter, Parameter):
            form, tile = parameter.format, expected[name]
            dtypes[name] = form.name
            after, allowed = np.ascontiguousarray(stored(tile.v, form)), np.asarray(tile.e, dtype=np.float64)
            # What the kernel leaves as it was need not be said twice.
            if after.tobytes() != arrays[f"in_{name}"].tobytes() or allowed.any():
                arrays |= {f"out_{name}": values_of(after, form), f"allowed_{name}": allowed}
    scalars = {p.name: settings["sizes"][p.name] for p in built.kernel.params if isinstance(p, Var)}
    return Drawn(number, built, scalars, dtypes, arrays)
