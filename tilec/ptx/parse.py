"""Reads PTX text into a `ptx.Module` (grammar/ptx.lark). The inverse of `ptx.text`, up to comments.

Text of other compilers is welcome: what has no place in a `Module` and no effect on a run (debug sections, pragmas,
address hints of parameters) is dropped, and everything else that is not understood is an error with its line.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput, VisitError

from tilec import resources
from tilec.ptx.module import (
    Address,
    Block,
    Entry,
    FloatImm,
    Guard,
    Imm,
    Instruction,
    Item,
    Label,
    Loc,
    Module,
    NotPred,
    Operand,
    Pair,
    Param,
    Reg,
    RegDecl,
    Symbol,
    TensorAddress,
    Variable,
    Vector,
)
from tilec.records import dataclass


class PtxSyntaxError(Exception):
    """The text is not PTX, or PTX of a kind that `Module` cannot hold."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.message = message
        self.line = line


def parse_module(text: str) -> Module:
    """The translation unit; every instruction, label and declaration carries its line."""
    try:
        parts = _parser().parse(text)
    except UnexpectedInput as error:
        line = error.line
        source = text.split("\n")[line - 1].strip() if 0 < line <= text.count("\n") + 1 else "end of file"
        raise PtxSyntaxError(f"cannot read '{source}'", line) from None
    except VisitError as error:
        if isinstance(error.orig_exc, PtxSyntaxError):
            raise error.orig_exc from None
        raise
    assert isinstance(parts, Module)
    return parts


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(
        resources.grammar("ptx.lark"),
        parser="lalr",
        lexer="contextual",
        transformer=_Build(),
        maybe_placeholders=False,
    )


_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_STRUCT = {
    "b8": "B",
    "u8": "B",
    "s8": "b",
    "b16": "H",
    "u16": "H",
    "s16": "h",
    "f16": "H",
    "b32": "I",
    "u32": "I",
    "s32": "i",
    "f32": "I",
    "b64": "Q",
    "u64": "Q",
    "s64": "q",
    "f64": "Q",
}


@dataclass(frozen=True, slots=True)
class _Tagged:
    """A part of a declaration that its parent picks out by name."""

    tag: str
    value: Any


def _tagged(children: Iterable[Any], tag: str) -> list[Any]:
    return [child.value for child in children if isinstance(child, _Tagged) and child.tag == tag]


def _integer(token: str) -> int:
    text = token.removesuffix("U")
    if len(text) > 1 and text[0] == "0" and text[1] not in "xXbB":
        return int(text, 8)
    return int(text, 0)


def _type_bytes(type_name: str) -> int:
    return _SIZES[type_name.lstrip("pbusftred")] if type_name != "pred" else 1


def _opcode(token: str) -> str:
    return token if token.isidentifier() else "".join(token.split())


class _Build(Transformer[Token, Any]):
    """Builds values bottom-up while the text is parsed, so no tree is ever made."""

    # -- operands ------------------------------------------------------------------------------------------------------

    def register(self, children: list[Token]) -> Reg:
        return Reg(str(children[0]))

    def symbol(self, children: list[Token]) -> Operand:
        name = str(children[0])
        return Imm(32) if name == "WARP_SZ" else Reg("_") if name == "_" else Symbol(name)

    def symbol_offset(self, children: list[Token]) -> Symbol:
        return Symbol(str(children[0]), _integer(children[1]))

    def integer(self, children: list[Token]) -> Imm:
        return Imm(_integer(children[0]))

    def float_bits(self, children: list[Token]) -> FloatImm:
        text = children[0]
        return FloatImm(int(text[2:], 16), 32 if text[1] in "fF" else 64)

    def decimal(self, children: list[Token]) -> FloatImm:
        return FloatImm(struct.unpack("<Q", struct.pack("<d", float(children[0])))[0], 64)

    def inner(self, children: list[Any]) -> Address:
        offset = _integer(children[1]) if len(children) > 1 else 0
        return Address(children[0], offset)

    def address(self, children: list[Address]) -> Address:
        return children[0]

    def tensor_address(self, children: list[Any]) -> TensorAddress:
        return TensorAddress(children[0], children[1].items)

    def vector(self, children: list[Any]) -> Vector:
        return Vector(tuple(children))

    def pair(self, children: list[Token]) -> Pair:
        return Pair(Reg(str(children[0])), Reg(str(children[1])))

    def not_predicate(self, children: list[Token]) -> NotPred:
        return NotPred(Reg(str(children[0])))

    def guard_true(self, children: list[Token]) -> Guard:
        return Guard(Reg(str(children[0])))

    def guard_false(self, children: list[Token]) -> Guard:
        return Guard(Reg(str(children[0])), negated=True)

    # -- items of a body -----------------------------------------------------------------------------------------------

    def instruction(self, children: list[Any]) -> Instruction:
        guard: Guard | None = None
        if isinstance(children[0], Guard):
            guard, children = children[0], children[1:]
        opcode: Token = children[0]
        return Instruction(_opcode(opcode), tuple(children[1:]), guard, opcode.line or 0)

    def label(self, children: list[Token]) -> Label:
        return Label(children[0][:-1].rstrip(), children[0].line or 0)

    def location(self, children: list[Token]) -> Loc:
        file, line, column = (int(child) for child in children[:3])
        return Loc(file, line, column, children[0].line or 0)

    def register_name(self, children: list[Token]) -> tuple[str, int | None, int]:
        count = int(children[1]) if len(children) > 1 else None
        return str(children[0]), count, children[0].line or 0

    def vector_width(self, children: list[Token]) -> Any:
        raise PtxSyntaxError("vector registers are not supported", children[0].line or 0)

    def register_declaration(self, children: list[Any]) -> tuple[RegDecl, ...]:
        type_name = str(children[0])[1:]
        return tuple(RegDecl(type_name, name, count, line) for name, count, line in children[1:])

    def block(self, children: list[Any]) -> Block:
        items = tuple(_flatten(children))
        return Block(items, 0)

    def ignored(self, _children: list[Any]) -> None:
        return None

    # -- declarations --------------------------------------------------------------------------------------------------

    def variable_attribute(self, children: list[Token]) -> _Tagged:
        token = children[0]
        return _Tagged("linkage", str(token)) if token.type == "LINKAGE" else _Tagged("align", _integer(token))

    def extent(self, children: list[Token]) -> _Tagged:
        return _Tagged("extent", _integer(children[0]) if children else 0)

    def nested_values(self, children: list[Any]) -> list[Any]:
        return children

    def initialiser(self, children: list[Any]) -> _Tagged:
        return _Tagged("data", list(_initial_values(children)))

    def variable(self, children: list[Any]) -> Variable:
        tokens = {child.type: child for child in children if isinstance(child, Token)}
        type_name, name = str(tokens["TYPE"])[1:], tokens["NAME"]
        element = _type_bytes(type_name)
        count = 1
        for extent in _tagged(children, "extent"):
            count *= extent
        values = (_tagged(children, "data") or [[]])[0]
        data = b"".join(_initial_bytes(value, type_name, name) for value in values)
        size = max(count * element, len(data))
        align = (_tagged(children, "align") or [element])[0]
        linkage = str(tokens["LINKAGE"])[1:] if "LINKAGE" in tokens else ""
        space = str(tokens["SPACE"])[1:].partition("::")[0]
        return Variable(space, str(name), align, size, linkage, data, name.line or 0)

    def param_attribute(self, children: list[Token]) -> _Tagged:
        return _Tagged("align", _integer(children[0]))

    def param_pointer(self, _children: list[Token]) -> _Tagged:
        return _Tagged("pointer", None)

    def param(self, children: list[Any]) -> Param:
        tokens = {child.type: child for child in children if isinstance(child, Token)}
        align = (_tagged(children, "align") or [None])[0]
        size = (_tagged(children, "extent") or [None])[0]
        type_name = str(tokens["TYPE"])[1:]
        if size is not None:
            size *= _type_bytes(type_name)
        return Param(type_name, str(tokens["NAME"]), align, size)

    def params(self, children: list[Any]) -> tuple[Param, ...]:
        return tuple(child for child in children if child is not None)

    def directive(self, children: list[Token]) -> _Tagged:
        name, *values = children
        return _Tagged("directive", " ".join([str(name), ", ".join(str(value) for value in values)]).rstrip())

    def entry(self, children: list[Any]) -> Entry:
        name = next(child for child in children if isinstance(child, Token) and child.type == "NAME")
        rest = children[children.index(name) + 1 :]
        params: tuple[Param, ...] = ()
        # `params` is the only optional part before the directives; an empty tuple of registers cannot come first.
        if rest and isinstance(rest[0], tuple) and all(isinstance(item, Param) for item in rest[0]):
            params, rest = rest[0], rest[1:]
        directives = tuple(_tagged(rest, "directive"))
        body = tuple(_flatten(child for child in rest if not isinstance(child, _Tagged)))
        return Entry(str(name), params, directives, _resolve_registers(body), name.line or 0)

    # -- the file ------------------------------------------------------------------------------------------------------

    def version(self, children: list[Token]) -> _Tagged:
        return _Tagged("version", str(children[0]))

    def target_name(self, children: list[Token]) -> str:
        return str(children[0])

    def target(self, children: list[str]) -> _Tagged:
        return _Tagged("target", children[0])

    def file_directive(self, children: list[Token]) -> _Tagged:
        return _Tagged("file", (int(children[0]), str(children[1])[1:-1]))

    def section(self, _children: list[Token]) -> None:
        return None

    def start(self, children: list[Any]) -> Module:
        version, target = _tagged(children, "version"), _tagged(children, "target")
        if not version or not target:
            raise PtxSyntaxError("a module starts with .version and .target", 1)
        files = dict(_tagged(children, "file"))
        return Module(
            version[0],
            target[0],
            tuple(child for child in children if isinstance(child, Variable)),
            tuple(child for child in children if isinstance(child, Entry)),
            tuple(files.get(index, "") for index in range(1, max(files, default=0) + 1)),
        )


def _flatten(children: Iterable[Any]) -> Iterator[Item]:
    """Items in order; one `.reg` line may declare several registers."""
    for child in children:
        if isinstance(child, tuple):
            yield from child
        elif child is not None:
            yield child


def _initial_values(values: Iterable[Any]) -> Iterator[Token]:
    for value in values:
        if isinstance(value, list):
            yield from _initial_values(value)
        else:
            yield value


def _initial_bytes(token: Token, type_name: str, variable: str) -> bytes:
    if type_name not in _STRUCT:
        raise PtxSyntaxError(f"'{variable}' of type .{type_name} cannot have an initialiser", token.line or 0)
    width = struct.calcsize(_STRUCT[type_name])
    if token.type == "FLOAT_BITS":
        value = int(token[2:], 16)
    elif type_name in ("f32", "f64"):
        return struct.pack("<f" if type_name == "f32" else "<d", float(token))
    else:
        value = _integer(token)
    return (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def _resolve_registers(body: tuple[Item, ...]) -> tuple[Item, ...]:
    """Turn symbols that name a declared register into registers.

    A register's name need not start with a percent sign (`.reg .pred p;`), so only its declaration tells it from a
    variable or a label.
    """
    if not _declares_plain_names(body):
        return body
    return _resolve_scope(body, frozenset())


def _declares_plain_names(body: tuple[Item, ...]) -> bool:
    return any(
        (isinstance(item, RegDecl) and not item.name.startswith("%"))
        or (isinstance(item, Block) and _declares_plain_names(item.body))
        for item in body
    )


def _resolve_scope(body: tuple[Item, ...], outer: frozenset[str]) -> tuple[Item, ...]:
    declared = set(outer)
    for item in body:
        if isinstance(item, RegDecl) and not item.name.startswith("%"):
            names = [item.name] if item.count is None else [f"{item.name}{index}" for index in range(item.count)]
            declared.update(names)
    known = frozenset(declared)
    return tuple(_resolve_item(item, known) for item in body)


def _resolve_item(item: Item, known: frozenset[str]) -> Item:
    if isinstance(item, Block):
        return replace(item, body=_resolve_scope(item.body, known))
    if isinstance(item, Instruction) and any(isinstance(operand, (Symbol, Address)) for operand in item.operands):
        return replace(item, operands=tuple(_resolve_operand(operand, known) for operand in item.operands))
    return item


def _resolve_operand(operand: Operand, known: frozenset[str]) -> Operand:
    match operand:
        case Symbol(name=name, offset=0) if name in known:
            return Reg(name)
        case Address(base=Symbol(name=name), offset=offset) if name in known:
            return Address(Reg(name), offset)
        case TensorAddress(map=Symbol(name=name), coordinates=coordinates) if name in known:
            return TensorAddress(Reg(name), coordinates)
        case _:
            return operand
