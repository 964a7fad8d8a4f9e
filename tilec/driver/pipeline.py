"""The pass table: every pass from kernel text to cubin, in order. Whatever builds, checks, tunes or shows a kernel runs
a part of this table, and nothing else calls a pass (`driver.engine` runs it).

The row `insert-sync` of folder `passes.lower` is the function `insert_sync` of `tilec/passes/lower/insert_sync.py`,
which is imported when the row runs. It takes the parts of the kernel's state that its parameters name, and returns
those that the row `writes`. A choice is a row that decides: its answers are decisions, which the schedule trace keeps;
its candidates may run through a part of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilec.support.options import DECIDING_LEVEL, CompileOptions, Stage
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel
    from tilec.target.names import Feature
    from tilec.target.table import Target

Condition = Callable[[CompileOptions, "Target"], str | None]
"""Returns why options and target turn a pass off, or None where it runs."""
KernelCondition = Callable[["Kernel"], str | None]
"""Returns why a pass does not apply to a kernel, or None where it does."""

_KERNEL, _LAYOUTS, _PROGRAM, _STATE = ("kernel",), ("layouts",), ("warp_program",), ("state",)
_SPLIT = ("kernel", "decisions")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a function of the same name, in a file of that name in `folder`. `gives` is the stage that it
    completes (`--emit`)."""

    name: str
    folder: str
    gives: Stage | None = None

    def list_modules(self) -> tuple[str, ...]:
        """Return the names, below `tilec`, of the modules that the row's functions are in."""
        return (f"{self.folder}.{self.name.replace('-', '_')}",)

    def load_functions(self) -> tuple[Callable[..., Any], ...]:
        """Import the row's modules, and return its functions: one, or each of several checks."""
        modules = self.list_modules()
        return tuple(getattr(import_module(f"tilec.{each}"), each.rpartition(".")[2]) for each in modules)


@dataclass(frozen=True, slots=True)
class FilePass(Row):
    """A pass over the whole file."""


@dataclass(frozen=True, slots=True)
class Pass(Row):
    """A pass over one kernel. It runs if neither `when` (options, target) nor `of` (kernel) gives a reason against it.

    `writes` are the parts of the state that it returns: none where it only checks, `state` for all of it. `shows` is
    the kernel's form from here on, where that is no stage of its own. `decides` lists the decisions that it may record.
    `tilec check` runs only passes with `checks`, and goes on after an error of one that `continues`. A pass that
    `is_only_shown` runs only if its stage is wanted. After a pass with `keeps_source` the kernel still counts as the
    source's.
    """

    writes: tuple[str, ...] = ()
    when: Condition | None = None
    of: KernelCondition | None = None
    shows: Stage | None = None
    decides: tuple[str, ...] = ()
    checks: bool = False
    continues: bool = False
    is_only_shown: bool = False
    keeps_source: bool = False


@dataclass(frozen=True, slots=True)
class Checks(Pass):
    """Several `functions` that only find errors, each in a file of its name in a folder of `tilec/passes`."""

    folder: str = "passes"
    checks: bool = True
    continues: bool = True
    functions: tuple[str, ...] = ()

    def list_modules(self) -> tuple[str, ...]:
        """Return the names, below `tilec`, of the modules of the checks."""
        return tuple(f"passes.{name}" for name in self.functions)


@dataclass(frozen=True, slots=True)
class Lints(Pass):
    """The lints of a stage. Its function is in the folder itself, beside the folders of the lints."""

    def load_functions(self) -> tuple[Callable[..., Any], ...]:
        """Import and return the function, in the folder of lints, that runs the stage's lints."""
        return (getattr(import_module(f"tilec.{self.folder}"), self.name.replace("-", "_")),)


@dataclass(frozen=True, slots=True)
class Choice(Row):
    """A decision of the compiler. Its function returns a question, whose answer is the part of the state that the row
    `writes`, or None where there is nothing to decide; or it asks several questions one after the other, and returns
    the state (`passes.choices.question`). The engine prices the candidates and takes the cheapest. `decides` lists the
    decisions that it may record, and `switches` the options that fix them."""

    folder: str = "passes.choices"
    writes: tuple[str, ...] = _STATE
    decides: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    when: Condition | None = None


# ---- conditions: why a pass does not run -----------------------------------------------------------------------------


def require_explicit_roles(kernel: Kernel) -> str | None:
    """Return None for a kernel that assigns its work to roles explicitly, else why the pass does not apply."""
    from tilec.passes.explicit_roles.split_roles import has_explicit_roles

    return None if has_explicit_roles(kernel) else "no explicit roles"


def refuse_explicit_roles(kernel: Kernel) -> str | None:
    """Return None for a kernel whose work the compiler assigns to roles, else why the pass does not apply."""
    return None if require_explicit_roles(kernel) else "explicit roles"


def require_option(switch: str, is_given: Callable[[CompileOptions], bool]) -> Condition:
    """Return a condition for passes that run only where the options give `switch`."""

    def find_reason_off(options: CompileOptions, target: Target) -> str | None:
        """Return None if the option is given, else the reason why the pass does not run."""
        return None if is_given(options) else f"only with {switch}"

    return find_reason_off


def require_level(level: int, switch: str, needs: Feature | None = None, **fields: Any) -> Condition:
    """Return a condition for passes that run from -O`level` on, with feature `needs` and these option values.

    `switch` is named where the options' `fields` differ.
    """

    def find_reason_off(options: CompileOptions, target: Target) -> str | None:
        """Return None if level, options and target fit, else the reason why the pass does not run."""
        if options.opt_level < level:
            return f"from -O{level} on"
        for name, value in fields.items():
            if getattr(options, name) != value:
                return "--schedule" if name == "schedule" else switch
        if needs is not None and not target.has(needs):
            return f"{target.name} has no {needs}"
        return None

    return find_reason_off


# ---- the table -------------------------------------------------------------------------------------------------------

_OPERATION_CHECKS = ("explicit_roles.check_cta_pairs", "layout.check_tensor_memory")
_ROLE_CHECK_NAMES = ("check_role_registers", "check_stage_counts", "check_barriers", "check_role_races")
_ROLE_CHECKS = tuple(f"explicit_roles.{name}" for name in _ROLE_CHECK_NAMES)
_LAUNCH_DECISIONS = ("programmatic dependent launch",)
_OCCUPANCY = ("--no-stages-by-occupancy",)
_WARP_DECISIONS = ("consumer warpgroups", "arrivals", "product")
_ENDS, _LINTS, _REWRITING, _ANALYSIS, _LOWER = "driver.ends", "driver.lints", "rewriting", "analysis", "passes.lower"
_LAYOUT, _MEMORY, _LOOP, _GRID = "passes.layout", "passes.memory", "passes.loop", "passes.grid"
_ROLES, _SCHEDULING = "passes.explicit_roles", "passes.scheduling"
_COST = "passes.cost"

_WITH_CONSUMERS = require_option("--consumer-warpgroups", lambda options: options.consumer_warpgroups is not None)
_NO_CLUSTER = require_option("--cluster none", lambda options: options.cluster == (1, 1, 1))
_MAY_DECIDE = require_level(DECIDING_LEVEL, "")
_FAST_MATH = require_option("--fast-math", lambda options: options.fast_math)
_MAY_CONTRACT = require_level(0, "--no-fma", fma=True)
_MAY_SHARE = require_level(0, "--no-shared-reciprocals", shared_reciprocals=True)
_MAY_LIMIT_STAGES = require_level(3, "--no-stages-by-occupancy", stages_by_occupancy=True, schedule=None)
_MAY_ORDER_ITERATIONS = require_level(3, "--no-stages-by-occupancy", stages_by_occupancy=True)
_MAY_SPLIT = require_level(3, "--no-split-loops", split_loops=True)
_MAY_START_EARLY = require_level(3, "--no-pdl", needs="dependent_launch", pdl=True)
_WITH_ROLES, _WITHOUT_ROLES = require_explicit_roles, refuse_explicit_roles

PIPELINE: tuple[FilePass | Pass | Choice, ...] = (
    FilePass("parse-file", _ENDS, gives="ast"),
    FilePass("elaborate-file", _ENDS),
    Pass("remove-cluster", _GRID, writes=_KERNEL, when=_NO_CLUSTER),
    Pass("set-consumer-warpgroups", _GRID, writes=_KERNEL, when=_WITH_CONSUMERS),
    Pass("fold-constants", _REWRITING, gives="tile", writes=_KERNEL, checks=True, keeps_source=True),
    Pass("mark-fast-math", _REWRITING, writes=_KERNEL, when=_FAST_MATH, keeps_source=True),
    Pass("analyse-aliases", _ANALYSIS, gives="alias", writes=("aliases",), is_only_shown=True),
    Pass("contract-products", _REWRITING, writes=_KERNEL, when=_MAY_CONTRACT, checks=True, keeps_source=True),
    Pass("share-reciprocals", _REWRITING, writes=_KERNEL, when=_MAY_SHARE, checks=True),
    Choice("choose-masked-iterations", decides=("mask",), switches=("--no-split-loops",), when=_MAY_DECIDE),
    Pass("convert-sums-to-fragments", _ROLES, writes=_KERNEL, checks=True, continues=True),
    Pass("apply-requested-subtiles", _LOOP, writes=_SPLIT, decides=("subtile",), checks=True, continues=True),
    Pass("legalise-types", _LAYOUT, writes=_KERNEL, checks=True),
    Pass("make-names-unique", _REWRITING, writes=_KERNEL, checks=True),
    Pass("split-roles", _ROLES, writes=_KERNEL, of=_WITH_ROLES, checks=True),
    Checks("check-operations", of=_WITH_ROLES, functions=_OPERATION_CHECKS),
    Pass("assign-role-mechanisms", _ROLES, writes=("kernel", "versions"), of=_WITH_ROLES, checks=True),
    Pass("compute-expected-bytes", _ROLES, writes=_KERNEL, of=_WITH_ROLES, checks=True),
    Pass("assign-role-layouts", _ROLES, writes=_LAYOUTS, of=_WITH_ROLES, shows="layout", checks=True),
    Pass("select-mechanisms", _LAYOUT, writes=("mechanisms",), of=_WITHOUT_ROLES, shows="tile", checks=True),
    Pass("assign-layouts", _LAYOUT, writes=_LAYOUTS, of=_WITHOUT_ROLES, shows="layout", checks=True),
    Pass("prefetch-tiles", _MEMORY, writes=_LAYOUTS, of=_WITHOUT_ROLES, checks=True),
    Pass("split-staged-stores", _MEMORY, writes=_LAYOUTS, of=_WITHOUT_ROLES, checks=True),
    Pass("check-generator-copies", _LAYOUT, checks=True),
    Checks("check-roles", of=_WITH_ROLES, functions=_ROLE_CHECKS),
    Choice("choose-pipelined-loops", decides=("loop",), switches=("--no-auto-pipeline",)),
    Choice("choose-roles", decides=("roles",), switches=("--pipeline-strategy",)),
    Choice("choose-persistent-grid", decides=("persistent grid",), switches=("--no-persistent",)),
    Choice("choose-cluster", decides=("cluster",), switches=("--cluster",)),
    Choice("choose-rasterisation", writes=_KERNEL, decides=("rasterisation",), switches=("--rasterisation",)),
    Pass("count-dram-reads", _COST, writes=("dram_reads",)),
    Choice("choose-tile-scheduler", decides=("tile scheduler",), switches=("--tile-scheduler",)),
    Pass("apply-launch-grid", _SCHEDULING, writes=_STATE),
    Choice("choose-register-stages", decides=("register stages",), switches=("--register-stages",)),
    Choice("choose-cta-pairs", writes=_LAYOUTS, decides=("CTA pairs",), switches=("--no-cta-pairs",)),
    Choice("choose-multicast", writes=_LAYOUTS, decides=("multicast",), switches=("--no-multicast",)),
    Pass("explain-warps", _LOOP, writes=("decisions",), decides=_WARP_DECISIONS),
    Choice("choose-overlap", writes=_LAYOUTS, decides=("overlap",), switches=("--no-overlap",)),
    Choice("choose-programmatic-launch", writes=_LAYOUTS, decides=_LAUNCH_DECISIONS, switches=("--no-pdl",)),
    Pass("check-registers", _LAYOUT, checks=True),
    Choice("choose-subtile", decides=("subtile",), switches=("--subtile",)),
    Choice(
        "choose-stages-by-occupancy",
        decides=("stages", "versions"),
        switches=_OCCUPANCY,
        when=_MAY_LIMIT_STAGES,
    ),
    Choice(
        "choose-iterations",
        gives="layout",
        writes=_STATE,
        decides=("iterations",),
        switches=("--pipeline-strategy",),
        when=_MAY_ORDER_ITERATIONS,
    ),
    Choice("choose-loads", decides=("loads",), switches=("--no-tma-loads",)),
    Choice("choose-ping-pong", decides=("ping-pong",), switches=("--no-ping-pong",)),
    Pass("build-problems", _SCHEDULING, gives="problem", writes=_STATE, checks=True),
    Choice("choose-epilogue-warp", decides=("epilogue warp",), switches=("--no-epilogue-warp",)),
    Pass("solve-loops", _SCHEDULING, writes=("loops",)),
    Pass("order-roles", _LOOP, writes=_LAYOUTS, of=_WITH_ROLES),
    Pass("explain-loops", _LOOP, writes=("decisions",), decides=("copies", "search")),
    Lints("lint-tile", _LINTS, checks=True),
    Lints("lint-layout", _LINTS),
    Lints("lint-schedule", _LINTS, gives="schedule"),
    Pass("expand-schedules", _LOWER, gives="expand", writes=_PROGRAM),
    Pass("allocate-shared", _LOWER, writes=_PROGRAM),
    Pass("insert-sync", _LOWER, writes=_PROGRAM, shows="warp"),
    Pass("split-loops", _LOWER, writes=_PROGRAM, when=_MAY_SPLIT),
    Pass("insert-programmatic-launch", _LOWER, writes=_PROGRAM, when=_MAY_START_EARLY),
    Lints("lint-warp", _LINTS, gives="warp"),
    Pass("emit-ptx", _ENDS, writes=("ptx_module",)),
    Pass("check-ping-pong", _ENDS),
    FilePass("join-modules", _ENDS),
    FilePass("raise-occupancy", _ENDS),
    FilePass("widen-producers", _ENDS),
    FilePass("print-ptx", _ENDS, gives="ptx"),
    FilePass("assemble-cubin", _ENDS, gives="cubin"),
)
"""In order. A file's kernels go through the passes over one kernel one after the other."""
