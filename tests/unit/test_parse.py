from __future__ import annotations

from pathlib import Path

import lark
import pytest
from hypothesis import given, settings, strategies as st

from tilec.frontend.syntax import ast, lalr, mistakes
from tilec.frontend.syntax.lalr import MAX_DEPTH, Branch, Token
from tilec.frontend.syntax.parse import parse_file
from tilec.frontend.syntax.unparse import unparse_module
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.resources import grammar_text
from tilec.support.source import SourceFile, Span

SAMPLES = sorted((Path(__file__).parents[2] / "samples").glob("*.tl"))


def tree(text: str) -> ast.Module:
    return parse_file(SourceFile("k.tl", text))


def only(text: str) -> ast.Stmt:
    (statement,) = tree(text).body
    return statement


def expression(text: str) -> ast.Expr:
    statement = only(text)
    assert isinstance(statement, ast.Evaluate)
    return statement.value


def mistake(text: str) -> Diagnostic:
    with pytest.raises(CompileError) as caught:
        tree(text)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.primary is not None
    return diagnostic


a, b, c, d = (ast.Name(n) for n in "abcd")


# ---- what the text means ---------------------------------------------------------------------------------------------


def test_operators_bind_as_in_python() -> None:
    assert expression("a + b * c") == ast.Binary("+", a, ast.Binary("*", b, c))
    assert expression("a - b - c") == ast.Binary("-", ast.Binary("-", a, b), c)
    assert expression("-a ** b") == ast.Unary("-", ast.Binary("**", a, b))
    assert expression("a ** -b") == ast.Binary("**", a, ast.Unary("-", b))
    assert expression("a ** b ** c") == ast.Binary("**", a, ast.Binary("**", b, c))
    assert expression("not a == b") == ast.Unary("not", ast.Compare(a, ("==",), (b,)))
    assert expression("a or b and c") == ast.Boolean("or", a, ast.Boolean("and", b, c))
    assert expression("a if b else c if d else a") == ast.Conditional(b, a, ast.Conditional(d, c, a))
    assert expression("a & b == c") == ast.Compare(ast.Binary("&", a, b), ("==",), (c,))


def test_comparisons_chain() -> None:
    assert expression("a <= b < c") == ast.Compare(a, ("<=", "<"), (b, c))


def test_numbers_and_strings() -> None:
    assert expression("0x_ff") == ast.Number(255)
    assert expression("1_000") == ast.Number(1000)
    assert expression("1e-3") == ast.Number(0.001)
    assert expression("5.") == ast.Number(5.0)
    assert expression(".5") == ast.Number(0.5)
    assert expression("'a' \"b\"") == ast.String("ab")
    assert expression('"""a\n"b"\n"""') == ast.String('a\n"b"\n')
    assert expression(r"'\n\''") == ast.String("\n'")
    assert expression(r"r'\n'") == ast.String("\\n")


def test_subscripts_and_slices() -> None:
    assert expression("a[b, c]") == ast.Subscript(a, (b, c))
    assert expression("a[b:c, :, ::d]") == ast.Subscript(a, (ast.Slice(b, c), ast.Slice(), ast.Slice(None, None, d)))


def test_calls_may_end_in_a_comma() -> None:
    assert expression("a(b, c=d,)") == ast.Call(a, (b,), (ast.Keyword("c", d),))


def test_tuples() -> None:
    assert expression("()") == ast.Tuple(())
    assert expression("(a,)") == ast.Tuple((a,))
    assert expression("(a)") == a
    assert only("a, b = c") == ast.Assign((ast.Tuple((a, b)),), c)
    assert only("a = b, ") == ast.Assign((a,), ast.Tuple((b,)))
    assert only("a = b = c") == ast.Assign((a, b), c)


def test_statements() -> None:
    assert only("a: b = c") == ast.AnnotatedAssign(a, b, c)
    assert only("a[b] **= c") == ast.AugmentedAssign(ast.Subscript(a, (b,)), "**", c)
    assert only("assert a, b") == ast.Assert(a, b)
    assert only("import a.b as c") == ast.Import((ast.Alias("a.b", "c"),))
    assert only("from a.b import (c, d)") == ast.Import((ast.Alias("c"), ast.Alias("d")), "a.b")
    assert only("with a(b) as (c, d): pass") == ast.With(ast.Call(a, (b,)), ast.Tuple((c, d)), (ast.Pass(),))
    assert tree("a; b").body == (ast.Evaluate(a), ast.Evaluate(b))


@pytest.mark.parametrize(
    ("items", "entered"),
    [
        ("a as c, b as d", [(a, c), (b, d)]),
        ("a, b", [(a, None), (b, None)]),
        ("(a as c, b as d)", [(a, c), (b, d)]),
        ("(a as c, b,)", [(a, c), (b, None)]),
        ("(a, b as c, d,)", [(a, None), (b, c), (d, None)]),
        ("(a, b)", [(a, None), (b, None)]),
        ("((a, b))", [(ast.Tuple((a, b)), None)]),
        ("(a, b) as c", [(ast.Tuple((a, b)), c)]),
        ("(a)(b) as (c, d), b", [(ast.Call(a, (b,)), ast.Tuple((c, d))), (b, None)]),
    ],
)
def test_a_with_of_several_items_is_one_in_the_other(
    items: str, entered: list[tuple[ast.Expr, ast.Expr | None]]
) -> None:
    body: tuple[ast.Stmt, ...] = (ast.Pass(),)
    for context, target in reversed(entered):
        body = (ast.With(context, target, body),)
    found = only(f"with {items}: pass")
    assert (found,) == body
    assert tree(unparse_module(ast.Module((found,)))).body == body


def test_each_item_of_a_with_begins_where_it_stands() -> None:
    outer = only("with a as b, c as d:\n    pass")
    assert isinstance(outer, ast.With) and isinstance(outer.body[0], ast.With)
    assert (outer.span.column, outer.body[0].span.column) == (1, 14)


def test_many_items_are_as_deep_as_so_many_blocks() -> None:
    with pytest.raises(CompileError) as caught:
        tree(f"with {', '.join('a' * 120)}: pass")
    assert caught.value.diagnostics[0].code == "too-deep"


def test_elif_is_an_if_alone_in_else() -> None:
    chain = only("if a:\n  pass\nelif b:\n  pass\nelse:\n  pass\n")
    nested = only("if a:\n  pass\nelse:\n  if b:\n    pass\n  else:\n    pass\n")
    assert chain == nested


def test_functions() -> None:
    function = only("@a.b\ndef f(x: c = d, y=1,) -> None:\n    return x\n")
    assert function == ast.Function(
        "f",
        (ast.Parameter("x", c, d), ast.Parameter("y", None, ast.Number(1))),
        (ast.Return(ast.Name("x")),),
        (ast.Attribute(a, "b"),),
        ast.Constant("None"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "a\n\n\n# c\nb",
        "a  # c\nb",
        "\n\na\nb\n\n",
        "# c\na\r\nb\r\n",
        "a\n    # an indented comment opens no block\nb",
        "a \\\n\nb",
        "(a\n# c\n)\nb",
    ],
)
def test_comments_blank_lines_and_line_ends_do_not_matter(text: str) -> None:
    assert tree(text).body == (ast.Evaluate(a), ast.Evaluate(b))


def test_a_tab_is_as_far_as_eight_spaces() -> None:
    assert (
        lalr.build_tree(mistakes.extract_tables(grammar_text("tile.lark")), "if x:\n        a = 1\n\tb = 2\n")
        is not None
    )
    assert len(tree("if x:\n        a = 1\n\tb = 2\n").body) == 1


def test_lines_inside_brackets_have_no_indentation() -> None:
    assert expression("a(\nb,\n        c\n  )") == ast.Call(a, (b, c))


def test_spans_point_at_the_text() -> None:
    (statement,) = tree("\nif a:\n    b(c,\n      d)\n\n# end\n").body
    assert isinstance(statement, ast.If)
    assert statement.span == Span(2, 1, 4, 9)
    assert statement.then[0].span == Span(3, 5, 4, 9)


def test_every_span_lies_inside_the_file() -> None:
    for path in SAMPLES:
        source = SourceFile(path.name, path.read_text(encoding="utf-8"))
        for node in ast.walk_nodes(parse_file(source)):
            span = node.span
            assert 1 <= span.line <= span.end_line <= len(source.lines), node
            assert 1 <= span.column <= len(source.lines[span.line - 1]) + 1, node
            assert span.end_column <= len(source.lines[span.end_line - 1]) + 1, node


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_mistakes_name_what_was_expected() -> None:
    assert mistake("x = ").title == "expected an expression, found the end of the line"
    assert mistake("def f(x)\n    pass").title == "expected `:`, found the end of the line"
    assert mistake("if a:\n").title == "expected an indented block, found the end of the file"
    assert mistake("x = 1 2").title == "expected the end of the line, found `2`"


def test_a_mistake_is_said_once() -> None:
    with pytest.raises(CompileError) as caught:
        tree("import a\n.version 8\n.target x\n.entry k\n")
    assert [d.primary.span.line for d in caught.value.diagnostics if d.primary] == [2, 3, 4]


def test_nesting_is_limited() -> None:
    depth = MAX_DEPTH - 5
    tree(f"x = {'(' * depth}1{')' * depth}")
    assert mistake(f"x = {'-' * 5000}1").code == "too-deep"
    assert mistake(f"x = {'+'.join('1' * 5000)}").code == "too-deep"
    chain = "".join(f"{'if' if i == 0 else 'elif'} a:\n  pass\n" for i in range(500))
    assert mistake(chain).code == "too-deep"


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab1.,:;=()[]{}'\"\\#+-*<>!@ \n\t")), max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        tree(text)
    except CompileError as error:
        assert error.diagnostics[0].primary is not None


def test_the_tables_are_cached_and_a_broken_cache_is_rebuilt(tmp_path: Path) -> None:
    from tilec.frontend.syntax import tables

    source = SourceFile("k.tl", "a + b")
    expected = parse_file(source)
    for content in (None, b"", b"nonsense", b"\x80\x04N."):
        tables._loaded_tables.clear()
        if content is not None:
            (file,) = tmp_path.iterdir()
            file.write_bytes(content)
        assert parse_file(source, tmp_path) == expected
        tables._loaded_tables.clear()
        assert parse_file(source, tmp_path) == expected
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.some(1)
@pytest.mark.parametrize("text", ["a + b", "a +"], ids=["tables", "both tables"])
def test_damage_of_a_cache_is_noticed(text: str, tmp_path: Path) -> None:
    """Whatever a kept file says that is not what was written: one byte, anywhere in it."""
    from tilec.frontend.syntax import mistakes, tables

    def parsed() -> object:
        tables._loaded_tables.clear()
        mistakes._built_parsers.clear()
        try:
            return parse_file(SourceFile("k.tl", text), tmp_path)
        except CompileError as error:
            return error.diagnostics

    expected = parsed()
    for file in sorted(tmp_path.iterdir()):
        good = file.read_bytes()
        for at in range(3, len(good), len(good) // 3):
            damaged = good[:at] + bytes([good[at] ^ 16]) + good[at + 1 :]
            file.write_bytes(damaged)
            assert parsed() == expected
            assert file.read_bytes() != damaged


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert parse_file(SourceFile("k.tl", "a"), blocked / "folder").body == (ast.Evaluate(a),)


# ---- text again ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_unparse_to_themselves(path: Path) -> None:
    module = tree(path.read_text(encoding="utf-8"))
    assert tree(unparse_module(module)) == module


names = st.sampled_from(["a", "b", "x_1", "T", "match"]).map(ast.Name)
leaves = st.one_of(
    names,
    st.integers(0, 10**20).map(ast.Number),
    st.floats(0, allow_nan=False).map(ast.Number),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5).map(ast.String),
    st.builds(ast.Constant, st.sampled_from(["True", "False", "None", "..."])),
)


def chain(first: ast.Expr, links: list[tuple[ast.CompareOp, ast.Expr]]) -> ast.Expr:
    return ast.Compare(first, tuple(op for op, _ in links), tuple(e for _, e in links))


def compound(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    items = st.lists(inner, max_size=3).map(tuple)
    optional = st.none() | inner
    keywords = st.lists(st.sampled_from(["k", "n"]), unique=True).flatmap(
        lambda ks: st.tuples(*(st.builds(ast.Keyword, st.just(k), inner) for k in ks))
    )
    index = inner | st.builds(ast.Slice, optional, optional, optional)
    operators = ["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>"]
    starred = st.builds(ast.Parameter, st.just("c"), st.none(), st.none(), st.just("*"))
    parameters = st.builds(ast.Parameter, st.sampled_from(["a", "b"]), st.none(), optional) | starred
    compares = st.lists(st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), inner), min_size=1, max_size=3)
    return st.one_of(
        st.builds(ast.Tuple, items),
        st.builds(ast.List, items),
        st.builds(ast.Dict, st.lists(st.tuples(inner, inner), max_size=2).map(tuple)),
        st.builds(ast.Attribute, inner, st.just("field")),
        st.builds(ast.Call, inner, items, keywords),
        st.builds(ast.Subscript, inner, st.lists(index, min_size=1, max_size=3).map(tuple)),
        st.builds(ast.Unary, st.sampled_from(["-", "+", "~", "not"]), inner),
        st.builds(ast.Binary, st.sampled_from(operators), inner, inner),
        st.builds(chain, inner, compares),
        st.builds(ast.Boolean, st.sampled_from(["and", "or"]), inner, inner),
        st.builds(ast.Conditional, inner, inner, inner),
        st.builds(ast.Lambda, st.lists(parameters, max_size=3).map(tuple), inner),
    )


expressions = st.recursive(leaves, compound, max_leaves=12)
targets = names | st.builds(ast.Subscript, names, st.tuples(expressions))
simple = st.one_of(
    st.builds(ast.Assign, st.lists(targets, min_size=1, max_size=2).map(tuple), expressions),
    st.builds(ast.AnnotatedAssign, targets, expressions, st.none() | expressions),
    st.builds(ast.AugmentedAssign, targets, st.sampled_from(["+", "//", ">>"]), expressions),
    st.builds(ast.Evaluate, expressions),
    st.builds(ast.Return, st.none() | expressions),
    st.builds(ast.Assert, expressions, st.none() | expressions),
    st.just(ast.Pass()),
    st.just(ast.Import((ast.Alias("a.b", "c"), ast.Alias("d")))),
)


def block(inner: st.SearchStrategy[ast.Stmt]) -> st.SearchStrategy[ast.Stmt]:
    body = st.lists(inner, min_size=1, max_size=3).map(tuple)
    parameter = st.builds(ast.Parameter, st.just("p"), st.none() | expressions, st.none() | expressions)
    return st.one_of(
        st.builds(ast.If, expressions, body, st.just(()) | body),
        st.builds(ast.For, targets, expressions, body),
        st.builds(ast.With, expressions, st.none() | names, body),
        st.builds(
            ast.Function,
            st.just("f"),
            st.lists(parameter, max_size=2).map(tuple),
            body,
            st.lists(expressions, max_size=1).map(tuple),
            st.none() | expressions,
        ),
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(st.recursive(simple, block, max_leaves=5), max_size=3).map(lambda body: ast.Module(tuple(body))))
def test_every_tree_unparses_to_itself(module: ast.Module) -> None:
    assert tree(unparse_module(module)) == module


# ---- the tables against Lark -----------------------------------------------------------------------------------------


def as_data(node: object) -> object:
    """A tree of either kind: names, texts and places."""
    if node is None:
        return None
    if isinstance(node, lark.Tree):
        children, meta = node.children, node.meta
        place = (getattr(meta, "line", 1), getattr(meta, "column", 1))
        end = (getattr(meta, "end_line", 1), getattr(meta, "end_column", 1))
        return (str(node.data), place, end, [as_data(c) for c in children])
    if isinstance(node, Branch):
        place, end = (node.line, node.column), (node.end_line, node.end_column)
        return (node.data, place, end, [as_data(c) for c in node.children])
    assert isinstance(node, lark.Token | Token)
    return (node.type, str(node), node.line, node.column, node.end_line, node.end_column)


@pytest.mark.some(2)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_tables_read_what_lark_reads(path: Path) -> None:
    """The tree and every place in it; and of texts with a mistake, which these are."""
    text = path.read_text(encoding="utf-8") + "\n"
    parser, tables = (
        mistakes._get_parser(grammar_text("tile.lark"), None),
        mistakes.extract_tables(grammar_text("tile.lark")),
    )
    assert as_data(lalr.build_tree(tables, text)) == as_data(parser.parse(text))
    for place in range(7, len(text), len(text) // 9):
        for instead in ("", ")", "(", "\n", "  ", ":", "\n   x", "'''", "$"):
            changed = text[:place] + instead + text[place + 1 :]
            try:
                read = as_data(parser.parse(changed))
            except (lark.UnexpectedInput, CompileError):
                read = None
            assert as_data(lalr.build_tree(tables, changed)) == read, (place, instead)
