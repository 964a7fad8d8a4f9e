from tilec.support.source import NOWHERE, SourceFile, Span


def test_a_span_reaches_from_the_start_of_one_to_the_end_of_the_other() -> None:
    assert Span(1, 2, 1, 5).to(Span(3, 1, 4, 7)) == Span(1, 2, 4, 7)


def test_lines_are_split_once() -> None:
    source = SourceFile("k.tl", "a\nb\n")
    assert source.lines == ("a", "b", "")


def test_files_are_equal_by_path_and_text() -> None:
    assert SourceFile("k.tl", "a") == SourceFile("k.tl", "a")
    assert SourceFile("k.tl", "a") != SourceFile("k.tl", "b")


def test_nowhere_is_before_every_line() -> None:
    assert NOWHERE.line == 0
