"""Turns a target file (TOML: machine numbers with their sources) into a `Target`, which prices instruction kinds.

Every number of a price may be a closed form over the parameters of its kind, written as a string: "count * max(n / 2,
13)". targets/README.md explains the columns.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import cache, lru_cache
from typing import Annotated, Literal, NoReturn, TypeVar

from tilec.sched.problem import Count, Cycles, Pool, Slot
from tilec.support import files, readers, resources, schema
from tilec.support.diagnostics import InternalError, raise_error
from tilec.support.options import CALIBRATIONS
from tilec.support.records import dataclass
from tilec.support.spelling import nearest_word
from tilec.target.names import UNIVERSAL_FEATURES, Feature, InstructionKind

SourceKind = Literal["vendor", "measured", "derived", "guess"]
Named = TypeVar("Named", "Limit", Slot, Pool)


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a number, so that a reader knows how far to trust it."""

    kind: SourceKind
    where: str


@dataclass(frozen=True, slots=True)
class Limit:
    """A named whole number with its source: a hard limit of the machine (bytes, registers, threads …), or cycles that
    several instruction kinds of a calibration share."""

    name: str
    value: int
    source: Source


@dataclass(frozen=True, slots=True)
class Timing:
    """The cost of one statement, in cycles. `uses` are (slot, cycles, offset from the start)."""

    uses: tuple[tuple[str, int, int], ...]
    issue: int
    latency: int


@dataclass(frozen=True, slots=True)
class LayoutWeights:
    """Weights of the costs of a layout in its score, for one unit of each."""

    smem_transactions: float
    tmem_cycles: float
    live_registers: float


@dataclass(frozen=True, slots=True)
class Kind:
    """A priced instruction kind. Numbers are closed forms over `parameters` and the families of the calibration;
    `issue` and `latency` may also use `occupancy`, the cycle in which the last of the uses ends."""

    name: str
    parameters: tuple[str, ...]
    families: tuple[Limit, ...]
    uses: tuple[tuple[str, str, str], ...]
    issue: str
    latency: str
    source: Source


@dataclass(frozen=True, slots=True)
class Gpu:
    """A product that runs the code of a target, with the limits and families in which it differs from the target
    file."""

    name: str
    what: str
    limits: tuple[Limit, ...]
    families: tuple[Limit, ...] = ()


def _override_limits(numbers: tuple[Limit, ...], differing: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Return the numbers of the target file, each replaced by the product's number of the same name if it has one."""
    by_name = {number.name: number for number in differing}
    return tuple(by_name.get(number.name, number) for number in numbers)


@dataclass(frozen=True, slots=True)
class Target:
    """One machine under one calibration. Ask for features, limits and prices; never compare names or architecture
    numbers. `families` are cycles that many kinds share, `ceilings` the most cycles of a chain of dependences. `gpus`
    are the products that run its code; `gpu` is the product whose limits it has ("": those of the file)."""

    name: str
    ptx_target: str
    ptx_version: str
    features: tuple[Feature, ...]
    limits: tuple[Limit, ...]
    slots: tuple[Slot, ...]
    pools: tuple[Pool, ...]
    kinds: tuple[Kind, ...]
    calibration: str
    families: tuple[Limit, ...]
    ceilings: tuple[Limit, ...]
    weights: LayoutWeights
    gpus: tuple[Gpu, ...] = ()
    gpu: str = ""

    @property
    def ptx_release(self) -> tuple[int, int]:
        """Return the PTX version as comparable numbers: major and minor."""
        major, _, minor = self.ptx_version.partition(".")
        return int(major), int(minor)

    def has(self, feature: Feature) -> bool:
        """Return whether the machine has a feature."""
        return feature in self.features

    def without(self, feature: Feature) -> Target:
        """Return the target without one feature."""
        return replace(self, features=tuple(f for f in self.features if f != feature))

    def of(self, gpu: Gpu) -> Target:
        """Return the target with the limits and shared cycles in which a product differs, and `gpu` set to its name."""
        limits, families = _override_limits(self.limits, gpu.limits), _override_limits(self.families, gpu.families)
        kinds = tuple(replace(kind, families=families) for kind in self.kinds)
        return replace(self, limits=limits, families=families, kinds=kinds, gpu=gpu.name)

    def with_limit(self, name: str, value: int) -> Target:
        """Return the target with another value of the machine's limit of this name."""
        return replace(
            self, limits=tuple(replace(one, value=value) if one.name == name else one for one in self.limits)
        )

    def limit(self, name: str) -> int:
        """Return the value of the machine's limit of this name; raises `InternalError` if it has none."""
        return self._find_named(self.limits, name, "limit").value

    def find_limit(self, name: str) -> int:
        """Return the value of the machine's limit of this name; 0, for unknown, if it has none."""
        return next((limit.value for limit in self.limits if limit.name == name), 0)

    def slot(self, name: str) -> Slot:
        return self._find_named(self.slots, name, "slot")

    def pool(self, name: str) -> Pool:
        return self._find_named(self.pools, name, "pool")

    def _find_named(self, things: Iterable[Named], name: str, what: str) -> Named:
        """Return the item of this name; raises `InternalError`, with `what` it is, where there is none."""
        found = next((thing for thing in things if thing.name == name), None)
        if found is None:
            raise InternalError(f"target {self.name} has no {what} '{name}'")
        return found

    def prices(self, kind: str) -> bool:
        """Return whether the target has a price for instructions of this kind."""
        return any(known.name == kind for known in self.kinds)

    def price(self, kind: InstructionKind, **parameters: int) -> Timing:
        """Return the cycles of one statement of this kind, issued by a whole CTA; raises `InternalError` for other
        parameters. It raises it for an unpriced kind too. Cycles are rounded up to whole ones."""
        found = next((known for known in self.kinds if known.name == kind), None)
        if found is None:
            raise InternalError(f"target {self.name} does not price '{kind}'")
        if set(parameters) != set(found.parameters):
            wanted, given = ", ".join(found.parameters), ", ".join(parameters)
            raise InternalError(f"'{kind}' on {self.name} is priced by ({wanted}), not by ({given})")
        return _evaluate_price(found, tuple(parameters[name] for name in found.parameters))


@lru_cache(maxsize=4096)
def _evaluate_price(kind: Kind, arguments: tuple[int, ...]) -> Timing:
    """Return slot uses, issue and latency of a kind, its formulas evaluated with these parameters, from a cache."""
    values: dict[str, float] = {family.name: family.value for family in kind.families}
    values |= zip(kind.parameters, arguments, strict=True)

    def count_cycles(formula: str) -> int:
        """Return the value of a formula, rounded up to whole cycles."""
        return round_up_cycles(evaluate_formula(formula, values))

    uses = tuple((slot, count_cycles(cycles), count_cycles(offset)) for slot, cycles, offset in kind.uses)
    values["occupancy"] = max((offset + cycles for _, cycles, offset in uses), default=0)
    return Timing(uses, count_cycles(kind.issue), count_cycles(kind.latency))


# --- closed forms ---


class FormulaError(ValueError):
    """A string that is no closed form, or that uses an unknown name."""


_BINARY_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_FORMULA_FUNCTIONS: dict[str, Callable[..., float]] = {"max": max, "min": min, "ceil": math.ceil}


@lru_cache(maxsize=1024)
def _parse_formula(formula: str) -> ast.expr:
    """Return the syntax tree of a closed form, from a cache; raises `FormulaError` where it cannot be parsed."""
    try:
        return readers.parse_python_expression(formula)
    except ValueError as error:
        raise FormulaError(f"'{formula}' is not a formula: {error}") from error


def evaluate_formula(formula: str, values: Mapping[str, float]) -> float:
    """Return the value of a closed form of numbers, names, + - * / ( ), max, min and ceil; raises `FormulaError` for
    others. Nothing else is allowed, so that a target file stays data."""
    return _evaluate_node(_parse_formula(formula), values)


def _evaluate_node(node: ast.expr, values: Mapping[str, float]) -> float:
    """Return the value of a syntax node of a closed form; raises `FormulaError` for an unknown name or other syntax."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            if name not in values:
                raise FormulaError(f"unknown name '{name}', expected one of: {', '.join(values)}")
            return values[name]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY_OPERATORS:
            return _BINARY_OPERATORS[type(sign)](_evaluate_node(left, values), _evaluate_node(right, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate_node(operand, values)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FORMULA_FUNCTIONS and arguments:
            numbers = [_evaluate_node(argument, values) for argument in arguments]
            # max and min of a single argument would expect a sequence.
            return numbers[0] if len(numbers) == 1 and name != "ceil" else _FORMULA_FUNCTIONS[name](*numbers)
    raise FormulaError(f"'{ast.unparse(node)}' is not allowed in a formula")


def round_up_cycles(value: float) -> int:
    """Return the next whole number of cycles, ignoring a rounding error of 1e-9."""
    # Rounding errors of decimals must not cost a cycle: 0.1 * 30 is 3.0000000000000004.
    return math.ceil(value - 1e-9)


# --- what a target file holds ---

_Formula = Annotated[str, schema.Conversion(int | float | str, str)]
_Price = Annotated[float, schema.Constraint(lambda weight: 0 <= weight <= 1_000_000, "a number from 0 to 1000000")]


@dataclass(frozen=True, slots=True)
class _Limit:
    value: Count
    source: Source


@dataclass(frozen=True, slots=True)
class _Cycles:
    value: Cycles
    source: Source


@dataclass(frozen=True, slots=True)
class _Weight:
    value: _Price
    source: Source


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU in a target file. `families` belong to the silicon calibration: the book has the same cycles for all
    GPUs."""

    what: str
    limits: Mapping[str, _Limit] = field(default_factory=dict)
    families: Mapping[str, _Cycles] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ptx:
    target: str
    version: str


@dataclass(frozen=True, slots=True)
class _Slot:
    width: Count
    what: str
    banks: Literal["", "shared memory", "tensor memory"] = ""


@dataclass(frozen=True, slots=True)
class _Pool:
    limit: str


@dataclass(frozen=True, slots=True)
class _Calibration:
    what: str
    families: Mapping[str, _Cycles] = field(default_factory=dict)
    ceilings: Mapping[str, _Cycles] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Calibrations:
    """The calibrations of a target file, a field for each of `CALIBRATIONS`."""

    silicon: _Calibration
    book: _Calibration


@dataclass(frozen=True, slots=True)
class _Layout:
    smem_transactions: _Weight
    tmem_cycles: _Weight
    live_registers: _Weight


@dataclass(frozen=True, slots=True)
class _Use:
    slot: str
    cycles: _Formula
    offset: _Formula = "0"


@dataclass(frozen=True, slots=True)
class _CostRow:
    """The cost of an instruction kind under one calibration."""

    uses: tuple[_Use, ...]
    issue: _Formula
    latency: _Formula
    source: Source


@dataclass(frozen=True, slots=True)
class _Timing:
    """The price of an instruction kind, a row for each of `CALIBRATIONS`."""

    parameters: tuple[str, ...]
    silicon: _CostRow
    book: _CostRow


@dataclass(frozen=True, slots=True)
class _TargetFile:
    name: str
    ptx: _Ptx
    features: tuple[Feature, ...]
    limits: Mapping[str, _Limit]
    slots: Mapping[str, _Slot]
    pools: Mapping[str, _Pool]
    calibrations: _Calibrations
    layout: _Layout
    timing: Mapping[str, _Timing]
    gpus: Mapping[str, _Gpu] = field(default_factory=dict)


# --- what the compiler asks for ---


@dataclass(frozen=True, slots=True)
class _RequiredNames:
    """Names that a target file must define, and the parameters of each kind."""

    limits: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    kinds: Mapping[InstructionKind, tuple[str, ...]] = field(default_factory=dict)


_BYTES, _TRANSFER = ("bytes",), ("bytes", "threads")
_COMPUTE, _PRODUCT = ("ops", "elements", "threads"), ("m", "n", "count")
_REQUIRED_NAMES: Mapping[Feature | Literal[""], _RequiredNames] = {
    "": _RequiredNames(
        ("clock_mhz", "ctas_per_cluster", "ctas_per_sm", "dram_bytes_per_cycle", "l2_bytes", "l2_bytes_per_cycle",
         "mbarriers", "named_barriers", "named_barriers_carried", "registers_allocation_per_warp", "registers_per_sm",
         "registers_per_thread", "smem_allocation_bytes", "smem_bytes_per_cta", "smem_bytes_per_sm",
         "smem_reserved_bytes_per_cta", "sms", "tensor_clock_mhz", "threads_per_cta", "threads_per_sm"),
        ("mbarriers", "named_barriers", "named_barriers_carried", "registers", "registers_per_thread", "smem"),
        {
            "cp.async": _TRANSFER, "ld.global": _TRANSFER, "st.global": _TRANSFER, "ld.shared": _TRANSFER,
            "st.shared": _TRANSFER, "elementwise": _COMPUTE, "integer": _COMPUTE, "ldmatrix": _BYTES,
            "mma.sync": ("count", "warps"), "mufu": ("elements",), "reduce": ("elements", "threads"),
            "barrier": (), "mbarrier": (),
        },
    ),
    "cluster": _RequiredNames(("sms_in_large_clusters",)),
    "tma": _RequiredNames(("tma_box_elements",), (), {"tma.load": _BYTES, "tma.store": _BYTES}),
    "wgmma": _RequiredNames((), (), {"wgmma.ss": ("n", "count", "k_bytes"), "wgmma.rs": ("n", "count")}),
    "tcgen05": _RequiredNames(
        ("tmem_allocation_columns", "tmem_bank_pressure", "tmem_columns"),
        ("tmem", "tmem_banks"),
        {
            "tcgen05.mma.ss": _PRODUCT, "tcgen05.mma.ts": _PRODUCT, "tcgen05.mma.ss.pair": _PRODUCT,
            "tcgen05.mma.ts.pair": _PRODUCT, "tcgen05.cp": _BYTES, "tcgen05.ld": _BYTES, "tcgen05.st": _BYTES,
        },
    ),
}  # fmt: skip
"""Required names by the feature that requires them; "" is every machine."""


def _find_absent_names(target: Target) -> Iterator[str]:
    """Yield a message for each feature, limit, pool or price that a target lacks or prices by other parameters."""
    for feature in UNIVERSAL_FEATURES:
        if not target.has(feature):
            yield f"features: '{feature}' is missing; every supported machine has it"
    for feature_name, required in _REQUIRED_NAMES.items():
        if feature_name and not target.has(feature_name):
            continue
        why = f"; targets with {feature_name} need it" if feature_name else ""
        kinds = {kind.name: kind for kind in target.kinds}
        tables: tuple[tuple[str, Collection[str], Collection[str]], ...] = (
            ("limits", required.limits, [limit.name for limit in target.limits]),
            ("pools", required.pools, [pool.name for pool in target.pools]),
            ("timing", required.kinds, kinds),
        )
        for table, names, present in tables:
            yield from (f"{table}: '{name}' is missing{why}" for name in names if name not in present)
        for name, wanted in required.kinds.items():
            if name in kinds and set(kinds[name].parameters) != set(wanted):
                yield f"timing.{name}.parameters: expected {list(wanted)}, found {list(kinds[name].parameters)}"


# --- loading ---


@cache
def load_target(name: str, calibration: str = CALIBRATIONS[0], gpu: str | None = None) -> Target:
    """Return the target of a name, or of a user's file, under a calibration, with a GPU's limits; raises
    `CompileError`. It does for unknown names, with the nearest one. Without a GPU the limits are those of the file.
    What is read is recorded and cached."""
    if gpu is not None:
        target = load_target(name, calibration)
        found = next((one for one in target.gpus if one.name == gpu), None)
        if found is None:
            _refuse_gpu(target, gpu)
        return target.of(found)
    if resources.is_own_target(name):
        return _check_complete(parse_target(files.read_text(name), name, calibration), name)
    if name not in resources.target_names():
        refuse_target(name)
    files.record_read(str(resources.target_file(name)))
    return _check_complete(parse_target(resources.target_text(name), f"{name}.toml", calibration), f"{name}.toml")


def _check_complete(target: Target, path: str) -> Target:
    """Return the target itself; raises `CompileError` if it lacks something that the compiler needs."""
    for absent in _find_absent_names(target):
        raise_error("bad-target-file", f"{path}: {absent}")
    return target


# --- names that are no targets ---

_GENERATIONS = """
hopper h20 gh200: sm_90a
ampere: sm_80 sm_86 sm_87
ada lovelace: sm_89
blackwell: sm_100a sm_103a sm_110a sm_120a
b100 gb200: sm_100a
thor: sm_110a
orin: sm_87
a30: sm_80
a6000: sm_86
"""
"""Common names of machines that no target file lists, with their targets; the first target is the most common."""

_GENERATION_TARGETS = {
    name: targets.split()
    for names, _, targets in (row.partition(": ") for row in _GENERATIONS.strip().split("\n"))
    for name in names.split()
}


def refuse_target(name: str) -> NoReturn:
    """Raise the error for an unknown target, and suggest the target of the GPU, generation or number that was named."""
    known = resources.target_names()
    help_text = _suggest_target_with_gpu(name) or _suggest_by_generation(name) or _suggest_by_number(name, known)
    if help_text is None and (near := nearest_word(name, known)):
        help_text = f"did you mean '{near}'?"
    notes = (f"known targets: {', '.join(known)}",)
    raise_error("unknown-target", f"unknown target '{name}'", notes=notes, help=help_text)


def _refuse_gpu(target: Target, gpu: str) -> NoReturn:
    """Raise the error for a GPU that the target does not have, and suggest one of this or another target."""
    known = [one.name for one in target.gpus]
    same = [name for name in known if _is_gpu_called(name, gpu)]
    near = nearest_word(gpu, known)
    help_text: str | None
    if same:
        help_text = f"choose {' or '.join(same)}" if len(same) > 1 else f"write {same[0]}"
    elif (other := _suggest_target_with_gpu(gpu)) is not None:
        help_text = other
    else:
        # Another number is another product: H200 is not a misspelt H100.
        is_slip = near is not None and _keep_digits(near) == _keep_digits(gpu)
        help_text = f"did you mean '{near}'?" if is_slip else None
    note = f"known GPUs: {', '.join(known)}"
    raise_error("unknown-gpu", f"target {target.name} has no GPU '{gpu}'", notes=(note,), help=help_text)


def _suggest_target_with_gpu(name: str) -> str | None:
    """Return a hint that names the first target with GPUs called so, and their full names; None if no target has
    one."""
    for target in resources.target_names():
        same = [gpu.name for gpu in load_target(target).gpus if _is_gpu_called(gpu.name, name)]
        if same:
            return f"write --target {target}, and for its own limits --gpu {' or '.join(same)}"
    return None


def _is_gpu_called(gpu: str, name: str) -> bool:
    """Return whether `name` abbreviates the GPU: its first words and whole numbers, as "h100" and "4090"."""
    whole, short = _split_words(gpu), _split_words(name)
    starts = (whole, whole[1:]) if whole[0] == "rtx" else (whole,)
    return _keep_digits(name) != "" and any(start[: len(short)] == short for start in starts)


def _split_words(name: str) -> list[str]:
    """Return the runs of letters and of digits in a name, in lower case."""
    return re.findall(r"[a-z]+|\d+", name.lower())


def _keep_digits(name: str) -> str:
    """Return the digits of a name, joined."""
    return re.sub(r"\D", "", name)


def _suggest_by_generation(name: str) -> str | None:
    """Return a hint with the target of a generation of GPUs, or of a product that no file lists; None if unknown."""
    targets = _GENERATION_TARGETS.get("".join(_split_words(name)))
    if targets is None:
        return None
    others = f"; others of its generation have {', '.join(targets[1:])}: `tilec targets`" if targets[1:] else ""
    return f"write --target {targets[0]}{others}"


def _suggest_by_number(name: str, known: Collection[str]) -> str | None:
    """Return a hint for a compute capability: a target whose cubins run on it, or that there is none; None for no
    number. Cubins run on later GPUs of their generation; those of targets with `a` run only on their own (`sm_90a`)."""
    found = re.fullmatch(r"(?:(?:sm|compute)_?)?(\d{1,2})\.?(\d)[af]?", name.lower())
    if found is None:
        return None
    generation, number = int(found[1]), int(found[2])
    for target in sorted(known, reverse=True):
        target_number = re.fullmatch(r"sm_(\d+)(\d)(a?)", target)
        if target_number is None or int(target_number[1]) != generation:
            continue
        if int(target_number[2]) == number:
            return f"write {target}"
        if int(target_number[2]) < number and not target_number[3]:
            return f"write {target}, whose cubins also run on sm_{generation}{number}"
    return f"no target has code for sm_{generation}{number}"


def parse_target(text: str, file: str, calibration: str = CALIBRATIONS[0]) -> Target:
    """Return the target that a file's text describes; raises `CompileError` for a fault, in whichever calibration.
    `file` names the file in messages. People write target files, so that each calibration is checked."""
    try:
        table = readers.parse_toml(text)
    except ValueError as error:
        raise_error("bad-target-file", f"{file} is not TOML: {error}")
    try:
        given = schema.read_record(_TargetFile, table, "")
        return {name: _build_target(given, name) for name in CALIBRATIONS}[calibration]
    except schema.SchemaError as error:
        raise_error("bad-target-file", f"{file}: {error}")


def _build_target(given: _TargetFile, calibration: str) -> Target:
    """Return the target that a parsed file describes under one calibration; raises `SchemaError` for inconsistent
    parts."""
    chosen: _Calibration = getattr(given.calibrations, calibration)
    families = _build_limits(chosen.families)
    weights = (given.layout.smem_transactions, given.layout.tmem_cycles, given.layout.live_registers)
    return Target(
        name=given.name,
        ptx_target=given.ptx.target,
        ptx_version=given.ptx.version,
        features=given.features,
        limits=_build_limits(given.limits),
        slots=tuple(Slot(name, slot.width, slot.banks) for name, slot in given.slots.items()),
        pools=tuple(_build_pool(name, pool.limit, given.limits) for name, pool in given.pools.items()),
        kinds=tuple(_build_kind(name, row, calibration, families, given.slots) for name, row in given.timing.items()),
        calibration=calibration,
        families=families,
        ceilings=_build_limits(chosen.ceilings),
        weights=LayoutWeights(*(weight.value for weight in weights)),
        gpus=tuple(_build_gpu(name, gpu, given, calibration) for name, gpu in given.gpus.items()),
    )


def _build_limits(numbers: Mapping[str, _Limit] | Mapping[str, _Cycles]) -> tuple[Limit, ...]:
    """Return the numbers of a table of the file, with their names and sources."""
    return tuple(Limit(name, number.value, number.source) for name, number in numbers.items())


def _build_gpu(name: str, gpu: _Gpu, given: _TargetFile, calibration: str) -> Gpu:
    """Return a GPU of the file; raises `SchemaError` for limits that the file lacks or pools use, and unknown families.
    Its families count under the silicon calibration only."""
    # A pool is as large as its limit in the file: every product of an architecture has the same room for a block.
    absent = next((limit for limit in gpu.limits if limit not in given.limits), None)
    if absent is not None:
        raise schema.SchemaError(f"gpus.{name}.limits: there is no limit '{absent}'")
    fixed = next((pool.limit for pool in given.pools.values() if pool.limit in gpu.limits), None)
    if fixed is not None:
        what = f"'{fixed}' is the size of a pool and must not differ between GPUs of a target"
        raise schema.SchemaError(f"gpus.{name}.limits: {what}")
    known = given.calibrations.silicon.families
    absent = next((family for family in gpu.families if family not in known), None)
    if absent is not None:
        raise schema.SchemaError(f"gpus.{name}.families: the silicon calibration has no family '{absent}'")
    families = _build_limits(gpu.families) if calibration == "silicon" else ()
    return Gpu(name, gpu.what, _build_limits(gpu.limits), families)


def _build_pool(name: str, limit: str, limits: Mapping[str, _Limit]) -> Pool:
    """Return a pool with the capacity of the limit that it names; raises `SchemaError` if there is no such limit."""
    if limit not in limits:
        raise schema.SchemaError(f"pools.{name}: there is no limit '{limit}'")
    return Pool(name, limits[limit].value)


def _build_kind(
    name: str, timing: _Timing, calibration: str, families: tuple[Limit, ...], slots: Mapping[str, _Slot]
) -> Kind:
    """Return an instruction kind, after pricing it once; raises `SchemaError` for unknown names and impossible
    numbers."""
    place, row = f"timing.{name}.{calibration}", getattr(timing, calibration)
    absent = next((use.slot for use in row.uses if use.slot not in slots), None)
    if absent is not None:
        raise schema.SchemaError(f"{place}.uses: there is no slot '{absent}', expected one of: {', '.join(slots)}")
    uses = tuple((use.slot, use.cycles, use.offset) for use in row.uses)
    kind = Kind(name, timing.parameters, families, uses, row.issue, row.latency, row.source)
    # A trial price finds every unknown name and malformed formula before a kernel needs them.
    try:
        made = _evaluate_price(kind, (64,) * len(timing.parameters))
    except (FormulaError, ArithmeticError) as error:
        raise schema.SchemaError(f"{place}: {error}") from error
    for cycles in (made.issue, made.latency, *(n for use in made.uses for n in use[1:])):
        schema.read_value(Cycles, cycles, f"{place}, where parameters are 64")
    return kind
