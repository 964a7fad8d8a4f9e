"""Python's own functions and methods, on compile-time values. Nothing else of Python runs.

Sequences have at most `MAX_LENGTH` items, so that no expression takes long or much memory.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilec.ir.tile import Buffer
from tilec.ir.types import DType
from tilec.ops.functions.scalar import FUNCTIONS
from tilec.ops.language.arithmetic import MAX_LENGTH, are_equal, is_runtime
from tilec.ops.language.signature import Argument, find_nearest_name
from tilec.ops.language.values import Dictionary, DictionaryEntry, Function, Member, Value, describe_value
from tilec.support.diagnostics import raise_error
from tilec.support.options import LARGEST_BITS
from tilec.support.source import Span

_LARGEST_ARGUMENT = 1000
"""The limit for functions whose result grows faster than their argument: factorials and binomials."""

_MATH = (
    "acos", "asin", "atan", "atan2", "cbrt", "ceil", "comb", "copysign", "cos", "cosh", "degrees", "erf", "exp", "exp2",
    "expm1", "fabs", "factorial", "floor", "fmod", "frexp", "gcd", "hypot", "isclose", "isfinite", "isinf", "isnan",
    "isqrt", "lcm", "ldexp", "log", "log10", "log1p", "log2", "modf", "perm", "pow", "prod", "radians", "remainder",
    "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
MATH_CONSTANTS = {f"math.{name}": getattr(math, name) for name in ("pi", "e", "tau", "inf", "nan")}

_NUMBERS: dict[str, Callable[..., Any]] = {
    "abs": abs, "round": round, "sum": sum, "divmod": divmod, "pow": pow, "bin": bin, "hex": hex, "oct": oct,
    "chr": chr, "ord": ord, **{f"math.{name}": getattr(math, name) for name in _MATH},
}  # fmt: skip
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (float,), "bool": (bool,), "str": (str,), "tuple": (tuple,), "list": (tuple,),
    "dict": (Dictionary,),
}  # fmt: skip
_OTHERS = ("len", "min", "max", "range", "zip", "enumerate", "reversed", "sorted", "any", "all", "isinstance", "print",
           "repr", "callable", "getattr", "hasattr", "itertools.product")  # fmt: skip
BUILTIN_NAMES = (*_NUMBERS, *_TYPES, *_OTHERS)
CONSTANT_TIME_NAMES = ("len", "range", "isinstance", "callable", "print")
"""The functions that do not look at every item of a sequence."""

_METHODS: dict[type, tuple[str, ...]] = {
    str: ("lower", "upper", "strip", "lstrip", "rstrip", "split", "rsplit", "join", "replace", "startswith", "endswith",
          "find", "count", "isdigit", "isalpha", "title", "capitalize", "removeprefix", "removesuffix", "partition",
          "index"),
    tuple: ("index", "count"),
    Dictionary: ("get", "keys", "values", "items"),
    int: ("bit_length", "bit_count"),
    float: ("is_integer",),
}  # fmt: skip
CONVERSION_METHOD = "astype"
"""The method that converts numbers and expressions to another type."""


def call_builtin(name: str, arguments: Sequence[Argument], keywords: Mapping[str, Argument], span: Span) -> Value:
    """Return the value of a Python function such as `min` or `math.sqrt`; raises an error where it fails or is too
    large. It also raises one for arguments known only at run time."""
    for argument in (*arguments, *keywords.values()):
        _check_known(f"{name}()", argument, name)
    values = [a.value for a in arguments]
    try:
        made = _evaluate_builtin(name, values, {k: a.value for k, a in keywords.items()}, span)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise_error("static-arithmetic", f"{name}() cannot be computed", span, str(error).split("\n")[0].lower())
    return _check_result_size(made, span)


def _check_known(what: str, argument: Argument, name: str) -> None:
    """Raise an error for an argument that is known only at run time, unless the function accepts such values."""
    parts = argument.value
    for value in parts if isinstance(parts, tuple) and not name.startswith(("len", "zip", "enum")) else (parts,):
        if is_runtime(value) and name not in _TYPES and name not in ("isinstance", "print"):
            spelled = f"T.{name.removeprefix('math.')}"
            raise_error(
                "not-a-constant",
                f"{what} works on values known at compile time",
                argument.span,
                "known only at run time",
                help=f"use {spelled}" if spelled in FUNCTIONS else None,
            )


def _evaluate_builtin(name: str, values: list[Value], keywords: dict[str, Value], span: Span) -> Value:
    """Return the result of a Python function on compile-time values, None for print; lets Python's own exceptions
    through. Raises errors for wrong keywords or results too large.
    """
    if name == "print":
        return None
    if keywords and (name, *keywords) != ("sorted", "reverse") and name not in ("enumerate", "min", "max", "dict"):
        raise_error("unknown-keyword", f"{name}() takes no keyword `{next(iter(keywords))}` here", span)
    match name, values:
        case "isinstance", [value, types]:
            listed = types if isinstance(types, tuple) else (types,)
            return isinstance(value, tuple(t for m in listed for t in _resolve_types(m, span)))
        case "callable", [value]:
            return isinstance(value, Function)
        case "len", [value]:
            return len(_make_sized(value, span))
        case "list" | "tuple", []:
            return ()
        case "list" | "tuple", [value]:
            return tuple(list_items(value, span))
        case "dict", _:
            return _build_dictionary(values, keywords, span)
        case "itertools.product", _:
            return _combine_lists([tuple(list_items(v, span)) for v in values], span)
        case "zip", _:
            return tuple(zip(*(list_items(v, span) for v in values), strict=False))
        case "enumerate", [value, *start]:
            first = start[0] if start else keywords.get("start", 0)
            if not isinstance(first, int):
                raise TypeError("enumerate() counts from an integer")
            return tuple((first + i, v) for i, v in enumerate(list_items(value, span)))
        case "reversed", [value]:
            return tuple(list_items(value, span))[::-1]
        case "sorted", [value]:
            ordered: list[Any] = list(list_items(value, span))
            return tuple(sorted(ordered, reverse=bool(keywords.get("reverse", False))))
        case "any" | "all", [value]:
            truths = (bool(v) for v in list_items(value, span))
            return any(truths) if name == "any" else all(truths)
        case "range", _:
            numbers: list[Any] = values
            return range(*numbers)
        case "min" | "max", _:
            candidates: Any = list(list_items(values[0], span)) if len(values) == 1 else values
            options: dict[str, Any] = keywords
            chosen: Any = min if name == "min" else max
            best: Value = chosen(candidates, **options)
            return best
        case "repr", [value]:
            return repr(_get_printed_value(value))
        case "str", [value]:
            return convert_to_text(value, span)
        case _:
            function: Any = _TYPES[name][0] if name in _TYPES else _NUMBERS[name]
            if name in ("math.factorial", "math.comb", "math.perm", "pow", "math.ldexp"):
                _check_small_arguments(values, span)
            if name == "round":
                _check_small_arguments(values[1:], span)
            if name in ("math.prod", "math.lcm"):
                _check_product_size([x for v in values for x in (list_items(v, span) if is_iterable(v) else [v])], span)
            if name == "sum" and len(values) == 2 and isinstance(values[1], tuple):
                return _concatenate_tuples(values[1], list_items(values[0], span))
            found: Value = function(*values)
            return found


def _combine_lists(lists: Sequence[tuple[Value, ...]], span: Span) -> tuple[Value, ...]:
    """Return all tuples of one item of each list; raises an error, before it makes them, for too many."""
    count = math.prod(map(len, lists)) * max(len(lists), 1)
    if count > MAX_LENGTH:
        raise_error("evaluation-too-long", "the result is too large", span, f"{count} items; the limit is {MAX_LENGTH}")
    return tuple(itertools.product(*lists))


def _check_small_arguments(values: Iterable[Value], span: Span) -> None:
    """Raise an error if a number exceeds 1000 in size."""
    if any(isinstance(v, int | float) and abs(v) > _LARGEST_ARGUMENT for v in values):
        raise_error("static-arithmetic", "the result is too large", span)


def _check_product_size(values: Iterable[Value], span: Span) -> None:
    """Raise an error if the factors' bits together exceed the limit, before they are multiplied."""
    if sum(v.bit_length() for v in values if isinstance(v, int)) > 2 * LARGEST_BITS:
        raise_error("static-arithmetic", "the result is too large", span)


def _concatenate_tuples(first: tuple[Value, ...], others: Iterable[Value]) -> tuple[Value, ...]:
    """Return the first tuple with all others appended; raises `TypeError` for other values. It is `sum(lists, [])`
    without the partial sums."""
    made = list(first)
    for other in others:
        if not isinstance(other, tuple):
            raise TypeError("sum() joins lists to a list")
        made += other
    return tuple(made)


def _resolve_types(member: Value, span: Span) -> tuple[type, ...]:
    """Return the Python types that isinstance()'s second argument names, none for unknown ones; raises an error for no
    type."""
    if isinstance(member, Member) and member.path in _TYPES:
        return _TYPES[member.path]
    if isinstance(member, Member):
        return (DType,) if member.path in ("T.dtype", "T.DataType") else ()
    return raise_error("wrong-argument", "isinstance() needs a type", span, f"this is {describe_value(member)}")


def _build_dictionary(values: list[Value], keywords: dict[str, Value], span: Span) -> Dictionary:
    """Return the dictionary that dict() makes from dictionaries, lists of pairs, and keywords."""
    pairs: list[tuple[Value, Value]] = []
    for value in values:
        if isinstance(value, Dictionary):
            pairs += [(e.key, e.value) for e in value.entries]
        else:
            for key, held in (list_items(pair, span) for pair in list_items(value, span)):
                pairs.append((key, held))
    return make_dictionary([DictionaryEntry(k, v, span) for k, v in [*pairs, *keywords.items()]])


def make_dictionary(entries: Iterable[DictionaryEntry]) -> Dictionary:
    """Return the dictionary of the entries; a later entry of the same key replaces the value, not the position."""
    return Dictionary(tuple({entry.key: entry for entry in entries}.values()))


# ---- sequences -------------------------------------------------------------------------------------------------------


def is_iterable(value: Value) -> bool:
    """Return whether Python's `for` can iterate over a compile-time value: a tuple, string, range or dictionary."""
    return isinstance(value, tuple | str | range | Dictionary)


def list_items(value: Value, span: Span) -> Iterable[Value]:
    """Return the items that `for` iterates over: a dictionary's keys, a string's letters; raises an error for other
    values. It raises one for too long a range too."""
    match value:
        case Dictionary(entries=entries):
            return tuple(e.key for e in entries)
        case range() if value[MAX_LENGTH:]:
            return raise_error("evaluation-too-long", "the range is too long", span, f"the limit is {MAX_LENGTH} items")
        case tuple() | str() | range():
            return value
        case DType(name=name):  # TileLang's are strings
            return name
        case _:
            sized = f"its sizes are {value.name}.shape" if isinstance(value, Buffer) else None
            return raise_error(
                "not-iterable", "this cannot be iterated over", span, f"this is {describe_value(value)}", help=sized
            )


def _make_sized(value: Value, span: Span) -> Any:
    """Return the value if it has a length, else its items as a tuple; raises an error if it cannot be iterated over."""
    return value if isinstance(value, str | tuple | range) else tuple(list_items(value, span))


def contains_item(container: Argument, item: Argument) -> bool:
    """Return whether `item in container` holds; raises an error for a number in a string, or for no container."""
    if isinstance(container.value, str):
        if not isinstance(item.value, str):
            raise_error(
                "static-arithmetic", "a string holds strings only", item.span, f"this is {describe_value(item.value)}"
            )
        return item.value in container.value
    if isinstance(container.value, range) and isinstance(item.value, int):
        return item.value in container.value
    return any(are_equal(v, item.value) for v in list_items(container.value, container.span))


def get_item(owner: Value, index: Value, span: Span) -> Value:
    """Return `owner[index]` of a dictionary, tuple, string or range; raises an error for no such key or item."""
    if isinstance(owner, Dictionary):
        found = next((e for e in owner.entries if are_equal(e.key, index)), None)
        if found is None:
            keys = [e.key for e in owner.entries]
            near = find_nearest_name(index, [k for k in keys if isinstance(k, str)]) if isinstance(index, str) else None
            shown = ", ".join(repr(_get_printed_value(k)) for k in keys[:10]) or "nothing"
            raise_error(
                "no-such-key",
                f"the dictionary has no {describe_value(index).removeprefix('the ')}",
                span,
                f"it has {shown}",
                help=f"did you mean {near!r}?" if near else None,
            )
        return found.value
    listed: Any = list_items(owner, span) if isinstance(owner, range) else owner
    if not isinstance(index, int):
        raise_error("wrong-argument", "a tuple is indexed by one number known at compile time", span)
    if not -len(listed) <= index < len(listed):
        what = "string" if isinstance(owner, str) else "tuple"
        raise_error("out-of-range", f"there is no item {index}", span, f"the {what} has {len(listed)}")
    item: Value = listed[index]
    return item


def get_slice(owner: Value, bounds: tuple[Value, Value, Value], span: Span) -> Value:
    """Return `owner[start:stop:step]`; raises an error for bounds that are no integers and for a step of 0."""
    if any(b is not None and not isinstance(b, int) for b in bounds):
        raise_error("wrong-argument", "the bounds of a slice are integers known at compile time", span)
    if bounds[2] == 0:
        raise_error("static-arithmetic", "the step of a slice is 0", span)
    cut: Any = slice(*bounds)
    assert isinstance(owner, str | tuple | range)
    return owner[cut]


# ---- text ------------------------------------------------------------------------------------------------------------


def _get_printed_value(value: Value) -> Any:
    """Return the value that Python prints for a value: a dtype's name, else the value itself."""
    return value.name if isinstance(value, DType) else value


def convert_to_text(value: Value, span: Span) -> str:
    """Return `str(value)` of a compile-time value; raises an error for a value known only at run time."""
    if is_runtime(value):
        raise_error(
            "not-a-constant", "text can contain only values known at compile time", span, "known only at run time"
        )
    return str(_get_printed_value(value))


def format_value(value: Argument, conversion: str, spec: str) -> str:
    """Return the text of `{value!conversion:spec}` in an f-string; raises an error for run-time values or a bad
    spec."""
    if re.search(r"\d{4,}", spec):
        raise_error("static-arithmetic", "the result is too large", value.span)
    if is_runtime(value.value):
        raise_error(
            "not-a-constant", "text can contain only values known at compile time", value.span, "known only at run time"
        )
    shown = _get_printed_value(value.value)
    if conversion:
        shown = (ascii if conversion == "a" else repr if conversion == "r" else str)(shown)
    try:
        return format(shown, spec)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise_error("static-arithmetic", "this cannot be formatted", value.span, str(error).lower())


def join_text(parts: list[str], span: Span) -> str:
    """Return the parts of an f-string joined; raises an error for more than `MAX_LENGTH` characters."""
    if sum(map(len, parts)) > MAX_LENGTH:
        raise_error("evaluation-too-long", "the result is too large", span, f"the limit is {MAX_LENGTH} characters")
    return "".join(parts)


# ---- methods ---------------------------------------------------------------------------------------------------------


def list_methods(owner: Value) -> tuple[str, ...]:
    """Return the names of the methods that a compile-time value has here; `astype` for numbers too."""
    if isinstance(owner, DType):  # TileLang's are strings
        return _METHODS[str]
    also = (CONVERSION_METHOD,) if isinstance(owner, int | float) and not isinstance(owner, bool) else ()
    return (*next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), ()), *also)


def call_method(
    owner: Value, name: str, arguments: Sequence[Argument], keywords: Mapping[str, Argument], span: Span
) -> Value:
    """Return the value of `owner.name(…)`; raises an error for keywords, a failing method, or too large a result."""
    values: list[Any] = [a.value for a in arguments]
    owner = owner.name if isinstance(owner, DType) else owner
    if keywords:
        raise_error("unknown-keyword", f".{name}() takes no keywords here", next(iter(keywords.values())).span)
    try:
        if isinstance(owner, Dictionary):
            made = _call_dictionary_method(owner, name, values)
        elif name == "join":
            (joined,) = values
            listed: list[Any] = list(list_items(joined, span))
            if sum(len(i) + len(str(owner)) for i in listed if isinstance(i, str)) > MAX_LENGTH:
                raise_error("evaluation-too-long", "the result is too large", span)
            made = str(owner).join(listed)
        else:
            if name == "replace" and len(str(owner)) * max(map(len, values), default=0) > MAX_LENGTH:
                raise_error("evaluation-too-long", "the result is too large", span)
            made = getattr(owner, name)(*values)
            made = tuple(made) if isinstance(made, list) else made
    except (ArithmeticError, TypeError, ValueError, IndexError, KeyError) as error:
        raise_error("static-arithmetic", f".{name}() cannot be computed", span, str(error).split("\n")[0].lower())
    return _check_result_size(made, span)


def _call_dictionary_method(owner: Dictionary, name: str, values: list[Any]) -> Value:
    """Return the result of a dictionary's keys, values, items or get; raises `TypeError` for other parameters."""
    match name, values:
        case "keys", []:
            return tuple(e.key for e in owner.entries)
        case "values", []:
            return tuple(e.value for e in owner.entries)
        case "items", []:
            return tuple((e.key, e.value) for e in owner.entries)
        case "get", [key, *default]:
            return next((e.value for e in owner.entries if are_equal(e.key, key)), default[0] if default else None)
        case _:
            raise TypeError(f"{name}() has other parameters")


def _check_result_size(value: Value, span: Span) -> Value:
    """Return the value itself; raises an error if a string or tuple is too long, or an integer has too many bits."""
    listed: Any = value
    if isinstance(listed, str | tuple) and len(listed) > MAX_LENGTH:
        raise_error(
            "evaluation-too-long", "the result is too large", span, f"{len(listed)} items; the limit is {MAX_LENGTH}"
        )
    if isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        raise_error("static-arithmetic", "the result is too large", span)
    return value
