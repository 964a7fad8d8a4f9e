"""Reads of launch-control answers that no proxy fence follows yet.

The asynchronous proxy writes an answer (clusterlaunchcontrol.try_cancel) and threads read it through the generic proxy.
Between a read and the next answer at the same address there must be a proxy fence, of the reading thread or of a thread
that knows of the read (PTX ISA, memory consistency model, proxy-preserved base causality order). The PTX ISA's example
for clusterlaunchcontrol.try_cancel has this fence, and so has the CUDA programming guide (work stealing:
`fence_proxy_async_generic_sync_restrict`, release). A barrier alone orders threads, not proxies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.emu.fault import Fault
from tilec.emu.numbers import Array

if TYPE_CHECKING:
    from tilec.emu.races.races import RaceDetector


class LaunchControlAnswers:
    """The answers in one block's shared memory, by rows of 16 bytes."""

    def __init__(self) -> None:
        self.unfenced: dict[int, dict[int, tuple[int, int]]] = {}
        """For each row that has received an answer: the event and the step of the last read by each thread."""

    def record_reads(self, actors: Array, rows: Array, detector: RaceDetector) -> None:
        """Record reads of rows that hold answers, one by each thread, as followed by no fence yet; other rows are
        ignored."""
        log = detector.order.log
        for actor, row in zip(actors.tolist(), rows.tolist(), strict=True):
            if row in self.unfenced:
                self.unfenced[row][actor] = log.now, log.pc

    def drop_fenced(self, known: Array) -> None:
        """Forget the recorded reads that a proxy fence covers; `known` holds, for each actor, the event up to which it
        is known."""
        for row, reads in self.unfenced.items():
            self.unfenced[row] = {actor: read for actor, read in reads.items() if read[0] > known[actor]}

    def expect_answer(self, row: int, address: int, detector: RaceDetector | None) -> None:
        """Fault if an answer is requested into a row with an unfenced read; otherwise start to track the row."""
        for _, step in self.unfenced.get(row, {}).values():
            place = detector.steps[step].description if detector is not None else ""
            message = f"an answer may overwrite the one at shared address {address:#x}, which {place} has read,"
            raise Fault("missing-proxy-fence", f"{message} with no fence.proxy.async after the read")
        self.unfenced[row] = {}
