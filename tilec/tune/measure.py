"""Times a cubin on the GPU of this machine, in a process of its own: a kernel that breaks its context costs no other
trial. Only one process of the machine measures at a time, whoever tunes.

As a program it reads a cubin from standard input and prints milliseconds and the GPU's name as JSON: the median of
REPEATS launches, timed with events, on operands that alternate so that none is in the L2 cache.
"""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilec.target.table import Target

REPEATS = 30
WARM_UPS = 3
L2_BYTES = 64 << 20
MAX_COPIES = 64
PATIENCE_SECONDS = 120


def measure_cubin(cubin: bytes) -> tuple[float, str]:
    """Return a kernel's milliseconds and its GPU's name, timed in another process; raise RuntimeError if that fails.

    The error has the process's message.
    """
    command = [sys.executable, "-m", "tilec.tune.measure"]
    with hold_machine_lock(Path(tempfile.gettempdir()) / "tilec-measures.lock"):
        try:
            # Through a pipe, so that no file is left however this process ends.
            child = subprocess.run(command, input=cubin, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"it took more than {PATIENCE_SECONDS} s") from None
    if child.returncode:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"ended with code {child.returncode}")
    milliseconds, gpu = json.loads(child.stdout.splitlines()[-1])
    return float(milliseconds), str(gpu)


@contextmanager
def hold_machine_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive file lock during the block, shared by all users of this machine.

    Its file is never written, and symbolic links are not followed.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def find_gpu_for(target: Target) -> str:
    """Return the name of this machine's GPU if it runs code for the target, else ""."""
    from tilec.calibrate.measure import can_run_code
    from tilec.host import runtime

    if not runtime.has_gpu() or not can_run_code(runtime.compute_capability(), target):
        return ""
    return runtime.describe_gpu().name


# ---- the process -----------------------------------------------------------------------------------------------------


def main(cubin: bytes) -> None:
    """Time a cubin on this machine's GPU, and print the median milliseconds and the GPU's name as JSON."""
    from contextlib import closing

    from tilec.host import runtime

    with runtime.hold_primary_context(), closing(runtime.Kernel(cubin)) as kernel:
        launches = _build_launches(kernel)
        taken = [runtime.time_launch(launches[launch % len(launches)]) for launch in range(WARM_UPS + REPEATS)]
        print(json.dumps([statistics.median(taken[WARM_UPS:]), runtime.describe_gpu().name]))


def _build_launches(kernel: Any) -> list[Any]:
    """Return equal launches on 2 to 64 sets of tensors, enough to exceed L2; raise `SizeError` for sizes known at
    launch.
    """
    from tilec.host.runtime import copy_to_gpu, list_addresses, pad_entries
    from tilec.support.sizes import evaluate_shape

    sizes = kernel.manifest.sizes({}, {})  # fails if a size is known only at launch
    scalars = {scalar.name: 1 for scalar in kernel.manifest.scalars} | sizes
    contents = {t.name: _make_contents(t.dtype, evaluate_shape(t.shape, sizes)) for t in kernel.manifest.tensors}
    total = sum(data.nbytes for data in contents.values())
    copies = min(max(2, -(-2 * L2_BYTES // max(total, 1))), MAX_COPIES)
    tables = {t.name: evaluate_shape(t.shape[: t.table], sizes) for t in kernel.manifest.tensors if t.table}
    contents |= {n: pad_entries(contents[n].reshape(*extents, -1), len(extents)) for n, extents in tables.items()}
    made = [{name: copy_to_gpu(data) for name, data in contents.items()} for _ in range(copies)]
    for addresses in made:
        addresses |= {name: copy_to_gpu(list_addresses(addresses[name], contents[name])) for name in tables}
    return [kernel.bound(addresses, scalars) for addresses in made]


def _make_contents(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return flat contents for a tensor: random floats of 16 bits or more, since zeros cost less power; else zero
    bytes.

    Zeros are valid indices.
    """
    import numpy as np

    from tilec.ir.types import TYPES_BY_NAME

    count = int(np.prod(shape, dtype=np.int64))
    if dtype in ("float16", "float32", "float64"):
        return np.random.default_rng(0).standard_normal(count).astype(dtype)
    if dtype == "bfloat16":
        floats = np.random.default_rng(0).standard_normal(count).astype(np.float32)
        return (floats.view(np.uint32) >> 16).astype(np.uint16)
    return np.zeros(-(-count * TYPES_BY_NAME[dtype].bits // 8), np.uint8)


if __name__ == "__main__":
    main(sys.stdin.buffer.read())
