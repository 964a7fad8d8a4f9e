"""Prints a `ptx.Module` as PTX text.

Instructions are indented by four spaces, labels stand at column 0, and the text depends on the module alone, so that
equal modules print to equal bytes. `ptx.parse` reads the text back; it drops only comments.

Quotes arbitrary text in PTX: names of files, comments. The assembler takes printable ASCII only, and no escapes in
strings: any other character becomes the hexadecimal bytes of its UTF-8, as in a URL.
"""

from __future__ import annotations

import re

from tilec.ptx import module as ptx

_HEXADECIMAL = re.compile(rb"%([0-9A-F]{2})")
_OTHERS = re.compile(r"[^ -~]|[\"%\\]")


def quote_text(text: str) -> str:
    """Return a text with special characters as hexadecimal bytes, for PTX: `%C3%A9.tl` for `é.tl`. Different texts stay
    different."""
    return _OTHERS.sub(lambda found: "".join(f"%{byte:02X}" for byte in _encode_text(found[0])), text)


def unquote_text(text: str) -> str:
    """Return the original of a text that `quote_text` has quoted."""
    data = _HEXADECIMAL.sub(lambda found: bytes([int(found[1], 16)]), _encode_text(text))
    return data.decode(errors="surrogateescape")


def _encode_text(text: str) -> bytes:
    """Return the UTF-8 bytes of a text in which surrogates stand for other bytes, as in file names."""
    return text.encode(errors="surrogateescape")


_INDENT = "    "


def print_module(module: ptx.Module) -> str:
    """Return a module as PTX text for `ptxas` and `ptx.parse`."""
    lines = [f".version {module.version}", f".target {module.target}", ".address_size 64", ""]
    if module.files:
        # Without time and size the assembler reads those of a file of that name in its working folder for its line
        # table, and the same input would give different output. A time of 0 counts as not given.
        lines.extend(f'.file {index} "{quote_text(path)}", 1, 1' for index, path in enumerate(module.files, start=1))
        lines.append("")
    if module.variables:
        lines += [*map(print_variable, module.variables), ""]
    for function in module.functions:
        _print_function(function, lines)
        lines.append("")
    for entry in module.entries:
        _print_entry(entry, lines)
        lines.append("")
    return "\n".join(lines)


def print_variable(variable: ptx.Variable) -> str:
    """Return the declaration of a variable, always as an array of bytes, with its initial values."""
    linkage = f".{variable.linkage} " if variable.linkage else ""
    extent = str(variable.size) if variable.size else ""
    head = f"{linkage}.{variable.space} .align {variable.align} .b8 {variable.name}[{extent}]"
    if not variable.data:
        return f"{head};"
    values = [str(byte) for byte in variable.data]
    for relocation in variable.relocations:
        address = f"{relocation.symbol}{_format_offset(relocation.addend)}"
        for index in range(relocation.size):
            # Byte by byte: `0xFF00(name)` is the second byte of an address.
            values[relocation.offset + index] = f"{0xFF << (relocation.shift + 8 * index):#x}({address})"
    return f"{head} = {{{', '.join(values)}}};"


def print_instruction(instruction: ptx.Instruction) -> str:
    """Return one instruction as text, with its guard and semicolon, not indented."""
    guard = instruction.guard
    prefix = "" if guard is None else f"@{'!' * guard.negated}{guard.reg.name} "
    if not instruction.operands:
        return f"{prefix}{instruction.opcode};"
    operands = ", ".join([_format_operand(operand) for operand in instruction.operands])
    return f"{prefix}{instruction.opcode} {operands};"


def _print_entry(entry: ptx.Entry, lines: list[str]) -> None:
    """Append the lines of a kernel to `lines`."""
    params = ",\n".join(f"{_INDENT}{_format_param(param)}" for param in entry.params)
    lines.append(f".visible .entry {entry.name}(\n{params}\n)" if params else f".visible .entry {entry.name}()")
    lines.extend(entry.directives)
    _print_items((ptx.Block(entry.body),), "", lines)


def _print_function(function: ptx.Function, lines: list[str]) -> None:
    """Append the lines of a function, or of its declaration, to `lines`."""
    linkage = f".{function.linkage} " if function.linkage else ""
    returns = f"{_format_params(function.returns)} " if function.returns else ""
    lines.append(f"{linkage}.func {returns}{function.name}{_format_params(function.params)}")
    lines.extend(function.directives)
    if function.body is None:
        lines.append(";")
    else:
        _print_items((ptx.Block(function.body),), "", lines)


def _format_params(params: tuple[ptx.Param, ...]) -> str:
    """Return parameters as a list in parentheses."""
    return f"({', '.join(map(_format_param, params))})"


def _print_items(items: tuple[ptx.Item, ...], indent: str, lines: list[str]) -> None:
    """Append the lines of a body's items to `lines`, indented; labels and tables of labels are not."""
    for item in items:
        match item:
            case ptx.Instruction():
                lines.append(indent + print_instruction(item))
            case ptx.Label():
                lines.append(f"{item.name}:")
            case ptx.Loc():
                lines.append(f"{indent}.loc {item.file} {item.source_line} {item.column}")
            case ptx.RegDecl():
                count = "" if item.count is None else f"<{item.count}>"
                lanes = "" if item.lanes == 1 else f".v{item.lanes} "
                lines.append(f"{indent}.reg {lanes}.{item.type} {item.name}{count};")
            case ptx.Targets():
                lines.append(f"{item.name}: .branchtargets {', '.join(item.labels)};")
            case ptx.Prototype():
                returns = f"{_format_params(item.returns)} " if item.returns else ""
                lines.append(f"{item.name}: .callprototype {returns}_ {_format_params(item.params)};")
            case ptx.Variable():
                lines.append(indent + print_variable(item))
            case ptx.Block():
                lines.append(indent + "{")
                _print_items(item.body, indent + _INDENT, lines)
                lines.append(indent + "}")
            case ptx.Comment():
                lines.extend(f"{indent}// {quote_text(line)}".rstrip() for line in item.text.split("\n"))


def _format_param(param: ptx.Param) -> str:
    """Return the declaration of a parameter as text."""
    if param.is_register:
        return f".reg .{param.type} {param.name}"
    align = "" if param.align is None else f".align {param.align} "
    extent = "" if param.size is None else f"[{param.size}]"
    return f".param {align}.{param.type} {param.name}{extent}"


def _format_offset(offset: int) -> str:
    """Return an offset as text behind a symbol or register, "" for 0."""
    # `+-16`, as nvcc writes it: every assembler takes it after a symbol as well as after a register.
    return f"+{offset}" if offset else ""


def _format_operand(operand: ptx.Operand) -> str:
    """Return any operand as PTX text, such as `[%r1+16]` or `{%f0, %f1}`."""
    match operand:
        case ptx.Reg():
            return operand.name
        case ptx.Imm():
            return str(operand.value)
        case ptx.Vector():
            return "{" + ", ".join([_format_operand(item) for item in operand.items]) + "}"
        case ptx.Address():
            return f"[{_format_operand(operand.base)}{_format_offset(operand.offset)}]"
        case ptx.Symbol():
            return f"{operand.name}{_format_offset(operand.offset)}"
        case ptx.FloatImm():
            return f"0f{operand.bits:08X}" if operand.width == 32 else f"0d{operand.bits:016X}"
        case ptx.Arguments():
            return "(" + ", ".join([_format_operand(item) for item in operand.items]) + ")"
        case ptx.Pair():
            return f"{operand.first.name}|{operand.second.name}"
        case ptx.NotPred():
            return f"!{operand.reg.name}"
        case ptx.TensorAddress():
            coordinates = ", ".join([_format_operand(coordinate) for coordinate in operand.coordinates])
            return f"[{_format_operand(operand.map)}, {{{coordinates}}}]"
