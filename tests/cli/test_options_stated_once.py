"""The options of the command line are the fields of `CompileOptions`, and their older spellings still work."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from command import tilec

from tilec.cli.dispatch import find_command
from tilec.cli.other_spellings import FormerSpellings
from tilec.driver.explanations import EXPLANATIONS, FORMER_CODES
from tilec.support.option_fields import Option, parse_value
from tilec.support.options import OPTIONS, CompileOptions

KERNEL = str(Path(__file__).parents[2] / "samples" / "gemm.tl")
USUAL = CompileOptions()
UNSET = """
import tilelang.language as T


@T.prim_func
def unset(C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        tile = T.alloc_fragment((64, 64), "float32")
        T.copy(tile, C)
"""


def command() -> click.Command:
    return find_command([])[0]


@pytest.mark.parametrize(("field", "stated"), OPTIONS.items(), ids=OPTIONS)
def test_each_field_is_an_option_of_the_command(field: str, stated: Option) -> None:
    (found,) = (p for p in command().params if p.name == field)
    assert isinstance(found, FormerSpellings)
    assert found.opts == [stated.switch, *stated.short]
    assert found.help is not None and found.help.startswith(stated.help[:20])
    assert bool(found.secondary_opts) == (getattr(USUAL, field) is True)


@pytest.mark.parametrize(("field", "stated"), OPTIONS.items(), ids=OPTIONS)
def test_each_word_has_a_value(field: str, stated: Option) -> None:
    default = getattr(USUAL, field)
    for word, value in stated.words.items():
        assert parse_value(stated, default, word) == value
    if stated.is_closed:
        assert default in stated.words.values()
        with pytest.raises(ValueError, match="must be one of"):
            parse_value(stated, default, "no such word")


FORMER = [(old, new) for stated in OPTIONS.values() for old, new in stated.former.items()]


@pytest.mark.parametrize(("old", "new"), FORMER, ids=[old for old, _ in FORMER])
def test_an_older_spelling_means_what_it_meant(old: str, new: str) -> None:
    """A value is given to what takes one."""
    now, _, word = new.partition(" ")
    (option,) = (p for p in command().params if now in (*p.opts, *p.secondary_opts))
    assert isinstance(option, click.Option)
    value = [] if option.is_flag or word else ["2"]

    def parsed(*words: str) -> dict[str, object]:
        return command().make_context("tilec", [*words, KERNEL]).params

    assert parsed(old, *value) == parsed(*new.split(), *value)
    assert (parsed(old, *value) == parsed()) == (now in option.opts and option.default is True)
    assert f"{old} " not in command().get_help(click.Context(command()))


def test_an_older_spelling_is_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("check", "--no-cluster", KERNEL) == 0
    said = capfd.readouterr().err
    assert "warning[deprecated-spelling]: --no-cluster is an older spelling" in said
    assert "write --cluster none" in said
    assert tilec("check", "--no-cluster", "-Wno-deprecated-spelling", KERNEL) == 0
    assert capfd.readouterr().err == ""
    assert tilec("check", "--no-cluster", "-Werror", KERNEL) == 1


@pytest.mark.parametrize(("old", "new"), FORMER_CODES.items(), ids=FORMER_CODES)
def test_an_older_code_is_explained_as_the_new_one(old: str, new: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", old) == 0
    shown = capfd.readouterr().out
    assert shown.startswith(f"{old} is now called {new}:\n\n{new}\n") and EXPLANATIONS[new] in shown


def test_an_older_code_silences_and_is_told_of(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kernel = tmp_path / "k.tl"
    kernel.write_text(UNSET, encoding="utf-8")
    assert tilec("check", str(kernel)) == 0
    assert "warning[uninitialised-read]" in capfd.readouterr().err
    assert tilec("check", "-Wno-never-set", str(kernel)) == 0
    said = capfd.readouterr().err
    assert "[uninitialised-read]" not in said
    assert "warning[deprecated-spelling]: -Wno-never-set is an older spelling" in said
    assert "write -Wno-uninitialised-read" in said


def test_one_warning_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kernel = tmp_path / "k.tl"
    kernel.write_text(UNSET, encoding="utf-8")
    assert tilec("check", "-Werror=uninitialised-read", str(kernel)) == 1
    assert "error[uninitialised-read]" in capfd.readouterr().err
    assert tilec("check", "-Werror=depth-override", str(kernel)) == 0
    assert "warning[uninitialised-read]" in capfd.readouterr().err
    assert tilec("check", "-Werror=never-set", str(kernel)) == 1
    assert "write -Werror=uninitialised-read" in capfd.readouterr().err
    assert tilec("check", "-Werror=no-such", str(kernel)) == 1
    assert "error[unknown-code]: -Werror=no-such is not a warning option" in capfd.readouterr().err


def test_of_two_spellings_the_new_one_counts() -> None:
    params = command().make_context("tilec", ["--cluster", "2x1", "--no-cluster", KERNEL]).params
    assert params["cluster"] == "2x1"


def test_the_option_of_the_guide_is_as_it_is_stated() -> None:
    root = Path(__file__).parents[2]
    guide = (root / "docs" / "extending.md").read_text(encoding="utf-8")
    (shown,) = (block for block in guide.split("\n\n") if block.startswith("    stmatrix: bool = option_field("))
    assert shown in (root / "tilec" / "support" / "options.py").read_text(encoding="utf-8")
