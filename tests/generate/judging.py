"""What becomes of a drawn kernel: refused with a diagnostic, or built, run without a fault, and equal to numpy's."""

from __future__ import annotations

import json
import os
import re
import traceback
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from bounded_time import Hang, bounded_time
from meaning.language import Meaning, Parameter, meanings
from meaning.numbers import Array, Format, rounded, stored, values_of, wrapped
from meaning.quantity import NoMeaning
from meaning.tiles import Tile

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.explanations import EXPLANATIONS
from tilec.emu import Fault
from tilec.ir.tile import Var
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions, EnvironmentSwitches
from tilec.support.source import SourceFile

Kind = Literal[
    "agrees", "refused", "meaningless", "crash", "fault", "differs", "reference differs", "hang", "generator"
]
FINE: tuple[Kind, ...] = ("agrees", "refused", "meaningless")
HERE = Path(__file__).parent
SECONDS = 60
"""Of the processor's, after which a kernel hangs: others may keep it busy."""


@dataclass(frozen=True)
class Verdict:
    """`where` is what findings of one kind have in common; `told` is for the person who looks at one. `vague` is the
    share of what was compared that may be anything."""

    kind: Kind
    where: str = ""
    told: str = ""
    vague: float = 0.0

    @property
    def is_fine(self) -> bool:
        return self.kind in FINE

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.where}"


@dataclass(frozen=True)
class Case:
    """A kernel's text, whose first line says how it is compiled and run."""

    text: str

    @property
    def settings(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.text.split("\n", 1)[0].removeprefix("#"))
        return told

    @property
    def options(self) -> CompileOptions:
        given = {name: tuple(v) if isinstance(v, list) else v for name, v in self.settings["options"].items()}
        if "switches" in given:
            given["switches"] = EnvironmentSwitches(**given["switches"])
        return CompileOptions(lint="off", **given)


def judged(case: Case) -> Verdict:
    """Never raises, but for what ends the process."""
    try:
        with bounded_time(SECONDS):
            return _judged(case)
    except Hang as error:
        return Verdict("hang", _place(error), str(error))


def _judged(case: Case) -> Verdict:
    settings, source = case.settings, SourceFile("drawn.tl", case.text)
    built: list[tuple[Build, dict[str, Tile], dict[str, Tile], Meaning]] = []
    for meaning in meanings(case.text, settings["sizes"]):
        expected = drawn_arguments(meaning, settings)
        given = {name: _copied(x) if isinstance(x, Tile) else x for name, x in expected.items()}
        try:
            meaning.run(expected)
        except NoMeaning as error:
            return Verdict("meaningless", str(error))
        except Exception as error:  # a mistake in the files here
            return Verdict("generator", _place(error), "".join(traceback.format_exception(error)[-6:]))
        options = case.options
        if settings["entry"]:
            options = CompileOptions(**{n: getattr(options, n) for n in CompileOptions.__match_args__} | {
                "entry": meaning.name
            })  # fmt: skip
        try:
            made = build_kernel(source, options, Observer())
        except CompileError as error:
            return _refused(error)
        except Exception as error:
            return Verdict("crash", _place(error), "".join(traceback.format_exception(error)[-6:]))
        built.append((made, given, expected, meaning))
    vague = 0.0
    for made, given, expected, meaning in built:
        arguments = _arguments(made, given, settings)
        by_reference = arguments.copy()
        try:
            emulate.emulate_build(made, arguments)
        except Fault as fault:
            return Verdict("fault", fault.kind, str(fault))
        except Exception as error:
            return Verdict("crash", _place(error), "".join(traceback.format_exception(error)[-6:]))
        verdict = _compared(meaning, arguments.tensors, expected, "differs")
        if not verdict.is_fine:
            return verdict
        vague = max(vague, verdict.vague)
        try:
            emulate.run_reference(made.kernel, by_reference)
        except Exception as error:
            return Verdict("crash", f"reference: {_place(error)}", "".join(traceback.format_exception(error)[-6:]))
        verdict = _compared(meaning, by_reference.tensors, expected, "reference differs")
        if not verdict.is_fine:
            return verdict
    return Verdict("agrees", vague=vague)


def _refused(error: CompileError) -> Verdict:
    if not error.diagnostics or any(d.code not in EXPLANATIONS for d in error.diagnostics):
        return Verdict("crash", "a refusal without a word", str(error))
    return Verdict("refused", error.diagnostics[0].code, str(error))


# ---- arguments -------------------------------------------------------------------------------------------------------


def drawn_arguments(meaning: Meaning, settings: dict[str, Any]) -> dict[str, Any]:
    """A tile for each tensor, which holds the same numbers for the same name and seed, and a number for each scalar."""
    arguments: dict[str, Any] = {}
    for name, parameter in meaning.parameters.items():
        seed = [settings["seed"], zlib.crc32(name.encode())]
        generator = np.random.default_rng(seed)
        if isinstance(parameter, Parameter):
            tile = Tile(parameter.shape, parameter.format, True, lambda: None)
            tile.v[...] = drawn_values(parameter.format, parameter.shape, generator)
            tile.written[...] = True
            arguments[name] = tile
        else:
            arguments[name] = parameter(settings["sizes"][name])
    return arguments


def drawn_values(form: Format, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Most often small numbers, whose sums are exact; else what the type has."""
    style = generator.integers(0, 8)
    if form.is_float:
        if form.name == "float8_e8m0fnu":
            return np.exp2(generator.integers(-3, 4, shape).astype(np.float64))
        drawn = generator.integers(-3, 4, shape) * (0.5 if style in (4, 5) else 1.0)
        return rounded(generator.standard_normal(shape) if style > 5 else drawn, form)
    low, high = (0, 2) if form.kind == "bool" else (-4, 5) if form.kind == "int" else (0, 9)
    if style > 5 and form.kind != "bool":
        low, high = max(form.range[0], -(1 << 62)), min(form.range[1], 1 << 62)
    return wrapped(generator.integers(low, high, shape), form)


def _copied(tile: Tile) -> Tile:
    made = Tile(tile.shape, tile.format, True, lambda: None)
    made.v[...] = tile.v
    return made


def _arguments(made: Build, given: dict[str, Any], settings: dict[str, Any]) -> emulate.KernelArguments:
    tensors = {n: np.ascontiguousarray(stored(t.v, t.format)) for n, t in given.items() if isinstance(t, Tile)}
    names = [p.name for p in made.kernel.params if isinstance(p, Var)]
    return emulate.KernelArguments(tensors, {name: settings["sizes"][name] for name in names})


def _compared(meaning: Meaning, found: dict[str, Array], expected: dict[str, Any], kind: Kind) -> Verdict:
    vague, count = 0, 0
    for name, parameter in meaning.parameters.items():
        if not isinstance(parameter, Parameter):
            continue
        form, tile = parameter.format, expected[name]
        right = values_of(stored(tile.v, form), form)
        left = values_of(found[name], form).reshape(right.shape)
        with np.errstate(all="ignore"):
            if form.is_float:
                apart = np.abs(left - right)
            elif form.kind == "bool":
                apart = (left != right).astype(np.float64)
            else:
                apart = np.where(left > right, left - right, right - left).astype(np.float64)
        is_same = (left == right) | ((left != left) & (right != right))
        apart = np.where(is_same, 0.0, np.where(np.isnan(apart), np.inf, apart))
        vague, count = vague + int(np.isinf(tile.e).sum()), count + tile.e.size
        wrong = (apart > tile.e * 1.001) & ~np.isinf(tile.e)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            told = f"{name}{list(at)} is {left[at]}, not {right[at]} ± {tile.e[at]:.3g}; {int(wrong.sum())} are wrong"
            return Verdict(kind, form.name, told)
    return Verdict("agrees", vague=vague / max(count, 1))


# ---- findings --------------------------------------------------------------------------------------------------------


def _place(error: BaseException) -> str:
    """The kind of an exception, the line of tilec that it came from, and what is said there but for names."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if f"{os.sep}tilec{os.sep}" in f.filename]
    inside = inside or [f for f in frames if str(HERE) in f.filename] or frames
    first = str(error).split("\n")[0]
    if refused := re.search(r"error *: *(.*)", str(error)):  # of the assembler, which comes after its place
        first += f": {refused[1]}"
    said = " ".join(re.findall(r"[A-Za-z_.:']{2,}", first))[:100]
    return f"{type(error).__name__} at {Path(inside[-1].filename).name}:{inside[-1].lineno} {said}"
