"""Parses the most frequent kind of instructions, which the grammar reads in one piece, as PLAIN.

A kernel has few registers and addresses, used in many instructions, so that each is made once.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from tilec.ptx import module as ptx

_OPERANDS = re.compile(r"\[[^\]]*\]|\{[^}]*\}|[^,\s]+")
_ADDRESS = re.compile(r"([^+-]+)(?:\+?(-?\d+))?")


def parse_instruction(text: str, line: int) -> ptx.Instruction:
    """Return the instruction at line `line` from a text that matches PLAIN, such as `@%p1 add.s32 %r1, %r2, 3;`."""
    guard, rest = None, text[:-1]
    if text[0] == "@":
        predicate, rest = rest.split(None, 1)
        guard = _parse_guard(predicate)
    opcode, *others = rest.split(None, 1)
    operands = tuple(map(_parse_operand, _OPERANDS.findall(others[0]))) if others else ()
    return ptx.Instruction(opcode, operands, guard, line)


@lru_cache(maxsize=1 << 10)
def _parse_guard(text: str) -> ptx.Guard:
    return ptx.Guard(ptx.Reg(text.lstrip("@!")), "!" in text)


@lru_cache(maxsize=1 << 14)
def _parse_operand(text: str) -> ptx.Operand:
    """Return one operand of a plain instruction from its text: address, vector, pair, negated predicate, or scalar."""
    match text[0]:
        case "[":
            return _parse_address(text[1:-1])
        case "{":
            return _parse_vector(text)
        case "!":
            return ptx.NotPred(ptx.Reg(text[1:]))
    if "|" in text:
        first, second = text.split("|")
        return ptx.Pair(ptx.Reg(first), ptx.Reg(second))
    name, plus, offset = text.partition("+")
    return ptx.Symbol(name, int(offset)) if plus else _parse_scalar(text)


def _parse_scalar(text: str) -> Any:
    """Return a register, number or symbol from its text. The grammar limits where each may stand."""
    if text[0] == "%" or text == "_":
        return ptx.Reg(text)
    if text[0] != "-" and not text[0].isdigit():
        return ptx.Imm(32) if text == "WARP_SZ" else ptx.Symbol(text)
    if text[1:2] in ("f", "F", "d", "D"):
        return ptx.FloatImm(int(text[2:], 16), 32 if text[1] in "fF" else 64)
    return ptx.Imm(int(text))


def _parse_address(text: str) -> ptx.Address | ptx.TensorAddress:
    """Return the address, or with coordinates the tensor address, from the text inside brackets."""
    base, comma, coordinates = text.partition(",")
    if comma:
        where: tuple[Any, ...] = _parse_vector(coordinates.strip()).items
        return ptx.TensorAddress(_parse_scalar(base), where)
    found = _ADDRESS.fullmatch(text)
    assert found is not None
    return ptx.Address(_parse_scalar(found[1]), int(found[2] or 0))


def _parse_vector(text: str) -> ptx.Vector:
    return ptx.Vector(tuple(_parse_scalar(item.strip()) for item in text[1:-1].split(",")))
