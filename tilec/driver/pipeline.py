"""The pass table: every pass from kernel text to cubin, in order. Whatever builds, checks, tunes or shows a kernel runs
a part of this table, and nothing else calls a pass (`driver.engine` runs it).

A pass takes the state of a file, or of one of its kernels, and returns it rewritten. A choice is a row that decides:
its answers are decisions, which the schedule trace keeps; its candidates may run through a part of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilec.driver import choices, explaining, explicit_roles, front, lints, lowering, planning, scheduling
from tilec.driver.conditions import (
    Condition,
    KernelCondition,
    accept_always,
    accept_every_kernel,
    require_explicit_roles,
    require_level,
    require_option,
)
from tilec.driver.work import File, Work
from tilec.support.options import DECIDING_LEVEL, Stage
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.driver.observer import Observer
    from tilec.passes.choices.question import QuestionGenerator


@dataclass(frozen=True, slots=True)
class FilePass:
    """A pass over the whole file. `gives` is the stage that it completes (`--emit`)."""

    name: str
    run: Callable[[File, Observer], File]
    gives: Stage | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over one kernel. It runs if neither `when` (options, target) nor `of` (kernel) gives a reason against it.
    `shows` is the kernel's form from here on, where that is no stage of its own. `decides` lists the decisions that it
    may record. `tilec check` runs only passes with `checks`. A pass that `is_only_shown` runs only if its stage is
    wanted."""

    name: str
    run: Callable[[Work, Observer], Work]
    gives: Stage | None = None
    when: Condition = accept_always
    of: KernelCondition = accept_every_kernel
    shows: Stage | None = None
    decides: tuple[str, ...] = ()
    checks: bool = False
    is_only_shown: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision of the compiler. It `asks` questions about a kernel, each with candidates (`passes.choices.question`);
    the engine prices these and takes the cheapest. `decides` lists the decisions that it may record, and `switches` the
    options that fix them."""

    name: str
    asks: Callable[[Work, choices.Explorer], QuestionGenerator[Work]]
    decides: tuple[str, ...]
    switches: tuple[str, ...]
    when: Condition = accept_always
    gives: Stage | None = None


WARP_DECISIONS = ("consumer warpgroups", "loads", "arrivals", "product")

_WITH_CONSUMERS = require_option("--consumer-warpgroups", lambda options: options.consumer_warpgroups is not None)
_NO_CLUSTER = require_option("--cluster none", lambda options: options.cluster == (1, 1, 1))
_MAY_DECIDE = require_level(DECIDING_LEVEL, "")
_FAST_MATH = require_option("--fast-math", lambda options: options.fast_math)

PIPELINE: tuple[FilePass | Pass | Choice, ...] = (
    FilePass("parse", front.parse_file, gives="ast"),
    FilePass("elaborate", front.elaborate_file),
    Pass("without-cluster", front.without_cluster, when=_NO_CLUSTER),
    Pass(
        "consumer-warpgroups",
        front.consumer_warpgroups,
        when=_WITH_CONSUMERS,
    ),
    Pass("fold-constants", front.fold_constants, gives="tile", checks=True),
    Pass("fast-math", front.fast_math, when=_FAST_MATH),
    Pass("alias-analysis", front.analyse_aliases, gives="alias", is_only_shown=True),
    Pass("contract-products", front.contract_products, when=require_level(0, "--no-fma", fma=True), checks=True),
    Choice("eliminate-masks", choices.eliminate_masks, ("mask",), ("--no-split-loops",), when=_MAY_DECIDE),
    Pass("sums-in-fragments", planning.sums_in_fragments, checks=True),
    Pass("subtile-as-asked", planning.subtile_as_asked, decides=("subtile",), checks=True),
    Pass("legalise-types", planning.legalise_types, checks=True),
    Pass("split-roles", explicit_roles.split_roles, of=require_explicit_roles, checks=True),
    Pass("check-role-pairs", explicit_roles.check_role_pairs, of=require_explicit_roles, checks=True),
    Pass("check-tensor-memory", explicit_roles.check_tensor_memory, of=require_explicit_roles, checks=True),
    Pass("role-mechanisms", explicit_roles.role_mechanisms, of=require_explicit_roles, checks=True),
    Pass("expected-bytes", explicit_roles.expected_bytes, of=require_explicit_roles, checks=True),
    Pass("assign-layouts", planning.assign_layouts, shows="layout", checks=True),
    Pass("check-role-registers", explicit_roles.check_role_registers, of=require_explicit_roles, checks=True),
    Pass("check-stage-counts", explicit_roles.check_stage_counts, of=require_explicit_roles, checks=True),
    Pass("check-barriers", explicit_roles.check_barriers, of=require_explicit_roles, checks=True),
    Pass("check-role-races", explicit_roles.check_role_races, of=require_explicit_roles, checks=True),
    Choice("detect-pipelines", choices.detect_pipelines, ("loop",), ("--no-auto-pipeline",)),
    Choice("persistent-grid", choices.persistent_grid, ("persistent grid",), ("--no-persistent",)),
    Choice("cluster", choices.decide_cluster, ("cluster",), ("--cluster",)),
    Choice("rasterisation", choices.decide_rasterisation, ("rasterisation",), ("--rasterisation",)),
    Choice("tile-scheduler", choices.tile_scheduler, ("tile scheduler",), ("--tile-scheduler",)),
    Pass("launch-grid", planning.launch_grid),
    Choice("register-stages", choices.register_stages, ("register stages",), ("--register-stages",)),
    Choice("cta-pairs", choices.cta_pairs, ("CTA pairs",), ("--no-cta-pairs",)),
    Choice("multicast", choices.decide_multicast, ("multicast",), ("--no-multicast",)),
    Choice("roles", choices.decide_roles, ("roles",), ("--pipeline-strategy",)),
    Pass("explain-warps", planning.explain_warps, decides=WARP_DECISIONS),
    Choice("overlap", choices.decide_overlap, ("overlap",), ("--no-overlap",)),
    Choice("dependent-launch", choices.dependent_launch, ("programmatic dependent launch",), ("--no-pdl",)),
    Pass("check-registers", planning.check_registers, checks=True),
    Choice("subtile", choices.decide_subtile, ("subtile",), ("--subtile",)),
    Choice(
        "occupancy",
        choices.decide_occupancy,
        ("stages",),
        ("--no-stages-by-occupancy",),
        when=require_level(3, "--no-stages-by-occupancy", stages_by_occupancy=True, schedule=None),
        gives="layout",
    ),
    Choice("ping-pong", choices.ping_pong, ("ping-pong",), ("--no-ping-pong",)),
    Pass("build-problems", scheduling.build_problems, gives="problem", checks=True),
    Choice("epilogue-warp", choices.epilogue_warp, ("epilogue warp",), ("--no-epilogue-warp",)),
    Pass("solve", scheduling.solve_loops),
    Pass("order-roles", scheduling.order_roles, of=require_explicit_roles),
    Pass("explain-loops", explaining.explain_loops, decides=("copies", "search")),
    Pass("lint-tile", lints.lint_tile, checks=True),
    Pass("lint-layout", lints.lint_layout),
    Pass("lint-schedule", lints.lint_schedule, gives="schedule"),
    Pass("expand", lowering.expand_loops, gives="expand"),
    Pass("allocate-shared", lowering.allocate_shared),
    Pass("insert-sync", lowering.insert_sync, shows="warp"),
    Pass("split-loops", lowering.split_loops, when=require_level(3, "--no-split-loops", split_loops=True)),
    Pass(
        "programmatic-launch",
        lowering.programmatic_launch,
        when=require_level(3, "--no-pdl", needs="dependent_launch", pdl=True),
    ),
    Pass("lint-warp", lints.lint_warp, gives="warp"),
    Pass("emit", lowering.emit_ptx),
    FilePass("join-modules", lowering.join_modules),
    FilePass("print", lowering.print_ptx, gives="ptx"),
    FilePass("assemble", lowering.assemble_cubin, gives="cubin"),
)
"""In order. A file's kernels go through the passes over one kernel one after the other."""
