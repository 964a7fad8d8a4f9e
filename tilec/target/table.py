"""Turns a target file (TOML: machine numbers with their sources) into a `Target`, which prices instruction kinds.

Every number of a price may be a closed form over the parameters of its kind, written as a string:
"count * max(n / 2, 13)". targets/README.md explains the columns.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Literal, NoReturn, get_args

from tilec.sched.problem import Pool, Slot
from tilec.support import files, readers, resources
from tilec.support.diagnostics import InternalError, fail
from tilec.support.options import CALIBRATIONS
from tilec.support.records import dataclass

SourceKind = Literal["vendor", "measured", "derived", "guess"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a number comes from, so that a reader knows how far to trust it."""

    kind: SourceKind
    where: str


@dataclass(frozen=True, slots=True)
class Limit:
    """A named whole number with its source: a hard limit of the machine (bytes, registers, threads …), or cycles that a
    calibration shares between its instruction kinds."""

    name: str
    value: int
    source: Source


@dataclass(frozen=True, slots=True)
class Timing:
    """What one statement costs, in cycles. `uses` are (slot, cycles, offset from the start)."""

    uses: tuple[tuple[str, int, int], ...]
    issue: int
    latency: int


@dataclass(frozen=True, slots=True)
class Weights:
    """What one unit of each cost of a layout counts in its score."""

    smem_transactions: float
    tmem_cycles: float
    live_registers: float


@dataclass(frozen=True, slots=True)
class Kind:
    """A priced instruction kind. The numbers are closed forms over `parameters` and the families of the calibration;
    `issue` and `latency` may also say `occupancy`, the cycle in which the last of the uses ends."""

    name: str
    parameters: tuple[str, ...]
    families: tuple[Limit, ...]
    uses: tuple[tuple[str, str, str], ...]
    issue: str
    latency: str
    source: Source


@dataclass(frozen=True, slots=True)
class Target:
    """One machine under one calibration. Ask for features, limits and prices; never compare names or architecture
    numbers. `families` are cycles that many kinds share, by name; `ceilings` are the most cycles that a chain of
    dependences may take, by name."""

    name: str
    ptx_target: str
    ptx_version: str
    features: tuple[str, ...]
    limits: tuple[Limit, ...]
    slots: tuple[Slot, ...]
    pools: tuple[Pool, ...]
    kinds: tuple[Kind, ...]
    calibration: str
    families: tuple[Limit, ...]
    ceilings: tuple[Limit, ...]
    weights: Weights

    def has(self, feature: str) -> bool:
        return feature in self.features

    def without(self, feature: str) -> Target:
        """The same machine, of which the feature is not used."""
        return replace(self, features=tuple(f for f in self.features if f != feature))

    def limit(self, name: str) -> int:
        found = next((limit for limit in self.limits if limit.name == name), None)
        if found is None:
            raise InternalError(f"target {self.name} has no limit '{name}'")
        return found.value

    def slot(self, name: str) -> Slot:
        found = next((slot for slot in self.slots if slot.name == name), None)
        if found is None:
            raise InternalError(f"target {self.name} has no slot '{name}'")
        return found

    def pool(self, name: str) -> Pool:
        found = next((pool for pool in self.pools if pool.name == name), None)
        if found is None:
            raise InternalError(f"target {self.name} has no pool '{name}'")
        return found

    def prices(self, kind: str) -> bool:
        return any(known.name == kind for known in self.kinds)

    def price(self, kind: str, **parameters: int) -> Timing:
        """The cycles of one statement of this kind, issued by a whole CTA. Fractions of a cycle are rounded up."""
        found = next((known for known in self.kinds if known.name == kind), None)
        if found is None:
            raise InternalError(f"target {self.name} does not price '{kind}'")
        if set(parameters) != set(found.parameters):
            wanted, given = ", ".join(found.parameters), ", ".join(parameters)
            raise InternalError(f"'{kind}' on {self.name} is priced by ({wanted}), not by ({given})")
        return _price(found, tuple(parameters[name] for name in found.parameters))


@lru_cache(maxsize=4096)
def _price(kind: Kind, arguments: tuple[int, ...]) -> Timing:
    values: dict[str, float] = {family.name: family.value for family in kind.families}
    values |= zip(kind.parameters, arguments, strict=True)
    uses = tuple(
        (slot, whole_cycles(evaluate(cycles, values)), whole_cycles(evaluate(offset, values)))
        for slot, cycles, offset in kind.uses
    )
    values["occupancy"] = max((offset + cycles for _, cycles, offset in uses), default=0)
    return Timing(uses, whole_cycles(evaluate(kind.issue, values)), whole_cycles(evaluate(kind.latency, values)))


# --- closed forms ---


class FormulaError(ValueError):
    """A string that is no closed form, or names something it must not."""


_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"max": max, "min": min, "ceil": math.ceil}


@lru_cache(maxsize=1024)
def _parse(formula: str) -> ast.expr:
    try:
        return readers.python_expression(formula)
    except ValueError as error:
        raise FormulaError(f"'{formula}' is not a formula: {error}") from error


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of a closed form: numbers, names, + - * / ( ), max, min, ceil. Nothing else is evaluated, so that a
    target file stays data."""
    return _evaluate(_parse(formula), values)


def _evaluate(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            if name not in values:
                raise FormulaError(f"unknown name '{name}', expected one of: {', '.join(values)}")
            return values[name]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _BINARY[type(sign)](_evaluate(left, values), _evaluate(right, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, values)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS and arguments:
            numbers = [_evaluate(argument, values) for argument in arguments]
            # max and min of a single number would look for a sequence.
            return numbers[0] if len(numbers) == 1 and name != "ceil" else _FUNCTIONS[name](*numbers)
    raise FormulaError(f"'{ast.unparse(node)}' is not allowed in a formula")


def whole_cycles(value: float) -> int:
    # The last bits of a product of decimals must not cost a cycle: 0.1 * 30 is 3.0000000000000004.
    return math.ceil(value - 1e-9)


# --- loading ---

_HEAVIEST = 1_000_000
"""Of the weights in a layout's cost."""


@cache
def load(name: str, calibration: str = CALIBRATIONS[0]) -> Target:
    """The target of this name with the cycles of a calibration, or a `CompileError` that suggests the nearest one."""
    known = resources.target_names()
    if name not in known:
        # Both imports only serve the message; start-up does not pay for them.
        import difflib

        near = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
        there_are = ", ".join(known)
        fail("unknown-target", f"unknown target '{name}'", notes=(f"known targets: {there_are}",),
             help=f"did you mean '{near[0]}'?" if near else None)  # fmt: skip
    files.note(str(resources.target_file(name)))
    return parse(resources.target_text(name), f"{name}.toml", calibration)


def parse(text: str, file: str, calibration: str = CALIBRATIONS[0]) -> Target:
    """Reads the text of a target file; `file` names it in messages. A fault in it, in whichever calibration, is a
    `CompileError`, because a target file is written by people."""
    try:
        table = readers.toml_table(text)
    except ValueError as error:
        fail("bad-target-file", f"{file} is not TOML: {error}")
    return _Reader(file, calibration).target(table)


class _Reader:
    """Checks as it reads; every message names the file and the place in it."""

    def __init__(self, file: str, calibration: str) -> None:
        self.file = file
        self.calibration = calibration

    def wrong(self, place: str, what: str) -> NoReturn:
        fail("bad-target-file", f"{self.file}: {place}: {what}" if place else f"{self.file}: {what}")

    def target(self, table: object) -> Target:
        required = ("name", "ptx", "features", "limits", "slots", "pools", "calibrations", "layout", "timing")
        top = self.table(table, "", required=required)
        ptx = self.table(top["ptx"], "ptx", required=("target", "version"))
        limits = tuple(self.limit(name, entry) for name, entry in self.table(top["limits"], "limits").items())
        slots = tuple(self.slot(name, entry) for name, entry in self.table(top["slots"], "slots").items())
        values = {limit.name: limit.value for limit in limits}
        pools = tuple(self.pool(name, entry, values) for name, entry in self.table(top["pools"], "pools").items())
        slot_names = tuple(slot.name for slot in slots)
        calibrations = self.table(top["calibrations"], "calibrations", required=CALIBRATIONS)
        families = {name: self.named_cycles(calibrations[name], name, "families") for name in CALIBRATIONS}
        ceilings = {name: self.named_cycles(calibrations[name], name, "ceilings") for name in CALIBRATIONS}
        kinds = [self.kind(*entry, slot_names, families) for entry in self.table(top["timing"], "timing").items()]
        return Target(
            name=self.text(top["name"], "name"),
            ptx_target=self.text(ptx["target"], "ptx.target"),
            ptx_version=self.text(ptx["version"], "ptx.version"),
            features=tuple(self.text(feature, "features") for feature in self.array(top["features"], "features")),
            limits=limits,
            slots=slots,
            pools=pools,
            kinds=tuple(kind[self.calibration] for kind in kinds),
            calibration=self.calibration,
            families=families[self.calibration],
            ceilings=ceilings[self.calibration],
            weights=self.weights(top["layout"]),
        )

    def named_cycles(self, entry: object, calibration: str, what: str) -> tuple[Limit, ...]:
        """The families or ceilings of a calibration; it may have none."""
        place = f"calibrations.{calibration}"
        fields = self.table(entry, place, required=("what",), optional=("families", "ceilings"))
        self.text(fields["what"], f"{place}.what")
        place = f"{place}.{what}"
        return tuple(self.limit(name, given, place) for name, given in self.table(fields.get(what, {}), place).items())

    def weights(self, entry: object) -> Weights:
        names = ("smem_transactions", "tmem_cycles", "live_registers")
        values = []
        for name, given in self.table(entry, "layout", required=names).items():
            fields = self.table(given, f"layout.{name}", required=("value", "source"))
            self.source(fields["source"], f"layout.{name}")
            value = fields["value"]
            if isinstance(value, bool) or not isinstance(value, int | float):
                self.wrong(f"layout.{name}.value", f"expected a number, found {value!r}")
            if not 0 <= value <= _HEAVIEST:  # nor is what is not a number
                self.wrong(f"layout.{name}.value", f"expected 0 to {_HEAVIEST}, found {value!r:.40}")
            values.append((name, float(value)))
        return Weights(**dict(values))

    def limit(self, name: str, entry: object, within: str = "limits") -> Limit:
        place = f"{within}.{name}"
        fields = self.table(entry, place, required=("value", "source"))
        return Limit(name, self.whole(fields["value"], f"{place}.value"), self.source(fields["source"], place))

    def slot(self, name: str, entry: object) -> Slot:
        place = f"slots.{name}"
        fields = self.table(entry, place, required=("width", "what"))
        self.text(fields["what"], f"{place}.what")
        width = self.whole(fields["width"], f"{place}.width")
        if width < 1:
            self.wrong(place, f"width is {width}, a slot has at least one unit")
        return Slot(name, width)

    def pool(self, name: str, entry: object, limits: Mapping[str, int]) -> Pool:
        place = f"pools.{name}"
        limit = self.text(self.table(entry, place, required=("limit",))["limit"], f"{place}.limit")
        if limit not in limits:
            self.wrong(place, f"there is no limit '{limit}'")
        return Pool(name, limits[limit])

    def kind(
        self, name: str, entry: object, slots: tuple[str, ...], families: Mapping[str, tuple[Limit, ...]]
    ) -> dict[str, Kind]:
        """The kind as each calibration prices it."""
        place = f"timing.{name}"
        fields = self.table(entry, place, required=("parameters", *CALIBRATIONS))
        listed = self.array(fields["parameters"], f"{place}.parameters")
        parameters = tuple(self.text(parameter, f"{place}.parameters") for parameter in listed)
        prices = {c: (f"{place}.{c}", fields[c], families[c]) for c in CALIBRATIONS}
        return {c: self.priced(name, parameters, *prices[c], slots) for c in CALIBRATIONS}

    def priced(
        self,
        name: str,
        parameters: tuple[str, ...],
        place: str,
        entry: object,
        families: tuple[Limit, ...],
        slots: tuple[str, ...],
    ) -> Kind:
        fields = self.table(entry, place, required=("uses", "issue", "latency", "source"))
        uses = tuple(self.use(use, f"{place}.uses", slots) for use in self.array(fields["uses"], f"{place}.uses"))
        issue, latency = self.formula(fields["issue"], f"{place}.issue"), self.formula(fields["latency"], place)
        kind = Kind(name, parameters, families, uses, issue, latency, self.source(fields["source"], place))
        # One trial price finds every unknown name and every form that is none, long before a kernel needs it.
        try:
            timing = _price(kind, (64,) * len(parameters))
        except (FormulaError, ArithmeticError) as error:
            self.wrong(place, str(error))
        if min(timing.issue, timing.latency, *(n for use in timing.uses for n in use[1:])) < 0:
            self.wrong(place, "a number of cycles is negative")
        return kind

    def use(self, entry: object, place: str, slots: tuple[str, ...]) -> tuple[str, str, str]:
        fields = self.table(entry, place, required=("slot", "cycles"), optional=("offset",))
        slot = self.text(fields["slot"], f"{place}.slot")
        if slot not in slots:
            self.wrong(place, f"there is no slot '{slot}', expected one of: {', '.join(slots)}")
        offset = self.formula(fields.get("offset", 0), f"{place}.offset")
        return slot, self.formula(fields["cycles"], f"{place}.cycles"), offset

    def source(self, entry: object, place: str) -> Source:
        place = f"{place}.source"
        fields = self.table(entry, place, required=("kind", "where"))
        where = self.text(fields["where"], f"{place}.where")
        kind = next((kind for kind in get_args(SourceKind) if kind == fields["kind"]), None)
        if kind is None:
            self.wrong(place, f"kind is {fields['kind']!r}, expected one of: {', '.join(get_args(SourceKind))}")
        return Source(kind, where)

    def table(
        self, value: object, place: str, required: tuple[str, ...] | None = None, optional: tuple[str, ...] = ()
    ) -> dict[str, object]:
        """A table with these keys and no others; without `required`, with any keys."""
        if not isinstance(value, dict):
            self.wrong(place, f"expected a table, found {value!r}")
        if required is None:
            return value
        missing = [key for key in required if key not in value]
        if missing:
            self.wrong(place, f"'{missing[0]}' is missing")
        unknown = [key for key in value if key not in required and key not in optional]
        if unknown:
            self.wrong(place, f"'{unknown[0]}' is not known here")
        return value

    def array(self, value: object, place: str) -> list[object]:
        if not isinstance(value, list):
            self.wrong(place, f"expected an array, found {value!r}")
        return value

    def text(self, value: object, place: str) -> str:
        if not isinstance(value, str):
            self.wrong(place, f"expected a string, found {value!r}")
        return value

    def whole(self, value: object, place: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            self.wrong(place, f"expected a whole number, found {value!r}")
        return value

    def formula(self, value: object, place: str) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            self.wrong(place, f"expected a number or a formula, found {value!r}")
        return str(value)
