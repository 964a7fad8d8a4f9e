"""Binds the arguments of a `T.*` call to its parameters, and converts them to what the operation needs.

Each conversion fails with a message that names the argument and points at its text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from tilec.ir import tile
from tilec.ir.expr import cast_expr, extent_to_size, make_constant
from tilec.ir.types import BOOL, FLOAT32, INT32, INT64, TYPES_BY_NAME, DType
from tilec.ops.language.other_languages import advise_on_keyword, suggest_dtype, suggest_parameter
from tilec.ops.language.unavailable_names import refuse_unavailable
from tilec.ops.language.values import (
    EXPR_TYPES,
    Access,
    IndexRange,
    Member,
    SnapshotAccess,
    Value,
    VectorType,
    WarpPolicy,
    describe_value,
    show_shape,
)
from tilec.support.diagnostics import Diagnostic, Label, make_warning, raise_error, suggest_replacement
from tilec.support.records import dataclass
from tilec.support.sizes import has_shift
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class Required:
    """The default of a parameter that has none."""


REQUIRED = Required()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a `T.*` function. Of a parameter that is not `supported` only the default is accepted. A parameter
    with a `hint` is ignored, since it changes no result; the hint says what tilec does instead."""

    name: str
    default: Value | Required = REQUIRED
    supported: bool = True
    keyword_only: bool = False
    hint: str | None = None


LANE_COUNTS = ("2", "4", "8", "16", "32")
"""The lane counts of vector types."""

ANNOTATIONS = Parameter("annotations", None, hint="tilec reads no annotations here")
_OWN_CHOICE = "tilec chooses it from the operands"
EVICTION_POLICY, LOOP_LAYOUT, PREFERRED_INSTRUCTION, IGNORED_WIDTH = (
    Parameter(name, None, keyword_only=True, hint=_OWN_CHOICE)
    for name in ("eviction_policy", "loop_layout", "prefer_instruction", "coalesced_width")
)


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a `T.*` function. With `variadic` they are keywords, and positional arguments are collected."""

    name: str
    parameters: tuple[Parameter, ...]
    variadic: bool = False

    def __str__(self) -> str:
        """Return the signature as a call: `*args` if variadic, then supported parameters, those with a default as
        `name=`."""
        shown = ["*args"] if self.variadic else []
        shown += [p.name if isinstance(p.default, Required) else f"{p.name}=" for p in self.parameters if p.supported]
        return f"{self.name}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Argument:
    """The value of an argument, and where the call has it. `written` is where the file defines the string that a name
    stands for."""

    value: Value
    span: Span
    written: Span | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose arguments are bound to parameters. `span` is the whole call."""

    name: str
    arguments: Mapping[str, Argument]
    variadic: tuple[Argument, ...]
    span: Span

    def __getitem__(self, name: str) -> Argument:
        """Return the argument bound to a parameter, its default if it was not given."""
        return self.arguments[name]

    def is_given(self, name: str) -> bool:
        """Return whether the call itself gives an argument, rather than the parameter's default."""
        return self.arguments[name].span != self.span

    def refuse(self, name: str, wanted: str) -> NoReturn:
        """Raise the error `wrong-argument`: the argument must be `wanted`, and what it is instead."""
        argument = self[name]
        raise_error(
            "wrong-argument",
            f"{self.name}: `{name}` must be {wanted}",
            argument.span,
            f"this is {describe_value(argument.value)}",
        )

    def read_boolean(self, name: str) -> bool:
        """Return an argument that is True or False at compile time; refuses any other."""
        value = self[name].value
        if not isinstance(value, bool):
            self.refuse(name, "True or False, known at compile time")
        return value

    def read_integer(self, name: str) -> int:
        """Return an argument that is an integer known at compile time; refuses others, and raises an error beyond
        int32."""
        value = self[name].value
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(name, "an integer known at compile time")
        make_literal(value, INT32, self[name].span)
        return value

    def read_dtype(self, name: str) -> DType:
        """Return an argument as a dtype, or fail."""
        return as_dtype(self[name])

    def read_policy(self, name: str) -> str:
        """Return the name of a warp policy argument; refuses any other value."""
        value = self[name].value
        if not isinstance(value, WarpPolicy):
            self.refuse(name, "T.GemmWarpPolicy.Square, FullRow or FullCol")
        return value.name

    def buffer(self, name: str) -> tile.Buffer | None:
        """Return the buffer that an argument is, or is a part of; None for other values. Operations that work on tiles
        refuse a tensor by it before its box is asked for."""
        value = self[name].value
        buffer = value.buffer if isinstance(value, Access) else value
        return buffer if isinstance(buffer, tile.Buffer) else None

    def read_tile(self, name: str, title: str, help: str) -> tile.Region:
        """Return the region of a tile that an argument is; raises an error with this title and help for a tensor."""
        buffer = self.buffer(name)
        if buffer is not None and buffer.scope == "global":
            raise_error("wrong-scope", title, self[name].span, f"{buffer.name} is in global memory", help=help)
        return self.read_region(name)

    def read_region(self, name: str, like: tuple[int, ...] | None = None) -> tile.Region:
        """Return the region that an argument is; an index without extents takes those of `like`, aligned at the last
        dimension. Raises an error for a tensor of dynamic shape, an index without extents or `like`, and other
        values."""
        argument = self[name]
        match argument.value:
            case tile.Buffer(is_dynamic=True) as buffer:
                raise_error(
                    "dynamic-shape",
                    f"{self.name}: the extent of the part of {buffer.name} must be known at compile time",
                    argument.span,
                    f"its shape is {show_shape(buffer.extents)}",
                    help=f"write a box of it, as in `{buffer.name}[{', '.join('0:128' for _ in buffer.extents)}]`",
                )
            case tile.Buffer(shape=shape) as buffer:
                return tile.Region(buffer, tuple(tile.int32_const(0) for _ in shape), shape, argument.span)
            case Access() as access if access.is_vector and like is not None and like[-1] == access.buffer.lanes:
                return _make_corner_box(access, like, argument.span)
            case Access() as access if access.has_extent:
                return _make_box(access, argument.span)
            case Access() as access if like is not None:
                return _make_corner_box(access, like, argument.span)
            case Access():
                raise_error(
                    "unknown-extent",
                    f"{self.name}: `{name}` has an index but no extent",
                    argument.span,
                    help="write a slice, as in `A[0:16, :]`",
                )
        return self.refuse(name, "a tensor, a tile or a part of one")


def bind_arguments(
    signature: Signature, positional: Sequence[Argument], keywords: Mapping[str, Argument], span: Span
) -> Call:
    """Return the call with its arguments bound to the parameters, as Python does; raises an error for each kind of
    mismatch. The span of a default is the whole call."""
    name = signature.name
    parameters = {p.name: p for p in signature.parameters}
    places = [] if signature.variadic else [p for p in signature.parameters if not p.keyword_only]
    if not signature.variadic and len(positional) > len(places):
        wanted = f"{len(places)} argument{'s' * (len(places) != 1)}"
        raise_error(
            "too-many-arguments",
            f"{name} takes {wanted}, but {len(positional)} are given",
            positional[len(places)].span,
            "one argument too many",
            help=f"write {signature}",
        )
    given = {} if signature.variadic else {p.name: a for p, a in zip(places, positional, strict=False)}
    for key, argument in keywords.items():
        if key not in parameters:
            accepted = [p.name for p in signature.parameters if p.supported]
            near = suggest_parameter(key, accepted)
            advice = advise_on_keyword(key)
            if near is None and advice is None:
                near = find_nearest_name(key, accepted)
            help_text = advice or (f"did you mean `{near}`?" if near else f"write {signature}")
            title = f"{name} has no parameter `{key}`"
            raise_error("unknown-keyword", title, argument.span, help=help_text, fix=suggest_replacement(key, near))
        if key in given:
            first = Label(given[key].span, "given here already")
            raise_error("duplicate-argument", f"{name} gets `{key}` twice", argument.span, secondary=(first,))
        given[key] = argument
    for parameter in signature.parameters:
        argument_given = given.get(parameter.name)
        if argument_given is None:
            if isinstance(parameter.default, Required):
                raise_error("missing-argument", f"{name} needs `{parameter.name}`", span, help=f"write {signature}")
            given[parameter.name] = Argument(parameter.default, span)
        elif not parameter.supported and argument_given.value != parameter.default:
            raise_error(
                "unsupported-keyword",
                f"{name}: `{parameter.name}` is not supported",
                argument_given.span,
                f"only {parameter.default} is accepted here",
                help="remove it",
            )
    return Call(name, given, tuple(positional) if signature.variadic else (), span)


def warn_ignored_hints(call: Call, signature: Signature) -> Iterator[Diagnostic]:
    """Yield a warning for each argument that the call gives, other than its default, and tilec ignores."""
    for parameter in signature.parameters:
        if parameter.hint and call.is_given(parameter.name) and call[parameter.name].value != parameter.default:
            title = f"{call.name}: `{parameter.name}` has no effect"
            yield make_warning("hint-not-used", title, call[parameter.name].span, parameter.hint, help="remove it")


def find_nearest_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that `name` is probably a misspelling of; None if none is near."""
    # Only messages need the module, and importing it takes longer than checking a kernel.
    from tilec.support.spelling import nearest_word

    return nearest_word(name, candidates)


# ---- one argument ----------------------------------------------------------------------------------------------------


def as_dtype(argument: Argument) -> DType:
    """Return the dtype that an argument is or names; raises an error with the nearest name for any other."""
    value = argument.value
    if isinstance(value, DType):
        return value
    if isinstance(value, VectorType):
        value = str(value)
    if isinstance(value, Member):  # torch.float16; T.float16x2, and other names that T does not have
        value = value.path.removeprefix("T.").removeprefix("torch.")
    if not isinstance(value, str):
        raise_error("wrong-argument", "a dtype is needed here", argument.span, f"this is {describe_value(value)}")
    if value == "ptr":
        way_out = "declare a parameter of type T.Tensor((n,), T.ptr), and make tensors of its entries by T.make_tensor"
        raise_error("foreign-address", "only a parameter holds addresses", argument.span, "T.ptr", help=way_out)
    if value not in TYPES_BY_NAME:
        near = suggest_dtype(value)
        if near is None:
            refuse_unavailable(f"T.{value}", argument.span)
            near = find_nearest_name(value, TYPES_BY_NAME)
        help_text = f"did you mean {near!r}?" if near else f"supported are {', '.join(sorted(TYPES_BY_NAME))}"
        element, _, lanes = value.rpartition("x")
        if element in TYPES_BY_NAME and lanes.isdecimal():
            help_text = f"one number is needed here: use {element!r}"
        title = f"{value!r} is not a supported dtype"
        raise_error(
            "unknown-dtype",
            title,
            argument.written or argument.span,
            help=help_text,
            fix=suggest_replacement(value, near),
        )
    return TYPES_BY_NAME[value]


def as_element_type(argument: Argument) -> tuple[DType, int]:
    """Return the dtype and the number of lanes of an element type: 1 unless it is a vector type."""
    value = argument.value
    if isinstance(value, str):
        value = parse_vector_type(value) or value
    if isinstance(value, VectorType):
        return value.dtype, value.lanes
    return as_dtype(argument), 1


def parse_vector_type(name: str) -> VectorType | None:
    """Return the vector type of a name like `float32x4`; None for any other name."""
    element, _, lanes = name.rpartition("x")
    if element not in TYPES_BY_NAME or lanes not in LANE_COUNTS:
        return None
    return VectorType(TYPES_BY_NAME[element], int(lanes))


def as_shape(argument: Argument, what: str, instead: str | None = None) -> tuple[int, ...]:
    """Return a shape of positive integers known at compile time, from a tuple or one number; raises errors for others.
    `what` names the shape in messages; `instead` is the help if an extent is a run-time value."""
    value = argument.value
    items = value if isinstance(value, tuple) else (value,)
    if not items:
        raise_error("wrong-shape", f"{what} needs at least one dimension", argument.span)
    for item in items:
        if isinstance(item, EXPR_TYPES):
            raise_error(
                "dynamic-shape",
                f"{what} must be known at compile time",
                argument.span,
                "depends on a run-time value",
                help=instead,
            )
        if not isinstance(item, int) or isinstance(item, bool):
            raise_error(
                "wrong-shape", f"{what} must consist of integers", argument.span, f"holds {describe_value(item)}"
            )
        if item <= 0:
            raise_error("wrong-shape", f"{what} must be positive", argument.span, f"holds {item}")
        make_literal(item, INT32, argument.span)
    return tuple(i for i in items if isinstance(i, int))


def as_extents(argument: Argument, what: str) -> tuple[tile.Extent, ...]:
    """Return the extents of a shape, from a tuple or one value; each is a number or an expression of integer
    parameters. Raises errors as `as_extent` and `as_shape` do."""
    value = argument.value
    items = value if isinstance(value, tuple) else (value,)
    return tuple(as_extent(Argument(i, argument.span), what) for i in items) or as_shape(argument, what)


def as_extent(argument: Argument, what: str) -> tile.Extent:
    """Return an extent: a positive number, or an int32 expression that a host can compute at launch; else raises an
    error."""
    value = argument.value
    if isinstance(value, tuple):
        raise_error("wrong-shape", f"{what} must consist of integers", argument.span, f"holds {describe_value(value)}")
    if not isinstance(value, EXPR_TYPES):
        (number,) = as_shape(argument, what)
        return number
    if (size := extent_to_size(value)) is None or has_shift(size):
        raise_error(
            "dynamic-shape",
            f"{what} must be known at launch",
            argument.span,
            f"depends on {describe_value(value)}",
            help="compute it from integers and integer parameters, with + - * // % T.min and T.max",
        )
    return cast_expr(value, INT32)


def as_expr(argument: Argument, dtype: DType | None = None) -> tile.Expr:
    """Return a scalar as an expression of `dtype`; without one, a Python number becomes bool, int32, int64 or float32.
    Raises an error for values that are no scalar, and `literal-range` for an integer that does not fit.
    """
    value = argument.value
    if isinstance(value, bool):
        return make_constant(value, dtype or BOOL)
    if isinstance(value, int):
        return make_literal(value, dtype or (INT32 if -(2**31) <= value < 2**31 else INT64), argument.span)
    if isinstance(value, float):
        return make_constant(value, dtype or FLOAT32)
    expr = _as_runtime_expr(argument)
    return cast_expr(expr, dtype) if dtype else expr


def as_count(argument: Argument, what: str) -> tile.Expr:
    """Return an integer argument as an int32 expression; raises an error with the title `what` for other types."""
    if isinstance(argument.value, int) and not isinstance(argument.value, bool):
        return make_literal(argument.value, INT32, argument.span)
    expr = as_expr(argument)
    if expr.dtype.is_float or expr.dtype == BOOL:
        raise_error("wrong-dtype", what, argument.span, f"this is {expr.dtype}")
    return cast_expr(expr, INT32)


def _as_runtime_expr(argument: Argument) -> tile.Expr:
    """Return the expression of a run-time scalar, a load for an element; raises an error for slices, buffers and other
    values."""
    value = argument.value
    if isinstance(value, SnapshotAccess):
        value = value.read()
    if isinstance(value, Access) and not value.has_extent:
        return tile.Load(value.buffer, tuple(i for i in value.indices if not isinstance(i, IndexRange)))
    if isinstance(value, Access):
        name = value.buffer.name
        way_out = f"index every dimension of {name} inside T.Parallel, or T.copy the part to a tile of its own"
        raise_error(
            "not-a-scalar", "one element is needed here, not a slice", argument.span, f"a part of {name}", help=way_out
        )
    if isinstance(value, tile.Buffer):
        raise_error(
            "not-a-scalar",
            "one element is needed here, not a whole buffer",
            argument.span,
            f"this is {describe_value(value)}",
            help=f"index it inside T.Parallel: {value.name}[{', '.join('ijklmnop'[: len(value.extents)])}]",
        )
    if not isinstance(value, EXPR_TYPES):
        raise_error("not-a-scalar", "a number is needed here", argument.span, f"this is {describe_value(value)}")
    return value


_LONGEST_NUMBER = 40
"""The most digits that a message shows."""


def make_literal(value: int, dtype: DType, span: Span) -> tile.Expr:
    """Return a Python integer as a constant of `dtype`; raises `literal-range` if it does not fit."""
    result = make_constant(value, dtype)
    is_lost = math.isinf(result.value) if dtype.is_float else dtype.kind in ("int", "uint") and result.value != value
    if is_lost:
        digits = len(str(abs(value)))
        shown = f"{value}" if digits <= _LONGEST_NUMBER else f"an integer of {digits} digits"
        raise_error("literal-range", f"{shown} does not fit in {dtype}", span, f"{dtype} would hold {result.value}")
    return result


# ---- regions ---------------------------------------------------------------------------------------------------------


def _make_box(access: Access, span: Span) -> tile.Region:
    """Return the region of an access with slices, extent 1 for an index; raises an error if it leaves its tile."""
    start = tuple(i.start if isinstance(i, IndexRange) else i for i in access.indices)
    extent = tuple(i.extent if isinstance(i, IndexRange) else 1 for i in access.indices)
    return _check_inside(tile.Region(access.buffer, start, extent, span))


def _make_corner_box(access: Access, like: tuple[int, ...], span: Span) -> tile.Region:
    """Return the region with the extents `like` that begins at an access, aligned at the last dimension, or fail. It
    fails if the buffer has too few dimensions, or the region leaves its tile."""
    start = tuple(i.start if isinstance(i, IndexRange) else i for i in access.indices)
    rank = len(start)
    surplus = like[: max(len(like) - rank, 0)]
    if any(e != 1 for e in surplus):
        raise_error(
            "shape-mismatch",
            f"{access.buffer.name} has too few dimensions for this copy",
            span,
            f"{rank} indices, the other side has shape {show_shape(like)}",
        )
    extent = (1,) * (rank - len(like)) + like[len(surplus) :]
    return _check_inside(tile.Region(access.buffer, start, extent, span))


def _check_inside(region: tile.Region) -> tile.Region:
    """Return the region itself; raises `out-of-range` if it is known to leave its tile. It may leave a tensor: reads
    give 0 and stores are dropped."""
    if region.buffer.scope == "global":
        return region
    for start, extent, size in zip(region.start, region.extent, region.buffer.shape, strict=True):
        low = getattr(start, "value", 0)
        if low + extent > size or low < 0:
            declared = Label(region.buffer.span, f"shape {show_shape(region.buffer.shape)}")
            raise_error(
                "out-of-range",
                f"the box is out of the bounds of {region.buffer.name}",
                region.span,
                f"covers {low} to {low + extent - 1} of a dimension of {size}",
                secondary=(declared,),
            )
    return region
