"""Drawn kernels whose roles hand stages on: what is accepted is right on a hostile machine, for every target.

Producers fill by copies or by threads, some in steps that read what they have written; consumers read, some change what
they have taken; roles differ in how they acquire, and some in how often, or in who writes what. Most of the mistakes
that can be drawn are refused. None may end in anything else than a diagnostic or the numbers of the reference.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

REFUSALS = {"stage-access", "role-race", "unbalanced-acquires"}
HEAD = """import tilelang.language as T

@T.prim_func
def kernel(X: T.Tensor(({rows}, {width}), "{dtype}"), Z: T.Tensor(({rows}, {width}), "{dtype}"),
           Y: T.Tensor(({takers}, {rows}, {width}), "{dtype}")):
    with T.Kernel(1, threads={threads}):
        one = T.alloc_shared(({width},), "{dtype}")
        two = T.alloc_shared(({width},), "{dtype}")
        pipe = T.{kind}TilePipeline((one, two), stages={stages})
"""


def drawn(choose: random.Random) -> str:
    rows, width, dtype = choose.choice([3, 5, 7]), choose.choice([64, 256]), choose.choice(["float16", "float32"])
    kind, fillers, takers = choose.choice(["Input", "Output"]), choose.choice([1, 1, 2]), choose.choice([1, 1, 2])
    half = width // 2

    def nest(extent: int, statement: str) -> list[str]:
        return [f"for j in T.Parallel({extent}):", f"    {statement}"]

    def filled(tile: str) -> list[str]:
        source = choose.choice("XZ")
        return choose.choice(
            [
                [f"T.copy({source}[i, 0], {tile})"],
                nest(width, f"{tile}[j] = {source}[i, {width - 1} - j] * 2.0"),
                nest(half, f"{tile}[j] = {source}[i, j]") + nest(half, f"{tile}[j + {half}] = {source}[i, j] + 1.0"),
            ]
        )

    def changed(tile: str) -> list[str]:
        if choose.random() > 0.2:
            return []
        return nest(half, f"{tile}[j] = {tile}[j + {half}] + 1.0")

    def role(side: str, number: int, trips: int, work: list[str]) -> list[str]:
        acquires = [f"with pipe.{side}().acquire() as tiles:", f"tiles = pipe.acquire_{side}()"]
        acquires += [f"with pipe.{side}() as tiles:"] * (kind == "Output")
        acquire = choose.choice(acquires)
        inside = [f"    {line}" for line in work] if acquire.startswith("with") else [*work, "tiles.release()"]
        lines = [acquire, *inside]
        head = [f"with T.ws({number}):", f"    for i in T.serial({trips}):"]
        return [*head, *(f"        {line}" for line in lines)]

    body: list[str] = []
    for number in range(fillers):
        mine = ["one", "two"] if fillers == 1 or choose.random() < 0.1 else [("one", "two")[number]]
        work = ["tiles.expect_bytes()"] * (fillers == 1 and choose.random() < 0.3)
        body += role(
            "producer", number, rows, work + [s for t in mine for s in filled(f"tiles.{t}") + changed(f"tiles.{t}")]
        )
    for number in range(takers):
        work = changed("tiles.one") + changed("tiles.two")
        work += nest(width, f"Y[{number}, i, j] = tiles.one[{width - 1} - j] - tiles.two[j]")
        body += role("consumer", fillers + number, rows - (choose.random() < 0.1), work)
    head = HEAD.format(
        rows=rows, width=width, dtype=dtype, kind=kind, takers=takers,
        threads=128 * (fillers + takers), stages=choose.randint(1, 3),
    )  # fmt: skip
    return head + "".join(f"        {line}\n" for line in body)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("part", range(2))
def test_what_is_accepted_is_right(target: str, part: int) -> None:
    seen: Counter[str] = Counter()
    for number in range(12 * part, 12 * part + 12):
        text = drawn(random.Random(f"{target} {number}"))
        try:
            made = driver.build_kernel(SourceFile("k.tl", text), CompileOptions(target=target), driver.Observer())
        except CompileError as error:
            seen.update(d.code for d in error.diagnostics)
            continue
        given = emulate.draw_arguments(made.kernel, made.manifest, number)
        wanted = given.copy()
        emulate.run_reference(made.kernel, wanted)
        for adversary in (None, number):
            ran = given.copy()
            emulate.emulate_build(made, ran, options=emulate.RunOptions(adversary=adversary))
            assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, ran, wanted)), text
        seen["right"] += 1
    assert set(seen) <= {"right", *REFUSALS} and seen["right"] >= 4, seen
