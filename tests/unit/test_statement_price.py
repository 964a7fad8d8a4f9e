"""How long a statement holds its role: in-order warps wait for what they load at the first instruction that uses it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stages import problems

from tilec.ir.tile import Kernel
from tilec.sched.problem import Op
from tilec.target import table as targets

Make = Callable[..., Kernel]

TILES = """
h = T.alloc_shared((64, 64), "float16")
g = T.alloc_shared((64, 64), "float16")
f = T.alloc_fragment((64, 64), "float32")
r = T.alloc_fragment((64, 64), "float32")
c = T.alloc_fragment((64, 64), "float16")
T.clear(r)
"""
PARAMS = (
    'A: T.Tensor((8, 64, 64), "float32"), H: T.Tensor((8, 64, 64), "float16"), C: T.Tensor((8, 64, 64), "float32"), '
    'table: T.Tensor((8,), "int32"), again: T.Tensor((8,), "int32")'
)
TARGETS = ("sm_80", "sm_90a", "sm_100a")


def first_op(body: Make, text: str, target: str, rest: str = "") -> Op:
    """Of the only pipelined loop, as no role by TMA runs it."""
    inside = "".join(f"    {line}\n" for line in text.strip("\n").split("\n"))
    after = "".join(f"    {line}\n" for line in rest.strip("\n").split("\n"))
    kernel = body(f"{TILES}for k in T.Pipelined(8, num_stages=2):\n{inside}{after}T.copy(r, C[0, 0, 0])", PARAMS)
    (loop,) = problems(kernel, target, "unspecialize").problems
    return loop.problem.ops[0]


ADD_F = "for i, j in T.Parallel(64, 64):\n    r[i, j] += f[i, j]"
ADD_H = "for i, j in T.Parallel(64, 64):\n    r[i, j] += h[i, j]"
ADD_C = "for i, j in T.Parallel(64, 64):\n    r[i, j] += c[i, j]"
NEST = "for i, j in T.Parallel(64, 64):\n    "


def loading(target: str, size: int, scope: str = "global") -> int:
    return targets.load_target(target).price(f"ld.{scope}", bytes=size, threads=128).latency


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("text", "rest", "loaded"),
    [
        ("T.copy(A[k, 0, 0], h)", ADD_H, 4),  # through registers, as no copy into shared memory converts
        ("T.copy(A[k, 0, 0], c)", ADD_C, 4),  # what is converted has been waited for
        (f"{NEST}h[i, j] = H[k, i, j] * T.float16(2)", ADD_H, 2),
        (f"{NEST}f[i, j] = A[k, i, j] + 1.0", ADD_F, 4),
    ],
    ids=["converted to shared", "converted to registers", "a nest to shared", "a nest to registers"],
)
def test_what_uses_its_own_loads_holds_its_role_for_them(
    body: Make, target: str, text: str, rest: str, loaded: int
) -> None:
    op = first_op(body, text, target, rest)
    assert op.issue >= loading(target, 64 * 64 * loaded)
    assert op.latency >= op.issue
    assert any(use.cycles == op.issue for use in op.uses)  # the slot of its role


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("text", ["T.copy(A[k, 0, 0], f)", f"{NEST}f[i, j] = A[k, i, j]"])
def test_what_only_fills_registers_does_not(body: Make, target: str, text: str) -> None:
    op = first_op(body, text, target, ADD_F)
    assert op.issue < op.latency and op.latency >= loading(target, 64 * 64 * 4)


@pytest.mark.parametrize("target", TARGETS)
def test_loads_of_one_nest_wait_together_and_those_in_a_chain_in_turn(body: Make, target: str) -> None:
    one = first_op(body, f"{NEST}f[i, j] = A[k, i, j] + 1.0", target, ADD_F).issue
    two = first_op(body, f"{NEST}f[i, j] = A[k, i, j] + C[k, i, j]", target, ADD_F).issue
    chain = first_op(body, f"{NEST}f[i, j] = A[table[j] % 8, i, j] + 1.0", target, ADD_F).issue
    assert one < two < one + loading(target, 64 * 64 * 4)
    assert chain >= one + loading(target, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_an_address_that_is_loaded_is_waited_for(body: Make, target: str) -> None:
    known = first_op(body, "T.copy(H[k, 0, 0], h)", target, ADD_H)
    loaded = first_op(body, "T.copy(H[table[k], 0, 0], h)", target, ADD_H)
    twice = first_op(body, "T.copy(H[again[table[k]], 0, 0], h)", target, ADD_H)
    once = loading(target, 0)
    assert loaded.issue >= known.issue + once and loaded.latency >= known.latency + once
    assert twice.issue >= known.issue + 2 * once


@pytest.mark.parametrize("target", TARGETS)
def test_a_condition_that_is_loaded_is_waited_for(body: Make, target: str) -> None:
    known = first_op(body, "if k > 2:\n    T.copy(H[k, 0, 0], g)\nT.copy(H[k, 0, 0], h)", target, ADD_H)
    loaded = first_op(body, "if table[k] > 2:\n    T.copy(H[k, 0, 0], g)\nT.copy(H[k, 0, 0], h)", target, ADD_H)
    assert loaded.issue >= known.issue + loading(target, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_a_bind_that_loads_is_waited_for_where_it_is_replayed(body: Make, target: str) -> None:
    """Each statement that uses it loads it anew."""
    known = first_op(body, "T.copy(H[k, 0, 0], h)", target, ADD_H)
    once = first_op(body, "at = table[k]\nT.copy(H[at, 0, 0], h)", target, ADD_H)
    twice = first_op(body, "at = table[k]\nthere = again[at] + 1\nT.copy(H[there, 0, 0], h)", target, ADD_H)
    unused = first_op(body, "at = table[k]\nT.copy(H[k, 0, 0], h)", target, ADD_H)
    assert unused.issue == known.issue
    assert once.issue >= known.issue + loading(target, 0) and twice.issue >= known.issue + 2 * loading(target, 0)


def test_the_units_behind_a_load_are_held_behind_it(body: Make) -> None:
    machine = targets.load_target("sm_80")
    op = first_op(body, f"{NEST}h[i, j] = H[k, i, j] * T.float16(2)", "sm_80", ADD_H)
    offsets = {machine.slots[use.slot].name: use.offset for use in op.uses if use.slot < len(machine.slots)}
    assert offsets["tp_gnic_rd"] == 0 and offsets["tp_smem_wr"] >= loading("sm_80", 64 * 64 * 2)
