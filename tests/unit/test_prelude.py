"""The prelude: its files define the names that it is said to have, and its mistakes are those of the kernel."""

from __future__ import annotations

import pytest

from tilec.frontend.prelude import read
from tilec.frontend.sema.elaborate import elaborate_entry
from tilec.frontend.syntax import ast
from tilec.frontend.syntax.parse import parse_file
from tilec.ops.functions.scalar import FUNCTIONS
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.source import SourceFile

FOLDER = read.Path(read.__file__).parent


def test_each_file_defines_the_names_that_are_said_to_be_in_it() -> None:
    assert {path.stem for path in FOLDER.glob("*.tl")} == set(read.NAMES_BY_FILE)
    for file, names in read.NAMES_BY_FILE.items():
        module = parse_file(SourceFile(file, (FOLDER / f"{file}.tl").read_text(encoding="utf-8")))
        assert [f"T.{node.name}" for node in module.body if isinstance(node, ast.Function)] == list(names)
    assert not read.FILE_BY_NAME.keys() & FUNCTIONS.keys(), "a name has one definition"


def test_each_definition_has_a_doc_and_parameters_without_defaults() -> None:
    for name in read.FILE_BY_NAME:
        defined = read.find_definition(name)
        assert defined.doc and not defined.doc.endswith(".")
        assert defined.signature.name == name and defined.parameters


def kernel(line: str) -> SourceFile:
    return SourceFile(
        "k.tl",
        f"""import tilelang.language as T

@T.prim_func
def k(A: T.Tensor((64,), "int32"), X: T.Tensor((64,), "float32"), n: T.int32):
    with T.Kernel(4, threads=32) as bx:
        {line}
""",
    )


def found(line: str) -> tuple[Diagnostic, SourceFile]:
    source = kernel(line)
    with pytest.raises(CompileError) as caught:
        elaborate_entry(parse_file(source), source)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic, source


@pytest.mark.parametrize(
    ("call", "title", "blamed"),
    [
        ("T.clamp(n, 1)", "T.clamp needs `max_val`", "T.clamp(n, 1)"),
        ("T.clamp(n, 1, 2, 3)", "T.clamp takes 3 arguments, but 4 are given", "3"),
        ("T.clamp(n, 1, height=2)", "T.clamp has no parameter `height`", "height=2"),
        ("T.clamp(n, A, 2)", "one element is needed here, not a whole buffer", "A"),
        ("T.clamp(n, 'low', 2)", "a number is needed here", "'low'"),
        ("T.floordiv(n, X[bx])", "`//` needs integers", "T.floordiv(n, X[bx])"),
        ("T.bitwise_not(X[bx])", "`~` needs an integer", "X[bx]"),
        ("T.shift_left(n, 2 ** 40)", "1099511627776 does not fit in int32", "2 ** 40"),
        ("T.truncdiv(7, 0)", "this cannot be computed", "T.truncdiv(7, 0)"),
        ("T.truncmod(n, X)", "one element is needed here, not a whole buffer", "X"),
        ("T.align_up(8, 0)", "T.ceildiv by zero", "0"),
        ("T.index_to_coordinates(n, 4)[0]", "T.index_to_coordinates: `shape` must be a tuple of extents", "4"),
        ("T.linear_index(n, 1)", "T.linear_index: `args` must be an odd number", "T.linear_index(n, 1)"),
    ],
)
def test_a_mistake_is_shown_in_the_kernels_own_text(call: str, title: str, blamed: str) -> None:
    diagnostic, source = found(f"A[bx] = {call}")
    assert diagnostic.title.startswith(title)
    assert diagnostic.primary is not None
    span = diagnostic.primary.span
    assert span.line == span.end_line == 6 and not span.file
    assert source.lines[5][span.column - 1 : span.end_column - 1] == blamed
    others = [label.span for label in diagnostic.secondary]
    assert all(s.line in (4, 6) and not s.file for s in others)
    assert not any("prelude" in note for note in diagnostic.notes)


def test_what_a_definition_says_to_itself_is_no_name_of_kernels() -> None:
    diagnostic, _ = found("refuse(n, 'anything')")
    assert diagnostic.code == "unknown-name"


def test_files_are_read_when_a_kernel_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noted(source: SourceFile) -> ast.Module:
        asked.append(source.path)
        return parse_file(source)

    monkeypatch.setattr(read, "parse_file", noted)
    read._read_definitions.cache_clear()
    for line, files in (
        ("A[T.ceildiv(n, 4)] = T.max(n, 2)", []),
        ("A[bx] = T.clamp(n, 1, T.clamp(n, 2, 3))", ["numbers.tl"]),
    ):
        source = kernel(line)
        elaborate_entry(parse_file(source), source)
        assert asked == files


def test_calls_inside_each_other_are_not_counted_against_the_kernel() -> None:
    functions = [f"def f{n}(x):\n    return f{n - 1}(x)\n" for n in range(1, 29)]
    text = "\n".join(["import tilelang.language as T\n", "def f0(x):\n    return T.truncmod(x, 3)\n", *functions])
    source = SourceFile("k.tl", text + kernel("A[bx] = f28(n)").text.removeprefix("import tilelang.language as T\n"))
    elaborate_entry(parse_file(source), source)
