"""T.dynamic: names of sizes that are known at launch, from the shapes of the kernel's arguments."""

from __future__ import annotations

from tilec.ir.tile import Var
from tilec.ir.types import INT32, INT64
from tilec.ops.signature import Call, Parameter, Signature
from tilec.ops.values import Value
from tilec.support.diagnostics import raise_error


def make_signature(name: str) -> Signature:
    return Signature(name, (Parameter("name"), Parameter("dtype", "int32")))


def build_sizes(call: Call) -> Value:
    """Return the size variable of `T.dynamic("m")`, or a tuple of them for `T.dynamic("m, n")`."""
    text = call["name"].value
    dtype = call.read_dtype("dtype")
    if dtype == INT64:
        raise_error(
            "wrong-argument",
            f"{call.name}: a size is int32, not int64",
            call["dtype"].span,
            "a dimension has at most 2147483647 elements, which is checked at launch",
            help="remove the dtype; write T.cast(size, 'int64') where the kernel needs 64 bits",
        )
    if dtype != INT32:
        call.refuse("dtype", '"int32"')
    names = [part.strip() for part in text.split(",")] if isinstance(text, str) else []
    if not names or not all(name.isidentifier() for name in names):
        call.refuse("name", 'a string of names, as in "m" or "m, n"')
    if len(set(names)) < len(names):
        raise_error("duplicate-definition", f"{call.name} names a size twice", call["name"].span)
    sizes = tuple(Var(name, INT32) for name in names)
    return sizes[0] if len(sizes) == 1 else sizes
