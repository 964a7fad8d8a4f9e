"""Writes docs/language.md from the registries of the front end: `python docs/generate.py`.

What an operation or function is for stands beside its code in tilec/ops; what only the statements of a kernel know
about, in tilec/language.py. Errors are those that the code which checks a call can report.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any

import tilec.ops
from tilec.explanations import EXPLANATIONS
from tilec.ir.types import BY_NAME
from tilec.language import (
    ALLOCATION,
    BREAK,
    DOT,
    EVALUATE,
    EXPRESSIONS,
    KINDS,
    LOOPS,
    PIPELINES,
    PRINT,
    RANDOM,
    READ_ONLY,
    STATEMENTS,
    STRUCTURE,
    THREADS,
    UPDATE,
    VECTOR_TYPES,
    WARPGROUPS,
    WIDE,
    Name,
    written,
)
from tilec.ops import python, registry, scalar, signature
from tilec.ops.signature import Signature
from tilec.ops.warp_functions import WARP_FUNCTIONS
from tilec.passes.hints import HINTS
from tilec.syntax import ast

PAGE = Path(__file__).with_name("language.md")

INTRODUCTION = """# The kernel language

*Made by `python docs/generate.py` from the front end of tilec; edit the texts there, not here.*

A kernel file is valid Python in TileLang's vocabulary, and is never executed: what is known at compile time is
computed, everything else becomes code. Every name that tilec knows stands below, with its parameters (`name=value` may
be left out), its meaning, and the errors and warnings that a call of it can give; `tilec explain CODE` says more about
each. Parameters that TileLang has and tilec does not honour are listed as such: only their default is accepted.

Any call may also be wrong as a call: `missing-argument`, `too-many-arguments`, `unknown-keyword`, `duplicate-argument`,
`unsupported-keyword`; and any name may be `unknown-name` or an `unsupported-operation`.
"""

COMMON = {
    "missing-argument", "too-many-arguments", "unknown-keyword", "duplicate-argument", "unsupported-keyword",
    "unknown-name", "unsupported-operation",
}  # fmt: skip


# ---- errors ----------------------------------------------------------------------------------------------------------


def errors(checks: tuple[Callable[..., Any], ...]) -> list[str]:
    """The codes that the functions and what they call, in the front end's own modules, can report."""
    seen: set[types.CodeType] = set()
    found: set[str] = set()

    def visit(code: types.CodeType, names: dict[str, Any]) -> None:
        if code in seen:
            return
        seen.add(code)
        for constant in code.co_consts:
            if isinstance(constant, str) and constant in EXPLANATIONS:
                found.add(constant)
            elif isinstance(constant, types.CodeType):
                visit(constant, names)
        owner = None
        for step in dis.get_instructions(code):
            called = names.get(step.argval) if isinstance(step.argval, str) else None
            if _is_method(step) and (owner in ("call", "c") or code.co_qualname.startswith("Call.")):
                called = getattr(signature.Call, step.argval, None)
            owner = step.argval
            if isinstance(called, types.FunctionType) and called.__module__.startswith(("tilec.ops", "tilec.passes")):
                visit(called.__code__, called.__globals__)

    for check in checks:
        for function in _functions(check):
            visit(function.__code__, function.__globals__)
    return sorted(found - COMMON)


def _is_method(step: dis.Instruction) -> bool:
    if sys.version_info < (3, 12):
        return step.opname == "LOAD_METHOD"
    return step.opname == "LOAD_ATTR" and bool((step.arg or 0) & 1)


def _functions(check: Any) -> Iterator[types.FunctionType]:
    """The function itself; of a partial or a closure, those inside."""
    if isinstance(check, partial):
        yield from _functions(check.func)
    elif isinstance(check, types.FunctionType):
        yield check
        for cell in check.__closure__ or ():
            yield from _functions(cell.cell_contents)


# ---- the page --------------------------------------------------------------------------------------------------------


def _entry(name: Name) -> Iterator[str]:
    spelled = name.signature
    yield f"### {', '.join(f'`{n}`' for n in name.names)}\n"
    yield f"```\n{spelled if isinstance(spelled, str) else written(spelled)}\n```\n"
    yield cleandoc(name.meaning) + "\n"
    if isinstance(spelled, Signature):
        ignored = [f"`{p.name}`" for p in spelled.parameters if not p.supported]
        if ignored:
            yield f"Not honoured: {', '.join(ignored)}.\n"
    codes = errors(name.checks)
    if codes:
        yield f"Errors: {', '.join(f'`{code}`' for code in codes)}.\n"


def operations() -> Iterator[Name]:
    """What works on whole tiles, by name; spellings of one operation stand together."""
    assert tilec.ops, "importing it fills the registry"
    for operation in registry.operations():
        for spelling in operation.spellings:
            checks = tuple(c for c in (spelling.check, spelling.element) if c is not None)
            yield Name((spelling.signature.name,), spelling.signature, spelling.doc, checks)


def _functions_table() -> Iterator[str]:
    yield "| | | errors |\n| --- | --- | --- |\n"
    for function in scalar.FUNCTIONS.values():
        # No function spells the `/` of integers, whose code they share.
        codes = ", ".join(f"`{code}`" for code in errors((function.build,)) if code != "integer-division")
        yield f"| `{written(function.signature)}` | {function.doc.replace('|', chr(92) + '|')} | {codes} |\n"


def _warp_functions() -> Iterator[str]:
    yield (
        "What threads find out together; all of a warp, or of the block, take part. Inside a T.Parallel over tensors "
        "and shared tiles whose last extent is a multiple of 32, the lanes of a warp are 32 neighbours along it; "
        "what the block finds out stands outside.\n\n"
    )
    yield "| | | errors |\n| --- | --- | --- |\n"
    for function in WARP_FUNCTIONS.values():
        codes = ", ".join(f"`{code}`" for code in errors((function.build,)))
        yield f"| `{written(function.signature)}` | {function.doc} | {codes} |\n"


def _dtypes() -> Iterator[str]:
    yield "| name | also | bits | kind |\n| --- | --- | --- | --- |\n"
    for dtype in dict.fromkeys(BY_NAME.values()):
        others = ", ".join(f"`{name}`" for name, t in BY_NAME.items() if t == dtype and name != dtype.name)
        yield f"| `{dtype.name}` | {others} | {dtype.bits} | {KINDS[dtype.kind]} |\n"


def _table(rows: dict[str, str], union: Any) -> Iterator[str]:
    """One line for each class of the syntax tree; a class without one is an error here."""
    for node in union.__args__:
        yield f"* {rows[node.__name__]}\n"


def hints() -> Iterator[Name]:
    for name, hint in HINTS.items():
        yield Name((name,), hint.signature, hint.doc, (hint.keep,))


def page() -> str:
    """All of docs/language.md."""
    parts: list[str] = [INTRODUCTION]

    def section(title: str, text: str, names: Iterator[Name] | tuple[Name, ...] = ()) -> None:
        parts.append(f"## {title}\n")
        if text:
            parts.append(text + "\n")
        parts.extend(line for name in names for line in _entry(name))

    section("Structure", "", STRUCTURE)
    section("Allocation", "Shapes are tuples, lists or one number, known at compile time.", ALLOCATION)
    section("Hints", "Statements of their own. One that changes nothing here says so in a warning.", hints())
    section(
        "Threads",
        "A statement outside T.Parallel that names the thread, or an array of its own, is what every thread does for "
        "itself: it stores an element (`A[i] = e`, T.copy of one element, atomics), sets a variable or binds a name. "
        "Under an `if` on which threads do not agree only those do it for which the condition holds; a serial loop "
        "whose bounds differ runs in each thread as often as these say. Barriers stand where threads meet. An element "
        "stored without naming the thread is stored once. What the block does together cannot depend on the thread: "
        "`thread-dependent`.",
        THREADS,
    )
    parts.append("".join(_warp_functions()))
    parts.extend(_entry(UPDATE))
    parts.extend(_entry(WARPGROUPS))
    parts.extend(line for name in PIPELINES for line in _entry(name))
    parts.extend(_entry(DOT))
    parts.extend(_entry(EVALUATE))
    parts.extend(_entry(PRINT))
    section("Loops", "More, with examples, in [loops.md](loops.md).", (*LOOPS, BREAK))
    section(
        "Operations on tiles",
        "Statements of their own; atomics of single elements stand inside T.Parallel.",
        operations(),
    )
    section(
        "Vectors",
        "Neighbours that are one value. Memory is read and written in accesses of up to 16 bytes without them too.",
        (VECTOR_TYPES, *WIDE, READ_ONLY),
    )
    section("Random numbers", "", RANDOM)
    section(
        "Functions of scalars",
        "They give a value and change nothing. How they are rounded is in [numerics.md](numerics.md).",
    )
    parts.append("".join(_functions_table()))
    constants = ", ".join(f"`{name}`" for name in python.MATH_CONSTANTS)
    names = ", ".join(f"`{name}`" for name in python.NAMES)
    section("Python's own functions", f"On values known at compile time: {names}; and {constants}. "
            "`driver.get_num_sms()` is the number of multiprocessors of the target.\n\n"
            f"Errors: {', '.join(f'`{c}`' for c in errors((python.call,)))}.")  # fmt: skip
    section(
        "Types",
        "By name in quotes or as `T.name`; `T.name(x)` converts. Where two types meet, the wider is taken, of equally "
        "wide integers the unsigned one, of a float and an integer the float. float16 and bfloat16 do not mix.",
    )
    parts.append("".join(_dtypes()))
    section("Statements", "")
    parts.append("".join(_table(STATEMENTS, ast.Stmt)))
    section("Expressions", "")
    parts.append("".join(_table(EXPRESSIONS, ast.Expr)))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
