"""The functions that a kernel may reach, their parameters and their addresses.

PTX has no stack: a function's registers and parameters have one place each, and only a recursive function has them
saved around a call. The `.local` variables of a recursive function move with the depth, since pointers to them may live
on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from tilec.emu.numbers import TYPES
from tilec.ptx.module import Address, Arguments, Block, Entry, Function, Instruction, Item, Module, Param, Reg, Symbol
from tilec.support.records import dataclass

RegisterIndex = tuple[str, int]
"""A register: its class ("pred", "16", "32", "64") and its row in that class."""

FUNCTION_WINDOW = 0x0400_0000_0000
"""Functions have addresses, 16 bytes apart, that no load can read."""


@dataclass(frozen=True, slots=True)
class FormalParameter:
    """A parameter or result of a function: `size` bytes of local memory, or a register."""

    size: int
    offset: int
    place: RegisterIndex | None = None


@dataclass(slots=True, eq=False)
class FunctionLayout:
    """A decoded function: its first step, parameters, registers and stack frame."""

    name: str
    start: int
    is_recursive: bool
    returns: tuple[FormalParameter, ...] = ()
    params: tuple[FormalParameter, ...] = ()
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The first and last row of its registers, by class."""
    frames: list[tuple[RegisterIndex, int]] = field(default_factory=list)
    """Registers that hold the address of a `.local` variable, with its offset in the frame."""
    frame_bytes: int = 0


def measure_param(param: Param) -> tuple[int, int]:
    """Return the alignment and the size of a parameter, both in bytes."""
    element = TYPES[param.type].bits // 8
    return max(element, param.align or 1), element if param.size is None else param.size


def assign_function_addresses(module: Module) -> dict[str, int]:
    """Return a made-up address for every function by name, declared ones included: 16 bytes apart in a window."""
    return {function.name: FUNCTION_WINDOW + 16 * index for index, function in enumerate(module.functions, start=1)}


def find_reachable_functions(module: Module, entry: Entry) -> tuple[list[Function], set[str]]:
    """Return the functions with a body that the entry may call, callees first, and the names of the recursive ones."""
    known = {function.name: function for function in module.functions}
    taken = {item.symbol for variable in module.variables for item in variable.relocations if item.symbol in known}
    bodies = {name: function.body or () for name, function in known.items()}
    for body in (entry.body, *bodies.values()):
        taken.update(known.keys() & _find_taken_addresses(body))
    calls = {name: _find_callees(body, known, taken) for name, body in bodies.items()}
    order: list[str] = []
    _visit_postorder(_find_callees(entry.body, known, taken), calls, order, set())
    recursive = {name for name in order if name in _find_all_callees(calls[name], calls)}
    return [known[name] for name in order if known[name].body is not None], recursive


def _walk_instructions(body: tuple[Item, ...]) -> Iterator[Instruction]:
    """Yield the instructions of a body and of the nested blocks in it, in order."""
    for item in body:
        if isinstance(item, Instruction):
            yield item
        elif isinstance(item, Block):
            yield from _walk_instructions(item.body)


def find_call_target(instruction: Instruction) -> Symbol | Reg | None:
    """Return the function or register that a call names, None if it has neither. It stands behind the list of results,
    if there is one."""
    operands = [operand for operand in instruction.operands[:2] if not isinstance(operand, Arguments)]
    target = operands[0] if operands else None
    return target if isinstance(target, (Symbol, Reg)) else None


def _find_taken_addresses(body: tuple[Item, ...]) -> set[str]:
    """Return the names of the symbols that instructions other than calls use in a body."""
    uses = (i for i in _walk_instructions(body) if i.opcode.split(".")[0] != "call")
    operands = (operand for instruction in uses for operand in instruction.operands)
    symbols = (operand.base if isinstance(operand, Address) else operand for operand in operands)
    return {symbol.name for symbol in symbols if isinstance(symbol, Symbol)}


def _find_callees(body: tuple[Item, ...], known: dict[str, Function], taken: set[str]) -> list[str]:
    """Return the known functions that a body may call; an indirect call may reach every one in `taken`."""
    found: dict[str, None] = {}
    for instruction in _walk_instructions(body):
        if instruction.opcode.split(".")[0] == "call":
            target = find_call_target(instruction)
            if isinstance(target, Reg):
                found.update(dict.fromkeys(sorted(taken)))
            elif target is not None and target.name in known:
                found[target.name] = None
    return list(found)


def _visit_postorder(names: list[str], calls: dict[str, list[str]], order: list[str], seen: set[str]) -> None:
    """Append the functions reachable from `names` to `order`, callees before callers; skip those in `seen`, and add to
    it. The functions in `names` are among them."""
    for name in names:
        if name not in seen:
            seen.add(name)
            _visit_postorder(calls[name], calls, order, seen)
            order.append(name)


def _find_all_callees(names: list[str], calls: dict[str, list[str]]) -> set[str]:
    """Return the names of all functions reachable from `names` by calls, these included."""
    found: list[str] = []
    _visit_postorder(names, calls, found, set())
    return set(found)
