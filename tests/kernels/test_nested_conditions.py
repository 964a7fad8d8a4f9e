"""Conditions inside conditions in T.Parallel, against the same statements run by Python for one element at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from harness import HERE, agrees, built
from numpy.typing import NDArray

from tilec.codegen.elementwise.steps import Assignment, Definition, Step, list_steps
from tilec.codegen.elementwise.verify_steps import find_step_violations
from tilec.driver.emulation import emulate
from tilec.ir import tile

KERNEL = HERE / "nested_conditions.tl"


def run_as_python(text: str, A: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the kernel's C: `T.copy` copies, and T.Parallel runs one element after the other."""
    function = next(s for s in ast.parse(text.replace(", 0])", "])")).body if isinstance(s, ast.FunctionDef))
    block = next(s for s in function.body if isinstance(s, ast.With))
    C = np.zeros((8, A.size), np.float32)
    T = SimpleNamespace(
        alloc_shared=lambda shape, _: np.zeros(shape, np.float32),
        alloc_fragment=lambda shape, _: np.zeros(shape, np.float32),
        copy=lambda source, target: np.copyto(target, source),
        clear=lambda target: target.fill(0),
        Parallel=range,
    )
    module = ast.fix_missing_locations(ast.Module(block.body, []))
    exec(compile(module, "nested", "exec"), {"T": T, "A": A, "C": C, "N": A.size, "bx": 0})
    return C


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("opt_level", [2, 3])
def test_each_condition_is_tested(target: str, opt_level: int) -> None:
    made = agrees(KERNEL, target, opt_level=opt_level)
    found = emulate.draw_arguments(made.kernel, made.manifest, 1)
    expected = run_as_python(KERNEL.read_text(), found.tensors["A"].copy())
    emulate.emulate_build(made, found)
    assert np.array_equal(found.tensors["C"], expected)


# ---- the verifier ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nests() -> list[tile.Parallel]:
    _, made = built(KERNEL, "sm_80")
    return [s for s in tile.walk_statements(made.kernel.body) if isinstance(s, tile.Parallel)]


def test_steps_of_a_nest_verify(nests: list[tile.Parallel]) -> None:
    assert len(nests) > 5
    for nest in nests:
        assert list(find_step_violations(nest, list_steps(nest))) == []


def with_faults(nest: tile.Parallel) -> Iterator[list[Step]]:
    """Yield the nest's steps with one fault each: a step or a condition is lost, or two values have one name."""
    found = list_steps(nest)
    kept = [s.var for s in found if isinstance(s, Definition)]
    for n, step in enumerate(found):
        yield found[:n] + found[n + 1 :]
        match step:
            case Assignment(conditions=(*others, _)):
                yield [*found[:n], replace(step, conditions=tuple(others)), *found[n + 1 :]]
            case Definition() if step.var != kept[0]:
                yield [*found[:n], replace(step, var=kept[0]), *found[n + 1 :]]
            case _:
                pass


def test_a_fault_in_the_steps_is_found(nests: list[tile.Parallel]) -> None:
    planted = [(nest, wrong) for nest in nests for wrong in with_faults(nest)]
    assert len(planted) > 40
    assert all(any(find_step_violations(nest, wrong)) for nest, wrong in planted)
