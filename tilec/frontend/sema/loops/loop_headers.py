"""Loop headers: the arguments of `T.serial`, `T.unroll`, `T.Pipelined`, `T.Parallel`, `T.vectorized` and
`T.Persistent`, read and checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilec.analysis.trip_count import MAX_UNROLL, get_static_trip_count
from tilec.frontend.sema.launch.schedule_descriptions import SCHEDULE_CONSTANTS
from tilec.frontend.sema.statements.per_thread import join_conditions
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.expr import cast_expr
from tilec.ir.types import BOOL, INT32
from tilec.ops.language.signature import (
    Argument,
    Call,
    Parameter,
    Signature,
    as_count,
    as_expr,
    find_nearest_name,
    make_literal,
)
from tilec.ops.language.values import EXPR_TYPES, Access, Dictionary, describe_value
from tilec.rewriting.fold_constants import fold_binary, fold_expr
from tilec.support.diagnostics import Diagnostic, Label, Warn, make_warning, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

_BOUNDS = (Parameter("start"), Parameter("stop", None))
_STEP = Parameter("step", None)
_ANNOTATIONS = Parameter("annotations", None, keyword_only=True)
_SERIAL = (*_BOUNDS, _STEP, _ANNOTATIONS)
_UNROLL_OPTIONS = Parameter("explicit", False, keyword_only=True), Parameter("unroll_factor", None, keyword_only=True)
_UNROLL = (*_BOUNDS, _STEP, *_UNROLL_OPTIONS, _ANNOTATIONS)
_PIPELINE_OPTIONS = tuple(Parameter(name, None) for name in ("num_stages", "order", "stage", "sync", "group"))
_NEST_OPTIONS = tuple(
    Parameter(name, None, keyword_only=True) for name in ("coalesced_width", "loop_layout", "prefer_async")
)

SEQUENTIAL_LOOPS: dict[str, tuple[tile.LoopKind, Signature]] = {
    "range": ("serial", Signature("range", (*_BOUNDS, _STEP))),
    "T.serial": ("serial", Signature("T.serial", _SERIAL)),
    "T.Serial": ("serial", Signature("T.Serial", _SERIAL)),
    "T.grid": ("serial", Signature("T.grid", _BOUNDS)),
    "T.unroll": ("unroll", Signature("T.unroll", _UNROLL)),
    "T.Unroll": ("unroll", Signature("T.Unroll", _UNROLL)),
    "T.Pipelined": ("pipelined", Signature("T.Pipelined", (*_BOUNDS, *_PIPELINE_OPTIONS, _ANNOTATIONS))),
}
GRID_SIGNATURE = Signature("T.grid", (), variadic=True)
"""Several T.serial loops in one statement."""

_VECTORIZED = (*_BOUNDS, _ANNOTATIONS)

NEST_SIGNATURES: dict[str, Signature] = {
    "T.Parallel": Signature("T.Parallel", (*_NEST_OPTIONS, _ANNOTATIONS), variadic=True),
    "T.vectorized": Signature("T.vectorized", _VECTORIZED),
    "T.Vectorized": Signature("T.Vectorized", _VECTORIZED),
    "T.parallel": Signature("T.parallel", (), variadic=True),
}
"""Loops whose iterations may all run at once."""

LOOP_BREAK = Signature("T.loop_break", ())
PERSISTENT_SIGNATURE = Signature(
    "T.Persistent", (Parameter("domain"), Parameter("wave_size"), Parameter("index"), Parameter("group_size", 8))
)


@dataclass(frozen=True, slots=True)
class LoopHeader:
    """Bounds and step of a sequential loop. A loop that counts down runs over the numbers of its iterations instead:
    `first_and_step` has the first value of its variable and the negative step."""

    start: tile.Expr
    stop: tile.Expr
    step: int
    first_and_step: tuple[tile.Expr, int] | None = None

    @property
    def _counts(self) -> range | None:
        """Return the values of the counter that runs from `start` to `stop`; None unless both are constants."""
        match self.start, self.stop:
            case tile.Const(value=start), tile.Const(value=stop):
                return range(int(start), int(stop), self.step)
            case _:
                return None

    @property
    def values(self) -> tuple[int, int] | None:
        """Return the smallest and largest value of the counter; None if the bounds are no constants or the loop is
        empty.
        """
        return (self._counts[0], self._counts[-1]) if self._counts else None

    @property
    def iterations(self) -> range | None:
        """Return all values of the loop variable, in order; None if they are not known at compile time."""
        match self.first_and_step:
            case None:
                return self._counts
            case (tile.Const(value=first), step) if self._counts is not None:
                return range(int(first), int(first) + len(self._counts) * step, step)
            case _:
                return None

    @property
    def trip_count(self) -> int | None:
        """Return the number of iterations, or None if it is known only at run time."""
        return None if self._counts is None else len(self._counts)

    def value(self, count: tile.Expr) -> tile.Expr:
        """Return the loop variable as the kernel sees it, computed from the counter: the same unless the loop counts
        down.
        """
        if self.first_and_step is None:
            return count
        first, step = self.first_and_step
        return fold_binary("add", first, fold_binary("mul", count, step))


def read_loop_header(call: Call) -> LoopHeader:
    """Read a loop's start, stop and step as in `range`; a negative step becomes a loop over iteration numbers; refuse
    step 0.
    """
    first_bound = _read_bound(call, "start")
    has_stop = call["stop"].value is not None
    start, stop = (first_bound, _read_bound(call, "stop")) if has_stop else (tile.int32_const(0), first_bound)
    step = 1
    if "step" in call.arguments and call["step"].value is not None:
        step = call.read_integer("step")
        if step == 0:
            raise_error("wrong-argument", f"{call.name}: the step must not be 0", call["step"].span)
    if step > 0:
        return LoopHeader(start, stop, step)
    # max(0, ⌈(start − stop) / −step⌉)
    trip_count = fold_binary("max", fold_ceildiv(fold_binary("sub", start, stop), tile.int32_const(-step)), 0)
    return LoopHeader(tile.int32_const(0), trip_count, 1, (start, step))


_MAX_UNROLLED_COPIES = 1024  # copies of a statement


def read_unroll_factor(call: Call, bounds: LoopHeader) -> int | None:
    """Return how many iterations of T.unroll become one, all if `explicit`; None if tilec chooses; refuse both
    together.
    """
    parameter_of = {"pragma_unroll_explicit": "explicit", "pragma_unroll_factor": "unroll_factor"}
    arguments = {parameter_of[key]: argument for key, argument in read_annotations(call) if key in parameter_of}
    for key in parameter_of.values():
        if call.is_given(key):
            arguments[key] = call[key]
    explicit, factor = arguments.get("explicit"), arguments.get("unroll_factor")
    is_explicit = explicit is not None and bool(explicit.value)
    if factor is not None and factor.value is not None:
        value = factor.value
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            title = f"{call.name}: `unroll_factor` is a number of iterations"
            raise_error("wrong-argument", title, factor.span, describe_value(value))
        if is_explicit and explicit is not None:
            title = f"{call.name}: `explicit` unrolls the whole loop, `unroll_factor` a part of it"
            place = Label(explicit.span, "unrolls the whole loop")
            raise_error("wrong-argument", title, factor.span, secondary=(place,), help="remove one of the two")
        return max(value, 1)
    if not is_explicit or explicit is None:
        return None
    if bounds.trip_count is None:
        title = f"{call.name}: `explicit` needs a trip count known at compile time"
        raise_error("not-a-constant", title, explicit.span, help="give an `unroll_factor` instead")
    return bounds.trip_count or None


def apply_unroll_factor(loop: tile.For, factor: int | None, span: Span) -> tile.For:
    """Return the loop to be unrolled by `factor`, wholly if None; serial for 1; refuse a factor that makes too many
    copies. Without a factor such a loop is serial.
    """
    if factor == 1:
        return replace(loop, kind="serial")
    unrolled_loop = replace(loop, kind="unroll", factor=factor)
    copies = _count_copies((unrolled_loop,))
    if copies <= _MAX_UNROLLED_COPIES:
        return unrolled_loop
    if factor is None:
        return replace(loop, kind="serial")
    nesting_note = "" if copies == _count_unrolled_iterations(unrolled_loop) else ", inner loops included"
    title = f"T.unroll makes {copies} copies of the body{nesting_note}; the limit is {_MAX_UNROLLED_COPIES}"
    return raise_error("wrong-argument", title, span)


def _count_copies(body: tuple[tile.Stmt, ...]) -> int:
    """Return the largest number of copies that unrolling makes of any statement in a body, with nested loops
    multiplied.
    """
    inner = (max(map(_count_copies, tile.nested_bodies(stmt)), default=1) for stmt in body)
    return max((_count_unrolled_iterations(stmt) * n for stmt, n in zip(body, inner, strict=True)), default=1)


def _count_unrolled_iterations(stmt: tile.Stmt) -> int:
    """Return how many copies of a loop's body unrolling writes out; 1 for loops not unrolled and other statements."""
    if not isinstance(stmt, tile.For) or stmt.kind != "unroll":
        return 1
    trip_count = get_static_trip_count(stmt)
    if stmt.factor is None:
        return trip_count if trip_count is not None and trip_count <= MAX_UNROLL else 1
    return stmt.factor if trip_count is None else min(trip_count, stmt.factor)


# ---- elementwise nests -----------------------------------------------------------------------------------------------

_NEST_ANNOTATIONS = {
    "coalesced_width": "coalesced_width",
    "parallel_prefer_async": "prefer_async",
    "parallel_async_without_async_commit_wait": "prefer_async",  # where commits and waits stand is derived in any case
    "parallel_loop_layout": "loop_layout",
}


@dataclass(frozen=True, slots=True)
class NestHeader:
    """Half-open bounds of each variable; those of T.Parallel may be known at run time only. `asynchronous` is the place
    of `prefer_async=True`."""

    bounds: tuple[tuple[int, int | tile.Expr], ...]
    width: int | None
    asynchronous: Span | None
    layout: tile.LoopLayout | None = None


def read_nest_header(call: Call, warn: Warn) -> NestHeader:
    """Read bounds, width, layout and asynchrony of T.Parallel or T.vectorized; warn of unknown annotations, refuse bad
    values. Errors: an empty or run-time T.vectorized, a width that does not divide the last extent.
    """
    if "stop" in call.arguments:
        header = read_loop_header(call)
        start, stop = header.start, header.stop
        for name, bound in (("start", start), ("stop", stop)):
            if not isinstance(bound, tile.Const):
                raise_error("dynamic-shape", f"{call.name}: the bounds must be known at compile time", call[name].span)
        first, end = int(getattr(start, "value", 0)), int(getattr(stop, "value", 0))
        if end <= first:
            raise_error("wrong-shape", f"{call.name}: the loop is empty", call.span, f"from {first} to {end}")
        for annotation, argument in read_annotations(call):
            warn(make_unknown_annotation_warning(call, annotation, argument, {}))
        return NestHeader(((first, end),), end - first, None)
    bounds = tuple((0, extent) for extent in read_parallel_extents(call))
    options = (key for key in _NEST_ANNOTATIONS.values() if key in call.arguments)
    given = {key: call[key] for key in options if call[key].value is not None}
    for annotation, argument in read_annotations(call):
        key = _NEST_ANNOTATIONS.get(annotation)
        if key is None:
            warn(make_unknown_annotation_warning(call, annotation, argument, _NEST_ANNOTATIONS))
            continue
        if key in given and key != "prefer_async":  # two annotations of TileLang mean this one
            before = Label(given[key].span, "given here already")
            raise_error("duplicate-argument", f"{call.name} gets `{key}` twice", argument.span, secondary=(before,))
        given.setdefault(key, argument)
    width, hint = given.get("coalesced_width"), given.get("prefer_async")
    if hint is not None and not isinstance(hint.value, bool):
        title = f"{call.name}: `prefer_async` is True or False"
        raise_error("wrong-argument", title, hint.span, describe_value(hint.value))
    asynchronous = hint.span if hint and hint.value else None
    layout = _read_loop_layout(call, given["loop_layout"]) if "loop_layout" in given else None
    if width is None:
        return NestHeader(bounds, None, asynchronous, layout)
    elements = width.value
    if not isinstance(elements, int) or isinstance(elements, bool) or elements < 1:
        title = f"{call.name}: `coalesced_width` is a number of elements"
        raise_error("wrong-argument", title, width.span, describe_value(elements))
    last = bounds[-1][1]
    if isinstance(last, int) and last % elements:
        title = f"{call.name}: `coalesced_width` does not divide the last extent"
        place = Label(call.variadic[-1].span, f"this is {last}")
        raise_error("wrong-argument", title, width.span, f"{elements} elements of {last}", secondary=(place,))
    return NestHeader(bounds, elements, asynchronous, layout)


def _read_loop_layout(call: Call, given: Argument) -> tile.LoopLayout:
    """Return the layout in `loop_layout=`; refuse any other value. Its inputs are compared with the loops of the nest
    later, at the outermost of them.
    """
    layout = given.value
    if not isinstance(layout, tile.LoopLayout):
        title = f"{call.name}: `loop_layout` is a layout"
        way_out = "write T.Fragment((m, n), forward_fn=lambda i, j: (thread, index))"
        raise_error("wrong-argument", title, given.span, f"this is {describe_value(layout)}", help=way_out)
    return layout


# ---- T.Persistent ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PersistentWalk:
    """A walk over the tiles of a domain in waves: block `index` of `wave_size` takes every wave_size-th tile. The
    number of a tile counts `group` neighbours along the last dimension fastest, then the other dimensions from the last
    to the first, then the groups. So tiles that share a row or a column of a product run close together."""

    domain: tuple[tile.Expr, ...]
    wave_size: tile.Expr
    index: tile.Expr
    group: tile.Expr
    groups: tile.Expr

    @property
    def size(self) -> tile.Expr:
        """Return the number of tiles of the walk, including those past the domain's end in the last group."""
        total = fold_binary("mul", self.groups, self.group)
        for extent in self.domain[:-1]:
            total = fold_binary("mul", total, extent)
        return total

    @property
    def waves(self) -> tile.Expr:
        """Return the number of waves: the tiles of the walk divided by the wave size, rounded up."""
        return fold_ceildiv(self.size, self.wave_size)

    def place(self, wave: tile.Var) -> tile.Expr:
        """Return the number of this block's tile in a wave: `wave * wave_size + index`."""
        return fold_binary("add", fold_binary("mul", wave, self.wave_size), self.index)

    def coordinates(self, wave: tile.Var) -> tuple[tile.Expr, ...]:
        """Return the coordinates in the domain of this block's tile in a wave."""
        rest = self.place(wave)
        offset, rest = fold_binary("floormod", rest, self.group), fold_binary("floordiv", rest, self.group)
        found: list[tile.Expr] = []
        for extent in reversed(self.domain[:-1]):
            found.append(fold_binary("floormod", rest, extent))
            rest = fold_binary("floordiv", rest, extent)
        return (*reversed(found), fold_binary("add", fold_binary("mul", rest, self.group), offset))

    def exists(self, wave: tile.Var, last: tile.Var) -> tile.Expr | None:
        """Return the condition that a wave's tile, with this last coordinate, lies in the domain; None if it always
        does.
        """
        conditions: list[tile.Expr] = []
        if fold_binary("sub", fold_binary("mul", self.waves, self.wave_size), self.size) != tile.int32_const(0):
            conditions.append(tile.Binary("lt", self.place(wave), self.size, BOOL))
        if fold_binary("sub", fold_binary("mul", self.groups, self.group), self.domain[-1]) != tile.int32_const(0):
            conditions.append(tile.Binary("lt", last, self.domain[-1], BOOL))
        return join_conditions(conditions)


def read_persistent_walk(call: Call) -> PersistentWalk:
    """Build the walk of T.Persistent from its arguments; refuse constant extents and wave sizes below 1."""
    domain = call["domain"]
    if not isinstance(domain.value, tuple) or not domain.value:
        call.refuse("domain", "a list of extents, one per dimension")
    extents = tuple(_read_integer(call, "domain", Argument(v, domain.span)) for v in domain.value)
    wave_size, index, group_size = (_read_integer(call, k, call[k]) for k in ("wave_size", "index", "group_size"))
    for extent in extents:
        _refuse_empty(call, "domain", extent)
    _refuse_empty(call, "wave_size", wave_size)
    group = fold_binary("max", fold_binary("min", group_size, extents[-1]), 1)
    return PersistentWalk(extents, wave_size, index, group, fold_ceildiv(extents[-1], group))


def _refuse_empty(call: Call, name: str, value: tile.Expr) -> None:
    """Raise `wrong-shape` if an argument's value is a constant below 1."""
    if isinstance(value, tile.Const) and value.value < 1:
        raise_error("wrong-shape", f"{call.name}: `{name}` must be positive", call[name].span, f"this is {value.value}")


def _read_integer(call: Call, name: str, argument: Argument) -> tile.Expr:
    """Return an argument as an int32 expression with constants folded; refuse other types."""
    return fold_expr(as_count(argument, f"{call.name}: `{name}` must be an integer"))


def fold_ceildiv(a: tile.Expr, b: tile.Expr) -> tile.Expr:
    """Return `a / b` rounded up, as an int32 expression with constants folded."""
    return fold_binary("floordiv", fold_binary("add", a, fold_binary("sub", b, 1)), b)


# ---- bounds ----------------------------------------------------------------------------------------------------------


def _read_bound(call: Call, name: str) -> tile.Expr:
    """Return a loop bound as an int32 expression with constants folded; refuse other types."""
    return fold_expr(as_count(call[name], f"{call.name}: the bounds must be integers"))


def read_parallel_extents(call: Call) -> tuple[int | tile.Expr, ...]:
    """Return the extents of T.Parallel, positive numbers or run-time expressions; refuse a call without any."""
    if not call.variadic:
        raise_error("missing-argument", "T.Parallel needs at least one extent", call.span)
    return tuple(_read_extent(argument) for argument in call.variadic)


def _read_extent(argument: Argument) -> int | tile.Expr:
    """Return one extent of T.Parallel: a positive number or an int32 expression; refuse other values."""
    value = argument.value
    if isinstance(value, (*EXPR_TYPES, Access)):
        expr = as_expr(argument)
        if expr.dtype.is_float or expr.dtype == BOOL:
            raise_error("wrong-dtype", "T.Parallel: extents are integers", argument.span, f"this is {expr.dtype}")
        expr = fold_expr(cast_expr(expr, INT32))
        if not isinstance(expr, tile.Const):
            return expr
        value = int(expr.value)
    if not isinstance(value, int) or isinstance(value, bool):
        note = f"this is {describe_value(value)}"
        raise_error("wrong-argument", "T.Parallel: extents are integers", argument.span, note)
    if value <= 0:
        raise_error("wrong-shape", "the extents of T.Parallel must be positive", argument.span, f"this is {value}")
    make_literal(value, INT32, argument.span)
    return value


# ---- annotations= ----------------------------------------------------------------------------------------------------


def read_annotations(call: Call) -> list[tuple[str, Argument]]:
    """Return the names and values of `annotations=` but T.WSID, none if it is absent; refuse anything but a dictionary
    by names.
    """
    if "annotations" not in call.arguments or call["annotations"].value is None:
        return []
    value = call["annotations"].value
    if not isinstance(value, Dictionary):
        call.refuse("annotations", 'a dictionary, as in {"software_pipeline_stage": [0, 1]}')
    entries = []
    for entry in value.entries:
        if not isinstance(entry.key, str):
            title = f"{call.name}: annotations have names"
            raise_error("wrong-argument", title, entry.span, f"this is {describe_value(entry.key)}")
        if entry.key != SCHEDULE_CONSTANTS["T.WSID"]:  # a name for schedules, which are not used
            entries.append((entry.key, Argument(entry.value, entry.span)))
    return entries


def make_unknown_annotation_warning(
    call: Call, annotation: str, argument: Argument, known: Iterable[str]
) -> Diagnostic:
    """Make the warning that a loop annotation is unknown and ignored, with the nearest of the `known` names."""
    near = find_nearest_name(annotation, known)
    title, way_out = f"{call.name}: unknown annotation {annotation!r}", f"did you mean {near!r}?" if near else None
    return make_warning("unknown-annotation", title, argument.span, "it is ignored", help=way_out)


# ---- variables -------------------------------------------------------------------------------------------------------


def read_target_names(target: ast.Expr, count: int, form: str = "for {} in …") -> tuple[ast.Name, ...]:
    """Return the `count` plain names of a loop's target; refuse another number, other targets and repeated names.
    `form` shows in the error how they are written.
    """
    items = target.items if isinstance(target, ast.Tuple | ast.List) else (target,)
    names = tuple(i for i in items if isinstance(i, ast.Name))
    if len(names) < len(items):
        raise_error("bad-target", "a loop variable is a plain name", target.span)
    if len(names) != count:
        title = f"{len(names)} variable{'s' * (len(names) != 1)} for {count} extent{'s' * (count != 1)}"
        way_out = f"write `{form.format(', '.join(_complete_names(names, count)))}`"
        raise_error("wrong-variable-count", title, target.span, help=way_out)
    _refuse_duplicate_names(names)
    return names


def _complete_names(names: tuple[ast.Name, ...], count: int) -> list[str]:
    """Return exactly `count` names for a suggestion: the given ones, then `i, j, …` or `bx, by, bz`."""
    common = ("bx", "by", "bz") if names and names[0].id.startswith("b") else tuple("ijklmnop")
    default_names = (name for name in common if name not in {n.id for n in names})
    return [*(n.id for n in names), *default_names][:count]


def _refuse_duplicate_names(names: tuple[ast.Name, ...]) -> None:
    """Raise `duplicate-definition` if two loop variables have one name, except `_`."""
    seen: dict[str, Span] = {}
    for name in names:
        if name.id in seen and name.id != "_":
            first = Label(seen[name.id], "first here")
            raise_error("duplicate-definition", f"`{name.id}` is bound twice", name.span, secondary=(first,))
        seen[name.id] = name.span
