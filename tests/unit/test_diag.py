import pytest

from tilec.support.diagnostics import CompileError, Diagnostic, Label, raise_error
from tilec.support.source import Span

SPAN = Span(1, 1, 1, 2)


def test_fail_raises_one_diagnostic() -> None:
    with pytest.raises(CompileError) as caught:
        raise_error("some-code", "what is wrong", SPAN, "here", help="do this")
    assert caught.value.diagnostics == (
        Diagnostic("some-code", "what is wrong", Label(SPAN, "here"), (), (), "do this"),
    )


def test_without_a_span_there_is_no_primary_label() -> None:
    with pytest.raises(CompileError) as caught:
        raise_error("some-code", "what is wrong")
    assert caught.value.diagnostics[0].primary is None


def test_the_message_of_the_exception_names_every_diagnostic() -> None:
    error = CompileError(Diagnostic("one", "first"), Diagnostic("two", "second"))
    assert str(error) == "[one] first; [two] second"
