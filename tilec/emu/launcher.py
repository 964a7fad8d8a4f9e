"""Runs one kernel of a PTX module over a grid, from numpy arrays to numpy arrays."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Literal

import numpy as np

from tilec.emu.barriers import cluster_launch, control, mbarrier
from tilec.emu.calls import calls
from tilec.emu.fault import Fault, SourceLocation
from tilec.emu.machine import blocks, registers
from tilec.emu.machine.cluster import BlockPositions, Clusters, LaunchState
from tilec.emu.machine.decode import Program
from tilec.emu.machine.steps import RecorderFactory
from tilec.emu.machine.timeline import Event, Timeline
from tilec.emu.memory import access, atomics
from tilec.emu.memory.arguments import AddressTable, Allocator, pack_params
from tilec.emu.memory.places import find_memory_locations
from tilec.emu.numbers import Array
from tilec.emu.races.order import EventLog
from tilec.emu.races.races import StepAccesses
from tilec.emu.scalar import bits, cvt, integers, moves, semantics
from tilec.emu.tcgen05 import allocate, multiply, tcgen05
from tilec.emu.tma import bulk, remote, tensormap_replace
from tilec.emu.tma.asyncops import AsyncState, EffectScheduler
from tilec.emu.tma.tensormap import Columns, TensorMap
from tilec.emu.warp import matrix, mma, warps, wmma
from tilec.emu.wgmma import wgmma
from tilec.ptx.module import Entry, Module
from tilec.ptx.parse import parse_module
from tilec.support.records import dataclass

__all__ = ["AddressTable", "Columns", "Fault", "Report", "SourceLocation", "TensorMap", "launch"]

# Importing these modules registers their decoders.
FAMILIES = (
    access, allocate, atomics, bits, bulk, calls, cluster_launch, control, cvt, integers, matrix, mbarrier, mma, moves,
    multiply, registers, remote, semantics, tcgen05, tensormap_replace, warps, wgmma, wmma,
)  # fmt: skip

_MAX_CLUSTER_BLOCKS = 16
"""Blocks of a cluster where the kernel opts in to more than the portable 8."""
_LARGEST_GRID = (2**31 - 1, 65_535, 65_535)
"""Blocks along x, y and z (technical specifications per compute capability in the CUDA guide)."""
_MAX_SHARED_BYTES = 232_448
"""Shared memory of a block on sm_90 and sm_100 (compute capability table of the CUDA guide)."""
ALLOWED = frozenset(("data-race",))
"""Kinds of faults after which execution can go on."""
STEP_LIMIT = 100_000_000
"""The default limit of a block's steps, which takes a quarter of an hour to reach."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a launch: warp instructions by stem, in the order of their first place in the kernel, and the number
    of blocks that ran.

    `faults` is empty unless `on_fault` is "report"; `timeline` unless requested; `written`, the elements of each
    argument that blocks wrote, unless a sample ran. `printed` is the printed text, cluster after cluster. `allowed`
    counts the allowed faults, by kind.
    """

    counts: dict[str, int] = field(default_factory=dict)
    blocks: int = 0
    timeline: tuple[Event, ...] = ()
    written: tuple[Array | None, ...] = ()
    faults: tuple[Fault, ...] = ()
    printed: str = ""
    allowed: dict[str, int] = field(default_factory=dict)

    @property
    def instructions(self) -> int:
        """Return the number of warp instructions that ran."""
        return sum(self.counts.values())


def launch(
    ptx: str,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[object],
    *,
    cluster: int | Sequence[int] = (1, 1, 1),
    dynamic_smem: int = 0,
    whole_program: bool = False,
    adversary: int | None = None,
    races: bool = True,
    begins_early: bool = False,
    jobs: int = 1,
    sample: tuple[int, int] | None = None,
    timeline: bool = False,
    step_limit: int = STEP_LIMIT,
    on_fault: Literal["raise", "report"] = "raise",
    allow: Collection[str] = (),
    progress: Callable[[int, int], None] | None = None,
    observe: RecorderFactory | None = None,
    only: Collection[int] | None = None,
    all_begin: bool = False,
) -> Report:
    """Run kernel `entry` of a PTX text over a grid, write its array arguments in place, and return a report or raise
    `Fault`. `args` are its parameters in order: arrays (written in place), numbers by `.param` type, `TensorMap`,
    `AddressTable`, `None` for a null pointer, bytes as they are, or a tuple for a C struct.

    Raises `Fault` on whatever the hardware does not promise to do, at the first block that does it; with `on_fault` as
    "report", the report has it instead, and the arrays hold what was written until then. `races` says whether that
    includes data races; and `begins_early` whether the grid before still runs, so that no tensor may be reached before
    `griddepcontrol.wait`. Kinds in `allow` are counted and passed over: "data-race" is the one that can be, and the
    last thread of an address wins. A block that runs more than `step_limit` steps is a fault too. What does not fit the
    kernel is a `ValueError`.

    Dynamic shared memory begins directly behind the static variables, as nvJitLink places it; in a `whole_program`,
    which ptxas and nvcc make of a file by default, at the `.align` that it is declared with.

    An `adversary` is the seed of an unfriendly but legal machine: garbage in fresh registers, an arbitrary order of
    warps, and asynchronous operations that act at any moment. `jobs` processes share the blocks where no block can see
    another one's work. A `sample` (blocks, seed) runs only some of them, drawn until that many
    have written global memory; `only` says which clusters do, by number.
    `all_begin`: no cluster is taken over by another one.
    `observe` makes a recorder, which is told of every step that runs (with one process).
    """
    module = _parse_cached(ptx)
    kernel = _find_entry(module, entry)
    blocks_along, threads_along = _parse_extents("grid", grid), _parse_extents("block", block)
    cluster_along = _parse_extents("cluster", cluster)
    _check_grid(blocks_along, cluster_along)
    _check_launch(kernel, threads_along, cluster_along, dynamic_smem)
    if on_fault not in ("raise", "report"):
        raise ValueError(f"on_fault is 'raise' or 'report', not {on_fault!r}")
    if unknown := sorted(set(allow) - ALLOWED):
        raise ValueError(f"allow has {unknown[0]!r}: what can be allowed is {', '.join(sorted(ALLOWED))}")
    allocator = Allocator(module, args)
    params = pack_params(kernel, args, allocator)
    jobs = jobs if blocks.can_fork() and observe is None else 1
    memory, symbols = allocator.build_memory(is_shared_by_processes=jobs > 1)
    program = Program(module, kernel, symbols, dynamic_smem, whole_program)
    recorder = None if observe is None else observe(program)
    generator = None if adversary is None else random.Random(adversary)
    state = LaunchState(
        program=program,
        accesses=StepAccesses(program.steps),
        grid=blocks_along,
        block=threads_along,
        cluster=cluster_along,
        dynamic_smem=dynamic_smem,
        memory=memory,
        params=params,
        seed=adversary,
        random=generator,
        make_async_state=AsyncState,
        counts=[0] * len(program.steps),
        events=EventLog(),
        effect_scheduler=EffectScheduler(generator),
        step_limit=step_limit,
        watches_races=races,
        begins_early=begins_early,
        all_begin=all_begin,
        timeline=Timeline() if timeline else None,
        recorder=recorder,
        allow=frozenset(allow),
    )
    memory.report_fault = state.report_fault
    is_divided = blocks.are_clusters_independent(program.steps)
    if races or sample is not None:
        memory.track_owners(is_divided and races, blocks.make_shared_buffer(2 * memory.size) if jobs > 1 else None)
    clusters: Sequence[BlockPositions] = Clusters(blocks_along, cluster_along)
    if only is not None:
        clusters = [clusters[number] for number in sorted(only)]
    faults: tuple[Fault, ...] = ()
    try:
        with np.errstate(all="ignore"):
            jobs = jobs if is_divided else 1
            if sample is not None:
                outcome = blocks.run_sample(state, clusters, sample, jobs, progress)
            else:
                outcome = blocks.run_clusters(state, clusters, jobs, progress)
    except Fault as fault:
        fault.places = find_memory_locations(fault.message, args, allocator, program.shared)
        if on_fault == "raise":
            raise
        faults = (fault,)
        outcome = blocks.collect_outcome(state)
    finally:
        allocator.copy_back(memory)
    counts = dict.fromkeys((step.stem for step in program.steps), 0)
    for step, count in zip(program.steps, outcome.counts, strict=True):
        counts[step.stem] += count
    written = tuple(allocator.find_written(value, memory) for value in args) if sample is not None else ()
    printed = "".join(text for _, text in sorted(outcome.printed, key=lambda line: line[0]))
    return Report(counts, outcome.done, tuple(outcome.events), written, faults, printed, outcome.allowed)


@lru_cache(maxsize=8)
def _parse_cached(ptx: str) -> Module:
    """Parse PTX text to a module; the last eight are kept."""
    return parse_module(ptx)


def _find_entry(module: Module, name: str) -> Entry:
    """Return the kernel with this name, or raise `ValueError` that lists the kernels there are."""
    for entry in module.entries:
        if entry.name == name:
            return entry
    names = ", ".join(entry.name for entry in module.entries)
    raise ValueError(f"the module has no entry '{name}'; it has {names or 'none'}")


def _read_directive(entry: Entry, name: str) -> tuple[int, int, int] | None:
    """Return the extents along x, y and z that a directive of the kernel gives, None if it has none."""
    for directive in entry.directives:
        word, _, values = directive.partition(" ")
        if word == name:
            return _parse_extents(name, [int(value) for value in values.split(",")])
    return None


def _parse_extents(name: str, extents: int | Sequence[int]) -> tuple[int, int, int]:
    """Return extents along x, y and z, 1 where missing; raise `ValueError` unless they are one to three positive
    numbers."""
    values = [extents] if isinstance(extents, (int, np.integer)) else list(extents)
    if not 1 <= len(values) <= 3 or not all(isinstance(v, (int, np.integer)) and v > 0 for v in values):
        raise ValueError(f"{name} is {extents!r}, expected one to three positive numbers")
    x, y, z = [*(int(value) for value in values), 1, 1][:3]
    return x, y, z


def _check_grid(grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> None:
    """Raise `ValueError` for a grid larger than the hardware's, or one that clusters do not divide."""
    for axis, extent, most in zip("xyz", grid, _LARGEST_GRID, strict=True):
        if extent > most:
            raise ValueError(f"a grid of {extent} blocks along {axis}: there are at most {most}")
    if any(extent % size for extent, size in zip(grid, cluster, strict=True)):
        raise ValueError(f"a grid of {grid} is not made of clusters of {cluster}")


def _check_launch(entry: Entry, block: tuple[int, ...], cluster: tuple[int, ...], dynamic_smem: int) -> None:
    """Raise `ValueError` for block, cluster or shared memory sizes that the kernel's directives or the hardware
    refuse."""
    for directive, extents, what in ((".reqntid", block, "blocks"), (".reqnctapercluster", cluster, "clusters")):
        required = _read_directive(entry, directive)
        if required not in (None, extents):
            raise ValueError(f"{entry.name} must be launched with {what} of {required}, not {extents}")
    most = _read_directive(entry, ".maxntid")
    threads = math.prod(block)
    if threads > (1024 if most is None else math.prod(most)):
        limit = "a block has at most 1024" if most is None else f"{entry.name} is made for at most {math.prod(most)}"
        raise ValueError(f"a block of {threads} threads: {limit}")
    if math.prod(cluster) > _MAX_CLUSTER_BLOCKS:
        raise ValueError(f"a cluster of {math.prod(cluster)} blocks: there are at most {_MAX_CLUSTER_BLOCKS}")
    if not 0 <= dynamic_smem <= _MAX_SHARED_BYTES:
        raise ValueError(f"{dynamic_smem} bytes of dynamic shared memory: a block has at most {_MAX_SHARED_BYTES}")
