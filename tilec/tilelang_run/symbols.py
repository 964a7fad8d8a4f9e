"""The values that a script finds under `tilelang.language`: element types, and expressions for kernels to evaluate.

A script's Python code evaluates few of them: sizes, types and annotations. Whatever else it names is a `Symbol`, which
keeps its text for the kernel.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from tilec.ir.types import TYPES_BY_NAME

_TYPE_NAME = re.compile(r"(?:float|bfloat|int|uint|bool|tfloat|tf|half|double|short|long)[0-9a-z_]*")


class Symbol:
    """A name of the language, or an expression of names, as text. Only a kernel gives it a value."""

    __iter__ = None  # subscripts would make it iterable

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __getattr__(self, name: str) -> Symbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return Symbol(f"{self.text}.{name}")

    def __call__(self, *args: object, **named: object) -> Symbol:
        given = [*map(repr, args), *(f"{name}={value!r}" for name, value in named.items())]
        return Symbol(f"{self.text}({', '.join(given)})")

    def __getitem__(self, index: object) -> Symbol:
        return Symbol(f"{self.text}[{index!r}]")

    def __neg__(self) -> Symbol:
        return Symbol(f"(-{self.text})")


def _add_operator(name: str, sign: str) -> None:
    """Define an operator of `Symbol`, and its reflected form, that return a symbol of the expression's text."""
    setattr(Symbol, f"__{name}__", lambda self, other: Symbol(f"({self!r} {sign} {other!r})"))
    setattr(Symbol, f"__r{name}__", lambda self, other: Symbol(f"({other!r} {sign} {self!r})"))


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "truediv": "/", "mod": "%"}.items():
    _add_operator(_name, _sign)


class ElementType(str):
    """An element type: a string with its name, which also has its width and its type in torch."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"T.{self!s}"

    def __call__(self, value: object = None) -> object:
        """Return a number as it is; an expression converted to this type is left to the kernel."""
        return value if isinstance(value, int | float) else Symbol(repr(self))(*(() if value is None else (value,)))

    @property
    def bits(self) -> int:
        """Return the width of an element in bits: of a vector type, all lanes together."""
        if self in TYPES_BY_NAME:
            return TYPES_BY_NAME[self].bits
        base, lanes = re.fullmatch(r"(.*?)(?:x\d+)?", self), re.search(r"x(\d+)$", self)
        assert base is not None
        return TYPES_BY_NAME[base[1]].bits * (int(lanes[1]) if lanes else 1)

    @property
    def bytes(self) -> int:
        """Return the width of an element in whole bytes, at least 1."""
        return max(self.bits // 8, 1)

    def as_torch(self) -> Any:
        """Return torch's dtype of this name; int8 for four-bit elements, which are stored two in a byte."""
        return getattr(sys.modules["torch"], "int8" if self.bits == 4 else str(self))


def make_element_type(value: object) -> ElementType:
    """Return the element type that a string, or a dtype of torch or numpy, names, by its canonical name if known."""
    name = str(getattr(value, "__name__", value)).rpartition(".")[2]
    found = TYPES_BY_NAME.get(name)
    return ElementType(name if found is None else found.name)


def find_language_name(name: str) -> object:
    """Return what `T.name` is for a script's Python code: an element type, a function, or else a symbol."""
    if name in TYPES_BY_NAME:
        return make_element_type(name)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    return ElementType(name) if _TYPE_NAME.fullmatch(name) and re.search(r"\d", name) else Symbol(f"T.{name}")


def make_dynamic_sizes(name: str, dtype: str = "int32") -> object:
    """Return a symbol for the size that `T.dynamic("m")` names, or a tuple of symbols for several names."""
    sizes = tuple(Symbol(f"T.dynamic({each!r}, {str(dtype)!r})") for each in re.findall(r"\w+", name))
    return sizes[0] if len(sizes) == 1 else sizes


def _compute_on_numbers(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that computes on numbers, and for other arguments returns a symbol of its call."""

    def call_function(*args: object) -> object:
        """Compute the function if all arguments are numbers, else return a symbol of the call."""
        if all(isinstance(each, int | float) for each in args):
            return function(*args)
        return Symbol(name)(*args)

    name_function(call_function, name)
    return call_function


def name_function(function: Any, name: str) -> None:
    """Record on a function the name that kernel text uses for it."""
    function.tilelang_name = name


ceildiv = _compute_on_numbers("T.ceildiv", lambda a, b: -(-a // b))
next_power_of_2 = _compute_on_numbers("tilelang.math.next_power_of_2", lambda n: 1 << max(n - 1, 0).bit_length())

name_function(make_element_type, "T.dtype")
name_function(make_dynamic_sizes, "T.dynamic")

_FUNCTIONS: dict[str, object] = {
    "ceildiv": ceildiv,
    "floordiv": _compute_on_numbers("T.floordiv", lambda a, b: a // b),
    "floormod": _compute_on_numbers("T.floormod", lambda a, b: a % b),
    "min": _compute_on_numbers("T.min", min),
    "max": _compute_on_numbers("T.max", max),
    "dtype": make_element_type,
    "dynamic": make_dynamic_sizes,
    "symbolic": make_dynamic_sizes,
}
"""What Python code of scripts computes with, by name below `T`."""
