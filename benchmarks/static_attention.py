"""Attention forward as machine code, tilec's beside its peers', without a GPU: registers, spills, and the main loop.

    python benchmarks/static_attention.py [--peers PYTHON ...] [--json FILE]

Tiles of 128 queries and 128 keys, head dimension 128, fp16, causal or not. Needs the packages nvidia-cuda-nvdisasm and
nvidia-cuda-cuobjdump. Fails where tilec spills.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import sass
from compile_time import ROOT, Compiler, caches, peers, run, tilec
from static_report import report

SAMPLE = str(ROOT / "samples" / "flash_attention.tl")
EXPONENTIALS = 128 * 128 / 256
"""Of a thread, for each block of keys, where 256 threads share the scores."""

COUNTED = {
    "products": sass.PRODUCTS,
    "exponentials": ("MUFU",),
    "conversions": ("F2FP", "F2F"),
    "float": ("FMUL", "FADD", "FFMA", "FMNMX", "FMNMX3", "FSEL", "FSETP", "FMUL2", "FADD2", "FFMA2"),
    "integer": ("IADD3", "IMAD", "ISETP", "LOP3", "PRMT", "SHF", "VIADD", "SEL", "LEA", "MOV"),
    "shuffles": ("SHFL",),
    "shared": ("LDS", "STS", "LDSM", "STSM", "LDGSTS"),
}


@dataclass(frozen=True)
class Row:
    """What one compiler makes of it. `loop`: instructions of the main loop for each block of 128 keys, and `counts` of
    them by kind; `spills`: loads and stores of local memory, in all of the kernel and in that loop."""

    compiler: str
    version: str
    causal: bool
    registers: int
    stack_bytes: int
    spills: int
    loop_spills: float
    loop: float
    counts: dict[str, float]
    code: int


def described(compiler: Compiler, causal: bool, cubin: Path) -> Row:
    code, resources = sass.disassembled(cubin), sass.resources(cubin)
    loop = code.around(*sass.PRODUCTS)
    stems = Counter(one.stem for one in loop)
    blocks = max(1, round(stems["MUFU"] / EXPONENTIALS))  # a loop may hold several, where it is unrolled
    counts = {kind: sum(stems[stem] for stem in names) / blocks for kind, names in COUNTED.items()}
    return Row(
        compiler.name,
        compiler.version,
        causal,
        resources.registers,
        resources.stack_bytes,
        sass.local_accesses(code.instructions),
        sass.local_accesses(loop) / blocks,
        len(loop) / blocks,
        counts,
        len(code.instructions),
    )


def measure(pythons: list[str]) -> list[Row]:
    rows = []
    compilers = [tilec(sys.executable, "sm_90a"), *peers(pythons, "attention")]
    with tempfile.TemporaryDirectory() as scratch:
        for causal in (False, True):
            for compiler in compilers:
                out = Path(scratch) / "out.cubin"
                command = tuple(SAMPLE if word.endswith("gemm.tl") else word for word in compiler.command)
                more = ("-D", f"causal={causal}") if compiler.name == "tilec" else ("causal",) * causal
                fresh = caches(Path(scratch) / f"{compiler.name}-{causal}")
                run((*command, *more), {**fresh, **dict(compiler.environment)}, out, keep=True)
                rows.append(described(compiler, causal, out))
                out.unlink()
    return rows


def table(rows: Sequence[Row]) -> Iterator[str]:
    names = "".join(f"{name:>13}" for name in COUNTED)
    yield (
        f"{'mask':7} {'compiler':18} {'version':9} {'regs':>5} {'stack':>6} {'spills':>6} {'in loop':>7}"
        f" {'loop':>6}{names} {'code':>6}"
    )
    for r in rows:
        counts = "".join(f"{count:13.0f}" for count in r.counts.values())
        yield (
            f"{'causal' if r.causal else '':7} {r.compiler:18} {r.version:9} {r.registers:5} {r.stack_bytes:6}"
            f" {r.spills:6} {r.loop_spills:7.0f} {r.loop:6.0f}{counts} {r.code:6}"
        )


if __name__ == "__main__":
    report(__doc__ or "", measure, table)
