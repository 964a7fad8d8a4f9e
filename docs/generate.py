"""Writes what the front end knows as pages: `python docs/generate.py`.

docs/language.md lists every name of the kernel language, and docs/language/ has a page for each group of them; docs/
diagnostics.md has every diagnostic code, docs/tilelang_names.md every name of TileLang, and docs/pipeline.md every pass
of the compiler; docs/gallery.md has every sample. What an operation or function is for stands beside its code in
tilec/ops; what only the statements of a kernel know about, in tilec/frontend/language.py; examples in
tilec/frontend/examples/. Errors are those that the code which checks a call can report.
"""

from __future__ import annotations

import dis
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any

from diagnostic_page import diagnostics
from gallery_page import gallery
from options_page import options
from pipeline_page import pipeline
from tilelang_page import tilelang_names

import tilec.ops
from tilec.driver.explanations import EXPLANATIONS
from tilec.frontend.examples.read import ExampleKernel, read_kernels, read_values
from tilec.frontend.language import (
    ALLOCATION,
    BREAK,
    DOT,
    DTYPE_KIND_NAMES,
    EVALUATE,
    EXPRESSIONS,
    INLINE_PTX,
    LOOPS,
    PIPELINES,
    PRINT,
    RAMP,
    RANDOM,
    READ_ONLY,
    SCHEDULES,
    STATEMENTS,
    STRUCTURE,
    THREAD_COPIES,
    THREADS,
    UPDATE,
    VECTOR_TYPES,
    WARPGROUPS,
    WIDE,
    LanguageEntry,
    format_signature,
)
from tilec.frontend.prelude.read import FILE_BY_NAME as PRELUDE, Definition, find_definition
from tilec.frontend.sema.expressions import calls
from tilec.frontend.sema.launch.hints import HINTS
from tilec.frontend.syntax import ast
from tilec.ir.types import TYPES_BY_NAME
from tilec.ops import registry
from tilec.ops.functions import python, scalar
from tilec.ops.functions.warp_functions import WARP_FUNCTIONS
from tilec.ops.language import arithmetic, signature
from tilec.ops.language.signature import Signature

DOCS = Path(__file__).parent
TITLE = "*Made by `python docs/generate.py` from the front end of tilec; edit the texts there, not here.*"

INTRODUCTION = """# The kernel language

{made}

A kernel file is valid Python in TileLang's vocabulary, and is never executed: what is known at compile time is
computed, everything else becomes code. Every name that tilec knows stands on one of the pages below, with its
parameters (`name=value` may be left out), its meaning, and the errors and warnings that a call of it can give; [all of
these](diagnostics.md) are explained by `tilec explain CODE` too. Parameters that TileLang has and tilec does not honour
are listed as such: only their default is accepted. Names of TileLang that are not here [say what to write
instead](tilelang_names.md).

Each name has an example, which `tilec explain T.copy` shows too. It belongs below `import tilelang.language as T`; in
tables it is a call, and what the call gives.

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
            if isinstance(called, types.FunctionType) and called.__module__.startswith(
                ("tilec.ops", "tilec.rewriting", "tilec.analysis", "tilec.passes", "tilec.frontend")
            ):
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


# ---- entries -------------------------------------------------------------------------------------------------------


def _entry(name: LanguageEntry, example: str) -> Iterator[str]:
    spelled = name.signature
    yield f"### {', '.join(f'`{n}`' for n in name.names)}\n"
    yield f"```\n{spelled if isinstance(spelled, str) else format_signature(spelled)}\n```\n"
    yield cleandoc(name.meaning) + "\n"
    if isinstance(spelled, Signature):
        ignored = [f"`{p.name}`" for p in spelled.parameters if not p.supported]
        if ignored:
            yield f"Not honoured: {', '.join(ignored)}.\n"
    yield example
    codes = errors(name.checks)
    if codes:
        yield f"Errors: {', '.join(f'`{code}`' for code in codes)}.\n"


def _entries(page: str, names: tuple[LanguageEntry, ...]) -> Iterator[str]:
    """The entries of a page, each with its example; one that several names share stands under the first of them."""
    first: dict[ExampleKernel, LanguageEntry] = {}
    for name in names:
        kernel = next((k for k in read_kernels(page) if set(k.names) & set(name.names)), None)
        if kernel is None:
            example = "No example yet.\n"  # which tests/docs/test_reference_examples.py refuses
        elif (other := first.setdefault(kernel, name)) is name:
            example = f"Example:\n\n{_fenced(kernel)}"
        else:
            example = f"Example: under [`{other.names[0]}`](#{anchor(other.names)}).\n"
        yield from _entry(name, example)


def _fenced(kernel: ExampleKernel) -> str:
    return f"```python\n{kernel.text}```\n"


def _examples(page: str, rows: Collection[str]) -> str:
    """The kernels that show rows of a table, or what stands under a heading."""
    return "".join(
        f"\nExample{_of(kernel)}:\n\n{_fenced(kernel)}"
        for kernel in read_kernels(page)
        if set(kernel.names) <= set(rows)
    )


def _of(kernel: ExampleKernel) -> str:
    names = [f"`{name}`" for name in kernel.names if "." in name]
    return f" of {', '.join(names)}" if names else ""


def operations(group: str | None = None) -> Iterator[LanguageEntry]:
    """What works on whole tiles, by name, all or of one group; spellings of one operation stand together."""
    assert tilec.ops, "importing it fills the registry"
    for operation in registry.list_operations():
        if group not in (None, GROUPS.get(operation.type.__module__, "tiles")):
            continue
        for spelling in operation.spellings:
            checks = tuple(c for c in (spelling.check, spelling.element) if c is not None)
            yield LanguageEntry((spelling.signature.name,), spelling.signature, spelling.doc, checks)


def _functions_table() -> Iterator[str]:
    yield "| | | example | errors |\n| --- | --- | --- | --- |\n"
    for function in scalar.FUNCTIONS.values():
        # No function spells the `/` of integers, whose code they share.
        codes = [code for code in errors((function.build,)) if code != "integer-division"]
        yield _function(function.signature, function.doc, codes)
    for name in PRELUDE:
        defined = find_definition(name)
        codes = [code for code in errors(_spelled(defined)) if code != "integer-division"]
        yield _function(defined.signature, defined.doc, codes)
    yield _examples("scalars", {*scalar.FUNCTIONS, *PRELUDE})


def _function(spelled: Signature, doc: str, codes: list[str]) -> str:
    listed = ", ".join(f"`{code}`" for code in codes)
    return (
        f"| `{format_signature(spelled)}` | {doc.replace('|', chr(92) + '|')} | {_value(spelled.name)} | {listed} |\n"
    )


def _value(name: str) -> str:
    """A call and its value; of what needs a kernel around it, where that stands."""
    if name not in read_values():
        return "below"
    call, value = read_values()[name].split("  # ")
    return f"`{call}` is {value}"


def _spelled(defined: Definition) -> tuple[Callable[..., Any], ...]:
    """What carries out the operators and calls that a definition of the prelude is made of."""
    found: list[Callable[..., Any]] = []
    for node in (node for statement in defined.body for node in ast.walk_nodes(statement)):
        match node:
            case ast.Binary() | ast.Compare(ops=("<" | ">" | "!=",)):
                found.append(arithmetic.apply_binary)
            case ast.Unary(op="~"):
                found.append(arithmetic.apply_inversion)
            case ast.Call(function=ast.Attribute(value=ast.Name(id="T"), name=name)):
                found += _spelled(find_definition(f"T.{name}")) if f"T.{name}" in PRELUDE else ()
                found += (scalar.FUNCTIONS[f"T.{name}"].build,) if f"T.{name}" in scalar.FUNCTIONS else ()
            case ast.Call(function=ast.Name(id="refuse")):
                found.append(calls.refuse_argument)
            case _:
                pass
    return tuple(found)


def _warp_functions() -> Iterator[str]:
    yield (
        "What threads find out together; all of a warp, or of the block, take part. Inside a T.Parallel over tensors "
        "and shared tiles whose last extent is a multiple of 32, the lanes of a warp are 32 neighbours along it; "
        "what the block finds out stands outside.\n\n"
    )
    yield "| | | errors |\n| --- | --- | --- |\n"
    for function in WARP_FUNCTIONS.values():
        codes = ", ".join(f"`{code}`" for code in errors((function.build,)))
        yield f"| `{format_signature(function.signature)}` | {function.doc} | {codes} |\n"
    yield _examples("threads", WARP_FUNCTIONS)


def _dtypes() -> Iterator[str]:
    yield "| name | also | bits | kind | example |\n| --- | --- | --- | --- | --- |\n"
    for dtype in dict.fromkeys(TYPES_BY_NAME.values()):
        others = ", ".join(f"`{name}`" for name, t in TYPES_BY_NAME.items() if t == dtype and name != dtype.name)
        kind, example = DTYPE_KIND_NAMES[dtype.kind], _value(f"T.{dtype.name}")
        yield f"| `{dtype.name}` | {others} | {dtype.bits} | {kind} | {example} |\n"


def _table(rows: dict[str, str], union: Any) -> Iterator[str]:
    """One line for each class of the syntax tree; a class without one is an error here."""
    for node in union.__args__:
        yield f"* {rows[node.__name__]}\n"


def hints() -> Iterator[LanguageEntry]:
    for name, hint in HINTS.items():
        yield LanguageEntry((name,), hint.signature, hint.doc, (hint.keep,))


# ---- pages -----------------------------------------------------------------------------------------------------------

# Which page an operation stands on, by the file that defines it.
GROUPS = {
    f"tilec.ops.{file}": group
    for group, files in {
        "products": ("products.gemm", "products.tcgen05", "products.block_scaled"),
        "reductions": ("reductions.reduce", "reductions.reducer", "reductions.scan"),
        "atomics": ("atomic",),
        "synchronisation": tuple(
            f"synchronisation.{file}" for file in ("barriers", "sync", "rendezvous", "warpgroups", "cluster_launch")
        ),
    }.items()
    for file in files
}

REDUCTION_TEXT = (
    "Statements of their own. A sum with a NaN in it is NaN. The largest and the smallest element, also of absolute "
    "values, are those of the numbers: NaN is passed over, and is the result only where there is nothing else. A "
    "reducer for which there was nothing else keeps what it was filled with. With `nan_propagate=True` a NaN is the "
    "result, of floats up to 32 bits; TileLang does so for float16 and bfloat16."
)
"""tests/kernels/test_nan.py shows it."""

THREAD_TEXT = (
    "A statement outside T.Parallel that names the thread, or an array of its own, is what every thread does for "
    "itself: it stores an element (`A[i] = e`, T.copy of one element, atomics), sets a variable or binds a name. "
    "Under an `if` on which threads do not agree only those do it for which the condition holds; a serial loop "
    "whose bounds differ runs in each thread as often as these say, if constants or T.min limit them. "
    "Barriers stand where threads meet. An element "
    "stored without naming the thread is stored once, but an atomic operation on an element is run by every thread, "
    "as in TileLang. What the block does together cannot depend on the thread: `thread-dependent`."
)


PYTHON = "Python's own functions"


def _python() -> str:
    constants = ", ".join(f"`{name}`" for name in python.MATH_CONSTANTS)
    names = ", ".join(f"`{name}`" for name in python.BUILTIN_NAMES)
    return (
        f"On values known at compile time: {names}; and {constants}. "
        "`driver.get_num_sms()` is the number of multiprocessors of the target.\n\n"
        f"Errors: {', '.join(f'`{c}`' for c in errors((python.call_builtin,)))}.\n" + _examples("scalars", [PYTHON])
    )


@dataclass(frozen=True)
class Section:
    """A page of the reference: its file, title, first words, names, and what follows them."""

    file: str
    title: str
    text: str
    names: tuple[LanguageEntry, ...] = ()
    rest: str = ""

    def page(self) -> str:
        parts = [f"# {self.title}\n\n{TITLE}\n", *([f"{self.text}\n"] if self.text else ())]
        parts.extend(_entries(self.file, self.names))
        return "\n".join([*parts, *([self.rest] if self.rest else ())])


def sections() -> tuple[Section, ...]:
    """The pages of the reference, in the order in which a reader meets them."""
    return (
        Section(
            "structure",
            "Kernels, statements and expressions",
            "What a kernel file is made of.",
            STRUCTURE,
            "\n".join(
                [
                    *("## Statements\n", *_table(STATEMENTS, ast.Stmt), _examples("structure", ["Statements"])),
                    *("## Expressions\n", *_table(EXPRESSIONS, ast.Expr), _examples("structure", ["Expressions"])),
                ]
            ).rstrip("\n")
            + "\n",
        ),
        Section(
            "allocation",
            "Tiles, variables and views",
            "Shapes are tuples, lists or one number, known at compile time.",
            ALLOCATION,
        ),
        Section(
            "types",
            "Types",
            "By name in quotes or as `T.name`; `T.name(x)` converts. Where two types meet, the wider is taken, of "
            "equally wide integers the unsigned one, of a float and an integer the float. float16 and bfloat16 do "
            "not mix.",
            (),
            "".join(_dtypes()),
        ),
        Section("loops", "Loops", "More, with examples, in [loops](../loops.md).", (*LOOPS, BREAK)),
        Section(
            "tiles",
            "Operations on tiles",
            "Statements of their own: copies, fills, rearrangements.",
            (*operations("tiles"), *THREAD_COPIES, UPDATE, PRINT),
        ),
        Section("products", "Products", "Statements of their own.", (*operations("products"), DOT)),
        Section("reductions", "Reductions and prefix sums", REDUCTION_TEXT, tuple(operations("reductions"))),
        Section(
            "scalars",
            "Functions of scalars",
            "They give a value and change nothing. How they are rounded is in [numerics](../numerics.md).",
            (INLINE_PTX,),
            "".join(_functions_table()) + f"\n## {PYTHON}\n\n" + _python(),
        ),
        Section(
            "vectors",
            "Vectors and random numbers",
            "Neighbours that are one value. Memory is read and written in accesses of up to 16 bytes without them too.",
            (VECTOR_TYPES, *WIDE, READ_ONLY, RAMP, *RANDOM),
        ),
        Section(
            "atomics",
            "Atomics",
            "On tiles they are statements of their own; those of single elements stand inside T.Parallel too.",
            tuple(operations("atomics")),
        ),
        Section(
            "threads",
            "Threads and warps",
            THREAD_TEXT,
            (*THREADS, EVALUATE),
            "## Functions of warps\n\n" + "".join(_warp_functions()),
        ),
        Section(
            "roles",
            "Warpgroups and pipelines between them",
            "More, with examples, in [roles](../roles.md) and [pipelines](../pipelines.md).",
            (WARPGROUPS, *PIPELINES),
        ),
        Section(
            "synchronisation",
            "Barriers, clusters and grids",
            "Statements of their own.",
            tuple(operations("synchronisation")),
        ),
        Section(
            "hints",
            "Hints",
            "Statements of their own. One that changes nothing here says so in a warning. What they are for is in [the "
            "annotation guide](../annotations.md).",
            (*hints(), SCHEDULES),
        ),
    )


def index(found: tuple[Section, ...]) -> str:
    """docs/language.md: every page with the names on it."""
    lines = [INTRODUCTION.format(made=TITLE), "| page | names |", "| --- | --- |"]
    for section in found:
        target = f"language/{section.file}.md"
        names = (f"[`{n}`]({target}#{anchor(name.names)})" for name in section.names for n in name.names)
        lines.append(f"| [{section.title}]({target}) | {', '.join(names) or section.text.split('. ')[0]} |")
    return "\n".join(lines) + "\n"


def anchor(names: tuple[str, ...]) -> str:
    """What GitHub and MkDocs alike make of an entry's heading."""
    return re.sub(r"[^\w -]", "", ", ".join(names)).lower().replace(" ", "-")


def pages() -> dict[str, str]:
    """Every generated page, by its path in docs/."""
    found = sections()
    reference = {f"language/{section.file}.md": section.page() for section in found}
    return {
        "language.md": index(found),
        **reference,
        "diagnostics.md": diagnostics(),
        "tilelang_names.md": tilelang_names(),
        "pipeline.md": pipeline(),
        "options.md": options(),
        "gallery.md": gallery(),
    }


if __name__ == "__main__":
    (DOCS / "language").mkdir(exist_ok=True)
    for path, text in pages().items():
        (DOCS / path).write_text(text, encoding="utf-8")
