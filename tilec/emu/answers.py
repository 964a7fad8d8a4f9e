"""Who has read the machine's answers to requests for other clusters' work, and not fenced since.

The asynchronous proxy writes an answer, threads read it by the generic one. Between a read and the next answer in its
place there must be a proxy fence: of the thread that has read, or of one that knows of it (PTX ISA, memory consistency
model, proxy-preserved base causality order). So have it the PTX ISA's example for clusterlaunchcontrol.try_cancel and
the CUDA programming guide (work stealing: `fence_proxy_async_generic_sync_restrict`, release). A barrier alone orders
threads, not proxies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilec.emu.fault import Fault

if TYPE_CHECKING:
    from tilec.emu.races import Watch

Array = NDArray[Any]


class Answers:
    """In the shared memory of one block, by rows of 16 bytes."""

    def __init__(self) -> None:
        self.unfenced: dict[int, dict[int, tuple[int, int]]] = {}
        """For each row that an answer has come into the event and the step of the last read by each thread."""

    def read(self, actors: Array, rows: Array, watch: Watch) -> None:
        log = watch.order.log
        for actor, row in zip(actors.tolist(), rows.tolist(), strict=True):
            if row in self.unfenced:
                self.unfenced[row][actor] = log.now, log.pc

    def fence(self, known: Array) -> None:
        """By threads that know, of each thread, its deeds up to an event."""
        for row, reads in self.unfenced.items():
            self.unfenced[row] = {actor: read for actor, read in reads.items() if read[0] > known[actor]}

    def comes(self, row: int, address: int, watch: Watch | None) -> None:
        """An answer is asked for, into this row."""
        for _, step in self.unfenced.get(row, {}).values():
            place = watch.steps[step].place if watch is not None else ""
            message = f"an answer may come over the one at shared address {address:#x}, which is read at {place}"
            raise Fault("missing-proxy-fence", f"{message} with no fence.proxy.async behind that")
        self.unfenced[row] = {}
