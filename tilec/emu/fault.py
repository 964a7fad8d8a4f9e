"""Faults: reports that a kernel relies on something that the hardware does not promise."""

from __future__ import annotations

from typing import Any, NamedTuple


class SourceLocation(NamedTuple):
    """The source position of an instruction, from its `.loc`."""

    file: str
    line: int
    column: int


class MemoryLocation(NamedTuple):
    """An address as an offset in bytes into one allocation.

    In global memory `argument` is the number of the array argument at the address, or else of the nearest one;
    `element` is the index there, None where the address lies outside, and `shape` the array's. In shared memory
    `argument` is None, and `offset` counts from the beginning of dynamic shared memory.
    """

    argument: int | None
    offset: int
    element: tuple[int, ...] | None = None
    shape: tuple[int, ...] = ()
    bytes: int = 0


class Fault(Exception):
    """The kernel is wrong at one PTX line.

    Kinds: "unsupported" (before anything runs), "out-of-bounds", "misaligned", "unwritten-read", "unarrived-read" (an
    asynchronous operation has not been waited for), "unarrived-write" (it still owns the bytes that are written),
    "early-reuse" (it may still read what is overwritten), "data-race", "missing-proxy-fence", "missing-wgmma-fence",
    "missing-init-fence", "missing-tensormap-fence", "bad-descriptor", "swizzle-mismatch", "divergent-warpgroup",
    "bad-barrier", "barrier-overflow", "barrier-overwrite", "phase-skipped", "setmaxnreg-ignored", "bad-setmaxnreg",
    "exit-before-read", "exit-before-arrival", "ended-block", "bad-tmem-allocation", "tmem-leak", "foreign-lanes",
    "divergent-warp", "missing-tcgen05-wait", "missing-tcgen05-fence", "missing-grid-wait", "deadlock", "step-limit",
    "trap", "internal" (no fault of the kernel: a process of the emulator died).
    """

    def __init__(self, kind: str, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.line = line
        self.text = ""
        self.source: SourceLocation | None = None
        self.where = ""
        self.places: dict[str, MemoryLocation] = {}
        """Memory locations of the addresses in the message, by the address as written there."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle needs to rebuild the fault, with every field, in another process."""
        return Fault, (self.kind, self.message), self.__dict__

    def locate(self, line: int, text: str, source: SourceLocation | None, where: str = "") -> Fault:
        """Set the fault's instruction and block and return it; what an inner frame has set stays."""
        if not self.line:
            self.line, self.text, self.source = line, text, source
        if where and not self.where:
            self.where = where
        return self

    def __str__(self) -> str:
        parts = [f"{self.kind}: {self.message}"]
        if self.line:
            parts.append(f"at PTX line {self.line}: {self.text}")
        if self.source is not None:
            parts.append(f"from {self.source.file}:{self.source.line}")
        if self.where:
            parts.append(f"in {self.where}")
        return "\n  ".join(parts)
