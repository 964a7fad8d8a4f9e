"""Steps: decoded instructions, as functions of the threads that run them; and the observer that is called before
each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilec.emu.calls import functions
from tilec.emu.fault import SourceLocation
from tilec.ptx.module import Instruction
from tilec.ptx.text import print_instruction
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.decode import Program
    from tilec.emu.machine.machine import Cta, Group, Threads


StepFunction = Callable[["Cta", "Threads"], None]
"""An ordinary step: works for some threads, all of which go on to the next step."""
ControlFunction = Callable[["Cta", "Group", "Threads"], bool]
"""A step that moves threads: sets `group.pc` and returns True, or parks, splits or removes the group and returns
False."""
RegisterIndex = functions.RegisterIndex
REGISTER_CLASSES: dict[str, np.dtype[Any]]
REGISTER_CLASSES = {"pred": np.dtype("?"), "16": np.dtype("u2"), "32": np.dtype("u4"), "64": np.dtype("u8")}

SPECIAL_REGISTERS = {
    **{f"%{name}.{axis}": "32" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"},
    **{f"%{name}.{axis}": "32" for name in ("clusterid", "nclusterid") for axis in "xyz"},
    **{f"%cluster_{name}.{axis}": "32" for name in ("ctaid", "nctaid") for axis in "xyz"},
    **dict.fromkeys(("%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid"), "32"),
    **{f"%lanemask_{relation}": "32" for relation in ("eq", "lt", "le", "gt", "ge")},
    **dict.fromkeys(("%cluster_ctarank", "%cluster_nctarank", "%dynamic_smem_size", "%total_smem_size"), "32"),
    **dict.fromkeys(("%aggr_smem_size", "%reserved_smem_offset_begin", "%reserved_smem_offset_end"), "32"),
    **dict.fromkeys((f"%envreg{index}" for index in range(32)), "32"),
    "%is_explicit_cluster": "pred",
    **dict.fromkeys(("%clock", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi"), "32"),
    **dict.fromkeys(("%clock64", "%globaltimer", "%gridid", "%current_graph_exec"), "64"),
}
"""Register class by special register."""

TIMER_REGISTERS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")


Column = int | list[int] | Callable[["Cta", "Threads"], Any]
"""Where each thread's value comes from: a slot, several slots, or an address function of `Form.build_address`."""


def build_thread_step(act: Callable[..., None], *columns: Column) -> StepFunction:
    """Return a step that calls `act(cta, thread, *values)` for one thread after the other, with its own values."""

    def run_step(cta: Cta, threads: Threads) -> None:
        """Call `act` for each of these threads in order, with the thread's values of the columns."""
        values = (_read_column(cta, threads, column).tolist() for column in columns)
        for thread, *row in zip(cta.thread_ids[threads].tolist(), *values, strict=True):
            act(cta, thread, *row)

    return run_step


def _read_column(cta: Cta, threads: Threads, column: Column) -> Any:
    """Return the values of a column for given threads: [thread], or [thread, slot] of several slots."""
    if isinstance(column, int):
        return cta.views[column][threads]
    if isinstance(column, list):
        return np.stack([cta.views[slot][threads] for slot in column], axis=1)
    return column(cta, threads)


@dataclass(slots=True)
class Step:
    """One decoded instruction; exactly one of `run` and `control` is set."""

    instruction: Instruction
    stem: str
    location: SourceLocation | None
    run: StepFunction | None = None
    control: ControlFunction | None = None
    guard: int = -1
    negated: bool = False
    gather: int = 0
    """The number of neighbouring threads that must arrive before the step runs: a warp or a warpgroup."""
    mask: int = -1
    """A slot with the lanes of a warp that must arrive; -1 for all of them."""
    exchanged_slots: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """The slots read and written, in order, by a warp-wide step whose lanes may stand at different instructions."""
    is_inverted: bool = False
    """The step inverts the predicate that it reads."""
    registers: frozenset[RegisterIndex] = frozenset()
    written: frozenset[RegisterIndex] = frozenset()
    is_matrix: bool = False
    """A wgmma: the matrix unit owns its registers until the program waits for it."""
    written_matrix_registers: frozenset[RegisterIndex] = frozenset()
    """Registers of some wgmma that this ordinary step writes."""

    target: int | None = None
    """The step that a branch goes to."""
    cost: int = 1
    """The cost in steps of a group's quantum."""
    polled_address: Callable[[Cta, Threads], Any] | None = None
    """The address function of a load or an atomic operation, for the report of a deadlock."""

    @property
    def text(self) -> str:
        """Return the instruction as PTX text."""
        return print_instruction(self.instruction)

    @property
    def description(self) -> str:
        """Return the step's PTX line and text, and its source line if known, for a fault of another step."""
        line = f"PTX line {self.instruction.line} ({self.text})"
        return line if self.location is None else f"{line} from {self.location.file}:{self.location.line}"


class Recorder(Protocol):
    """Observes the blocks of a launch."""

    def note(self, cta: Cta, group: Group, pc: int, threads: Threads | None) -> None:
        """Record step `pc` of a group, which is about to run for `threads` (None: for none); may raise `StopCluster`.
        `threads` are those of the group whose predicate is true. A step at which the group waits is recorded again when
        the group goes on."""


RecorderFactory = Callable[["Program"], Recorder]
"""Makes the recorder of a launch, after the kernel is decoded and before blocks exist: it may add slots
(`Program.build_form`) and replace the functions of steps."""


class StopCluster(Exception):
    """Raised by a recorder that needs no more of the running cluster."""
