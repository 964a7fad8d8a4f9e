"""T.ptx: PTX instructions of the kernel's author, on elements and variables of the kernel."""

from __future__ import annotations

from dataclasses import replace

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.statements import assignments
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.ptx_values import REGISTERS
from tilec.ir.types import DType
from tilec.ops.language.signature import Argument, Call, as_dtype, as_expr
from tilec.ops.language.values import Value
from tilec.ptx import snippet
from tilec.support.diagnostics import raise_error


def evaluate_ptx(context: Context, call: Call) -> tile.Expr:
    """Evaluate T.ptx to an expression of type `dtype`, or of the first input's; refuse bad PTX text, `out=` and
    types.
    """
    text = call["text"].value
    if not isinstance(text, str):
        call.refuse("text", 'PTX in a string, as in "fma.rn.f32 {0}, {1}, {2}, {3};"')
    if call.is_given("out"):
        raise_error("not-a-value", "T.ptx with out= gives no value", call.span, help="remove out= or the assignment")
    args = tuple(as_expr(Argument(v, call["ins"].span)) for v in _list_inputs(call))
    dtype = as_dtype(call["dtype"]) if call["dtype"].value is not None else args[0].dtype if args else None
    if dtype is None:
        call.refuse("dtype", "the type of the result, since there are no arguments to take it from")
    for name, given in (("dtype", dtype), *(("ins", a.dtype) for a in args)):
        _check_type(call, name, given)
    try:
        snippet.parse_snippet(text, len(args))
    except snippet.SnippetError as error:
        raise_error("bad-ptx", f"T.ptx: {error.message}", call["text"].span, help=error.remedy)
    return tile.Ptx(text, args, dtype)


def elaborate_ptx(context: Context, path: str, node: ast.Call) -> None:
    """Elaborate the statement `T.ptx(text, out=x, ins=…)` as an assignment to x, of its type; refuse it without
    `out=`.
    """
    outs = [k for k in node.keywords if k.name == "out"]
    if not outs:
        raise_error("unused-value", "the result of T.ptx is not used", node.span,
             help="write out=x, or assign it: x = T.ptx(…)")  # fmt: skip
    rest = tuple(k for k in node.keywords if k.name != "out")
    if not any(k.name == "dtype" for k in rest):
        out_dtype = as_expr(evaluate.evaluate_operand(context, outs[0].value)).dtype
        rest = (*rest, ast.Keyword("dtype", ast.String(out_dtype.name, span=outs[0].span), span=outs[0].span))
    assigned = replace(node, keywords=rest)
    assignments.elaborate_assign(context, ast.Assign((outs[0].value,), assigned, span=node.span))


def _list_inputs(call: Call) -> tuple[Value, ...]:
    """Return the values of `ins=` as a tuple; a single value counts as one input."""
    inputs = call["ins"].value
    return inputs if isinstance(inputs, tuple) else tuple(inputs) if isinstance(inputs, list) else (inputs,)


def _check_type(call: Call, name: str, dtype: DType) -> None:
    """Raise `wrong-dtype` if PTX registers cannot hold an argument's dtype."""
    if dtype.name not in REGISTERS:
        raise_error("wrong-dtype", f"T.ptx takes and gives {', '.join(REGISTERS)}", call[name].span, f"this is {dtype}",
             help="convert it with T.cast")  # fmt: skip
