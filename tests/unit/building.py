"""Builds kernels as far as a test needs them, and runs warp programs, changed ones too, in the emulator."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from stages import emitted

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.emu import Fault
from tilec.ir.manifest import manifests_in_module
from tilec.ir.warp import Program
from tilec.ptx.assemble import assemble_module
from tilec.ptx.text import print_module
from tilec.support.options import CompileOptions, Strategy, Value
from tilec.support.source import SourceFile
from tilec.target import table as targets

ROOT = Path(__file__).parents[2]
SAMPLES, KERNELS = ROOT / "samples", ROOT / "tests/kernels"

Defines = tuple[tuple[str, Value], ...]


@cache
def built(path: Path, target: str, strategy: Strategy = "auto", level: int = 3, defines: Defines = ()) -> Build:
    """A kernel file, all the way."""
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    return build_source(source, target, strategy, level, defines)


def build_source(
    source: SourceFile, target: str, strategy: Strategy = "auto", level: int = 3, defines: Defines = ()
) -> Build:
    options = CompileOptions(target=target, opt_level=level, defines=defines, pipeline_strategy=strategy)
    return build_kernel(source, options, Observer())


def outcome(made: Build, program: Program, target: str, seed: int = 0) -> str:
    """What is wrong with another warp program for the same kernel: the emulator's fault, the first output that differs
    from the reference, the assembler's complaint, or nothing."""
    machine = targets.load_target(target)
    module = emitted(made.kernel, program, target)
    ptx = print_module(module)
    (manifest,) = manifests_in_module(module)
    found = emulate.draw_arguments(made.kernel, manifest, seed)
    expected = found.copy()
    try:
        emulate.launch(
            ptx,
            manifest.entry,
            manifest.grid,
            manifest.block,
            emulate.build_launch_arguments(manifest, found),
            dynamic_smem=manifest.dynamic_smem,
        )
    except Fault as fault:
        return f"{fault.kind}: {fault.message}"
    emulate.run_reference(made.kernel, expected)
    for result in emulate.compare_arguments(made.kernel, manifest, found, expected):
        if not result.matches:
            return f"{result.name}{list(result.worst)} is {result.found}, not {result.expected}"
    remarks = assemble_module(ptx, machine.ptx_target, opt_level=3).remarks
    return "\n".join(f"{r.code}: {r.text}" for r in remarks)
