"""Which word somebody meant: slips are mended, and words that only share letters are not taken for it."""

from __future__ import annotations

import re

import pytest

from tilec.frontend.sema.vocabulary import list_supported_names
from tilec.ir.types import TYPES_BY_NAME
from tilec.ops.language.other_languages import FOREIGN_WORDS as OTHERS, find_equivalent, suggest_dtype
from tilec.ops.language.unavailable_names import REFUSED
from tilec.support.spelling import edit_distance, nearest_word

WORDS = ("float", "gemm", "clear", "Parallel", "alloc_fragment", "T")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gem", "gemm"),
        ("claer", "clear"),
        ("parallel", "Parallel"),
        ("aloc_fragmnet", "alloc_fragment"),
        ("alloc_frag", "alloc_fragment"),
        ("load", None),
        ("tl", None),
        ("x", None),
        ("", None),
    ],
)
def test_nearest(written: str, meant: str | None) -> None:
    assert nearest_word(written, WORDS) == meant


def test_distance() -> None:
    assert [edit_distance("ab", word) for word in ("ab", "ba", "abc", "b", "xy", "")] == [0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("word", ["tl.load", "T.load", "load", "numpy.sum", "__syncthreads", "blockIdx"])
def test_words_of_other_languages(word: str) -> None:
    assert find_equivalent(word) is not None


def test_no_word_of_another_language_has_two_answers() -> None:
    assert [word for word in OTHERS if word in REFUSED] == []


def test_dtypes_of_other_languages_are_answered_by_dtypes() -> None:
    names = [name for word in OTHERS if (name := suggest_dtype(word)) is not None]
    assert "float16" in names and [name for name in names if name not in TYPES_BY_NAME] == []


def test_answers_name_what_there_is() -> None:
    """Every T.name that an answer mentions."""
    known = set(list_supported_names())
    mentioned = {name for word in OTHERS for name in re.findall(r"T\.\w+", find_equivalent(word) or "")}
    assert mentioned and mentioned <= known
