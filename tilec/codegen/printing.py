"""printf: a format and its values, which the driver prints when the host next waits for the device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilec.codegen.builder import Builder
from tilec.codegen.state import State
from tilec.ir.types import DType
from tilec.ptx.module import Address, Arguments, Function, Item, Param, Reg, Symbol, Variable

VPRINTF = Function(
    "vprintf", (Param("b32", "result"),), (Param("b64", "format"), Param("b64", "arguments")), (), None, "extern"
)
_ARGUMENTS = "printf_arguments"


@contextmanager
def emit_guarded(state: State, guard: Reg | None) -> Iterator[None]:
    """Let the code emitted inside run only in threads for which the guard holds (None: in all)."""
    if guard is None:
        yield
        return
    past = state.builder.new_label("printed")
    skip = state.builder.create("pred", "not.pred", guard)
    state.builder.emit("bra", Symbol(past), guard=skip)
    yield
    state.builder.place_label(past)


def emit_print(text: str, values: Sequence[tuple[Reg, DType]], state: State) -> None:
    """Emit a call of vprintf: store the values to local memory, float32 as double, and record the format.

    Values have at least 32 bits.
    """
    builder = state.builder
    at = 0
    for value, dtype in values:
        if dtype.is_float and dtype.bits == 32:
            value = builder.create("f64", "cvt.f64.f32", value)
        size = 8 if dtype.is_float or dtype.bits == 64 else 4
        at = -(-at // size) * size
        kind = "f64" if dtype.is_float else f"b{8 * size}"
        builder.emit(f"st.local.{kind}", Address(Symbol(_ARGUMENTS), at), value)
        at += size
    builder.printed_bytes = max(builder.printed_bytes, at, 8)
    builder.formats[text] = None
    form = builder.create("b64", "mov.u64", Symbol(_name_format(text)))
    given = builder.create("b64", "mov.u64", Symbol(_ARGUMENTS))
    generic = (builder.create("b64", "cvta.global.u64", form), builder.create("b64", "cvta.local.u64", given))
    builder.emit("call.uni", Arguments((builder.new_register("b32"),)), Symbol(VPRINTF.name), Arguments(generic))


def make_format_variables(builder: Builder) -> tuple[Variable, ...]:
    """Return a global variable for each printf format of the kernel, a C string."""
    texts = ((_name_format(text), text.encode() + b"\0") for text in builder.formats)
    return tuple(Variable("global", name, 1, len(data), data=data) for name, data in texts)


def _name_format(text: str) -> str:
    """Return the name of a format's variable, from a hash of the text: the same in every kernel of the module."""
    return f"printf_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def make_local_variables(builder: Builder) -> tuple[Item, ...]:
    """Return the declaration of the local memory for printed values; none if nothing is printed."""
    return (Variable("local", _ARGUMENTS, 8, builder.printed_bytes),) if builder.formats else ()
