"""Compile what `gpu.py` runs, on a machine without a GPU: every sample on a small shape, and matrix products.

    python benchmarks/gpu_cases.py FOLDER [--only PATTERN]

The folder then holds one cubin a case and `cases.json`; beside a sample's cubin are its arguments and what numpy makes
of them. Carry it, with `benchmarks/` and `tilec/`, to where there is a GPU.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "samples")]

from gpu import Case  # noqa: E402
from references import SAMPLES  # noqa: E402
from test_every_sample import arguments_of, numbers  # noqa: E402

from tilec import driver  # noqa: E402
from tilec.ir.tile import Buffer  # noqa: E402
from tilec.options import CompileOptions, Switches  # noqa: E402
from tilec.source import SourceFile  # noqa: E402
from tilec.target import load  # noqa: E402

TARGET = "sm_90a"
KERNELS = ROOT / "benchmarks" / "kernels"
SHAPES = (
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 512), (16, 8192, 8192), (512, 3072, 768),
)  # fmt: skip
EIGHT_BITS: dict[str, dict[str, Any]] = {
    "float8_e4m3fn": {"trans_B": True, "block_K": 128},
    "int8": {"trans_B": True, "block_K": 128, "accum_dtype": "int32", "out_dtype": "int32"},
}


@dataclass(frozen=True)
class Rung:
    """One more decision than the rung before: what the ablation at 4096³ compares."""

    name: str
    kernel: str
    constants: dict[str, Any]
    options: dict[str, Any]


_NARROW = {"block_N": 128}
_PLAIN: dict[str, Any] = {
    "persistent": False, "cluster": (1, 1, 1), "rasterisation": 0, "switches": Switches(delay_tma_store_wait=False)
}  # fmt: skip
_WALKING = {**_PLAIN, "persistent": True}
_PAIRS = {**_WALKING, "cluster": (1, 2, 1)}
_STORING = {**_PAIRS, "switches": Switches()}
LADDER = (
    Rung(
        "serial loop", "matmul", {**_NARROW, "num_stages": 1}, {**_PLAIN, "consumers": 1, "pipeline_strategy": "none"}
    ),
    Rung("pipelined, one role", "matmul", _NARROW, {**_PLAIN, "consumers": 1, "pipeline_strategy": "unspecialize"}),
    Rung("a producer warp", "matmul", _NARROW, {**_PLAIN, "consumers": 1}),
    Rung("tile 128×256, two consumers", "matmul", {}, {**_PLAIN, "consumers": 2}),
    Rung("persistent", "matmul", {}, _WALKING),
    Rung("clusters of two", "matmul", {}, {**_PAIRS, "multicast": False}),
    Rung("multicast", "matmul", {}, _PAIRS),
    Rung("asynchronous stores", "matmul", {}, _STORING),
    Rung("rasterisation", "matmul", {}, {**_STORING, "rasterisation": None}),
    Rung("as the compiler decides", "matmul", {}, {}),
)


def tile_of(m: int, n: int, k: int) -> dict[str, int]:
    """A tile that leaves no multiprocessor idle where that can be helped."""
    if m <= 64:
        return {"block_M": 64, "block_N": 64, "threads": 128, "num_stages": 8}
    if m * n < 132 * 128 * 256:
        return {"block_M": 128, "block_N": 128}
    return {}


def products() -> Iterator[tuple[Case, str, dict[str, Any], dict[str, Any]]]:
    """Each case with its kernel, constants and options."""
    for dtype in ("bfloat16", "float16"):
        for m, n, k in SHAPES:
            constants = {"M": m, "N": n, "K": k, "dtype": dtype, "out_dtype": dtype, **tile_of(m, n, k)}
            yield product("matmul", constants), "matmul", constants, {}
    for dtype, more in EIGHT_BITS.items():
        constants = {"M": 8192, "N": 8192, "K": 8192, "dtype": dtype, **more}
        yield product("matmul", constants), "matmul", constants, {}
    for number, rung in enumerate(LADDER, 1):
        case = product(rung.kernel, rung.constants, f"ladder {number}: {rung.name}")
        yield case, rung.kernel, rung.constants, rung.options


def product(kernel: str, constants: dict[str, Any], name: str = "") -> Case:
    asked = {
        "M": 4096, "N": 4096, "K": 4096, "dtype": "bfloat16", "out_dtype": "bfloat16", "trans_B": False, **constants
    }  # fmt: skip
    shape = (asked["M"], asked["N"], asked["K"])
    label = name or f"{asked['dtype']} {'×'.join(map(str, shape))}"
    return Case(label, "matmul", kernel, shape, asked["dtype"], asked["out_dtype"], asked["trans_B"])


def write_product(folder: Path, case: Case, file: Path, constants: dict[str, Any], options: dict[str, Any]) -> Case:
    source = SourceFile(file.name, file.read_text(encoding="utf-8"))
    asked = CompileOptions(target=TARGET, defines=tuple(constants.items()), **options)
    return written(folder, case, driver.build(source, asked, driver.Observer()).cubin)


def write_sample(folder: Path, known: Any) -> Case:
    file = ROOT / "samples" / f"{known.path}.tl"
    source = SourceFile(file.name, file.read_text(encoding="utf-8"))
    built = driver.build(
        source, CompileOptions(target=TARGET, defines=tuple(known.constants.items())), driver.Observer()
    )
    arguments = arguments_of(known, built)
    buffers = {p.name: p for p in built.kernel.params if isinstance(p, Buffer)}
    before = {name: numbers(array, buffers[name].dtype) for name, array in arguments.tensors.items()}
    names = {**before, **arguments.scalars, **known.constants}
    expected = known.reference(**{name: names[name] for name in inspect.signature(known.reference).parameters})
    case = Case(
        f"sample {known.path}", "sample", known.path.replace("/", "-"),
        dtypes={name: buffer.dtype.name for name, buffer in buffers.items()},
        scalars=dict(arguments.scalars), steps=known.steps, noise=known.noise,
    )  # fmt: skip
    case = written(folder, case, built.cubin)
    np.savez_compressed(
        folder / f"{case.file}.npz",
        **{f"in_{name}": array for name, array in arguments.tensors.items()},
        **{f"out_{name}": array for name, array in expected.items()},
    )
    return case


def written(folder: Path, case: Case, cubin: bytes) -> Case:
    digest = hashlib.sha256(cubin).hexdigest()
    case = case.of(file=f"{case.file}-{digest[:12]}", sha256=digest)
    (folder / f"{case.file}.cubin").write_bytes(cubin)
    return case


def write(folder: Path, pattern: str) -> list[Case]:
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for known in SAMPLES:
        runs = known.feature is None or load(TARGET).has(known.feature)
        if runs and fnmatch.fnmatch(f"sample {known.path}", pattern):
            cases.append(write_sample(folder, known))
    for case, kernel, constants, options in products():
        if fnmatch.fnmatch(case.name, pattern):
            cases.append(write_product(folder, case, KERNELS / f"{kernel}.tl", constants, options))
    (folder / "cases.json").write_text(json.dumps([asdict(case) for case in cases], indent=1) + "\n")
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases whose name matches, such as 'bfloat16 *'")
    asked = parser.parse_args()
    cases = write(asked.folder, asked.only)
    print(f"{len(cases)} cases in {asked.folder}: python benchmarks/gpu.py {asked.folder}")


if __name__ == "__main__":
    main()
