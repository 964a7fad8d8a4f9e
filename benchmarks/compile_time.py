"""Whole-process compile time of one GEMM: tilec beside whichever peers are installed, without a GPU.

    python benchmarks/compile_time.py [--repeat 7] [--peers PYTHON ...] [--json FILE]

Every measurement is a process of its own, from fork to exit; the compilers take turns within a round, so that a busy
moment hits them all. Start: `--version`. Cold: every cache folder is new and empty. Solve: only the schedule has to be
found again. Warm: the compiler has seen the same kernel before. Peak memory is that of the process and its largest
child.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
ROOT = HERE.parent

State = Literal["start", "cold", "solve", "warm"]

PEERS = {"triton": "Triton", "tilelang": "TileLang", "cutile": "cuTile + tileiras"}
IMPORTS = {"triton": "triton", "tilelang": "tilelang", "cutile": "cuda.tile, cuda.tile.compilation"}


@dataclass(frozen=True)
class Compiler:
    """`command` compiles to the file OUT; `start` does nothing but start."""

    name: str
    version: str
    command: tuple[str, ...]
    states: tuple[State, ...]
    environment: tuple[tuple[str, str], ...] = ()
    start: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """Seconds of wall time (median, smallest, all), seconds of CPU time, MiB."""

    compiler: str
    version: str
    state: State
    median: float
    smallest: float
    cpu: float
    peak_mib: float
    seconds: tuple[float, ...]


def tilec(python: str, target: str) -> Compiler:
    kernel = str(ROOT / "samples" / "gemm.tl")
    script = Path(python).parent / "tilec"
    # The installed command where there is one; from a checkout, what it would run.
    start = (str(script),) if script.exists() else (python, "-m", "tilec")
    environment = {} if script.exists() else {"PYTHONPATH": str(ROOT)}
    ask = subprocess.run(
        [*start, "--version"], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    command = (*start, kernel, "--opt-level=3", "--target", target, "-o", "OUT")
    return Compiler(
        "tilec",
        ask.stdout.split()[1],
        command,
        ("start", "cold", "solve", "warm"),
        tuple(environment.items()),
        (*start, "--version"),
    )


def peers(pythons: list[str], kernel: str = "gemm") -> list[Compiler]:
    """The peers that these interpreters can import, each from the first that can."""
    found = []
    for key, name in PEERS.items():
        module = IMPORTS[key].split(",")[0]
        ask = f"import {IMPORTS[key]}; print(getattr({module}, '__version__', ''))"
        for python in pythons:
            answer = subprocess.run([python, "-W", "ignore", "-c", ask], capture_output=True, text=True, check=False)
            if answer.returncode == 0:
                version = answer.stdout.split()[-1] if answer.stdout.split() else "?"
                script = str(HERE / "peers" / f"{key}_{kernel}.py")
                found.append(Compiler(name, version, (python, "-W", "ignore", script, "OUT"), ("cold", "warm")))
                break
        else:
            print(f"{name}: not installed", file=sys.stderr)
    return found


def caches(folder: Path) -> dict[str, str]:
    """An environment in which every compiler keeps what it caches below `folder`."""
    names = ("TILEC_CACHE_DIR", "TRITON_CACHE_DIR", "TILELANG_CACHE_DIR", "TILELANG_TMP_DIR", "CUDA_TILE_CACHE_DIR")
    own = {name: str(folder / name.lower()) for name in names}
    for path in own.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    return {**os.environ, **own, "XDG_CACHE_HOME": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


def run(
    command: tuple[str, ...], environment: dict[str, str], out: Path, *, keep: bool = False
) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak MiB of one process. Fails unless it leaves what it was asked for, which is
    removed again unless it is to `keep`."""
    argv = [str(out) if word == "OUT" else word for word in command]
    began = time.perf_counter()
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=out.parent)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or ("OUT" in command and not out.exists()):
        sys.exit(f"{' '.join(argv)} failed:\n{said.decode(errors='replace')}")
    if not keep:
        out.unlink(missing_ok=True)
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def measure(compilers: list[Compiler], repeat: int) -> list[Result]:
    taken: dict[tuple[Compiler, State], list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        kept = caches(Path(scratch) / "warm")
        for compiler in compilers:  # fills the caches, and the page cache
            run(compiler.command, {**kept, **dict(compiler.environment)}, out)
        for number in range(repeat):
            for compiler in compilers:
                for state in compiler.states:
                    fresh = caches(Path(scratch) / f"cold-{compiler.name}-{number}") if state == "cold" else kept
                    command = compiler.start if state == "start" else compiler.command
                    command += ("--no-cache",) if state == "solve" else ()
                    result = run(command, {**fresh, **dict(compiler.environment)}, out)
                    taken.setdefault((compiler, state), []).append(result)
    return [
        Result(
            compiler.name,
            compiler.version,
            state,
            round(statistics.median(wall for wall, _, _ in runs), 4),
            round(min(wall for wall, _, _ in runs), 4),
            round(statistics.median(cpu for _, cpu, _ in runs), 4),
            round(max(peak for _, _, peak in runs), 1),
            tuple(round(wall, 4) for wall, _, _ in runs),
        )
        for (compiler, state), runs in taken.items()
    ]


def cpu_model() -> str:
    """What the kernel calls the processor, with the numbers that tell its siblings apart."""
    fields = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()]
    said = {name.strip(): value.strip() for name, _, value in fields}
    return f"{said.get('model name', '?')} family {said.get('cpu family', '?')} model {said.get('model', '?')}"


def machine(load: float) -> dict[str, object]:
    """What results were measured on, with the load before."""
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "load_before": round(load, 2),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--target", default="sm_90a", help="of tilec; the peers compile for sm_90a")
    parser.add_argument(
        "--peers", nargs="+", default=[sys.executable], metavar="PYTHON", help="interpreters with peers"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the results here")
    asked = parser.parse_args()

    compilers = [tilec(sys.executable, asked.target), *peers(asked.peers)]
    load = os.getloadavg()[0]
    results = measure(compilers, asked.repeat)
    print(f"GEMM 1024³, tile 128×128×64, fp16; {os.cpu_count()} CPUs, load before {load:.1f}; median of {asked.repeat}")
    print(f"{'compiler':20} {'version':10} {'state':6} {'wall s':>8} {'(min)':>8} {'CPU s':>8} {'MiB':>6}")
    for r in results:
        times = f"{r.median:8.2f} {r.smallest:8.2f} {r.cpu:8.2f} {r.peak_mib:6.0f}"
        print(f"{r.compiler:20} {r.version:10} {r.state:6} {times}")
    if asked.json:
        record = {"machine": machine(load), "repeat": asked.repeat, "results": [asdict(r) for r in results]}
        Path(asked.json).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
