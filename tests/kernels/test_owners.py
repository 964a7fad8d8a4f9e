"""Which threads reach the elements of a tensor: what the verifier finds without a barrier, against the threads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snippets import kernel

from tilec.driver.build import Observer, build
from tilec.ir import warp
from tilec.ir.warp_verify import program_violations
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
    program = build(SourceFile("kernel.tl", text), CompileOptions(target="sm_80"), Observer()).program
    assert not list(program_violations(program))
    (role,) = program.roles
    without = tuple(op for op in role.body if not isinstance(op, warp.BarSync))
    assert (len(without) == len(role.body)) == is_own
    found = list(program_violations(replace(program, roles=(replace(role, body=without),))))
    assert bool(found) != is_own
