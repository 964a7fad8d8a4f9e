from rich.console import Console

from tilec.support.diagnostics import Diagnostic, Label
from tilec.support.render import render_diagnostic
from tilec.support.source import NOWHERE, SourceFile, Span

SOURCE = SourceFile("k.tl", "a = one(two)\n\tb = [red]\nc = '漢字' + x\n")


def plain(diagnostic: Diagnostic, source: SourceFile | None = SOURCE) -> str:
    return render_diagnostic(diagnostic, source).plain


def test_the_whole_picture() -> None:
    diagnostic = Diagnostic(
        "some-code",
        "what is wrong",
        Label(Span(3, 1, 3, 2), "here"),
        (Label(Span(1, 9, 1, 12), "because of this"),),
        ("a note",),
        "do something else",
    )
    assert plain(diagnostic) == (
        "error[some-code]: what is wrong\n"
        " --> k.tl:3:1\n"
        "  |\n"
        "1 | a = one(two)\n"
        "  |         --- because of this\n"
        "3 | c = '漢字' + x\n"
        "  | ^ here\n"
        "  = note: a note\n"
        "  = help: do something else"
    )


def test_wide_characters_and_tabs_keep_the_underline_in_place() -> None:
    assert plain(Diagnostic("c", "t", Label(Span(3, 12, 3, 13)))).endswith("3 | c = '漢字' + x\n  |              ^")
    assert plain(Diagnostic("c", "t", Label(Span(2, 6, 2, 11)))).endswith("2 |     b = [red]\n  |         ^^^^^")


def test_user_text_is_never_markup_or_control_codes() -> None:
    source = SourceFile("k.tl", "x = [red]\x1b[2J")
    text = plain(Diagnostic("c", "[bold]t\x1b[0m", Label(Span(1, 1, 1, 2), "[/]")), source)
    assert "[red]" in text and "[bold]t" in text and "\x1b" not in text


def test_without_a_place_there_are_no_lines() -> None:
    assert plain(Diagnostic("c", "t", help="h")) == "error[c]: t\n = help: h"
    assert plain(Diagnostic("c", "t", Label(NOWHERE)), SOURCE) == "error[c]: t"
    assert plain(Diagnostic("c", "t", Label(Span(1, 1, 1, 2))), None) == "error[c]: t"


def test_severities_are_named() -> None:
    assert plain(Diagnostic("c", "t", severity="warning")) == "warning[c]: t"


def test_a_span_of_several_lines_is_underlined_to_the_end_of_its_first() -> None:
    assert plain(Diagnostic("c", "t", Label(Span(1, 5, 3, 2), "all of it"))).endswith("    ^^^^^^^^ all of it")


def test_two_labels_on_one_line_each_get_a_row() -> None:
    diagnostic = Diagnostic("c", "t", Label(Span(1, 5, 1, 8), "call"), (Label(Span(1, 9, 1, 12), "argument"),))
    assert plain(diagnostic).endswith("  |     ^^^ call\n  |         --- argument")


def test_a_very_long_line_is_cut_around_what_matters() -> None:
    source = SourceFile("k.tl", "x" * 300 + "!" + "y" * 300)
    lines = plain(Diagnostic("c", "t", Label(Span(1, 301, 1, 302))), source).split("\n")
    assert len(lines[-2]) < 200
    assert lines[-2][lines[-1].index("^")] == "!"


def test_it_prints_in_colour() -> None:
    console = Console(force_terminal=True, width=80, color_system="standard")
    with console.capture() as captured:
        console.print(render_diagnostic(Diagnostic("c", "t", Label(Span(1, 1, 1, 2))), SOURCE), soft_wrap=True)
    assert "\x1b[" in captured.get()
