"""Compile what `gpu.py` and `gpu_suite.py` run, on a machine without a GPU.

    python benchmarks/gpu_cases.py FOLDER [--only PATTERN] [--seed N] [--drawn N]
    python benchmarks/gpu_cases.py FOLDER --suite [--only PATTERN] [--seed N] [--drawn 1000]

The folder then holds one cubin a kernel and `cases.json`: every sample on a small shape, and the timed kernels. Beside
a sample's cubin are its arguments and what numpy makes of them. Samples for other generations are there too, their PTX
assembled for this one; with `--drawn`, so many kernels of tests/generate. Carry it, with `benchmarks/` and `tilec/`, to
where there is a GPU.

With `--suite` there is a folder for each stage of `gpu_suite.py`. A stage that is complete, and was made of the same
sources, is kept: a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import gzip
import hashlib
import inspect
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import click
import gpu_inputs
import numpy as np
from gpu_case import GROUPS, Case, read_cases

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "samples"))

import gpu_drawn
from references import SAMPLES, Sample
from test_every_sample import OTHER_SIZES, arguments_of, numbers

from tilec.cli.kernel_options import add_kernel_options, make_compile_options
from tilec.driver import build as driver
from tilec.ir.tile import Buffer
from tilec.ptx.assemble import assemble_module
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions, EnvironmentSwitches
from tilec.support.source import SourceFile
from tilec.target.table import load_target

TARGET = "sm_90a"
OTHER_TARGETS = ("sm_80", "sm_89")
"""Whose PTX runs on the GPU of TARGET, too, as that of these does."""
DRAWN_TARGETS = (TARGET, *OTHER_TARGETS, "sm_86", "sm_87")
ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "benchmarks" / "kernels"
FOLDER = ROOT / "samples"
SHAPES = (
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 512), (16, 8192, 8192), (512, 3072, 768),
)  # fmt: skip
EIGHT_BITS: dict[str, dict[str, Any]] = {
    "float8_e4m3fn": {"trans_B": True, "block_K": 128},
    "int8": {"trans_B": True, "block_K": 128, "accum_dtype": "int32", "out_dtype": "int32"},
}
DRAWN_FROM = 300_000
"""The first number whose kernel is drawn."""
DRAWN_IN_SUITE = 1000
DRAWN_BYTES = 400_000
"""Of the arrays of a drawn kernel, at most: fewer than one in ten has more, and these would be half of all."""
MOST_MIB = 55
"""Of what is carried to a GPU at a time."""
MADE_OF = "made_of"
"""The file in a complete stage that says of which sources it was made."""
REAL_SIZES = ROOT / "benchmarks" / "results" / "h200-2026-11-26" / "workloads.json"
"""Workloads at real sizes, and the decisions that each was timed with another way."""
MORE_SIZES = ROOT / "benchmarks" / "more_sizes.json"
"""Workloads that were added later, in the same form."""
CANDIDATES = ROOT / "benchmarks" / "candidates"
"""Other forms of kernels, not decided yet; `candidates.json` says whose, with which options, what each showed or is to
show, and at which `small` sizes a test emulates it."""
TOKENS, HIDDEN = 16384, 2048
"""Of attention forward: so many in all, and as many heads as make this width."""


@dataclass(frozen=True)
class Rung:
    """One more decision than the rung before: what the ablation at 4096³ compares."""

    name: str
    kernel: str
    constants: dict[str, Any]
    options: dict[str, Any]


_NARROW = {"block_N": 128}
_PLAIN: dict[str, Any] = {
    "persistent": False, "cluster": (1, 1, 1), "rasterisation": 0, "pdl": False, "stmatrix": False,
    "arrivals": "thread", "switches": EnvironmentSwitches(delay_tma_store_wait=False),
}  # fmt: skip
_WALKING = {**_PLAIN, "persistent": True}
_ELECTING = {**_WALKING, "arrivals": "warp"}
_PAIRS = {**_ELECTING, "cluster": (1, 2, 1)}
_STORING = {**_PAIRS, "switches": EnvironmentSwitches()}
LADDER = (
    Rung(
        "wgmma and TMA, serial loop",
        "matmul",
        {**_NARROW, "num_stages": 1},
        {**_PLAIN, "consumer_warpgroups": 1, "pipeline_strategy": "none"},
    ),
    Rung(
        "pipelined, one role",
        "matmul",
        _NARROW,
        {**_PLAIN, "consumer_warpgroups": 1, "pipeline_strategy": "unspecialize"},
    ),
    Rung("a producer warp", "matmul", _NARROW, {**_PLAIN, "consumer_warpgroups": 1}),
    Rung("tile 128×256, two consumers", "matmul", {}, {**_PLAIN, "consumer_warpgroups": 2}),
    Rung("persistent", "matmul", {}, _WALKING),
    Rung("one arrival a warp", "matmul", {}, _ELECTING),
    Rung("clusters of two", "matmul", {}, {**_PAIRS, "multicast": False}),
    Rung("multicast", "matmul", {}, _PAIRS),
    Rung("asynchronous stores", "matmul", {}, _STORING),
    Rung("rasterisation", "matmul", {}, {**_STORING, "rasterisation": None}),
    Rung("stmatrix", "matmul", {}, {**_STORING, "rasterisation": None, "stmatrix": True}),
    Rung("as the compiler decides", "matmul", {}, {}),
)


@dataclass(frozen=True)
class Kernel:
    """A file, and how it is compiled."""

    file: Path
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A case before its kernels are compiled."""

    case: Case
    kernels: tuple[Kernel, ...] = ()


def plans() -> Iterator[Plan]:
    """Everything but the samples."""
    yield from _peaks()
    yield from _products()
    yield from _ladder()
    yield from _attention()
    yield from _memory()


# ---- matrix products -------------------------------------------------------------------------------------------------


def tile_of(m: int, n: int, k: int) -> dict[str, int]:
    """A tile that leaves no multiprocessor idle where that can be helped."""
    if m <= 16:
        return {"block_M": 16, "block_N": 64, "block_K": 128, "threads": 128, "num_stages": 8}
    if m <= 64:
        return {"block_M": 32, "block_N": 128, "threads": 128, "num_stages": 8}
    if m * n < 132 * 128 * 128:
        return {"block_M": 128, "block_N": 96, "num_stages": 6}
    if m * n < 120 * 128 * 256:
        return {"block_M": 128, "block_N": 128}
    return {}


def _peaks() -> Iterator[Plan]:
    """What the libraries reach with much to do: what "of peak" means in the table."""
    for dtype in ("bfloat16", "float16", *EIGHT_BITS):
        shape = {"M": 8192, "N": 8192, "K": 8192}
        rest = EIGHT_BITS.get(dtype, {"out_dtype": dtype})
        yield _product("peaks", f"peak {dtype}", {**shape, "dtype": dtype, **rest}, ())
    yield Plan(Case("peak copy", "peaks", "copy", parameters={"M": 1 << 20, "N": 1024, "dtype": "float16"}))


def _products() -> Iterator[Plan]:
    for dtype in ("bfloat16", "float16"):
        for m, n, k in SHAPES:
            constants = {"M": m, "N": n, "K": k, "dtype": dtype, "out_dtype": dtype, **tile_of(m, n, k)}
            group = "headlines" if dtype == "bfloat16" and m == n == k > 2048 else "products"
            yield _product(group, f"{dtype} {m}×{n}×{k}", constants, (_matmul(constants),))
    for dtype, more in EIGHT_BITS.items():
        constants = {"M": 8192, "N": 8192, "K": 8192, "dtype": dtype, **more}
        group = "headlines" if dtype.startswith("float8") else "products"
        yield _product(group, f"{dtype} 8192×8192×8192", constants, (_matmul(constants),))


def _ladder() -> Iterator[Plan]:
    for number, rung in enumerate(LADDER, 1):
        kernel = Kernel(KERNELS / f"{rung.kernel}.tl", rung.constants, rung.options)
        yield _product("ladder", f"ladder {number}: {rung.name}", rung.constants, (kernel,))


def _matmul(constants: Mapping[str, Any]) -> Kernel:
    return Kernel(KERNELS / "matmul.tl", constants)


def _product(group: str, name: str, constants: Mapping[str, Any], kernels: tuple[Kernel, ...]) -> Plan:
    asked = {
        "M": 4096, "N": 4096, "K": 4096, "dtype": "bfloat16", "out_dtype": "bfloat16", "trans_B": False, **constants
    }  # fmt: skip
    parameters = {name: asked[name] for name in ("M", "N", "K", "dtype", "out_dtype", "trans_B")}
    return Plan(Case(name, group, "matmul", parameters=parameters), kernels)


# ---- attention -------------------------------------------------------------------------------------------------------


def _attention() -> Iterator[Plan]:
    for D in (128, 64):
        for causal in (False, True):
            for S in (16384, 8192, 2048):
                group = "headlines" if (D, causal, S) == (128, False, 16384) else "attention"
                yield _forward(group, f"attention {D} {'causal' if causal else 'full'} {S}", D, S, causal, {})
    for causal in (False, True):
        for S in (16384, 8192, 2048):
            name = f"attention float8_e4m3fn 128 {'causal' if causal else 'full'} {S}"
            yield _forward("attention", name, 128, S, causal, {}, "float8_e4m3fn")
    for name, options in (
        ("no ping-pong", {"ping_pong": False}),
        ("no overlap", {"overlap": False}),
        ("neither", {"ping_pong": False, "overlap": False}),
        ("one role", {"pipeline_strategy": "unspecialize"}),
    ):
        yield _forward("ablation", f"attention 128 full 16384, {name}", 128, 16384, False, options)
    yield _backward()
    yield _decode()


def _forward(
    group: str, name: str, D: int, S: int, causal: bool, options: Mapping[str, Any], dtype: str = "float16"
) -> Plan:
    sizes = {"batch": TOKENS // S, "heads": HIDDEN // D, "S": S, "D": D, "dtype": dtype, "causal": causal}
    return Plan(
        Case(name, group, "attention", parameters=sizes), (Kernel(FOLDER / "flash_attention.tl", sizes, options),)
    )


def _backward() -> Plan:
    batch, heads, S = 2, HIDDEN // 128, 8192
    sizes = {"batch": batch, "heads": heads, "S": S, "D": 128, "dtype": "float16"}
    rows = {"rows": batch * heads * S, "D": 128, "dtype": "float16"}
    names = ("backward_delta", "backward_dkdv", "backward_dq")
    kernels = tuple(
        Kernel(FOLDER / "attention" / f"{name}.tl", rows if name == "backward_delta" else sizes) for name in names
    )
    return Plan(Case("attention backward 128 causal 8192", "attention", "backward", parameters=sizes), kernels)


def _decode() -> Plan:
    sizes = {"batch": 32, "heads": 32, "kv_heads": 4, "longest": 8192, "D": 128, "splits": 8, "dtype": "float16"}
    combine = {"rows": 32 * 32, "splits": 8, "D": 128, "dtype": "float16"}
    folder = FOLDER / "attention"
    kernels = (Kernel(folder / "decode_split.tl", sizes), Kernel(folder / "decode_combine.tl", combine))
    return Plan(Case("decode 32 heads 8192", "attention", "decode", parameters=sizes), kernels)


# ---- bound by memory -------------------------------------------------------------------------------------------------


def _memory() -> Iterator[Plan]:
    """A GiB of input each."""
    for name, file, M, N, dtype in (
        ("softmax", "softmax", 1 << 19, 1024, "float16"),
        ("layernorm", "rows/layernorm", 1 << 19, 1024, "float16"),
        ("rmsnorm", "rows/rmsnorm", 1 << 16, 8192, "bfloat16"),
        ("column_sum", "rows/column_sum", 1 << 19, 1024, "float16"),
        ("fp8_rows", "rows/cast_fp8_rows", 1 << 19, 1024, "float16"),
        ("transpose", "elementwise/transpose", 1 << 14, 1 << 15, "float16"),
        ("chain", "elementwise/chain", 1 << 19, 1024, "float16"),
    ):
        sizes = {"M": M, "N": N, "dtype": dtype}
        group = "headlines" if name == "softmax" else "memory"
        yield Plan(Case(f"{name} 1 GiB", group, name, parameters=sizes), (Kernel(FOLDER / f"{file}.tl", sizes),))
    sizes = {"tokens": 1 << 18, "vocabulary": 1 << 18, "width": 2048, "dtype": "float16"}
    yield Plan(
        Case("gather 1 GiB", "memory", "gather", parameters=sizes),
        (Kernel(FOLDER / "elementwise" / "embedding.tl", sizes),),
    )


# ---- samples ---------------------------------------------------------------------------------------------------------


def samples(target: str = TARGET) -> Iterator[tuple[str, Sample, Mapping[str, Any]]]:
    """Every sample that the target runs, with each set of constants that the tests run it with."""
    for known in SAMPLES:
        if known.feature is not None and not load_target(target).has(known.feature):
            continue
        for more in ({}, *known.also):
            kind = "sample" if target == TARGET else f"sample for {target}"
            words = (kind, known.path, *(f"{key}={value}" for key, value in more.items()))
            sizes = OTHER_SIZES.get((known.path, "sm_80" if target in OTHER_TARGETS else target), {})
            yield " ".join(words), known, {**sizes, **known.constants, **more}


def write_sample(
    folder: Path, name: str, known: Sample, constants: Mapping[str, Any], seed: int, target: str = TARGET
) -> Case:
    built = compiled(Kernel(FOLDER / f"{known.path}.tl", constants, {"target": target}))
    arguments = arguments_of(known, built, seed)
    buffers = {p.name: p for p in built.kernel.params if isinstance(p, Buffer)}
    before = {name: numbers(array, buffers[name].dtype) for name, array in arguments.tensors.items()}
    names = {**before, **arguments.scalars, **constants}
    expected = known.reference(**{name: names[name] for name in inspect.signature(known.reference).parameters})
    case = Case(
        name, "samples" if target == TARGET else "other targets", "sample", parameters=dict(arguments.scalars),
        dtypes={name: buffer.dtype.name for name, buffer in buffers.items()}, steps=known.steps, noise=known.noise,
        seed=seed,
    )  # fmt: skip
    arrays = {f"in_{name}": array for name, array in arguments.tensors.items()}
    arrays |= {f"out_{name}": array for name, array in expected.items()}
    return with_arrays(folder, case, known.path.replace("/", "-"), built, arrays)


def write_drawn(folder: Path, most: int, note: Callable[[str], None], first: int = DRAWN_FROM) -> Iterator[Case]:
    """So many drawn kernels, the numbers of which begin at `first`; none with arrays that are too large to carry."""
    small = (one for one in gpu_drawn.kernels(count(first), DRAWN_TARGETS) if size_of(one.arrays) <= DRAWN_BYTES)
    for one in islice(small, most):
        case = Case(
            f"drawn {one.number}", "drawn", "drawn", parameters=dict(one.scalars), dtypes=dict(one.dtypes),
            seed=one.number,
        )  # fmt: skip
        note(case.name)
        yield with_arrays(folder, case, f"drawn-{one.number}", one.built, one.arrays)


def size_of(arrays: Mapping[str, Any]) -> int:
    """Return the bytes of arguments and results; what is allowed is mostly zeros."""
    return sum(np.asarray(array).nbytes for name, array in arrays.items() if not name.startswith("allowed_"))


def with_arrays(folder: Path, case: Case, file: str, built: driver.Build, arrays: Mapping[str, Any]) -> Case:
    """The case, with its cubin and its arrays in the folder."""
    is_ours = built.work.options.target == TARGET
    case = written(folder, case, [(file, built.cubin if is_ours else assemble_module(built.ptx, TARGET).cubin)])
    held = {name: narrowed(name, np.asarray(array)) for name, array in arrays.items()}
    digest = hashlib.sha256()
    for name, array in sorted(held.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    # Samples for several targets have the same arguments.
    case = replace(case, arrays=f"{file}-{digest.hexdigest()[:12]}.npz")
    if not (folder / case.arrays).exists():
        np.savez_compressed(folder / case.arrays, **held)
    return case


def narrowed(name: str, array: Any) -> Any:
    """Return what is expected (`out_`) or allowed (`allowed_`) in 32 bits where they say the same: what is allowed may
    grow by a rounding. Arguments (`in_`) stay as the kernel takes them."""
    if array.dtype != np.float64 or name.startswith("in_"):
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    if name.startswith("allowed_"):
        return np.where(single < array, np.nextafter(single, np.float32(np.inf)), single)
    return single if np.array_equal(single.astype(np.float64), array, equal_nan=True) else array


# ---- writing ---------------------------------------------------------------------------------------------------------


def compiled(kernel: Kernel) -> driver.Build:
    source = SourceFile(kernel.file.name, kernel.file.read_text(encoding="utf-8"))
    asked = CompileOptions(**{"target": TARGET, "defines": tuple(kernel.constants.items()), **kernel.options})
    return driver.build_kernel(source, asked, driver.Observer())


def written(folder: Path, case: Case, cubins: list[tuple[str, bytes]]) -> Case:
    digests = [hashlib.sha256(cubin).hexdigest() for _, cubin in cubins]
    files = [f"{name}-{digest[:12]}" for (name, _), digest in zip(cubins, digests, strict=True)]
    for file, (_, cubin) in zip(files, cubins, strict=True):
        (folder / f"{file}.cubin.gz").write_bytes(gzip.compress(cubin, mtime=0))
    return replace(case, files=tuple(files), sha256=tuple(digests))


def write(
    folder: Path, pattern: str, seed: int, drawn: int = 0, note: Callable[[str], None] = lambda line: None
) -> list[Case]:
    """All cases whose name matches, and so many drawn kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = [*write_samples(folder, pattern, seed, note), *write_drawn(folder, drawn, note)]
    return index(folder, [*cases, *write_plans(folder, pattern, note)])


def write_samples(folder: Path, pattern: str, seed: int, note: Callable[[str], None]) -> Iterator[Case]:
    for target in (TARGET, *OTHER_TARGETS):
        for name, known, constants in samples(target):
            if fnmatch.fnmatch(name, pattern):
                note(name)
                yield write_sample(folder, name, known, constants, seed, target)


def write_plans(folder: Path, pattern: str, note: Callable[[str], None]) -> Iterator[Case]:
    for plan in plans():
        if fnmatch.fnmatch(plan.case.name, pattern):
            note(plan.case.name)
            cubins = [(kernel.file.stem, compiled(kernel).cubin) for kernel in plan.kernels]
            yield written(folder, plan.case, cubins)


def index(folder: Path, cases: list[Case]) -> list[Case]:
    """Write the list of a folder's cases, which makes it complete."""
    assert all(case.group in GROUPS for case in cases)
    (folder / "cases.json").write_text(json.dumps([asdict(case) for case in cases], indent=1) + "\n")
    return cases


# ---- workloads at real sizes -----------------------------------------------------------------------------------------


@click.command()
@add_kernel_options
def _options_of_words(verbose: bool, **given: Any) -> CompileOptions:
    return make_compile_options(given)


def options_of(words: str, defines: Mapping[str, Any]) -> CompileOptions:
    """Return the options that these words of a command line are, such as "--cluster 2x1 num_stages=3"."""
    told = [f"-D{name}={value}" for name, value in defines.items()]
    for word in words.split():
        told.append(f"-D{word}" if "=" in word and not word.startswith("-") else word)
    options: CompileOptions = _options_of_words.main(["--target", TARGET, *told], standalone_mode=False)
    return options


SWITCHES = (
    "--no-persistent", "--cluster none", "--cluster 2x1", "--cluster 1x2", "--no-multicast", "--rasterisation none",
    "--rasterisation 8", "--pipeline-strategy none", "--pipeline-strategy unspecialize",
    "--pipeline-strategy warp-specialize", "--no-tma-loads", "--consumer-warpgroups 1", "--consumer-warpgroups 2",
    "--no-overlap", "--no-ping-pong", "--subtile none", "--subtile 2", "--no-stages-by-occupancy", "--no-epilogue-warp",
    "--no-stmatrix", "--arrivals thread", "--no-split-loops", "--no-pdl", "--no-persistent --cluster 2x1",
    "--no-persistent --cluster none", "--no-persistent --pipeline-strategy none", "--no-persistent --no-overlap",
    "num_stages=2", "num_stages=3", "num_stages=4", "num_stages=5",
)  # fmt: skip
"""Options with which each workload is timed beside what the compiler decides by itself."""


def write_workloads(folder: Path, pattern: str, note: Callable[[str], None]) -> None:
    """Write each workload as the compiler decides, and with each alternative that gives another cubin. Those that the
    folder has already are kept."""
    cases = read_cases(folder) if (folder / "cases.json").exists() else []
    known = {case.name for case in cases}
    for one in read_workloads():
        if fnmatch.fnmatch(one["name"], pattern) and one["name"] not in known:
            note(one["name"])
            cases.append(write_variants(folder, one, alternatives(one, note)))
            index(folder, cases)
    index(folder, cases)


def write_candidates(folder: Path, pattern: str, note: Callable[[str], None]) -> None:
    """Write each workload that has other forms of its kernel in benchmarks/candidates: the kernel as the compiler
    decides, and each form, with the same tensors."""
    known = {one["name"]: one for one in read_workloads()}
    cases = []
    for name, forms in json.loads((CANDIDATES / "candidates.json").read_text(encoding="utf-8")).items():
        if fnmatch.fnmatch(name, pattern):
            note(name)
            one = known[name]
            made = {"as decided": build_form(ROOT / one["kernel"], "", one["constants"])}
            for label, form in forms.items():
                file = ROOT / form.get("file", one["kernel"])
                made[label] = build_form(file, form.get("options", ""), one["constants"])
            cases.append(write_variants(folder, one, made))
    index(folder, cases)


def build_form(file: Path, words: str, constants: Mapping[str, Any]) -> driver.Build:
    source = SourceFile(file.name, file.read_text(encoding="utf-8"))
    return driver.build_kernel(source, options_of(words, constants), driver.Observer())


def digest_text(file: Path) -> str:
    """Return a hash of a kernel's text, which comments and spaces do not change."""
    return hashlib.sha256(ast.dump(ast.parse(file.read_text(encoding="utf-8"))).encode()).hexdigest()[:12]


def write_variants(folder: Path, one: Mapping[str, Any], made: Mapping[str, driver.Build]) -> Case:
    """Write the builds of a workload by their labels, and return their case."""
    parameters = {
        "kernel": one["kernel"], "text": digest_text(ROOT / one["kernel"]), "constants": one["constants"],
        "labels": list(made), "work": one["work"], "unit": one["unit"],
        "recipes": gpu_inputs.recipes(one["kernel"], one["constants"]),
        "scalars": dict(gpu_inputs.SCALARS.get(one["kernel"], {})),
        "decided": {label: describe_decisions(built) for label, built in made.items()},
    }  # fmt: skip
    case = Case(one["name"], "workloads", "variants", parameters=parameters)
    return written(folder, case, [(Path(one["kernel"]).stem, built.cubin) for built in made.values()])


def read_workloads() -> list[dict[str, Any]]:
    """Return the workloads at real sizes: name, kernel, constants, work and unit, and the options to try, if any."""
    files = (REAL_SIZES, MORE_SIZES)
    return [one for file in files for one in json.loads(file.read_text(encoding="utf-8"))["cases"]]


def alternatives(one: Mapping[str, Any], note: Callable[[str], None]) -> dict[str, driver.Build]:
    """Return the builds of a workload by what was asked of the compiler, each cubin once, as decided first."""
    source = SourceFile(Path(one["kernel"]).name, (ROOT / one["kernel"]).read_text(encoding="utf-8"))
    made: dict[str, driver.Build] = {}
    for label in dict.fromkeys((*one.get("variants", {"as decided": {}}), *SWITCHES)):
        words = "" if label.startswith("as decided") else label.removesuffix(" (as decided)")
        try:
            built = driver.build_kernel(source, options_of(words, one["constants"]), driver.Observer())
        except (CompileError, click.ClickException) as refusal:
            assert made, f"{one['name']} does not compile: {refusal}"
            note(f"  {label}: refused")
            continue
        if all(built.cubin != other.cubin for other in made.values()):
            made[label] = built
    return made


def describe_decisions(built: driver.Build) -> dict[str, str]:
    return {decision.what: decision.chosen for decision in built.work.decisions}


# ---- the suite -------------------------------------------------------------------------------------------------------


def write_suite(folder: Path, pattern: str, seed: int, drawn: int, note: Callable[[str], None]) -> dict[str, int]:
    """Write a folder for each stage of `gpu_suite.py`, and return their sizes in bytes."""
    first = DRAWN_FROM + 100_000 * (seed % 10_000)
    stages: dict[str, Callable[[Path], Any]] = {
        "samples": lambda stage: index(stage, list(write_samples(stage, pattern, seed, note))),
        "drawn": lambda stage: index(stage, list(write_drawn(stage, drawn, note, first))),
        "candidates": lambda stage: write_candidates(stage, pattern, note),
        "workloads": lambda stage: write_workloads(stage, pattern, note),
        "libraries": lambda stage: index(stage, list(write_plans(stage, pattern, note))),
        "calibration": write_probes,
    }
    made_of = fingerprint(pattern, drawn)
    for name, write_stage in stages.items():
        stage, mark = folder / name, folder / name / MADE_OF
        found = mark.read_text() if mark.exists() else ""
        if found == made_of:
            continue
        note(f"{name}:")
        stage.mkdir(parents=True, exist_ok=True)
        if found != f"{made_of} so far":
            for stale in stage.iterdir():
                stale.unlink()
            mark.write_text(f"{made_of} so far")
        write_stage(stage)
        mark.write_text(made_of)
    return {name: sum(file.stat().st_size for file in (folder / name).iterdir()) for name in stages}


SPECIFICATIONS = (REAL_SIZES, MORE_SIZES, CANDIDATES / "candidates.json")


def fingerprint(*asked: object) -> str:
    """Return a digest of the sources that a stage is made of, and of what was asked for."""
    digest = hashlib.sha256(repr(asked).encode())
    for folder in ("tilec", "targets", "samples", "benchmarks", "tests/generate", "tests/samples"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".py", ".toml", ".tl", ".lark") or file in SPECIFICATIONS:
                digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()


def write_probes(folder: Path) -> None:
    command = [sys.executable, "-m", "tilec", "calibrate", "--target", TARGET, "--emit", str(folder.resolve())]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def parts(sizes: Mapping[str, int], most: int = MOST_MIB << 20) -> list[list[str]]:
    """Divide the stages among as few trips as hold them, in order."""
    found: list[list[str]] = []
    for name, size in sizes.items():
        if not found or sum(sizes[held] for held in found[-1]) + size > most:
            found.append([])
        found[-1].append(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases whose name matches, such as 'bfloat16 *'")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="of samples' inputs")
    parser.add_argument("--drawn", type=int, metavar="N", help=f"so many drawn kernels (suite: {DRAWN_IN_SUITE})")
    parser.add_argument("--suite", action="store_true", help="a folder for each stage of gpu_suite.py")
    asked = parser.parse_args()
    if asked.suite:
        drawn = DRAWN_IN_SUITE if asked.drawn is None else asked.drawn
        sizes = write_suite(asked.folder, asked.only, asked.seed, drawn, lambda name: print(name, flush=True))
        for number, part in enumerate(parts(sizes), 1):
            mib = sum(sizes[name] for name in part) / (1 << 20)
            print(f"part {number}, {mib:.1f} MiB: {', '.join(f'{asked.folder}/{name}' for name in part)}")
        print(f"python benchmarks/gpu_suite.py {asked.folder}")
        return
    cases = write(asked.folder, asked.only, asked.seed, asked.drawn or 0, lambda name: print(name, flush=True))
    print(f"{len(cases)} cases in {asked.folder}: python benchmarks/gpu.py {asked.folder}")


if __name__ == "__main__":
    main()
