"""The operand and result types of PTX written by the kernel's author, and a kernel that evaluates such PTX."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import tile
from tilec.ir.types import BOOL, DType
from tilec.ptx import snippet
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class RegisterType:
    """The register type of a value, and its size in memory in bytes."""

    register: str
    bytes: int


REGISTERS: dict[str, RegisterType] = {
    "float16": RegisterType("b16", 2),
    "bfloat16": RegisterType("b16", 2),
    "float32": RegisterType("f32", 4),
    "float64": RegisterType("f64", 8),
    "int32": RegisterType("b32", 4),
    "uint32": RegisterType("b32", 4),
    "int64": RegisterType("b64", 8),
    "uint64": RegisterType("b64", 8),
    "bool": RegisterType("pred", 4),
}
"""By the names of the types that PTX has registers of."""


def find_ptx_error(expr: tile.Ptx) -> str | None:
    """Return the first error in a T.ptx expression's types or text, as a message; None if there is none."""
    for dtype in (expr.dtype, *(a.dtype for a in expr.args)):
        if dtype.name not in REGISTERS:
            return f"T.ptx of {dtype}"
    try:
        snippet.parse_snippet(expr.text, len(expr.args))
    except snippet.SnippetError as error:
        return f"T.ptx: {error.message}"
    return None


def build_snippet_kernel(
    text: str, types: Sequence[DType], dtype: DType, target: str = "sm_120a", version: str = "9.0"
) -> str:
    """Return the PTX of a kernel that evaluates a snippet in each thread, 128 a block, on arrays of arguments and
    results. The first parameter points at the results, the others at the arguments."""
    text = snippet.strip_comments(text)  # the assembler takes ASCII alone
    held = [REGISTERS[t.name] for t in (dtype, *types)]
    kinds = [dtype, *types]
    names = [snippet.operand_name(number) for number in range(len(held))]
    lines = [f".reg .{h.register} {name};" for h, name in zip(held, names, strict=True)]
    lines += [".reg .b32 %w<4>;", ".reg .b64 %a<4>;", ".reg .pred %q;"]
    lines += ["mov.u32 %w0, %tid.x;", "mov.u32 %w1, %ctaid.x;", "mad.lo.u32 %w0, %w1, 128, %w0;"]
    for number, (h, name) in enumerate(zip(held, names, strict=True)):
        if number:
            lines += _emit_element_address(number, h)
            lines += (
                ["ld.global.b32 %w2, [%a2];", f"setp.ne.b32 {name}, %w2, 0;"]
                if kinds[number] == BOOL
                else [f"ld.global.{h.register} {name}, [%a2];"]
            )
    lines += ["{", snippet.substitute_names(text, names), "}"]
    lines += _emit_element_address(0, held[0])
    lines += (
        [f"selp.b32 %w2, 1, 0, {names[0]};", "st.global.b32 [%a2], %w2;"]
        if dtype == BOOL
        else [f"st.global.{held[0].register} [%a2], {names[0]};"]
    )
    params = ", ".join(f".param .u64 p{number}" for number in range(len(held)))
    body = "\n".join(lines)
    head = f".version {version}\n.target {target}\n.address_size 64\n"
    return f"{head}.visible .entry snippet({params}) {{\n{body}\nret;\n}}\n"


def _emit_element_address(number: int, held: RegisterType) -> list[str]:
    """Return the instructions that make %a2 the address of the thread's element of parameter number `number`."""
    return [
        f"ld.param.u64 %a0, [p{number}];",
        "cvta.to.global.u64 %a1, %a0;",
        f"mad.wide.u32 %a2, %w0, {held.bytes}, %a1;",
    ]
