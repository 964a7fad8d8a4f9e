"""Simulate a built kernel, or PTX of any origin, in cycles: prepares launches for `tilec.simulate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilec.driver.build import check_contents
from tilec.driver.emulation import emulate, emulate_ptx
from tilec.emu import Fault
from tilec.passes.cost.kernel import BlockWalk, read_clock, read_occupancy_limits, sample_blocks
from tilec.passes.cost.model import count_ctas_per_sm
from tilec.ptx.assemble import assemble_module
from tilec.simulate.grid import Launch, Simulation, simulate_launch
from tilec.support import progress
from tilec.support.diagnostics import CompileError, raise_error
from tilec.support.source import SourceFile
from tilec.target.table import Target, load_target

if TYPE_CHECKING:
    from tilec.driver.build import Build, Library
    from tilec.ir.manifest import Manifest
    from tilec.passes.cost.known_values import Contents
    from tilec.passes.state import KernelState
    from tilec.ptx.assemble import EntryReport

_MAX_BLOCKS = 1 << 14
"""The largest grid for which the work of each block is computed."""


def simulate_build(
    build: Build,
    target: Target,
    *,
    sizes: Mapping[str, int] | None = None,
    contents: Contents | None = None,
    blocks: int = 0,
    draws: bool = False,
) -> Simulation:
    """Simulate a built kernel in cycles: its first `blocks`, or all for 0. Tensors hold zeros, or their `contents`.

    `draws` keeps what a picture of the run needs.
    """
    check_contents((build.manifest,), contents or {})
    kernel = build.work, build.manifest, build.ptx, build.cubin, build.entries
    return _simulate_kernel(*kernel, target, sizes or {}, blocks, contents or {}, draws=draws)


def simulate_library(
    library: Library, target: Target, sizes: Mapping[str, int], contents: Contents
) -> Iterator[tuple[str, Simulation | str]]:
    """Yield each kernel's name with its simulation, or with the reason why it cannot be simulated."""
    for plan, manifest in zip(library.plans, library.manifests, strict=True):
        own = {tensor.name: contents[tensor.name] for tensor in manifest.tensors if tensor.name in contents}
        kernel = plan.work, manifest, library.ptx, library.cubin, library.entries
        try:
            yield manifest.entry, _simulate_kernel(*kernel, target, sizes, 0, own)
        except CompileError as error:
            yield manifest.entry, error.diagnostics[0].title


def _simulate_kernel(
    work: KernelState,
    manifest: Manifest,
    ptx: str,
    cubin: bytes,
    entries: Sequence[EntryReport],
    target: Target,
    sizes: Mapping[str, int],
    blocks: int,
    contents: Contents,
    *,
    draws: bool = False,
) -> Simulation:
    """Simulate a compiled kernel's launch with these sizes and contents of tensors; raise `wrong-launch` if it has no
    blocks, or blocks that wait for the whole grid.

    Other tensors hold zeros. `blocks` limits the blocks (0: all); `draws` keeps what a picture needs.
    """
    arguments = emulate.make_blank_arguments(work.source_kernel, manifest, sizes)
    for name, elements in contents.items():
        tensor = arguments.tensors[name]
        tensor[...] = np.reshape(elements, tensor.shape) if isinstance(elements, tuple) else elements
    grid, arguments, _ = emulate.prepare_launch(manifest, arguments)
    if 0 in grid:
        raise_error("wrong-launch", f"{manifest.entry} has no blocks for these sizes", help="give --size NAME=N")
    if "cooperative" in manifest.attributes and math.prod(grid) > 1:
        title = f"the blocks of {manifest.entry} wait for the whole grid, of which a simulation follows a few"
        raise_error("wrong-launch", title, help="`tilec report` predicts its time, and `tilec emulate` runs all of it")
    report = next(entry for entry in entries if entry.name == manifest.entry)
    smem = report.smem_bytes + manifest.dynamic_smem
    resident = _count_resident_blocks(target, smem, report.registers, math.prod(manifest.block))
    launch = Launch(
        ptx, manifest.entry, grid, manifest.block, manifest.cluster, manifest.dynamic_smem,
        tuple(emulate.build_launch_arguments(manifest, arguments)), resident,
        _estimate_cluster_cycles(work, target, grid, manifest.cluster), cubin,
    )  # fmt: skip
    with progress.report_during(f"simulating {manifest.entry}"):
        return simulate_launch(launch, target, read_clock(target).under_load, blocks=blocks, draws=draws)


def _estimate_cluster_cycles(
    work: KernelState, target: Target, grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> tuple[float, ...]:
    """Return the serial cycles of each cluster's work, or () if all do the same or the grid is too large."""
    if math.prod(grid) > _MAX_BLOCKS:
        return ()
    walk = BlockWalk(work.assignment, target, ())
    of_block = [float(walk.walk_block(place).around) for place in sample_blocks(grid, _MAX_BLOCKS)]
    blocks = np.reshape(of_block, grid[::-1])
    per_axis = [(extent // size, size) for extent, size in zip(grid[::-1], cluster[::-1], strict=True)]
    shape = [extent for pair in per_axis for extent in pair]
    of_cluster = np.reshape(blocks, shape).sum(axis=(1, 3, 5)).ravel()
    return tuple(of_cluster.tolist()) if of_cluster.min() < of_cluster.max() else ()


def simulate_ptx(
    source: SourceFile,
    entry: str | None,
    geometry: emulate_ptx.LaunchGeometry,
    given: emulate_ptx.PtxArguments,
    target: str,
    *,
    blocks: int = 0,
    draws: bool = False,
) -> Simulation:
    """Simulate a PTX file's kernel, assembled to learn its registers; raise `wrong-launch` if it cannot be launched.

    `entry` names the kernel (None: the only one); `blocks` limits the blocks (0: all).
    """
    name = emulate_ptx.find_entry(source, entry)
    machine = load_target(target)
    assembled = assemble_module(source.text, machine.ptx_target)
    report = next(each for each in assembled.entries if each.name == name)
    smem = report.smem_bytes + geometry.dynamic_smem
    launch = Launch(
        source.text, name, geometry.grid, geometry.block, geometry.cluster, geometry.dynamic_smem, given.values,
        _count_resident_blocks(machine, smem, report.registers, math.prod(geometry.block)), (), assembled.cubin,
    )  # fmt: skip
    try:
        with progress.report_during(f"simulating {name}"):
            return simulate_launch(launch, machine, read_clock(machine).under_load, blocks=blocks, draws=draws)
    except Fault:
        raise
    except ValueError as error:
        raise_error("wrong-launch", str(error))


def _count_resident_blocks(target: Target, smem: int, registers: int, threads: int) -> int:
    """Return how many blocks fit on a multiprocessor at once, by shared memory, registers and threads; at least 1.

    Blocks of a cluster run on distinct multiprocessors.
    """
    return max(1, count_ctas_per_sm(smem, registers, threads, read_occupancy_limits(target)))
