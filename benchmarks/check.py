"""How long `tilec check` takes for a kernel of two hundred lines: the whole process, parse to legal pipelines.

    python benchmarks/check.py [--repeat 15] [KERNEL.tl]

Fails where the quickest run needs more CPU time than the budget, which other load on the machine hardly changes. A
first run, not counted, fills the caches of Python and tilec.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
KERNEL = HERE / "kernels" / "layer.tl"
BUDGET = 0.25  # seconds


def run(kernel: Path, caches: Path) -> tuple[float, float]:
    """Seconds of wall and of CPU time of one process."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(HERE.parent), "TILEC_CACHE_DIR": str(caches), "PYTHONPYCACHEPREFIX": str(caches)}
    began, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-m", "tilec", "check", str(kernel)], check=True, env=environment)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernel", nargs="?", type=Path, default=KERNEL)
    parser.add_argument("--repeat", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as caches:
        run(asked.kernel, Path(caches))
        runs = [run(asked.kernel, Path(caches)) for _ in range(asked.repeat)]
    wall, cpu = ([r[k] for r in runs] for k in (0, 1))
    lines = len(asked.kernel.read_text(encoding="utf-8").splitlines())
    print(
        f"{asked.kernel.name}, {lines} lines: wall {statistics.median(wall):.3f} s (least {min(wall):.3f}), "
        f"CPU {statistics.median(cpu):.3f} s (least {min(cpu):.3f}); budget {BUDGET} s"
    )
    return int(min(cpu) > BUDGET)


if __name__ == "__main__":
    sys.exit(main())
