"""Which word somebody meant: slips are mended, and words that only share letters are not taken for it."""

from __future__ import annotations

import pytest

from tilec.ops.other_languages import instead_of
from tilec.support.spelling import distance, nearest

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
    assert nearest(written, WORDS) == meant


def test_distance() -> None:
    assert [distance("ab", word) for word in ("ab", "ba", "abc", "b", "xy", "")] == [0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("word", ["tl.load", "T.load", "load", "numpy.sum", "__syncthreads", "blockIdx"])
def test_words_of_other_languages(word: str) -> None:
    assert instead_of(word) is not None
