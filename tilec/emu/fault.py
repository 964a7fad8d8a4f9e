"""What the emulator says when a kernel does what the hardware does not promise."""

from __future__ import annotations

from typing import NamedTuple


class SourceLocation(NamedTuple):
    """Where an instruction comes from, by its `.loc`."""

    file: str
    line: int
    column: int


class Place(NamedTuple):
    """An address in one allocation, `offset` bytes behind its beginning.

    In global memory `argument` is the number of the array argument that has the address or is nearest to it, `element`
    its index, None where the address lies outside, and `shape` the array's. In shared memory `argument` is None, and
    `offset` counts from the beginning of dynamic shared memory.
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
    "trap".
    """

    def __init__(self, kind: str, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.line = line
        self.text = ""
        self.source: SourceLocation | None = None
        self.where = ""
        self.places: dict[str, Place] = {}
        """What lies at the addresses of the message, by the address as it is written there."""

    def locate(self, line: int, text: str, source: SourceLocation | None, where: str = "") -> Fault:
        """Name the instruction, unless an inner frame knew it better."""
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
