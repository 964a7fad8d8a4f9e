"""Kernels part of the way through the pipeline: the engine's own passes up to where a test looks, and a value of the
test's own in place of what a pass would have made there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from tilec.driver import engine
from tilec.driver.ends.elaborate_file import begin_kernel
from tilec.driver.observer import Observer
from tilec.ir.tile import Kernel
from tilec.ir.warp import Program
from tilec.passes.loop.build_problem import LoopProblem, PlannedLoop, ScheduledLoop
from tilec.passes.state import FileState, KernelState
from tilec.ptx.module import Module
from tilec.sched.objective import record_given_schedule
from tilec.sched.schedule import Schedule
from tilec.support.options import CompileOptions, Strategy
from tilec.support.source import SourceFile

AS_WRITTEN: dict[str, Any] = {"opt_level": 2, "persistent": False, "multicast": False, "cta_pairs": False}
"""Options with which choices leave a kernel as its text has it."""


def work_on(kernel: Kernel, target: str = "sm_90a", strategy: Strategy = "auto", **options: Any) -> KernelState:
    """A kernel as if it had just been read, of which nothing is decided but what a person says."""
    asked = CompileOptions(**{"target": target, "pipeline_strategy": strategy, **AS_WRITTEN, **options})
    return begin_kernel(kernel, FileState(SourceFile(f"{kernel.name}.tl", ""), asked))


def advanced(work: KernelState, last: str, behind: str = "fold-constants") -> KernelState:
    """The work behind the pass `last`, from the one behind `behind`."""
    return engine.advance_kernel(work, Observer(), behind=behind, last=last)


def assignment(kernel: Kernel, target: str = "sm_90a", strategy: Strategy = "auto", **options: Any) -> KernelState:
    """A kernel with its layouts."""
    return advanced(work_on(kernel, target, strategy, **options), "split-staged-stores")


def problems(kernel: Kernel, target: str = "sm_90a", strategy: Strategy = "auto", **options: Any) -> KernelState:
    """A kernel with the scheduling problems of its loops, those solved that stand in others."""
    return advanced(work_on(kernel, target, strategy, **options), "build-problems")


def planned(loop: LoopProblem, schedule: Schedule) -> PlannedLoop:
    """A loop with the schedule that a test has for it."""
    return PlannedLoop(loop, record_given_schedule(loop.problem, schedule))


def scheduled(work: KernelState) -> list[ScheduledLoop]:
    """The loops of a kernel with their schedules."""
    return [ScheduledLoop(one.loop, one.solution.schedule) for one in work.loops]


def with_schedules(work: KernelState, loops: Sequence[PlannedLoop], last: str) -> KernelState:
    """A kernel with layouts whose loops have these schedules, in program order, and the passes behind that. Whether
    the schedules hold is not looked at: those that do not are planted to be noticed later."""
    return advanced(replace(work, loops=tuple(loops)), last, behind="lint-schedule")


def emitted(kernel: Kernel, program: Program, target: str) -> Module:
    """The PTX of a warp program that a test has for a kernel. Nor is the program looked at."""
    known = "warp", False, program
    work = replace(_assignment(kernel, target), warp_program=program, verified=known)
    return advanced(work, "emit-ptx", behind="lint-warp").module


@cache
def _assignment(kernel: Kernel, target: str) -> KernelState:
    return assignment(kernel, target)
