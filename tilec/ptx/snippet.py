"""PTX that the author writes into a kernel: `fma.rn.f32 {0}, {1}, {2}, {3};`, where {0} is the result and {1} and on
are the inputs. It may declare registers, and it only computes: no memory, no barriers, no branches, no machine state.
So it may be computed twice, or not at all, like any other expression."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

from tilec.ptx import isa, module as ptx
from tilec.support.records import dataclass

_COMPUTES = """
add addc sub subc mul mul24 mad madc mad24 fma div rem abs neg min max sad and or xor not cnot lop3 shl shr shf bfe bfi
bfind bmsk brev popc clz fns prmt szext dp2a dp4a set setp selp slct mov cvt copysign testp rcp sqrt rsqrt sin cos lg2
ex2 tanh
"""
COMPUTES = frozenset(_COMPUTES.split())
"""The first words of instructions whose results depend on their operands alone."""
SPECIAL = frozenset({"rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh"})
"""The instructions for the unit of transcendental functions."""
_HEAD = ".version 9.0\n.target sm_120a\n.address_size 64\n.visible .entry snippet() {\n"
_REGISTER = re.compile(r"\{\s*(\d+)\s*\}")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CLASSES = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32", "f32": "f32", "f64": "f64", "pred": "pred"}


class SnippetError(Exception):
    """An error in the text, with a remedy."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Snippet:
    """`registers` are those that it declares, with their classes: b16 b32 b64 f32 f64 pred. In the instructions {0} is
    `operand_name(0)`, and so on."""

    registers: tuple[tuple[str, str], ...]
    instructions: tuple[ptx.Instruction, ...]

    @property
    def special(self) -> int:
        """Return how many of the instructions use the unit of transcendental functions."""
        return sum(i.opcode.partition(".")[0] in SPECIAL for i in self.instructions)

    def rename_registers(self, names: Mapping[str, ptx.Reg]) -> Iterator[ptx.Instruction]:
        """Yield the instructions, guards included, with their registers replaced by those of `names`."""
        for i in self.instructions:
            guard = None if i.guard is None else ptx.Guard(names[i.guard.reg.name], i.guard.negated)
            yield replace(i, operands=tuple(_rename_operand(o, names) for o in i.operands), guard=guard)


def operand_name(number: int) -> str:
    """Return the register name that stands for {number} in a snippet's instructions."""
    return f"%operand{number}"


def strip_comments(text: str) -> str:
    """Return the text with each of the author's comments replaced by a space."""
    return _COMMENT.sub(" ", text)


def substitute_names(text: str, names: Sequence[str]) -> str:
    """Return the text with register names in place of {0}, {1} and on."""
    return _REGISTER.sub(lambda found: names[int(found[1])], text)


@lru_cache(maxsize=256)
def parse_snippet(text: str, inputs: int) -> Snippet:
    """Return the snippet in PTX text with `inputs` inputs; raise `SnippetError` unless it is understood and only
    computes. Text that writes no result is refused too."""
    from tilec.ptx.parse import PtxSyntaxError, parse_module  # with Lark, which few kernels need

    named = {int(number) for number in _REGISTER.findall(text)}
    if 0 not in named:
        raise SnippetError("nothing is written to {0}, the result", "write {0} where the result goes")
    if missing := sorted(n for n in named if n > inputs):
        raise SnippetError(f"{{{missing[0]}}} is not given", f"`ins` has {inputs}: {{1}} is the first of them")
    names = [operand_name(number) for number in range(inputs + 1)]
    _check_ends(substitute_names(text, names))
    declared = "".join(f".reg .b32 {name};\n" for name in names)
    try:
        module = parse_module(f"{_HEAD}{declared}{{\n{substitute_names(text, names)}\n}}\nret;\n}}\n")
    except PtxSyntaxError as error:
        raise SnippetError(f"line {_snippet_line(error.line, inputs)} of the text: {error.message}") from None
    (body,) = (item for item in module.entries[0].body if isinstance(item, ptx.Block))
    items = list(_flatten_block(body))
    registers = dict.fromkeys(names, "")
    for item in items:
        if isinstance(item, ptx.RegDecl):
            registers.update(_declare_registers(item, registers))
    snippet = Snippet(
        tuple((name, cls) for name, cls in registers.items() if cls),
        tuple(i for i in items if isinstance(i, ptx.Instruction)),
    )
    written: set[str] = set()
    for instruction in snippet.instructions:
        _check_instruction(instruction, registers.keys(), set(names[1:]), written)
    if names[0] not in written:
        raise SnippetError("nothing is written to {0}, the result", "write {0} where the result goes")
    return snippet


def find_instruction_error(snippet: Snippet, target: str, version: str) -> str | None:
    """Return the error, in words, of the first instruction that the target or PTX version lacks; None if it has all."""
    found = (isa.check_instruction(instruction, target, version) for instruction in snippet.instructions)
    return next((error for error in found if error is not None), None)


def _snippet_line(line: int, inputs: int) -> int:
    """Return the line in the snippet's text, from 1, of a line in the module that is parsed around it."""
    return max(line - _HEAD.count("\n") - inputs - 2, 1)


def _check_ends(text: str) -> None:
    """Raise `SnippetError` for text that could close the block around it, or merge with the text behind it."""
    bare = _COMMENT.sub(" ", text).rstrip()
    depths = list(accumulate({"{": 1, "}": -1}.get(character, 0) for character in bare))
    if depths and (min(depths) < 0 or depths[-1]):
        raise SnippetError("its braces do not match")
    if bare and bare[-1] not in ";}":
        raise SnippetError("it does not end in `;`", "write `;` after each instruction")


def _flatten_block(block: ptx.Block) -> Iterator[ptx.Item]:
    """Yield the instructions and register declarations of a block and its inner ones; refuse anything else."""
    for item in block.body:
        if isinstance(item, ptx.Block):
            yield from _flatten_block(item)
        elif isinstance(item, ptx.Instruction | ptx.RegDecl):
            yield item
        else:
            raise SnippetError(
                f"it has a {type(item).__name__.lower()}", "instructions and .reg only: T.ptx has no branches"
            )


def _declare_registers(item: ptx.RegDecl, known: Mapping[str, str]) -> dict[str, str]:
    """Return the names that a `.reg` declares with their register class; refuse other types and repeated names."""
    cls = _CLASSES.get(item.type) or f"b{item.type[1:]}"
    if cls not in ("b16", "b32", "b64", "f32", "f64", "pred") or item.lanes > 1:
        raise SnippetError(f"a register of type .{item.type} is not understood")
    names = [item.name] if item.count is None else [f"{item.name}{index}" for index in range(item.count)]
    if twice := [name for name in names if name in known]:
        raise SnippetError(f"{twice[0]} is declared twice")
    return dict.fromkeys(names, cls)


def _check_instruction(
    instruction: ptx.Instruction, known: Collection[str], inputs: Collection[str], written: set[str]
) -> None:
    """Refuse an instruction that does more than compute or misuses registers; add the registers it writes to
    `written`."""
    opcode = instruction.opcode
    if opcode.partition(".")[0] not in COMPUTES:
        if isa.find_row(opcode) is None:
            raise SnippetError(f"there is no instruction {opcode}")
        raise SnippetError(
            f"{opcode} does more than compute",
            "T.ptx has no memory, barriers or branches: read and write elements in the kernel",
        )
    destination, *sources = instruction.operands or (None,)
    read = [name for source in sources for name in _register_names(source)]
    read += [instruction.guard.reg.name] if instruction.guard else []
    for name in [*_register_names(destination), *read]:
        if name not in known and name != "_":
            raise SnippetError(f"{name} is no register of it", "declare it, as in .reg .f32 t; or pass it by `ins`")
    if operand_name(0) in read and operand_name(0) not in written:
        raise SnippetError("{0} is read before it is written", "{0} is the result, and {1} the first of `ins`")
    for name in _register_names(destination):
        if name in inputs:
            raise SnippetError(f"{opcode} writes {{{name.removeprefix(operand_name(0)[:-1])}}}, which goes in",
                               "declare a register for it, as in .reg .f32 t;")  # fmt: skip
        written.add(name)


def _register_names(value: ptx.Operand | None) -> list[str]:
    """Return the names of the registers in an operand, none for None; refuse an operand with other names, such as an
    address."""
    match value:
        case ptx.Reg(name=name):
            return [name]
        case ptx.NotPred(reg=reg):
            return [reg.name]
        case ptx.Pair(first=first, second=second):
            return [first.name, second.name]
        case ptx.Vector(items=items):
            return [item.name for item in items if isinstance(item, ptx.Reg)]
        case ptx.Imm() | ptx.FloatImm() | None:
            return []
        case _:
            raise SnippetError(
                "it uses a name that is not one of its registers", "declare it, as in .reg .f32 t; or pass it by `ins`"
            )


def _rename_operand(value: ptx.Operand, names: Mapping[str, ptx.Reg]) -> ptx.Operand:
    """Return the operand with its registers replaced by `names`; constants stay, unknown names only alone or in a pair.
    Elsewhere an unknown name is a `KeyError`."""
    match value:
        case ptx.Reg(name=name):
            return names.get(name, value)
        case ptx.NotPred(reg=reg):
            return ptx.NotPred(names[reg.name])
        case ptx.Pair(first=first, second=second):
            return ptx.Pair(names.get(first.name, first), names.get(second.name, second))
        case ptx.Vector(items=items):
            return ptx.Vector(tuple(names[item.name] if isinstance(item, ptx.Reg) else item for item in items))
        case _:
            return value
