"""Runs the blocks of a grid: all or a sample of them, in this process or in several.

Clusters run one after the other; one whose threads poll global memory for another cluster's write is set aside until
the others have run. Clusters without atomics or flags in global memory are independent, so they may run in any order
and in several processes. Their memory is then one anonymous mapping that the forked processes share, and no cluster may
access what another one writes.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from multiprocessing.connection import Connection, wait
from typing import Any

from tilec.emu.fault import Fault
from tilec.emu.machine.cluster import BlockPositions, Cluster, ClusterQueue, LaunchState
from tilec.emu.machine.steps import Step, StopCluster
from tilec.emu.machine.timeline import Event
from tilec.support.records import dataclass

Progress = Callable[[int, int], None]
ClusterPositions = Sequence[BlockPositions]

_SCOPES = frozenset(("gl", "sys", "gpu"))
_FLAG_WORDS = frozenset(("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"))


def are_clusters_independent(steps: Sequence[Step]) -> bool:
    """Return whether no step updates global memory atomically or synchronises through it, so that clusters cannot
    interact."""
    return not any(_reaches_other_clusters(step) for step in steps)


def _reaches_other_clusters(step: Step) -> bool:
    """Return whether a step updates global memory atomically, or is a fence or flag access by which clusters
    synchronise."""
    words = step.instruction.opcode.split(".")
    is_local = any(word.partition("::")[0] in ("shared", "local", "param") for word in words)
    if step.stem.startswith("cp.reduce"):
        return True
    if words[0] in ("atom", "red", "multimem"):
        return not is_local
    if words[0] in ("membar", "fence"):
        return not _SCOPES.isdisjoint(words) and "proxy" not in words
    return words[0] in ("ld", "st") and not is_local and not _FLAG_WORDS.isdisjoint(words)


def make_shared_buffer(size: int) -> mmap.mmap:
    """Return zeroed memory of at least `size` bytes that forked processes share."""
    return mmap.mmap(-1, max(size, 1))


def can_fork() -> bool:
    """Return whether this system can fork processes."""
    return "fork" in multiprocessing.get_all_start_methods()


@dataclass(slots=True)
class Outcome:
    """The results of some clusters."""

    done: int = 0
    counts: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    printed: list[tuple[int, str]] = field(default_factory=list)
    allowed: dict[str, int] = field(default_factory=dict)
    writers: frozenset[int] = frozenset()
    """The tags of those that wrote global memory."""


_IDLE_INSTRUCTIONS = 1_000_000
"""Warp instructions that a sample may run before it stops looking for clusters that write."""


def run_sample(
    state: LaunchState, clusters: ClusterPositions, sample: tuple[int, int], jobs: int, progress: Progress | None
) -> Outcome:
    """Run drawn clusters until those that wrote global memory hold the wanted blocks or they ran long; return the
    results.

    `sample` is that number and the seed of the draw. A persistent grid has many blocks without work, which end at once:
    more are drawn in their place, unless those that have run were long.
    """
    blocks, draw_seed = sample
    wanted = min(len(clusters), -(-blocks // len(clusters[0])))
    draws = random.Random(draw_seed)
    numbers = sorted(draws.sample(range(len(clusters)), wanted))
    drawn = [clusters[number] for number in numbers]
    first = latest = run_clusters(state, drawn, jobs, progress)
    is_spread = state.blocks_done == 0
    seen = set(numbers)
    while True:
        outcome = _merged([first, latest]) if is_spread and latest is not first else latest
        missing = min(wanted - len(outcome.writers), len(clusters) - len(seen))
        if missing <= 0 or sum(outcome.counts) > _IDLE_INSTRUCTIONS:
            return outcome
        begin = len(drawn)
        while len(drawn) < begin + missing:
            if (number := draws.randrange(len(clusters))) not in seen:
                seen.add(number)
                drawn.append(clusters[number])
        latest = _run_in_process(state, ClusterQueue(drawn, range(begin, len(drawn))), lambda done: None)


def run_clusters(state: LaunchState, clusters: ClusterPositions, jobs: int, progress: Progress | None) -> Outcome:
    """Run clusters, in several processes if possible, and return the results; raise the fault of the first that has
    one. `progress`, if given, is called with the blocks that are done, and all."""
    total = len(clusters) * math.prod(state.cluster)
    report = progress or (lambda done, total: None)
    if jobs <= 1 or len(clusters) < 2 or not can_fork():
        every = ClusterQueue(clusters, range(len(clusters)))
        return _run_in_process(state, every, lambda done: report(done, total))
    return _run_in_parallel(state, clusters, min(jobs, len(clusters)), lambda done: report(done, total))


def collect_outcome(state: LaunchState) -> Outcome:
    """Return the results that this process's launch state holds until now."""
    events = state.timeline.events if state.timeline is not None else []
    writers = frozenset(state.memory.writers)
    return Outcome(state.blocks_done, state.counts, events, state.printed, state.allowed, writers)


def _run_in_process(state: LaunchState, clusters: ClusterQueue, report: Callable[[int], None]) -> Outcome:
    """Run clusters in order, then in rounds those that poll; return the state's results; a round without progress
    faults."""
    polling: list[Cluster] = []
    may_wait = not are_clusters_independent(state.program.steps)
    state.waiting = clusters
    while clusters:
        number, positions = clusters.take()
        if state.random is not None:
            # Each cluster has a seed of its own, so that results do not depend on the order in which clusters run.
            state.random.seed(f"{state.seed}/{number}")
        cluster = Cluster(state, number, positions)
        try:
            is_done = cluster.run()
        except StopCluster:
            state.effect_scheduler.drop_effects()
            continue
        if is_done:
            state.blocks_done += len(positions)
            report(state.blocks_done)
        elif may_wait:
            polling.append(cluster)
        else:
            raise cluster.build_deadlock_fault()
    while polling:
        before = state.memory.digest()
        still = [cluster for cluster in polling if not cluster.resume()]
        if len(still) == len(polling) and state.memory.digest() == before:
            raise still[0].build_deadlock_fault()
        state.blocks_done += sum(len(cluster.ctas) for cluster in polling if cluster not in still)
        report(state.blocks_done)
        polling = still
    for write in state.late_stores:
        write()
    state.late_stores = []
    return collect_outcome(state)


def _run_in_parallel(
    state: LaunchState, clusters: ClusterPositions, jobs: int, report: Callable[[int], None]
) -> Outcome:
    """Run clusters in `jobs` forked processes and add up the results; raise the fault of the first cluster that has
    one."""
    context = multiprocessing.get_context("fork")
    workers = []
    for job in range(jobs):
        here, there = context.Pipe(duplex=False)
        share = ClusterQueue(clusters, range(job, len(clusters), jobs))
        worker = context.Process(target=_run_worker, args=(there, state, share), daemon=True)
        worker.start()
        there.close()
        workers.append((worker, here))
    try:
        outcomes, faults = _collect_outcomes([here for _, here in workers], report)
    finally:
        for worker, here in workers:
            here.close()
            if worker.is_alive():
                worker.join(0.2)
                worker.terminate()
            worker.join()
    if faults:
        # Processes fail in any order; reporting the first cluster's fault is deterministic.
        raise min(faults, key=lambda found: found[0])[1]
    return _merged(outcomes)


def _merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the sum of several results: counts and sets added up, lists joined."""
    done = sum(outcome.done for outcome in outcomes)
    counts = [sum(column) for column in zip(*(outcome.counts for outcome in outcomes), strict=True)]
    events = [event for outcome in outcomes for event in outcome.events]
    printed = [line for outcome in outcomes for line in outcome.printed]
    allowed = dict(sum((Counter(outcome.allowed) for outcome in outcomes), Counter()))
    writers = frozenset[int]().union(*(outcome.writers for outcome in outcomes))
    return Outcome(done, counts, events, printed, allowed, writers)


def _collect_outcomes(
    pipes: list[Connection], report: Callable[[int], None]
) -> tuple[list[Outcome], list[tuple[int, Exception]]]:
    """Read the workers' pipes to the end: return the results, and errors with their cluster's number; report
    progress."""
    outcomes: list[Outcome] = []
    faults: list[tuple[int, Exception]] = []
    done = dict.fromkeys(range(len(pipes)), 0)
    open_pipes: list[Any] = list(pipes)
    while open_pipes:
        for pipe in wait(open_pipes):
            assert isinstance(pipe, Connection)
            try:
                kind, *content = pipe.recv()
            except EOFError:
                kind, content = "error", [0, Fault("internal", "a process of the emulator died")]
            if kind == "progress":
                done[pipes.index(pipe)] = content[0]
                report(sum(done.values()))
                continue
            open_pipes.remove(pipe)
            if kind == "done":
                outcomes.append(content[0])
            else:
                faults.append((content[0], content[1]))
    return outcomes, faults


def _run_worker(pipe: Connection, state: LaunchState, clusters: ClusterQueue) -> None:
    """Run a share of the clusters in a forked process; send progress, and then the results or the error, through the
    pipe."""
    try:
        pipe.send(("done", _run_in_process(state, clusters, lambda done: pipe.send(("progress", done)))))
    except KeyboardInterrupt:
        return  # the parent process gets it too, and reports it
    except Exception as error:
        pipe.send(("error", state.cluster_number, error))
