"""Variables that a pass has written into two places get names of their own, and all that reads them reads its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from tilec.ir.text import print_kernel
from tilec.ir.tile import Kernel
from tilec.ir.tile_verify.verify import verify_tile
from tilec.rewriting.make_names_unique import make_names_unique

LINES = """
for i, j in T.Parallel(128, 32):
    seen = A[i, j] * 2
    B[i, j] = seen + 1
for k in T.serial(4):
    x = k * 2
    while x < N:
        for i in T.Parallel(32):
            before = T.atomic_add(C[i], 1, return_prev=True)
            C[i] = before
"""
PARAMS = "A: T.Tensor((128, 32), 'int32'), B: T.Tensor((128, 32), 'int32'), C: T.Tensor((32,), 'int32'), N: T.int32"


def test_what_is_written_twice_is_told_apart(body: Callable[..., Kernel]) -> None:
    once = body(LINES, PARAMS)
    assert list(verify_tile(once)) == []
    assert make_names_unique(once) is once

    twice = replace(once, body=(*once.body, *once.body))
    assert any("used twice" in said for said in verify_tile(twice))
    made = make_names_unique(twice)
    assert list(verify_tile(made)) == []
    first, second = made.body[: len(once.body)], made.body[len(once.body) :]
    assert first == once.body
    text = print_kernel(replace(made, body=second))
    assert text.count("seen_1") == 2 and "seen " not in text
    assert re.sub(r"_\d+", "", text) == re.sub(r"_\d+", "", print_kernel(once))
