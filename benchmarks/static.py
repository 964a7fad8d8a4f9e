"""One GEMM as machine code, tilec's beside its peers', without a GPU: registers, spills, and what the main loop holds.

    python benchmarks/static.py [--peers PYTHON ...] [--json FILE]

The tile is 128×BN×64 in fp16 with four stages, for two warpgroups that compute. Needs the packages nvidia-cuda-nvdisasm
and nvidia-cuda-cuobjdump. Fails where tilec spills.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import sass
from compile_time import Compiler, caches, peers, run, tilec
from static_report import report

from tilec.ir.manifest import extract_from_cubin

WIDTHS = (128, 256)
K_STEP = 64
SHARED_UNIT = 128
"""Bytes: a block is given shared memory in units of these (CUDA occupancy calculator, compute capability 8.0 on)."""


@dataclass(frozen=True)
class Row:
    """What one compiler makes of one tile. `loop`: instructions of the main loop for each product of a warpgroup;
    `barriers`: of those, what waits or signals, for each step of 64 along k; `code`: all instructions of the kernel;
    `shared`: bytes that a multiprocessor sets aside for a block, with those that its launch asks for."""

    compiler: str
    version: str
    width: int
    registers: int
    stack_bytes: int
    spills: int
    shapes: str
    loop: float
    barriers: float
    code: int
    shared: int
    seconds: float


def measure(pythons: list[str]) -> list[Row]:
    rows = []
    compilers = [tilec(sys.executable, "sm_90a"), *peers(pythons)]
    with tempfile.TemporaryDirectory() as scratch:
        for width in WIDTHS:
            for compiler in compilers:
                out = Path(scratch) / "out.cubin"
                if compiler.name == "tilec":
                    sizes = ("-D", f"block_N={width}")
                else:
                    sizes = (str(width), "cubin")
                fresh = caches(Path(scratch) / f"{compiler.name}-{width}")
                environment = {**fresh, **dict(compiler.environment)}
                seconds, _, _ = run((*compiler.command, *sizes), environment, out, keep=True)
                rows.append(described(compiler, width, out, seconds))
                out.unlink()
                out.with_name(f"{out.name}.shared").unlink(missing_ok=True)
    return rows


def described(compiler: Compiler, width: int, cubin: Path, seconds: float) -> Row:
    code, resources = sass.disassembled(cubin), sass.resources(cubin)
    loop = code.around(*sass.PRODUCTS)
    products = len(sass.products(loop))
    steps = products / (K_STEP // 16 * sass.accumulators(loop)) if products else 1
    return Row(
        compiler.name,
        compiler.version,
        width,
        resources.registers,
        resources.stack_bytes,
        sass.local_accesses(code.instructions),
        ", ".join(sass.shapes(code.instructions)),
        round(len(loop) / max(products, 1), 2),
        round(sass.barriers(loop) / steps, 2),
        len(code.instructions),
        -(-(resources.shared_bytes + at_launch(compiler, cubin)) // SHARED_UNIT) * SHARED_UNIT,
        round(seconds, 2),
    )


def at_launch(compiler: Compiler, cubin: Path) -> int:
    """The bytes of shared memory that the launch gives a block: in tilec's manifest, or beside the cubin, if any."""
    if compiler.name == "tilec":
        return extract_from_cubin(cubin.read_bytes())[0].dynamic_smem
    said = cubin.with_name(f"{cubin.name}.shared")
    return int(said.read_text()) if said.exists() else 0


def table(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"{'tile':12} {'compiler':18} {'version':9} {'regs':>5} {'stack':>6} {'spills':>6}  {'products':12}"
        f" {'loop/product':>12} {'barriers/step':>13} {'code':>6} {'shared':>7} {'seconds':>8}"
    )
    for r in rows:
        yield (
            f"128×{r.width}×{K_STEP:<5} {r.compiler:18} {r.version:9} {r.registers:5} {r.stack_bytes:6} {r.spills:6}"
            f"  {r.shapes:12} {r.loop:12.2f} {r.barriers:13.2f} {r.code:6} {r.shared:7} {r.seconds:8.2f}"
        )


if __name__ == "__main__":
    report(__doc__ or "", measure, table)
