"""Which threads reach the elements of a tensor: what the verifier finds without a barrier, against the threads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snippets import kernel

from tilec.driver.build import Observer, build_kernel
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

BODY = """
for j in T.Parallel(128):
    Y[n + j] = X[j] * 2.0
for j in T.Parallel(128):
    Y[{place}] = X[j] + 1.0
"""


@pytest.mark.parametrize(
    ("place", "is_own"), [("n + j", True), ("n + 127 - j", False), ("m + 127 - j", False), ("m + j", False)]
)
def test_places_told_apart_by_sizes_alone(place: str, is_own: bool) -> None:
    """Two scalars of a launch may be equal."""
    params = 'X: T.Tensor((128,), "float32"), Y: T.Tensor((4096,), "float32"), n: T.int32, m: T.int32'
    text = kernel(params, BODY.format(place=place))
    program = build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_80"), Observer()).program
    assert not list(program_violations(program))
    (role,) = program.roles
    without = tuple(op for op in role.body if not isinstance(op, warp.BarSync))
    assert (len(without) == len(role.body)) == is_own
    found = list(program_violations(replace(program, roles=(replace(role, body=without),))))
    assert bool(found) != is_own


def test_a_store_by_one_thread_waits_for_reads_by_all_of_the_statement_before() -> None:
    """`Y[0] = Y[0] + v[0]`: one thread stores, and of what its statement reads registers have copies."""
    body = """
    v = T.alloc_var("float32", 1)
    for j in (1, 2, 3):
        Y[3] = Y[3] = 2.0
        Y[0] = 4.0
    for j in (1, 2):
        X[0] = X[0] = 2.0
        Y[0] = Y[0] = T.if_then_else(X[0] == 3.0, Y[0], v)
    """
    text = kernel('X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32")', body)
    made = build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_80"), Observer())
    assert not list(program_violations(made.program))
