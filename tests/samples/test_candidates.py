"""Forms of samples that are not decided yet (benchmarks/candidates): they compute what the samples do."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir.tile import Buffer
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_cases
from references import SAMPLES
from test_every_sample import STEP, arguments_of, numbers

FORMS = json.loads((gpu_cases.CANDIDATES / "candidates.json").read_text(encoding="utf-8"))
KERNELS = {one["name"]: one["kernel"] for one in gpu_cases.read_workloads()}
OF_FILES = {
    Path(form["file"]).name: (name, form)
    for name, forms in FORMS.items()
    for form in forms.values()
    if form.get("file", "").startswith("benchmarks/candidates/")
}
"""Those that have no test of their own, with a workload and what is said of the form."""
TILE_SIZES = ("block_M", "block_N", "block_K", "threads", "num_stages")
"""Constants of samples that forms choose for themselves."""


def test_candidates_are_forms_of_workloads() -> None:
    assert FORMS.keys() <= KERNELS.keys()
    assert sorted(OF_FILES) == sorted(path.name for path in gpu_cases.CANDIDATES.glob("*.tl"))
    for forms in FORMS.values():
        for form in forms.values():
            assert form.keys() <= {"file", "options", "expected", "small"} and form["expected"]


@pytest.mark.some(1)
@pytest.mark.parametrize("file", sorted(OF_FILES))
def test_a_form_equals_numpy(file: str) -> None:
    """With small sizes, those of the sample or `small` ones that the form can do, and with the tiles of the form."""
    name, form = OF_FILES[file]
    path = Path(KERNELS[name]).relative_to("samples").with_suffix("").as_posix()
    known = next(each for each in SAMPLES if each.path == path)
    constants = {name: value for name, value in known.constants.items() if name not in TILE_SIZES}
    constants |= form.get("small", {})
    source = SourceFile(file, (gpu_cases.CANDIDATES / file).read_text(encoding="utf-8"))
    built = build_kernel(source, CompileOptions(target="sm_90a", defines=tuple(constants.items())), Observer())
    arguments = arguments_of(known, built)
    dtypes = {p.name: p.dtype for p in built.kernel.params if isinstance(p, Buffer)}
    before = {name: numbers(array, dtypes[name]) for name, array in arguments.tensors.items()}
    names = {**before, **arguments.scalars, **constants}
    expected = known.reference(**{name: names[name] for name in inspect.signature(known.reference).parameters})
    emulate.emulate_build(built, arguments)
    for output, wanted in expected.items():
        found, size = numbers(arguments.tensors[output], dtypes[output]), np.abs(wanted).max()
        step = STEP.get(dtypes[output].name, 0.0) * known.steps
        np.testing.assert_allclose(found, wanted, rtol=step, atol=known.noise * size, err_msg=output)
