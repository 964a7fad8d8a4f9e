"""Every sample: on a small shape its emulated PTX gives what numpy does, without bank conflicts, and as written it
builds without a warning."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import references_alcop
import references_attention
import references_models
from bank_turns import conflicted, counted
from numpy.typing import NDArray
from references import SAMPLES, Sample

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir.elements import decode_values, encode_values, numpy_compute_type
from tilec.ir.tile import Buffer
from tilec.ir.types import DType
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.target.table import load_target

FOLDER = Path(__file__).parents[2] / "samples"
TARGETS = ("sm_80", "sm_90a", "sm_100a")
NAMES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.tl"))

# Tiles for a target on which those of the file do not fit: samples/README.md.
OTHER_SIZES: dict[tuple[str, str], dict[str, Any]] = {
    ("flash_attention", "sm_80"): {"block_N": 64},
    ("flash_attention", "sm_100a"): {"block_N": 64},
    ("attention/causal", "sm_80"): {"block_N": 64},
    ("attention/causal", "sm_100a"): {"block_N": 64},
    ("attention/mla_decode", "sm_80"): {"block_N": 32},
    ("attention/mla_decode", "sm_100a"): {"block_N": 32},
    ("attention/mla_split", "sm_80"): {"block_N": 32},
    ("attention/mla_split", "sm_100a"): {"block_N": 32},
    ("models/lightning_indexer", "sm_100a"): {"block_M": 64, "block_N": 64, "threads": 128},
    ("attention/varlen", "sm_80"): {"block_N": 32},
    ("attention/varlen", "sm_100a"): {"block_N": 64},
    ("gemm/pipeline_objects", "sm_100a"): {"tensor_memory": True},
    ("gemm/fp8_block_scaled", "sm_100a"): {"block_M": 64, "block_N": 64},
    ("rows/softmax_held", "sm_80"): {"N": 81920, "held": 16},
    ("rows/top_p", "sm_80"): {"ends_early": False},
    ("gemm/sparse_tensor_cores", "sm_100a"): {"block_M": 128, "threads": 256},
}

# Relative to a value, one rounding of its type.
STEP = {"float8_e4m3fn": 2.0**-3, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21}


def cases() -> list[Any]:
    found = []
    for target in TARGETS:
        for known in SAMPLES:
            if known.feature is not None and not load_target(target).has(known.feature):
                continue
            for more in ({}, *known.also):
                label = "-".join([known.path, *(f"{k}={v}" for k, v in more.items())])
                found.append(pytest.param(known, {**known.constants, **more}, target, id=f"{target}-{label}"))
    return found


def made(path: str, target: str, constants: dict[str, Any]) -> Build:
    source = SourceFile(f"{path}.tl", (FOLDER / f"{path}.tl").read_text(encoding="utf-8"))
    return build_kernel(source, CompileOptions(target=target, defines=tuple(constants.items())), Observer())


EXPECTED_WARNINGS: dict[str, list[str]] = {}


# Whose warps wait for what the schedule takes to be under way: loads through registers; copies by cp.async that are
# one iteration ahead only; products that the same iteration uses.
WAITING = {
    ("gemm/gemv", "sm_100a"),
    ("models/linear_attention", "sm_80"),
    ("models/linear_attention", "sm_90a"),
    ("models/mamba_chunk_scan", "sm_80"),
    ("rows/cross_entropy", "sm_80"),
    ("rows/gemv_transposed", "sm_100a"),
    ("rows/softmax_online", "sm_80"),
    ("rows/softmax_online", "sm_90a"),
    ("rows/softmax_online", "sm_100a"),
}


def warnings(built: Build) -> list[str]:
    """All but those of bank conflicts, which are counted, and of machine code that waits longer than its schedule."""
    return [w.code for w in built.warnings if w.code not in ("bank-conflict", "assembled-interval")]


def arguments_of(known: Sample, built: Build, seed: int = 1) -> emulate.KernelArguments:
    arguments = emulate.draw_arguments(built.kernel, built.manifest, seed, known.sizes)
    dtypes = {p.name: p.dtype for p in built.kernel.params if isinstance(p, Buffer)}
    generator = np.random.default_rng(seed + 1)
    for name, make in known.inputs.items():
        given = make(generator, arguments.tensors[name].shape)
        arguments.tensors[name] = encode_values(given.astype(numpy_compute_type(dtypes[name])), dtypes[name])
    return arguments


def bank_conflicts(known: Sample, built: Build) -> dict[tuple[str, int], float]:
    """In two blocks: the others do the same."""
    with counted() as seen:
        emulate.emulate_build(built, arguments_of(known, built), options=emulate.RunOptions(sample=2))
    return conflicted(known.path, seen)


def numbers(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    values = decode_values(array, dtype)
    return values.astype(np.float64) if dtype.is_float else values.astype(np.int64)


def test_every_sample_has_a_reference() -> None:
    # Each file of references adds to it.
    assert references_alcop.sample is references_models.sample
    assert references_attention.SAMPLES is references_models.SAMPLES is SAMPLES
    own = "flash_attention"  # tests/kernels/test_flash_attention.py
    assert sorted([own, *(known.path for known in SAMPLES)]) == NAMES


def test_every_sample_is_described() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"({name}.tl)" not in text] == []


@pytest.mark.some(30)
@pytest.mark.parametrize(("known", "constants", "target"), cases())
def test_equals_numpy(known: Sample, constants: dict[str, Any], target: str) -> None:
    is_default = constants == known.constants
    made_of = equals_numpy(known, constants, target)
    if is_default:
        assert bank_conflicts(known, made_of) == {}


def equals_numpy(known: Sample, constants: dict[str, Any], target: str) -> Build:
    """What was built, once its emulated PTX has given what numpy does, without a warning."""
    if target == "sm_100a" and "tensor_memory" in OTHER_SIZES.get((known.path, target), {}):
        constants = {**constants, "tensor_memory": True}
    made_of = made(known.path, target, constants)
    assert warnings(made_of) == EXPECTED_WARNINGS.get(known.path, [])
    arguments = arguments_of(known, made_of)
    buffers = {p.name: p for p in made_of.kernel.params if isinstance(p, Buffer)}
    before = {name: numbers(array, buffers[name].dtype) for name, array in arguments.tensors.items()}
    names = {**before, **arguments.scalars, **constants}
    expected = known.reference(**{name: names[name] for name in inspect.signature(known.reference).parameters})
    emulate.emulate_build(made_of, arguments)
    written = {name for name in buffers if made_of.manifest.tensor(name).role != "in"}
    assert written == expected.keys()
    for name, wanted in expected.items():
        dtype = buffers[name].dtype
        found = numbers(arguments.tensors[name], dtype)
        assert found.shape == wanted.shape
        if not dtype.is_float:
            np.testing.assert_array_equal(found, wanted)
            continue
        step, size = STEP[dtype.name] * known.steps, np.abs(wanted[np.isfinite(wanted)]).max()
        np.testing.assert_allclose(found, wanted, rtol=step, atol=known.noise * size, err_msg=name)
    return made_of


@pytest.mark.some(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_builds_as_written(name: str, target: str) -> None:
    """With the sizes it has in the file: nothing in local memory, nothing serialised, every schedule proven."""
    feature = next((known.feature for known in SAMPLES if known.path == name), None)
    if feature is not None and not load_target(target).has(feature):
        return
    built = made(name, target, OTHER_SIZES.get((name, target), {}))
    assert warnings(built) == EXPECTED_WARNINGS.get(name, [])
    assert ("assembled-interval" in {w.code for w in built.warnings}) == ((name, target) in WAITING)
    (entry,) = built.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)
