"""Short kernels as text: built, run in the emulator, and compared with the reference."""

from __future__ import annotations

from collections.abc import Mapping

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions, Strategy
from tilec.support.source import SourceFile

HEAD = "import tilelang\nimport tilelang.language as T\n\n"
TARGETS = ("sm_80", "sm_90a", "sm_100a")


def kernel(params: str, body: str, threads: int = 128) -> str:
    """The text of a kernel of one block, with these lines in it."""
    lines = "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
    return f"{HEAD}@T.prim_func\ndef kernel({params}):\n    with T.Kernel(1, threads={threads}) as bx:\n{lines}"


def runs(
    text: str,
    target: str,
    strategy: Strategy = "auto",
    level: int = 3,
    writes: bool = True,
    sizes: Mapping[str, int] | None = None,
) -> Build:
    """Fails where what the emulated PTX computes differs from the reference; `writes`: or where that is nothing.
    `sizes` are those that the kernel learns at launch."""
    options = CompileOptions(target=target, opt_level=level, pipeline_strategy=strategy)
    made = build_kernel(SourceFile("kernel.tl", text), options, Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0, sizes)
    expected = found.copy()
    emulate.emulate_build(made, found)
    emulate.run_reference(made.kernel, expected)
    results = emulate.compare_arguments(made.kernel, made.manifest, found, expected)
    assert bool(results) == writes
    for r in results:
        assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"
    return made
