"""Parses PTX text into a `ptx.Module` (grammar/ptx.lark). The inverse of `ptx.text`, up to comments.

Text of other compilers is accepted: parts without effect on a run that a `Module` cannot hold (debug sections, pragmas,
address hints of parameters) are dropped, and anything else unknown is an error with its line.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput, VisitError

from tilec.ptx import module as ptx
from tilec.ptx.plain import parse_instruction
from tilec.ptx.text import unquote_text
from tilec.support import resources
from tilec.support.readers import DEEPEST
from tilec.support.records import dataclass


class PtxSyntaxError(Exception):
    """The text is not PTX, or PTX of a kind that `Module` cannot hold."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.message = message
        self.line = line


def parse_module(text: str) -> ptx.Module:
    """Parse PTX text to a module whose items carry their lines; raise `PtxSyntaxError` if it cannot be read."""
    try:
        parts = _make_parser().parse(text)
    except UnexpectedInput as error:
        line = error.line
        source = text.split("\n")[line - 1].strip() if 0 < line <= text.count("\n") + 1 else "end of file"
        raise PtxSyntaxError(f"cannot read '{source}'", line) from None
    except VisitError as error:
        if isinstance(error.orig_exc, PtxSyntaxError):
            raise error.orig_exc from None
        raise
    except (ValueError, OverflowError, struct.error) as error:
        raise PtxSyntaxError(f"a number cannot be read: {error}", 0) from None
    assert isinstance(parts, ptx.Module)
    return parts


@lru_cache(maxsize=1)
def _make_parser() -> Lark:
    """Return the parser of PTX's grammar, which builds the module as it reads; it is made once."""
    grammar = resources.grammar_text("ptx.lark")
    return Lark(grammar, parser="lalr", lexer="contextual", transformer=_ModuleBuilder(), maybe_placeholders=False)


MAX_REGISTERS = 1 << 20
"""The limit of one declaration: more would exhaust the emulator's memory before any is used."""
MAX_VARIABLE_BYTES = 1 << 30
"""The limit of one variable."""
_NAMING_OPERANDS = (ptx.Symbol, ptx.Address, ptx.Arguments)
"""Operands in which a name may turn out to be a register's."""
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_STRUCT = {
    "b8": "B", "u8": "B", "s8": "b", "b16": "H", "u16": "H", "s16": "h", "f16": "H", "bf16": "H",
    "b32": "I", "u32": "I", "s32": "i", "f32": "I", "f16x2": "I", "bf16x2": "I", "tf32": "I",
    "b64": "Q", "u64": "Q", "s64": "q", "f64": "Q",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _TaggedPart:
    """A part of a declaration, which its parent finds by its tag."""

    tag: str
    value: Any


def _find_values_tagged(children: Iterable[Any], tag: str) -> list[Any]:
    """Return the values of those children that are declaration parts with this tag."""
    return [child.value for child in children if isinstance(child, _TaggedPart) and child.tag == tag]


def _parse_integer(token: str) -> int:
    """Return the value of an integer of PTX: decimal, hexadecimal, binary, or octal by a leading 0."""
    text = token.removesuffix("U")
    if len(text) > 1 and text[0] == "0" and text[1] not in "xXbB":
        return int(text, 8)
    return int(text, 0)


def _parse_alignment(token: Token) -> int:
    """Return the value of an alignment; raise a syntax error unless it is a power of two."""
    align = _parse_integer(token)
    if align < 1 or align & (align - 1):
        raise PtxSyntaxError(f"{align} is not an alignment: it must be a power of two", token.line or 0)
    return align


def _get_type_bytes(type_name: str) -> int:
    """Return the bytes of a PTX type, such as 4 for `f16x2`; a predicate counts as 1."""
    if type_name == "pred":
        return 1
    return _SIZES[type_name.lstrip("pbusftred")] if not type_name.endswith("x2") else 4


def _make_rule(build: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the parser's method of a grammar rule that builds a value by calling `build` with the rule's children."""
    return lambda _, children: build(children)


class _ModuleBuilder(Transformer[Token, Any]):
    """Builds values bottom-up while the text is parsed, so no tree is ever made."""

    # -- operands ------------------------------------------------------------------------------------------------------

    register = _make_rule(lambda children: ptx.Reg(str(children[0])))

    def symbol(self, children: list[Token]) -> ptx.Operand:
        """Return a name as an operand: the constant `WARP_SZ` as 32, `_` as the sink register, others as symbols."""
        name = str(children[0])
        return ptx.Imm(32) if name == "WARP_SZ" else ptx.Reg("_") if name == "_" else ptx.Symbol(name)

    symbol_offset = _make_rule(lambda children: ptx.Symbol(str(children[0]), _parse_integer(children[1])))
    integer = _make_rule(lambda children: ptx.Imm(_parse_integer(children[0])))

    def float_bits(self, children: list[Token]) -> ptx.FloatImm:
        """Return a float immediate from its bits in hexadecimal, `0f…` for f32 and `0d…` for f64."""
        text = children[0]
        return ptx.FloatImm(int(text[2:], 16), 32 if text[1] in "fF" else 64)

    def decimal(self, children: list[Token]) -> ptx.FloatImm:
        """Return a decimal number as an f64 immediate."""
        return ptx.FloatImm(struct.unpack("<Q", struct.pack("<d", float(children[0])))[0], 64)

    def inner(self, children: list[Any]) -> ptx.Address:
        """Return the address inside brackets, with its offset or 0."""
        offset = _parse_integer(children[1]) if len(children) > 1 else 0
        return ptx.Address(children[0], offset)

    address = _make_rule(lambda children: children[0])
    tensor_address = _make_rule(lambda children: ptx.TensorAddress(children[0], children[1].items))
    vector = _make_rule(lambda children: ptx.Vector(tuple(children)))
    arguments = _make_rule(lambda children: ptx.Arguments(tuple(children)))
    pair = _make_rule(lambda children: ptx.Pair(ptx.Reg(str(children[0])), ptx.Reg(str(children[1]))))
    not_predicate = _make_rule(lambda children: ptx.NotPred(ptx.Reg(str(children[0]))))
    guard_true = _make_rule(lambda children: ptx.Guard(ptx.Reg(str(children[0]))))
    guard_false = _make_rule(lambda children: ptx.Guard(ptx.Reg(str(children[0])), negated=True))

    # -- items of a body -----------------------------------------------------------------------------------------------

    def instruction(self, children: list[Any]) -> ptx.Instruction:
        """Return an instruction with its guard, operands and line; spaces in the opcode are dropped."""
        guard: ptx.Guard | None = None
        if isinstance(children[0], ptx.Guard):
            guard, children = children[0], children[1:]
        token: Token = children[0]
        opcode = token if token.isidentifier() else "".join(token.split())
        return ptx.Instruction(opcode, tuple(children[1:]), guard, token.line or 0)

    plain = _make_rule(lambda children: parse_instruction(children[0], children[0].line or 0))
    label = _make_rule(lambda children: ptx.Label(children[0][:-1].rstrip(), children[0].line or 0))

    def location(self, children: list[Token]) -> ptx.Loc:
        """Return a `.loc` with file, line and column."""
        file, line, column = (int(child) for child in children[:3])
        return ptx.Loc(file, line, column, children[0].line or 0)

    def register_name(self, children: list[Token]) -> tuple[str, int | None, int]:
        """Return a declared name, its count in angle brackets (None: one register), and its line; refuse too large a
        count."""
        count = int(children[1]) if len(children) > 1 else None
        if count is not None and count > MAX_REGISTERS:
            raise PtxSyntaxError(f"more than {MAX_REGISTERS:,} registers of one name", children[0].line or 0)
        return str(children[0]), count, children[0].line or 0

    def register_declaration(self, children: list[Any]) -> tuple[ptx.RegDecl, ...]:
        """Return a declaration for each name of one `.reg` line, with its type and vector width."""
        lanes = 1
        if children[0].type == "VECTOR_WIDTH":
            lanes, children = int(children[0][2:]), children[1:]
        type_name = str(children[0])[1:]
        return tuple(ptx.RegDecl(type_name, name, count, line, lanes) for name, count, line in children[1:])

    def prototype(self, children: list[Any]) -> ptx.Prototype:
        """Return the prototype of an indirect call: its name, results and parameters."""
        lists = [child for child in children if isinstance(child, tuple)]
        # The name stands between the two lists: a list before it holds what the function returns.
        has_returns = isinstance(children[1], tuple)
        returns = lists[0] if has_returns else ()
        params = lists[-1] if len(lists) > has_returns else ()
        return ptx.Prototype(children[0][:-1].rstrip(), returns, params, children[0].line or 0)

    def targets(self, children: list[Token]) -> ptx.Targets:
        return ptx.Targets(children[0][:-1].rstrip(), tuple(map(str, children[1:])), children[0].line or 0)

    block = _make_rule(lambda children: ptx.Block(tuple(_flatten_items(children)), 0))
    ignored = _make_rule(lambda children: None)
    attribute = section = ignored

    # -- declarations --------------------------------------------------------------------------------------------------

    def variable_attribute(self, children: list[Any]) -> _TaggedPart:
        """Return a variable's alignment, linkage or vector width as a tagged part; other attributes are dropped."""
        token = children[0]
        if not isinstance(token, Token):
            return _TaggedPart("attribute", None)
        if token.type == "LINKAGE":
            return _TaggedPart("linkage", str(token))
        if token.type == "VECTOR_WIDTH":
            return _TaggedPart("lanes", int(token[2:]))
        return _TaggedPart("align", _parse_alignment(token))

    function_attribute = _make_rule(lambda children: _TaggedPart("attribute", None))
    param_pointer = function_attribute

    extent = _make_rule(lambda children: _TaggedPart("extent", _parse_integer(children[0]) if children else 0))
    nested_values = _make_rule(lambda children: children)
    numbers = _make_rule(lambda children: [Token("INT", number.strip()) for number in children[0][1:-1].split(",")])

    def initial_address(self, children: list[Token]) -> _InitialAddress:
        """Return an initialiser's address, a name and the sum of added numbers; refuse a wrapper other than
        `generic(…)`."""
        names = [child for child in children if child.type == "NAME"]
        if len(names) == 2 and names[0] != "generic":
            raise PtxSyntaxError(f"'{names[0]}(…)' in an initialiser", names[0].line or 0)
        addend = sum(int("".join(child.split()).removesuffix("U"), 0) for child in children if child.type != "NAME")
        # Every address is generic here, so `generic(name)` and `name` are one number.
        return _InitialAddress(str(names[-1]), addend, None)

    def masked_address(self, children: list[Any]) -> _InitialAddress:
        """Return an address in an initialiser with the bit mask that selects its part."""
        address: _InitialAddress = children[1]
        return replace(address, mask=_parse_integer(children[0]))

    initialiser = _make_rule(lambda children: _TaggedPart("data", list(_list_initial_values(children))))
    variable_name = _make_rule(lambda children: _TaggedPart("name", children))

    def variable(self, children: list[Any]) -> tuple[ptx.Variable, ...]:
        """Return the variables of one declaration, with their initial bytes and relocations; refuse too large a one."""
        tokens = {child.type: child for child in children if isinstance(child, Token)}
        type_name = str(tokens["TYPE"])[1:]
        linkage = tokens.get("LINKAGE") or (_find_values_tagged(children, "linkage") or ["."])[0]
        space = str(tokens["SPACE"])[1:].partition("::")[0]
        lanes = (_find_values_tagged(children, "lanes") or [1])[0]
        element = _get_type_bytes(type_name)
        align = (_find_values_tagged(children, "align") or [element * lanes])[0]
        made = []
        for parts in _find_values_tagged(children, "name"):
            count = lanes
            for extent in _find_values_tagged(parts, "extent"):
                count *= extent
            values = (_find_values_tagged(parts, "data") or [[]])[0]
            data = b"".join(_encode_initial_value(value, type_name, parts[0]) for value in values)
            size = max(count * element, len(data))
            if size > MAX_VARIABLE_BYTES:
                raise PtxSyntaxError(f"'{parts[0]}' takes more than {MAX_VARIABLE_BYTES:,} bytes", parts[0].line or 0)
            relocations = tuple(_find_relocations(values, element))
            made.append(
                ptx.Variable(space, str(parts[0]), align, size, str(linkage)[1:], data, parts[0].line or 0, relocations)
            )
        return tuple(made)

    param_attribute = _make_rule(lambda children: _TaggedPart("align", _parse_alignment(children[0])))

    def param(self, children: list[Any]) -> ptx.Param:
        """Return a parameter with its type and alignment; its size in bytes is None unless it is an array."""
        tokens = {child.type: child for child in children if isinstance(child, Token)}
        align = (_find_values_tagged(children, "align") or [None])[0]
        size = (_find_values_tagged(children, "extent") or [None])[0]
        type_name = str(tokens["TYPE"])[1:]
        if size is not None:
            size *= _get_type_bytes(type_name)
        return ptx.Param(type_name, str(tokens["NAME"]), align, size)

    register_param = _make_rule(lambda children: ptx.Param(str(children[0])[1:], str(children[1]), is_register=True))
    params = _make_rule(lambda children: tuple(child for child in children if child is not None))

    def directive(self, children: list[Token]) -> _TaggedPart:
        """Return a performance directive as tagged text, its values joined by commas."""
        name, *values = children
        return _TaggedPart("directive", " ".join([str(name), ", ".join(str(value) for value in values)]).rstrip())

    def entry(self, children: list[Any]) -> ptx.Entry:
        """Return a kernel with its parameters, directives and body, in which names of registers are resolved."""
        name = next(child for child in children if isinstance(child, Token) and child.type == "NAME")
        rest = children[children.index(name) + 1 :]
        params: tuple[ptx.Param, ...] = ()
        # `params` is the only optional part before the directives; an empty tuple of registers cannot come first.
        if rest and isinstance(rest[0], tuple) and all(isinstance(item, ptx.Param) for item in rest[0]):
            params, rest = rest[0], rest[1:]
        directives = tuple(_find_values_tagged(rest, "directive"))
        body = tuple(_flatten_items(child for child in rest if not isinstance(child, _TaggedPart)))
        return ptx.Entry(str(name), params, directives, _resolve_registers(body), name.line or 0)

    function_body = _make_rule(lambda children: _TaggedPart("body", tuple(_flatten_items(children))))

    def function(self, children: list[Any]) -> ptx.Function:
        """Return a function, or its declaration with body None; names of registers are resolved."""
        name = next(child for child in children if isinstance(child, Token) and child.type == "NAME")
        position = children.index(name)
        before = [child for child in children[:position] if isinstance(child, tuple)]
        after = [child for child in children[position:] if isinstance(child, tuple)]
        linkage = next((str(child)[1:] for child in children if isinstance(child, Token) and child is not name), "")
        returns, params = before[0] if before else (), after[0] if after else ()
        bodies = _find_values_tagged(children, "body")
        registers = [ptx.RegDecl(param.type, param.name) for param in (*returns, *params) if param.is_register]
        body = _resolve_registers((*registers, *bodies[0])) if bodies else None
        directives = tuple(_find_values_tagged(children, "directive"))
        body = body and body[len(registers) :]
        return ptx.Function(str(name), returns, params, directives, body, linkage, name.line or 0)

    alias = _make_rule(lambda children: _TaggedPart("alias", (str(children[0]), str(children[1]))))

    # -- the file ------------------------------------------------------------------------------------------------------

    version = _make_rule(lambda children: _TaggedPart("version", str(children[0])))
    target_name = _make_rule(lambda children: str(children[0]))
    target = _make_rule(lambda children: _TaggedPart("target", children[0]))

    def file_directive(self, children: list[Token]) -> _TaggedPart:
        return _TaggedPart("file", (int(children[0]), unquote_text(str(children[1])[1:-1])))

    def start(self, children: list[Any]) -> ptx.Module:
        """Return a file's module, with definitions preferred to declarations, and aliases; refuse one without version
        or target."""
        version, target = _find_values_tagged(children, "version"), _find_values_tagged(children, "target")
        if not version or not target:
            raise PtxSyntaxError("a module must start with .version and .target", 1)
        files = dict(_find_values_tagged(children, "file"))
        functions = {}
        for child in children:
            # A definition may follow its declaration.
            if isinstance(child, ptx.Function) and (child.body is not None or child.name not in functions):
                functions[child.name] = child
        for name, meant in _find_values_tagged(children, "alias"):
            if meant in functions:
                functions[name] = replace(functions[meant], name=name)
        variables = tuple(item for item in _flatten_items(children) if isinstance(item, ptx.Variable))
        entries = tuple(child for child in children if isinstance(child, ptx.Entry))
        paths = tuple(files.get(index, "") for index in range(1, max(files, default=0) + 1))
        return ptx.Module(version[0], target[0], variables, entries, paths, tuple(functions.values()))


def _flatten_items(children: Iterable[Any]) -> Iterator[ptx.Item]:
    """Yield the items of a body in order, those of tuples one by one, without the ignored ones."""
    for child in children:
        if isinstance(child, tuple):
            yield from child
        elif child is not None:
            yield child


@dataclass(frozen=True, slots=True)
class _InitialAddress:
    """The address of a variable or function as an initial value, or its part under a bit mask."""

    symbol: str
    addend: int
    mask: int | None


def _list_initial_values(values: Iterable[Any]) -> Iterator[Token | _InitialAddress]:
    """Yield the numbers and addresses of an initialiser in order, out of all its nested braces."""
    for value in values:
        if isinstance(value, list):
            yield from _list_initial_values(value)
        else:
            yield value


def _encode_initial_value(value: Token | _InitialAddress, type_name: str, variable: Token) -> bytes:
    """Return an initial value's bytes in the variable's type, zeros for an address; refuse a type that cannot have one.
    Relocations fill the addresses in."""
    if type_name not in _STRUCT:
        raise PtxSyntaxError(f"'{variable}' of type .{type_name} cannot have an initialiser", variable.line or 0)
    width = struct.calcsize(_STRUCT[type_name])
    if isinstance(value, _InitialAddress):
        return bytes(width)
    if value.type == "FLOAT_BITS":
        bits = int(value[2:], 16)
        if value[1] in "fF" and type_name == "f64":
            return struct.pack("<d", struct.unpack("<f", struct.pack("<I", bits))[0])
        if value[1] in "dD" and type_name == "f32":
            return struct.pack("<f", struct.unpack("<d", struct.pack("<Q", bits))[0])
        number = bits
    elif type_name in ("f16", "f32", "f64"):
        return struct.pack({"f16": "<e", "f32": "<f", "f64": "<d"}[type_name], float(value))
    else:
        number = _parse_integer(value)
    return (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def _find_relocations(values: list[Token | _InitialAddress], element: int) -> Iterator[ptx.Relocation]:
    """Yield a relocation for each address among a variable's initial values of `element` bytes."""
    for index, value in enumerate(values):
        if isinstance(value, _InitialAddress):
            shift = 0 if value.mask is None else (value.mask & -value.mask).bit_length() - 1
            yield ptx.Relocation(index * element, element, value.symbol, value.addend, shift)


def _resolve_registers(body: tuple[ptx.Item, ...]) -> tuple[ptx.Item, ...]:
    """Return a body in which symbols that name a declared register are registers; refuse blocks that are nested too
    deep.

    A register's name need not start with a percent sign (`.reg .pred p;`), so only its declaration tells it from a
    variable or a label.
    """
    _check_depth(body)
    if not _declares_plain_names(body):
        return body
    return _resolve_scope(body, frozenset())


def _check_depth(body: tuple[ptx.Item, ...]) -> None:
    """Raise a syntax error if blocks are nested deeper than code may recurse."""
    level: list[ptx.Item] = list(body)
    for _ in range(DEEPEST):
        level = [inner for item in level if isinstance(item, ptx.Block) for inner in item.body]
    if level:
        raise PtxSyntaxError(f"blocks are nested more than {DEEPEST} deep", 0)


def _declares_plain_names(body: tuple[ptx.Item, ...]) -> bool:
    """Return whether a body, inner blocks included, declares a register without a percent sign."""
    return any(
        (isinstance(item, ptx.RegDecl) and not item.name.startswith("%"))
        or (isinstance(item, ptx.Block) and _declares_plain_names(item.body))
        for item in body
    )


def _resolve_scope(body: tuple[ptx.Item, ...], outer: frozenset[str]) -> tuple[ptx.Item, ...]:
    """Return a block's body with register names resolved, where registers of `outer` blocks are known too."""
    declared = set(outer)
    for item in body:
        if isinstance(item, ptx.RegDecl) and not item.name.startswith("%"):
            names = [item.name] if item.count is None else [f"{item.name}{index}" for index in range(item.count)]
            declared.update(names)
            declared.update(f"{name}.{part}" for name in names for part in "xyzwrgba" if item.lanes > 1)
    known = frozenset(declared)
    return tuple(_resolve_item(item, known) for item in body)


def _resolve_item(item: ptx.Item, known: frozenset[str]) -> ptx.Item:
    """Return the item with symbols that are known register names turned into registers, inner blocks included."""
    if isinstance(item, ptx.Block):
        return replace(item, body=_resolve_scope(item.body, known))
    if isinstance(item, ptx.Instruction) and any(isinstance(o, _NAMING_OPERANDS) for o in item.operands):
        return replace(item, operands=tuple(_resolve_operand(operand, known) for operand in item.operands))
    return item


def _resolve_operand(operand: ptx.Operand, known: frozenset[str]) -> ptx.Operand:
    """Return the operand with symbols that are known register names turned into registers."""
    match operand:
        case ptx.Symbol(name=name, offset=0) if name in known:
            return ptx.Reg(name)
        case ptx.Arguments(items=items):
            return ptx.Arguments(
                tuple(ptx.Reg(i.name) if isinstance(i, ptx.Symbol) and i.name in known else i for i in items)
            )
        case ptx.Address(base=ptx.Symbol(name=name), offset=offset) if name in known:
            return ptx.Address(ptx.Reg(name), offset)
        case ptx.TensorAddress(map=ptx.Symbol(name=name), coordinates=coordinates) if name in known:
            return ptx.TensorAddress(ptx.Reg(name), coordinates)
        case _:
            return operand
