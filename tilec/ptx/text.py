"""Prints a `ptx.Module` as PTX text.

Instructions are indented by four spaces, labels stand at column 0, and nothing depends on anything but the module, so
equal modules print to equal bytes. `ptx.parse` reads the text back; comments are the only thing it drops.
"""

from __future__ import annotations

from tilec.ptx.module import (
    Address,
    Block,
    Comment,
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

_INDENT = "    "


def print_module(module: Module) -> str:
    """The module as text that `ptxas` and `ptx.parse` take."""
    lines = [f".version {module.version}", f".target {module.target}", ".address_size 64", ""]
    if module.files:
        lines.extend(f'.file {index} "{path}"' for index, path in enumerate(module.files, start=1))
        lines.append("")
    if module.variables:
        lines.extend(print_variable(variable) for variable in module.variables)
        lines.append("")
    for entry in module.entries:
        _print_entry(entry, lines)
        lines.append("")
    return "\n".join(lines)


def print_variable(variable: Variable) -> str:
    """One declaration; every variable is an array of bytes, whatever it was declared as."""
    linkage = f".{variable.linkage} " if variable.linkage else ""
    extent = str(variable.size) if variable.size else ""
    head = f"{linkage}.{variable.space} .align {variable.align} .b8 {variable.name}[{extent}]"
    if not variable.data:
        return f"{head};"
    return f"{head} = {{{', '.join(map(str, variable.data))}}};"


def print_instruction(instruction: Instruction) -> str:
    """One instruction with its guard and semicolon, not indented."""
    guard = instruction.guard
    prefix = "" if guard is None else f"{_guard(guard)} "
    if not instruction.operands:
        return f"{prefix}{instruction.opcode};"
    operands = ", ".join([_operand(operand) for operand in instruction.operands])
    return f"{prefix}{instruction.opcode} {operands};"


def _print_entry(entry: Entry, lines: list[str]) -> None:
    if entry.params:
        lines.append(f".visible .entry {entry.name}(")
        lines.append(",\n".join(f"{_INDENT}{_param(param)}" for param in entry.params))
        lines.append(")")
    else:
        lines.append(f".visible .entry {entry.name}()")
    lines.extend(entry.directives)
    lines.append("{")
    _print_items(entry.body, _INDENT, lines)
    lines.append("}")


def _print_items(items: tuple[Item, ...], indent: str, lines: list[str]) -> None:
    for item in items:
        match item:
            case Instruction():
                lines.append(indent + print_instruction(item))
            case Label():
                lines.append(f"{item.name}:")
            case Loc():
                lines.append(f"{indent}.loc {item.file} {item.source_line} {item.column}")
            case RegDecl():
                count = "" if item.count is None else f"<{item.count}>"
                lines.append(f"{indent}.reg .{item.type} {item.name}{count};")
            case Variable():
                lines.append(indent + print_variable(item))
            case Block():
                lines.append(indent + "{")
                _print_items(item.body, indent + _INDENT, lines)
                lines.append(indent + "}")
            case Comment():
                lines.extend(f"{indent}// {line}".rstrip() for line in item.text.split("\n"))


def _param(param: Param) -> str:
    align = "" if param.align is None else f".align {param.align} "
    extent = "" if param.size is None else f"[{param.size}]"
    return f".param {align}.{param.type} {param.name}{extent}"


def _guard(guard: Guard) -> str:
    return f"@!{guard.reg.name}" if guard.negated else f"@{guard.reg.name}"


def _offset(offset: int) -> str:
    # `+-16`, as nvcc writes it: every assembler takes it after a symbol as well as after a register.
    return f"+{offset}" if offset else ""


def _operand(operand: Operand) -> str:
    match operand:
        case Reg():
            return operand.name
        case Imm():
            return str(operand.value)
        case Vector():
            return "{" + ", ".join([_operand(item) for item in operand.items]) + "}"
        case Address():
            return f"[{_operand(operand.base)}{_offset(operand.offset)}]"
        case Symbol():
            return f"{operand.name}{_offset(operand.offset)}"
        case FloatImm():
            return f"0f{operand.bits:08X}" if operand.width == 32 else f"0d{operand.bits:016X}"
        case Pair():
            return f"{operand.first.name}|{operand.second.name}"
        case NotPred():
            return f"!{operand.reg.name}"
        case TensorAddress():
            coordinates = ", ".join([_operand(coordinate) for coordinate in operand.coordinates])
            return f"[{_operand(operand.map)}, {{{coordinates}}}]"
