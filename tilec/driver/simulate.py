"""Simulates a built kernel, or PTX of any origin, in cycles: what `tilec.simulate` needs to know, from a build."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilec.driver import emulate, emulate_ptx
from tilec.emu import Fault
from tilec.passes.cost.kernel import occupancy_limits
from tilec.passes.cost.model import ctas_per_sm
from tilec.ptx.assemble import assemble
from tilec.simulate.grid import Launch, Simulation, simulate
from tilec.support.diagnostics import fail
from tilec.support.source import SourceFile
from tilec.target.table import Target, load

if TYPE_CHECKING:
    from tilec.driver.build import Build


def of_build(
    build: Build, target: Target, *, sizes: Mapping[str, int] | None = None, blocks: int = 0, draws: bool = False
) -> Simulation:
    """Of a kernel as it was built, for tensors of zeros."""
    manifest = build.manifest
    arguments = emulate.blank_arguments(build.kernel, manifest, sizes)
    grid, arguments, _ = emulate.launched(manifest, arguments)
    if 0 in grid:
        fail("wrong-launch", f"{manifest.entry} has no blocks for these sizes", help="give --size NAME=N")
    report = next(entry for entry in build.entries if entry.name == manifest.entry)
    resident = _resident(target, report.smem_bytes + manifest.dynamic_smem, report.registers, math.prod(manifest.block))
    what = Launch(
        build.ptx, manifest.entry, grid, manifest.block, manifest.cluster, manifest.dynamic_smem,
        tuple(emulate.launch_arguments(manifest, arguments)), resident,
    )  # fmt: skip
    return simulate(what, target, blocks=blocks, draws=draws)


def of_ptx(
    source: SourceFile,
    entry: str | None,
    geometry: emulate_ptx.Geometry,
    given: emulate_ptx.Arguments,
    target: str,
    *,
    blocks: int = 0,
    draws: bool = False,
) -> Simulation:
    """Of a kernel in a PTX file, on the machine that `target` names."""
    name = emulate_ptx.entry_of(source, entry)
    machine = load(target)
    reports = assemble(source.text, target).entries
    report = next(each for each in reports if each.name == name)
    smem = report.smem_bytes + geometry.dynamic_smem
    what = Launch(
        source.text, name, geometry.grid, geometry.block, geometry.cluster, geometry.dynamic_smem, given.values,
        _resident(machine, smem, report.registers, math.prod(geometry.block)),
    )  # fmt: skip
    try:
        return simulate(what, machine, blocks=blocks, draws=draws)
    except Fault:
        raise
    except ValueError as error:
        fail("wrong-launch", str(error))


def _resident(target: Target, smem: int, registers: int, threads: int) -> int:
    """Blocks that fit on a multiprocessor: those of a cluster each have one of their own."""
    return max(1, ctas_per_sm(smem, registers, threads, occupancy_limits(target)))
