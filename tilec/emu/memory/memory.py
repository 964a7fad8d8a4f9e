"""Memories as flat bytes, each with a shadow byte that says which accesses are allowed.

The shadow makes the emulator strict: a byte is readable only after a write and while no asynchronous operation owns it,
and the asynchronous proxy sees generic-proxy writes only after a fence.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.numbers import Array
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from mmap import mmap

    from tilec.emu.races.answers import LaunchControlAnswers
    from tilec.emu.races.races import RaceDetector

VALID = 1
"""Written, or allocated in global memory."""
UNFENCED = 2
"""Written through the generic proxy and not yet followed by `fence.proxy.async`."""
IN_FLIGHT = 4
"""The destination of an asynchronous copy that has not been waited for."""
BARRIER = 8
"""Holds a live mbarrier."""
GUARD = 16
"""Lies between the variables of shared memory."""
COPIED = 32
"""Written by cp.async (generic proxy) and not yet followed by `fence.proxy.async`. Only tcgen05 requires the fence
here: kernels for wgmma and bulk stores that run on hardware leave it out."""

POISON = 0xFF
"""The bytes of a destination while its copy is in flight: NaN in every format, and a wild address."""

GLOBAL_BASE = 0x0100_0000_0000
PARAM_WINDOW = 0x0500_0000_0000
CALL_PARAMS = 0x8000_0000
"""In `.param` space the kernel's parameters lie at 0 and those of calls here, in the local memory of each thread. Both
fit 32 bits, since compilers keep such addresses there until `cvta.param`."""
LOCAL_WINDOW = 0x0600_0000_0000
SHARED_WINDOW = 0x0700_0000_0000
WINDOW_SHIFT = 40
SHARED_RANK_SHIFT = 24
"""From this bit on a shared address carries 1 + the rank of a block of the cluster, or 0 for the block's own memory."""
SHARED_BASE = 1024
"""The kilobyte below is reserved for the system, so address 0 never belongs to a block."""
DYNAMIC_ALIGNMENT = 16
"""Dynamic shared memory begins behind static variables at a multiple of this, whatever `.align` it is declared with,
where nvJitLink links relocatable code (measured on an H200). ptxas and nvcc pad whole programs to that `.align`."""

WORD_TYPES: dict[int, np.dtype[Any]] = {width: np.dtype(f"u{width}") for width in (1, 2, 4, 8)}
_SEVERAL_READERS = 255
"""Marks a byte that several clusters have read."""
_UNFENCED = " with no fence.proxy.async in between"
_UNORDERED_BLOCKS = ", and nothing orders the blocks of a grid"
OffsetFunction = Callable[[tuple[int, ...]], int]
"""Maps an element's position in an array to its offset in memory."""
_WIDTH_SHIFTS = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}


def _raise_fault(fault: Fault) -> None:
    raise fault


def make_cluster_tag(cluster: int) -> int:
    """Return a byte from 1 to 254 for a cluster's number; clusters 254 apart share one."""
    return cluster % (_SEVERAL_READERS - 1) + 1


@cache
def _repeat_byte(byte: int, width: int) -> Any:
    """Return a number of `width` bytes, each of which is this byte."""
    return WORD_TYPES[width].type(int.from_bytes(bytes([byte]) * width, "little"))


@dataclass(frozen=True, slots=True)
class Allocation:
    name: str
    start: int
    end: int


class Memory:
    """Bytes from address `base` on. Addresses are int64 arrays; widths are 1, 2, 4, 8 or 16 bytes."""

    def __init__(self, name: str, base: int, size: int, *, is_shared: bool = False, buffer: mmap | None = None) -> None:
        padded = -(-size // 16) * 16
        self.name = name
        self.base = base
        self.size = padded
        self.is_shared = is_shared
        self.bytes = np.zeros(padded, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8, padded)
        self.shadow = np.zeros(padded, np.uint8)
        self.allocations: list[Allocation] = []
        self.explain: Callable[[int], str] = lambda address: ""
        self.explain_reader: Callable[[int], str] = lambda row: "an asynchronous operation"
        self.end_barriers: Callable[[Array, Array], None] = lambda addresses, actors: None
        """Called before writes to bytes that may hold mbarriers, with the actor of each byte."""
        self.report_fault: Callable[[Fault], None] = _raise_fault
        """Called with faults after which the access can still be carried out, such as data races."""
        self.race_detector: RaceDetector | None = None
        self.answers: LaunchControlAnswers | None = None
        """The launch-control answers in this memory, if there are any."""
        self.owner: Array | None = None
        """The cluster that wrote each byte of global memory, by its `tag`; 0 for none."""
        self.reader: Array | None = None
        """The cluster that read each byte, as in `owner`; `_SEVERAL_READERS` for more than one."""
        self.tag = 1
        """The running cluster, folded into one byte by `tag_of`."""
        self.writers: set[int] = set()
        """The tags of the clusters that wrote global memory, in this process."""
        self.is_divided = False
        """Clusters may not write bytes that other clusters access: nothing could order the accesses."""
        self.readers: Array = np.zeros(padded // 16 if is_shared else 0, np.int16)
        """The number of asynchronous operations that may still read each 16-byte row."""
        self.pending_readers = 0
        self.swizzles: Array = np.full(padded // 16 if is_shared else 0, -1, np.int16)
        """The bank swizzle with which TMA wrote each 16-byte row; -1 for other writes."""
        self._has_swizzles = False
        self._data: dict[int, Array] = {}
        self._shadow: dict[int, Array] = {}
        self._owners: dict[int, Array] = {}
        self._readers: dict[int, Array] = {}
        self._readable: dict[int, tuple[Any, Any]] = {}
        self._writable: dict[int, tuple[Any, Any]] = {}
        writable = IN_FLIGHT | BARRIER | GUARD if is_shared else VALID
        if is_shared:
            self.shadow[:] = GUARD
        for width in (1, 2, 4, 8):
            self._data[width] = self.bytes.view(WORD_TYPES[width])
            self._shadow[width] = self.shadow.view(WORD_TYPES[width])
            self._readable[width] = (_repeat_byte(VALID | IN_FLIGHT, width), _repeat_byte(VALID, width))
            self._writable[width] = (_repeat_byte(writable, width), _repeat_byte(0 if is_shared else VALID, width))
        self._data[16] = self._data[8].reshape(-1, 2)
        self._shadow[16] = self._shadow[8].reshape(-1, 2)
        self._readable[16], self._writable[16] = self._readable[8], self._writable[8]
        self.rows = self.bytes.reshape(-1, 16)
        self.shadow_rows = self.shadow.reshape(-1, 16)

    def allocate(self, name: str, start: int, size: int, state: int = 0) -> None:
        """Declare `size` bytes at address `start` as an allocation, and set their shadow to `state`."""
        self.allocations.append(Allocation(name, start, start + size))
        self.shadow[start - self.base : start - self.base + size] = state

    def digest(self) -> int:
        """Return a checksum of all bytes."""
        return zlib.crc32(self.bytes.data)

    def track_owners(self, is_divided: bool, buffer: mmap | None = None) -> None:
        """Begin to record which cluster wrote and read each byte, in the buffer if given. `is_divided`: clusters are
        independent, so conflicts between them are races. The buffer holds both marks."""
        size = self.size
        marks = np.zeros(2 * size, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8, 2 * size)
        self.owner, self.reader = marks[:size], marks[size:]
        self.is_divided = is_divided
        for width in (1, 2, 4, 8):
            self._owners[width] = self.owner.view(WORD_TYPES[width])
            self._readers[width] = self.reader.view(WORD_TYPES[width])
        self._owners[16] = self._owners[8].reshape(-1, 2)
        self._readers[16] = self._readers[8].reshape(-1, 2)

    def take_ownership(
        self, owners: Array, readers: Array, old: Array, new: Array, tag: int, offset: OffsetFunction
    ) -> Array:
        """Note `tag` as a writer and return owner marks for its elements; report a race if bytes that another used
        change. Races are looked for only where clusters are independent (`is_divided`)."""
        self.writers.add(tag)
        if self.is_divided:
            for marks, is_read in ((owners, False), (readers, True)):
                foreign = _find_foreign_bytes(marks, tag)
                if foreign is None:
                    continue
                foreign &= _view_bytes(old) != _view_bytes(new)
                if foreign.any():
                    did = "read it" if is_read else "written another value"
                    self._report_foreign_access("written", did, _find_first_marked(foreign, offset), is_read)
        return np.full(owners.shape, _repeat_byte(tag, owners.dtype.itemsize), owners.dtype)

    def require_ownership(self, owners: Array, readers: Array, tag: int, offset: OffsetFunction) -> Array:
        """Return the reader marks of elements that cluster `tag` reads; report a race if another cluster wrote them."""
        foreign = _find_foreign_bytes(owners, tag)
        if foreign is not None and foreign.any():
            self._report_foreign_access("read", "written it", _find_first_marked(foreign, offset), is_read=False)
        after = np.full(readers.shape, _repeat_byte(tag, readers.dtype.itemsize), readers.dtype)
        others = _find_foreign_bytes(readers, tag)
        if others is not None:
            _view_bytes(after)[others] = _SEVERAL_READERS
        return after

    def read_range(self, start: int, size: int) -> None:
        """Record a read of these bytes of global memory if clusters are kept apart; report a race if another wrote
        them."""
        if self.is_divided and self.owner is not None and self.reader is not None:
            readers = self.reader[start : start + size]
            owners = self.owner[start : start + size]
            readers[:] = self.require_ownership(owners, readers, self.tag, lambda at: start + at[0])

    def write_range(self, start: int, new: Array, tag: int) -> None:
        """Record that cluster `tag` writes `new` from offset `start` on if owners are tracked; report a race with
        another's use."""
        if self.owner is not None and self.reader is not None:
            owners, readers, old = (array[start : start + len(new)] for array in (self.owner, self.reader, self.bytes))
            owners[:] = self.take_ownership(owners, readers, old, new, tag, lambda at: start + at[0])

    def _report_foreign_access(self, verb: str, did: str, place: int, is_read: bool) -> None:
        """Report a data race with another cluster at an offset, with its step as far as this process knows it."""
        earlier, detector = "", self.race_detector
        if detector is not None:
            earlier = detector.find_reader(place) if is_read else detector.find_writer(place)
        message = f"global address {self.base + place:#x} is {verb} here, and another block has {did}"
        self.report_fault(Fault("data-race", f"{message}{earlier and f' at {earlier}'}{_UNORDERED_BLOCKS}"))

    # -- ordinary accesses of many threads -----------------------------------------------------------------------------

    def load(self, addresses: Array, width: int, by: Array | None = None, *, is_collective: bool = False) -> Array:
        """Return one number per address (two 64-bit halves for 16 bytes); fault on bounds or unreadable bytes, report
        races. Numbers are unsigned. `by` are the threads; without them no race is looked for."""
        index, states = self._find_states(addresses, width)
        mask, wanted = self._readable[width]
        if np.count_nonzero((states & mask) != wanted):  # quicker than any() on short arrays
            raise self._build_unreadable_fault(addresses, width)
        if by is not None and self.race_detector is not None:
            self.race_detector.read(by, index, width, is_collective=is_collective)
            if self.is_divided:
                readers = self._readers[width]
                place = _build_offset_function(index, width)
                readers[index] = self.require_ownership(self._owners[width][index], readers[index], self.tag, place)
            if self.answers is not None:
                self.answers.record_reads(by, index * width >> 4, self.race_detector)
        data: Array = self._data[width][index]
        return data

    def store(self, addresses: Array, width: int, values: Array, by: Array | None = None) -> None:
        """Write one value per address by the generic proxy; fault on bounds and bytes in flight or being read; report
        races. Races are looked for if `by` gives the threads. Of threads that write one address the last wins. The
        bytes then need a proxy fence."""
        index, states = self._find_states(addresses, width)
        mask, wanted = self._writable[width]
        if np.count_nonzero((states & mask) != wanted):  # quicker than any() on short arrays
            self._end_barriers_or_fail(addresses, width, by)
        if self.pending_readers:
            self._require_unread(index * width >> 4)
        if self.owner is not None:
            owners, readers, old = self._owners[width], self._readers[width][index], self._data[width][index]
            place = _build_offset_function(index, width)
            owners[index] = self.take_ownership(owners[index], readers, old, values, self.tag, place)
        if by is not None and self.race_detector is not None:
            self.race_detector.write(by, index, width, values, self._data[width][index])
        if self.is_shared:
            self._shadow[width][index] = _WRITTEN[width]
            if self._has_swizzles:
                self.swizzles[index * width >> 4] = -1
        self._data[width][index] = values

    def _find_states(self, addresses: Array, width: int) -> tuple[Array, Array]:
        """Return the indices of elements of `width` bytes, and the shadows there; fault if misaligned or out of
        bounds."""
        index = self._find_elements(addresses, width)
        try:
            return index, self._shadow[width][index]
        except IndexError:
            raise self._build_bounds_fault(addresses, width) from None

    def _find_elements(self, addresses: Array, width: int) -> Array:
        """Return addresses as indices of elements of `width` bytes; fault if one is misaligned or below the memory."""
        offsets = addresses - self.base if self.base else addresses
        bits = int(np.bitwise_or.reduce(offsets)) if offsets.size else 0
        if bits & (width - 1):
            bad = int(addresses[(offsets & (width - 1)) != 0][0])
            raise Fault("misaligned", f"{self.name} address {bad:#x} is not a multiple of {width}")
        if bits < 0:
            raise self._build_bounds_fault(addresses, width)
        return offsets >> _WIDTH_SHIFTS[width]

    # -- ranges of bytes, for asynchronous operations ------------------------------------------------------------------

    def find_offset(self, address: int, size: int, what: str) -> int:
        """Return the offset of a byte range from the memory's base; fault if it is not inside one allocation."""
        for allocation in self.allocations:
            if allocation.start <= address and address + size <= allocation.end:
                return address - self.base
        message = f"{what} touches {self.name} bytes {address:#x} to {address + size:#x}"
        raise Fault("out-of-bounds", f"{message}{self._describe_nearest(address)}")

    def claim_rows(self, rows: Array, by: int) -> None:
        """Mark 16-byte rows as destination of thread `by`'s bulk copy and poison them; fault if in use or written
        unfenced. Mbarriers there end."""
        states = self.shadow_rows[rows]
        if (states & BARRIER).any():
            held = self.base + rows[(states & BARRIER).any(axis=-1)] * 16
            self.end_barriers(np.concatenate([held, held + 8]), np.full(2 * len(held), by))
            states = self.shadow_rows[rows]
        if (states & (IN_FLIGHT | GUARD | UNFENCED)).any():
            unwritable = states & (IN_FLIGHT | GUARD)
            if unwritable.any():
                raise self._build_unwritable_fault_at(self._find_marked_address(rows, unwritable))
            address = self._find_marked_address(rows, states & UNFENCED)
            message = f"a bulk copy overwrites shared address {address:#x}, written by st.shared or stmatrix"
            raise Fault("missing-proxy-fence", f"{message}{_UNFENCED}")
        if self.pending_readers:
            self._require_unread(rows)
        if self.race_detector is not None:
            self.race_detector.claim(np.array([by]), rows, 16)
        self.shadow_rows[rows] = states | IN_FLIGHT
        self.rows[rows] = POISON

    def arrive_rows(self, rows: Array, column: int, pc: int, swizzle: int) -> None:
        """Mark rows as written, with their swizzle, by the bulk copy of step `pc`. The mbarrier with clock column
        `column` reports the copy."""
        self.shadow_rows[rows] = VALID
        self.swizzles[rows] = swizzle
        self._has_swizzles = True
        if self.race_detector is not None:
            self.race_detector.record_arrival(np.array([column]), rows, 16, pc)

    def claim(self, addresses: Array, width: int, by: Array) -> None:
        """Mark the destinations of many threads' `cp.async` as in flight and poison them; fault if they are in use."""
        index, states = self._find_states(addresses, width)
        mask, wanted = self._writable[width]
        shadow = self._shadow[width]
        if np.count_nonzero((states & mask) != wanted):  # quicker than any() on short arrays
            self._end_barriers_or_fail(addresses, width, by)
            states = shadow[index]
        if self.pending_readers:
            self._require_unread(index * width >> 4)
        if self.race_detector is not None:
            self.race_detector.claim(by, index, width)
        shadow[index] = states | _OWNED[width]
        self._data[width][index] = _POISONED[width]

    def fill(self, addresses: Array, width: int, data: Array) -> None:
        """Write the bytes of `cp.async` copies, a row of `data` for each address; only alignment and the lower bound
        are checked."""
        index = self._find_elements(addresses, width)
        words = data if width == 1 else data.view(WORD_TYPES[min(width, 8)])
        self._data[width][index] = words.reshape(self._data[width][index].shape) if width > 1 else words

    def arrive(self, addresses: Array, width: int, by: Array, pc: int) -> None:
        """Mark the destinations of the `cp.async` of step `pc` as written, and known to the threads `by`."""
        index = self._find_elements(addresses, width)
        self._shadow[width][index] = _COPIED[width]
        self.swizzles[index * width >> 4] = -1
        if self.race_detector is not None:
            self.race_detector.record_arrival(by, index, width, pc)

    def require_async_readable(self, rows: Array, what: str, *, if_copied: bool = False) -> None:
        """Fault unless the asynchronous proxy may read these 16-byte rows: written, arrived and fenced. `if_copied`:
        writes of cp.async need a fence too."""
        states = self.shadow_rows[rows]
        if if_copied and (states & COPIED).any():
            message = f"{what} reads shared address {self._find_marked_address(rows, states & COPIED):#x}"
            raise Fault("missing-proxy-fence", f"{message}, written by cp.async{_UNFENCED}")
        unreadable = (states & (VALID | UNFENCED | IN_FLIGHT)) != VALID
        if unreadable.any():
            address = self._find_marked_address(rows, unreadable)
            message = f"{what} reads shared address {address:#x}"
            state = int(self.shadow[address - self.base])
            if state & IN_FLIGHT:
                raise Fault("unarrived-read", f"{message}{self.explain(address)}")
            if not state & VALID:
                raise Fault("unwritten-read", f"{message}, which was never written")
            raise Fault("missing-proxy-fence", f"{message}, written by st.shared or stmatrix{_UNFENCED}")

    def _find_marked_address(self, rows: Array, marks: Array) -> int:
        """Return the address of the first marked byte, where `marks` has a byte for each of these 16-byte rows."""
        *place, byte = np.argwhere(marks)[0].tolist()
        return self.base + int(rows[tuple(place)]) * 16 + int(byte)

    def begin_reading(self, rows: Array) -> None:
        """Count one more asynchronous operation that may still read these 16-byte rows, until `end_reading`."""
        self.readers[rows] += 1
        self.pending_readers += 1

    def end_reading(self, rows: Array) -> None:
        """Count one fewer asynchronous operation that may read these 16-byte rows, after the program has waited for
        it."""
        self.readers[rows] -= 1
        self.pending_readers -= 1

    def _require_unread(self, rows: Array) -> None:
        """Fault if an asynchronous operation may still read one of these 16-byte rows, which are about to be
        written."""
        taken = self.readers[rows]
        if taken.any():
            row = int(rows[taken > 0][0])
            message = f"shared address {self.base + row * 16:#x} is overwritten while {self.explain_reader(row)}"
            raise Fault("early-reuse", f"{message} may still read it")

    def mark_arrived(self, addresses: Array, width: int) -> None:
        """Mark elements as written and visible to the asynchronous proxy without a fence."""
        self._shadow[width][self._find_elements(addresses, width)] = _ARRIVED[width]

    def fence(self, actors: Array) -> None:
        """Make earlier generic writes that these threads know visible to the asynchronous proxy: a
        `fence.proxy.async`."""
        if self.answers is not None and self.race_detector is not None:
            self.answers.drop_fenced(self.race_detector.order.clock_of_any(actors))
        if self.race_detector is None:
            self.shadow &= 0xFF ^ (UNFENCED | COPIED)
            return
        offsets = np.flatnonzero(self.shadow & (UNFENCED | COPIED))
        if len(offsets):
            covered = offsets[self.race_detector.find_fenced(actors, offsets)]
            self.shadow[covered] &= 0xFF ^ (UNFENCED | COPIED)

    # -- what went wrong -----------------------------------------------------------------------------------------------

    def _describe_nearest(self, address: int) -> str:
        """Return the name and range of the allocation nearest to an address, as the end of a sentence; "" if there is
        none."""
        if not self.allocations:
            return ""

        def measure_distance(allocation: Allocation) -> int:
            """Return the bytes between the address and the nearer end of an allocation, 0 inside."""
            if allocation.start <= address < allocation.end:
                return 0
            return min(abs(address - allocation.start), abs(address - allocation.end))

        nearest = min(self.allocations, key=measure_distance)
        return f"; the nearest allocation is '{nearest.name}', {nearest.start:#x} to {nearest.end:#x}"

    def _is_allocated(self, address: int, width: int) -> bool:
        """Return whether `width` bytes at an address lie inside one allocation."""
        return any(a.start <= address and address + width <= a.end for a in self.allocations)

    def _build_bounds_fault(self, addresses: Array, width: int) -> Fault:
        """Return a fault at the first address whose bytes lie outside of all allocations, or one without address if
        none does."""
        for address in addresses.reshape(-1).tolist():
            if not self._is_allocated(address, width):
                message = f"{width} bytes at {self.name} address {address:#x}{self._describe_nearest(address)}"
                return Fault("out-of-bounds", message)
        return Fault("out-of-bounds", f"{self.name} access of {width} bytes")

    def _combined_state(self, address: int, width: int) -> int:
        """Return the shadow bits of an access: VALID if all its bytes have it, any other bit if one of them has it."""
        offset = address - self.base
        region = self.shadow[offset : offset + width]
        return int(np.bitwise_or.reduce(region)) & ~VALID | int(np.bitwise_and.reduce(region))

    def _build_unreadable_fault(self, addresses: Array, width: int) -> Fault:
        """Return a fault at the first address that may not be read: out of bounds, in flight, or never written."""
        if not self.is_shared:
            return self._build_bounds_fault(addresses, width)
        for address in addresses.reshape(-1).tolist():
            if not self._is_allocated(address, width):
                return self._build_bounds_fault(addresses, width)
            state = self._combined_state(address, width)
            if state & IN_FLIGHT:
                return Fault("unarrived-read", f"shared address {address:#x} is read{self.explain(address)}")
            if not state & VALID:
                return Fault("unwritten-read", f"{width} bytes at shared address {address:#x} were never written")
        return Fault("unwritten-read", "shared memory that was never written")

    def _end_barriers_or_fail(self, addresses: Array, width: int, by: Array | None) -> None:
        """End mbarriers in the way of a write by threads `by` (None: actor 0); fault if anything else prevents the
        write."""
        if self.is_shared:
            actors = np.zeros(len(addresses), np.int64) if by is None else by
            self.end_barriers(np.concatenate([addresses, addresses + width - 1]), np.concatenate([actors, actors]))
            mask, wanted = self._writable[width]
            if not np.count_nonzero((self._shadow[width][self._find_elements(addresses, width)] & mask) != wanted):
                return
            for address in addresses.reshape(-1).tolist():
                if self._is_allocated(address, width) and self._combined_state(address, width) & IN_FLIGHT:
                    raise self._build_unwritable_fault_at(address)
        raise self._build_bounds_fault(addresses, width)

    def _build_unwritable_fault_at(self, address: int) -> Fault:
        """Return a fault for a write to one address: outside of all allocations, or else owned by a copy in flight."""
        if not self._is_allocated(address, 1):
            return Fault("out-of-bounds", f"{self.name} address {address:#x}{self._describe_nearest(address)}")
        return Fault("unarrived-write", f"shared address {address:#x} is overwritten{self.explain(address)}")


def _find_foreign_bytes(owners: Array, tag: int) -> Array | None:
    """Return a mask [*elements, byte] of bytes whose owner is another cluster than `tag`; None if there are none."""
    if not np.count_nonzero((owners != 0) & (owners != _repeat_byte(tag, owners.dtype.itemsize))):
        return None
    # Bytes that no cluster has written are not foreign.
    parts = _view_bytes(owners)
    foreign: Array = (parts != 0) & (parts != tag)
    return foreign


def _view_bytes(elements: Array) -> Array:
    """Return elements as bytes, in a new last axis."""
    return np.ascontiguousarray(elements)[..., None].view(np.uint8)


def _find_first_marked(parts: Array, offset: OffsetFunction) -> int:
    """Return the offset in memory of the first marked byte of elements, [*elements, byte]."""
    element = np.argwhere(parts)[0].tolist()
    return offset(tuple(element[:-1])) + int(element[-1])


def _build_offset_function(index: Array, width: int) -> OffsetFunction:
    """Return a function from an element's position to its offset, for elements at `index * width`; 16 bytes are two
    halves."""
    return lambda at: int(index[at[0]]) * width + sum(at[1:]) * 8


def _repeat_per_width(byte: int) -> dict[int, Any]:
    """Return numbers that repeat this byte, by access width; 16 bytes are two halves of 8."""
    return {width: _repeat_byte(byte, min(width, 8)) for width in (1, 2, 4, 8, 16)}


_WRITTEN = _repeat_per_width(VALID | UNFENCED)
_OWNED = _repeat_per_width(IN_FLIGHT)
_ARRIVED = _repeat_per_width(VALID)
_COPIED = _repeat_per_width(VALID | COPIED)
_POISONED = _repeat_per_width(POISON)
