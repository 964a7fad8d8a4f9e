"""Runs blocks in the emulator and records each warp's instructions, with the data that decide their time.

An entry of a warp's trace is the step and its run-time detail: shared-memory transactions (with the bank conflicts of
the addresses), bytes of global-memory sectors, the barrier and its phase, the number of arrivals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.barriers.mbarrier import to_shared_address
from tilec.emu.machine.steps import StopCluster
from tilec.emu.memory.memory import SHARED_RANK_SHIFT
from tilec.emu.tma.bulk import read_tensor_map
from tilec.ptx.module import Address, Imm, Operand, TensorAddress
from tilec.simulate import instructions
from tilec.simulate.control_slice import skip_numbers
from tilec.simulate.costs import InstructionCosts
from tilec.simulate.machine_code import MachineLines
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.decode import Program
    from tilec.emu.machine.machine import Cta, Group, Threads
    from tilec.emu.numbers import Array
    from tilec.emu.tma.tensormap import MapLayout

SECTOR_BYTES = 32
TRANSACTION_BYTES = 128
"""Bytes of one shared-memory transaction."""
MAX_ENTRIES = 240_000
"""Entries recorded of a block; further instructions are only counted."""
INACTIVE = -1
"""The detail of an entry with no active lane."""
Detail = Any
Entry = tuple[int, Detail]
DetailReader = Callable[["Cta", "Group", "Threads"], list[Detail]]
"""Reads, for a step and its threads, the detail of each warp of the group."""


@dataclass(slots=True, eq=False)
class BlockTrace:
    """The trace of one block."""

    position: tuple[int, int, int]
    warps: list[list[Entry]]
    loads: dict[int, int] = field(default_factory=dict)
    """Bytes of global memory that each step requests from L2."""
    stored: int = 0
    pieces: dict[tuple[int, ...], tuple[int, int]] = field(default_factory=dict)
    """The pieces of global memory that it loads: their bytes, and the step that loads them first."""
    watched: dict[int, int] = field(default_factory=dict)
    """Bytes of each step's loads that `pieces` covers."""
    length: int = 0
    """Warp instructions; more than the entries if only the beginning is recorded."""
    counts: dict[int, int] = field(default_factory=dict)
    """Executions of each step, by warps."""
    seen: dict[int, int] = field(default_factory=dict)
    """Recorded executions of each step."""
    details: dict[int, Detail] = field(default_factory=dict)
    """The last detail of each step."""
    passes: dict[tuple[int, int], int] = field(default_factory=dict)
    """Passes of each warp (first) by each back branch (second)."""

    @property
    def loaded(self) -> int:
        """Return the bytes that all steps request from L2."""
        return sum(self.loads.values())

    @property
    def part(self) -> float:
        """Return the fraction of the block's warp instructions that is recorded. Loaded and stored bytes are of that
        fraction too."""
        return sum(self.seen.values()) / max(1, sum(self.counts.values()))


class BlockRecorder:
    """Records the clusters numbered in `whole`; any other cluster is followed until a block has loaded `most_bytes`.
    `numbers` are all clusters that run, in order; `lines` is the machine code by lines of the PTX."""

    def __init__(
        self,
        program: Program,
        costs: InstructionCosts,
        whole: Collection[int],
        numbers: Sequence[int] = (0,),
        most_bytes: int = 0,
        lines: MachineLines | None = None,
    ) -> None:
        self.program = program
        self.numbers = numbers
        self.whole = frozenset(whole)
        self.most_bytes = most_bytes
        self._is_whole = True
        self.instructions = instructions.build_instructions(program, costs, lines)
        self.skips_numbers = skip_numbers(program)
        self.loops = instructions.find_back_branches(program)
        self.looks = [self._select_reader(instruction) for instruction in self.instructions]
        self.clusters: dict[int, list[BlockTrace]] = {}
        self._blocks: dict[int, BlockTrace] = {}
        self._last: dict[int, list[int]] = {}
        self._current: object = None
        self._warps: dict[IdentityKey[Array], list[int]] = {}
        self._controls = [step.control is not None and step.stem != "bra" for step in program.steps]
        self._is_store = [instruction.move in ("st.global", "tma.store") for instruction in self.instructions]
        self._is_free = [instruction.deed == "free" for instruction in self.instructions]
        self._transactions: dict[bytes, int] = {}

    def note(self, cta: Cta, group: Group, pc: int, threads: Threads | None) -> None:
        """Record a step of a group's warps, unless free or resumed, beyond the limit only its count; may raise
        `StopCluster`. It does so when a cluster that is only watched has loaded enough."""
        if cta.cluster is not self._current:
            self._begin_cluster(cta)
        block = self._blocks[cta.rank]
        warps = self._warps_of(group)
        last = self._last[cta.rank]
        if self._controls[pc] and all(last[warp] == pc for warp in warps):
            return  # the same instruction, resumed after a wait
        if self._is_free[pc]:
            return
        for warp in warps:
            last[warp] = pc
        block.length += len(warps)
        if threads is not None:
            block.counts[pc] = block.counts.get(pc, 0) + len(warps)
        if pc in self.loops:
            for warp in warps:
                block.passes[warp, pc] = block.passes.get((warp, pc), 0) + 1
        if block.length > MAX_ENTRIES:
            look = self.looks[pc]
            if self._is_store[pc] and threads is not None and look is not None:
                look(cta, group, threads)  # counts the bytes of stores, which often come at the very end
            return
        self._append_entries(cta, group, pc, threads, block, warps)
        if not self._is_whole and block.loaded >= self.most_bytes:
            raise StopCluster

    def _append_entries(
        self, cta: Cta, group: Group, pc: int, threads: Threads | None, block: BlockTrace, warps: Sequence[int]
    ) -> None:
        """Append the step to the traces of these warps with its detail: INACTIVE without an active lane, None if it has
        none."""
        look = self.looks[pc]
        if threads is not None:
            block.seen[pc] = block.seen.get(pc, 0) + len(warps)
        if threads is None or look is None:
            entry = (pc, INACTIVE if threads is None else None)
            for warp in warps:
                block.warps[warp].append(entry)
            return
        for warp, detail in zip(warps, look(cta, group, threads), strict=True):
            block.warps[warp].append((pc, detail))
            if detail != INACTIVE:
                block.details[pc] = detail

    def _begin_cluster(self, cta: Cta) -> None:
        """Begin empty traces for the blocks of a cluster, which is now the current one."""
        self._current = cta.cluster
        count = -(-cta.thread_count // 32)
        made = [BlockTrace(each.position, [[] for _ in range(count)]) for each in cta.cluster.ctas]
        number = self.numbers[cta.cluster.number]
        self.clusters[number] = made
        self._is_whole = number in self.whole
        self._blocks = dict(enumerate(made))
        self._last = {rank: [-1] * count for rank in self._blocks}
        self._warps = {}

    def _warps_of(self, group: Group) -> list[int]:
        """Return the numbers of the warps in a group, kept by its array of threads."""
        known = self._warps.get(IdentityKey(group.indices))
        if known is None:
            known = self._warps[IdentityKey(group.indices)] = np.unique(group.indices >> 5).tolist()
        return known

    def _read_by_warp(
        self, cta: Cta, group: Group, threads: Threads, read_warp: Callable[[Array], Detail]
    ) -> list[Detail]:
        """Return a detail for each warp of the group, read from its active lanes' positions; INACTIVE if it has
        none."""
        members = cta.thread_ids[threads] >> 5
        warps = self._warps_of(group)
        if len(warps) == 1:
            return [read_warp(np.arange(len(members)))]
        found = []
        for warp in warps:
            places = np.flatnonzero(members == warp)
            found.append(read_warp(places) if len(places) else INACTIVE)
        return found

    def _select_reader(self, instruction: instructions.Instruction) -> DetailReader | None:
        """Return the function that reads an instruction's details as it runs, by its deed; None if it has none."""
        deed, form = instruction.deed, self.program.build_form(instruction.pc)
        operands = form.operands
        if deed in ("load", "store") and instruction.move is not None and instruction.move.startswith("tcgen05"):
            size = 4 * 32 * max(1, len(getattr(operands[0 if deed == "load" else -1], "items", ())))
            return lambda cta, group, threads: [size] * len(self._warps_of(group))
        if deed in ("load", "store"):
            address = next((operand for operand in operands if isinstance(operand, Address)), None)
            if address is None:  # a shuffle
                return lambda cta, group, threads: [TRANSACTION_BYTES] * len(self._warps_of(group))
            pointer, width = form.build_address(address), instructions.count_access_bytes(instruction.text)
            is_matrix = "matrix" in instruction.text
            rows = 8 * instructions.count_matrices(instruction.text) if is_matrix else 32
            if instruction.move in ("ld.shared", "st.shared", "ldmatrix"):
                return self._build_shared_reader(pointer, width, rows)
            return self._build_global_reader(instruction.pc, pointer, width, is_load=deed == "load")
        if deed == "copy":
            pointer = form.build_address(operands[1])
            assert isinstance(operands[2], Imm)
            return self._build_global_reader(instruction.pc, pointer, operands[2].value, is_load=True)
        if deed == "bulk.load" and instruction.text.startswith("cp.async.bulk.tensor"):
            return self._build_tensor_reader(instruction.pc, form, operands, is_load=True)
        if deed == "bulk.load":
            return self._build_range_reader(instruction.pc, form, operands)
        if deed == "bulk.store" and isinstance(operands[0], TensorAddress):
            return self._build_tensor_reader(instruction.pc, form, operands, is_load=False)
        if deed == "bulk.store":
            return self._build_store_reader(form, operands)
        if deed == "copy.arrive":
            return self._build_arrival_reader(form.build_address(operands[0]), -1)
        if deed in ("mbarrier.init", "mbarrier.expect"):
            return self._build_arrival_reader(form.build_address(operands[0]), form.read(operands[1], "u32"))
        if deed == "mbarrier.arrive":
            amount = form.read(operands[2], "u32") if len(operands) > 2 else -1
            return self._build_arrival_reader(form.build_address(operands[1]), amount)
        if deed == "mbarrier.wait":
            wanted = form.read(operands[2], "u32" if instruction.flag else "u64")
            return self._build_arrival_reader(form.build_address(operands[1]), wanted, is_wait=True)
        if deed == "tcgen05.commit":
            mask = form.read(operands[1], "u16") if len(operands) > 1 else -1
            return self._build_arrival_reader(form.build_address(operands[0]), mask)
        if deed == "barrier":
            number = form.read(operands[0], "u32")
            count = form.read(operands[1], "u32") if len(operands) > 1 else -1
            return self._build_barrier_reader(number, count)
        if deed == "tcgen05.mma":
            return self._build_product_reader(
                form.read(operands[3], "b32"), instruction.number, isinstance(operands[1], Address)
            )
        return None

    def _build_shared_reader(self, pointer: Callable[[Cta, Threads], Any], width: int, rows: int) -> DetailReader:
        """Return a reader of the bytes of shared-memory transactions, 128 for each access of the fullest bank."""

        def read_details(cta: Cta, group: Group, threads: Threads) -> list[Detail]:
            """Return, for each warp, the bytes of the transactions that its lanes' addresses take."""
            addresses = pointer(cta, threads)

            def read_warp(places: Array) -> Detail:
                """Return the bytes of one warp's transactions."""
                return TRANSACTION_BYTES * self._find_transactions(addresses[places][:rows], width)

            return self._read_by_warp(cta, group, threads, read_warp)

        return read_details

    def _find_transactions(self, addresses: Array, width: int) -> int:
        """Return the number of transactions for these addresses, looked up if the pattern has been counted before."""
        relative = addresses - (int(addresses.min()) & ~(TRANSACTION_BYTES - 1))
        key = width.to_bytes(1, "little") + relative.astype(np.int32).tobytes()
        known = self._transactions.get(key)
        if known is None:
            known = self._transactions[key] = count_transactions(relative, width)
        return known

    def _add_load(self, block: BlockTrace, pc: int, pieces: Sequence[tuple[tuple[int, ...], int]]) -> None:
        """Add the pieces of memory that a step loads to the block's loads, and watch the first ones of the block."""
        size = sum(size for _, size in pieces)
        block.loads[pc] = block.loads.get(pc, 0) + size
        if block.loaded <= self.most_bytes:
            block.watched[pc] = block.watched.get(pc, 0) + size
            for key, each in pieces:
                block.pieces.setdefault(key, (each, pc))

    def _build_global_reader(
        self, pc: int, pointer: Callable[[Cta, Threads], Any], width: int, *, is_load: bool
    ) -> DetailReader:
        """Return a reader of the bytes of the global-memory sectors that a warp accesses; it adds them to the block's
        totals."""

        def read_details(cta: Cta, group: Group, threads: Threads) -> list[Detail]:
            """Return, for each warp, the bytes of its sectors."""
            addresses = pointer(cta, threads)
            block = self._blocks[cta.rank]

            def read_warp(places: Array) -> Detail:
                """Return the bytes of one warp's sectors; add them to the block's loads or stores, and watch the first
                ones."""
                warp_addresses = addresses[places]
                first = warp_addresses // SECTOR_BYTES
                sectors = np.unique(np.concatenate((first, (warp_addresses + width - 1) // SECTOR_BYTES)))
                size = len(sectors) * SECTOR_BYTES
                if is_load:
                    self._add_load(block, pc, [((sector,), SECTOR_BYTES) for sector in sectors.tolist()])
                else:
                    block.stored += size
                return size

            return self._read_by_warp(cta, group, threads, read_warp)

        return read_details

    def _build_tensor_reader(self, pc: int, form: Any, operands: Sequence[Operand], *, is_load: bool) -> DetailReader:
        """Return a reader of the bytes of a tensor copy and of the mbarriers that it completes on; it adds to the
        block's totals."""
        at = 1 if is_load else 0
        tensor = operands[at]
        assert isinstance(tensor, TensorAddress)
        pointer = form.build_pointer(tensor.map)
        slots = [form.read(coordinate, "s32") for coordinate in tensor.coordinates]
        destination = form.build_address(operands[0]) if is_load else None
        barrier = form.build_address(operands[2]) if is_load else None
        mask = form.read(operands[-1], "u16") if is_load and form.has("multicast::cluster") else -1
        is_gather = form.has("tile::gather4", "tile::scatter4")
        is_paired = form.has("cta_group::2")

        def read_details(cta: Cta, group: Group, threads: Threads) -> list[Detail]:
            """Return, for each warp, the bytes and destinations of its tensor copies."""
            maps = pointer(cta, threads)
            members = cta.thread_ids[threads]
            block = self._blocks[cta.rank]

            def read_warp(places: Array) -> Detail:
                """Return for each lane's tensor copy its bytes, those inside the tensor, and destinations: rank,
                barrier's rank and address; add to block totals."""
                copies: list[tuple[int, int, tuple[tuple[int, int, int], ...]]] = []
                for place in places.tolist():
                    box = read_tensor_map(cta, int(members[place]), int(maps[place]))
                    at = [int(cta.views[slot][threads][place]) for slot in slots]
                    size = box.box_bytes * (4 if is_gather else 1)
                    inside = size if is_gather else count_bytes_inside(box, at)
                    if destination is None or barrier is None:
                        block.stored += inside
                        copies.append((size, inside, ()))
                        continue
                    self._add_load(block, pc, [((int(maps[place]), *at), inside)])
                    owner, _ = _locate_shared(cta, int(destination(cta, threads)[place]))
                    bar_rank, bar = _locate_shared(cta, int(barrier(cta, threads)[place]))
                    ranks = [owner]
                    if mask >= 0:
                        bits = int(cta.views[mask][threads][place])
                        ranks = [rank for rank in range(len(cta.cluster.ctas)) if bits >> rank & 1]
                    holders = [rank & ~1 | bar_rank & 1 if is_paired else rank for rank in ranks]
                    copies.append((size, inside, tuple(zip(ranks, holders, [bar] * len(ranks), strict=True))))
                return tuple(copies)

            return self._read_by_warp(cta, group, threads, read_warp)

        return read_details

    def _build_range_reader(self, pc: int, form: Any, operands: Sequence[Operand]) -> DetailReader:
        """Return a reader of the bytes, added to the block's loads, and mbarriers of a range copy, or a cancellation's
        answer."""
        is_copy = len(operands) >= 4
        barrier = form.build_address(operands[3 if is_copy else 1])
        size_slot = form.read(operands[2], "u32") if is_copy else -1
        mask = form.read(operands[-1], "u16") if is_copy and form.has("multicast::cluster") else -1
        to_all = form.has("multicast::cluster::all")

        def read_details(cta: Cta, group: Group, threads: Threads) -> list[Detail]:
            """Return, for each warp, the bytes and destinations of its range copies."""
            bars = barrier(cta, threads)
            block = self._blocks[cta.rank]

            def read_warp(places: Array) -> Detail:
                """Return for each lane's copy its bytes and destinations: rank, rank again, barrier's address; add to
                the block's loads."""
                copies = []
                for place in places.tolist():
                    size = int(cta.views[size_slot][threads][place]) if size_slot >= 0 else 16
                    rank, bar = _locate_shared(cta, int(bars[place]))
                    block.loads[pc] = block.loads.get(pc, 0) + size
                    ranks: Iterable[int] = range(len(cta.cluster.ctas)) if to_all else [rank]
                    if mask >= 0:
                        bits = int(cta.views[mask][threads][place])
                        ranks = [other for other in range(len(cta.cluster.ctas)) if bits >> other & 1]
                    copies.append((size, size, tuple((other, other, bar) for other in ranks)))
                return tuple(copies)

            return self._read_by_warp(cta, group, threads, read_warp)

        return read_details

    def _build_store_reader(self, form: Any, operands: Sequence[Operand]) -> DetailReader:
        """Return a reader of the bytes that each lane's bulk store moves; it adds them to the block's stores."""
        size_slot = form.read(operands[2], "u32")

        def read_details(cta: Cta, group: Group, threads: Threads) -> list[Detail]:
            """Return, for each warp, the bytes of its lanes' bulk stores."""
            sizes = cta.views[size_slot][threads]
            block = self._blocks[cta.rank]

            def read_warp(places: Array) -> Detail:
                """Return the bytes of each lane's bulk store, with no destinations, and add them to the block's
                stores."""
                block.stored += int(sizes[places].sum())
                return tuple((int(size), int(size), ()) for size in sizes[places])

            return self._read_by_warp(cta, group, threads, read_warp)

        return read_details

    def _build_arrival_reader(
        self, pointer: Callable[[Cta, Threads], Any], slot: int, *, is_wait: bool = False
    ) -> DetailReader:
        """Return a reader of (rank, address, lanes, sum of the lanes' operands, or a wait's own) for each mbarrier that
        lanes name."""

        def read_details(cta: Cta, group: Group, threads: Threads) -> list[Detail]:
            """Return, for each warp, the mbarriers that its lanes name."""
            addresses = pointer(cta, threads)
            numbers = cta.views[slot][threads].astype(np.int64) if slot >= 0 else None

            def read_warp(places: Array) -> Detail:
                """Return one warp's mbarriers: one for all lanes if they name the same, or else one for each lane."""
                if is_wait or (addresses[places] == addresses[places[0]]).all():
                    total = 0 if numbers is None else int(numbers[places[0]] if is_wait else numbers[places].sum())
                    return ((*_locate_shared(cta, int(addresses[places[0]])), len(places), total),)
                found = []
                for place in places.tolist():
                    total = 0 if numbers is None else int(numbers[place])
                    found.append((*_locate_shared(cta, int(addresses[place])), 1, total))
                return tuple(found)

            return self._read_by_warp(cta, group, threads, read_warp)

        return read_details

    def _build_barrier_reader(self, number: int, count: int) -> DetailReader:
        """Return a reader of a named barrier's number and threads, 0 threads if the step does not say."""

        def read_details(cta: Cta, group: Group, threads: Threads) -> list[Detail]:
            """Return, for each warp, the number and threads of its barrier, of its first lane."""
            numbers = cta.views[number][threads]
            counts = cta.views[count][threads] if count >= 0 else np.zeros_like(numbers)
            return self._read_by_warp(cta, group, threads, lambda at: (int(numbers[at[0]]), int(counts[at[0]])))

        return read_details

    def _build_product_reader(self, descriptor: int, group_size: int, from_tensor_memory: bool) -> DetailReader:
        """Return a reader of a product's rows, columns, whether a pair computes it, and whether A is in tensor memory.
        Rows and columns stand in the instruction descriptor."""

        def read_details(cta: Cta, group: Group, threads: Threads) -> list[Detail]:
            """Return, for each warp, the product that its first lane's descriptor describes."""
            bits = cta.views[descriptor][threads]

            def read_warp(places: Array) -> Detail:
                """Return rows and columns from one warp's descriptor, and the product's two fixed properties."""
                word = int(bits[places[0]])
                return (word >> 24 & 0x1F) << 4, (word >> 17 & 0x3F) << 3, group_size == 2, from_tensor_memory

            return self._read_by_warp(cta, group, threads, read_warp)

        return read_details


def count_transactions(addresses: Array, width: int) -> int:
    """Return the accesses of the fullest of 32 four-byte banks by a warp's lanes, summed over turns of 128 bytes, at
    least 1. Lanes that access the same word share it."""
    lanes = max(1, TRANSACTION_BYTES // max(width, 4)) if width > 4 else 32
    total = 0
    for start in range(0, len(addresses), lanes):
        part = addresses[start : start + lanes]
        words = np.unique((part[:, None] // 4 + np.arange(max(1, width // 4))[None, :]).reshape(-1))
        total += int(np.bincount(words & 31).max())
    return max(total, 1)


def count_bytes_inside(box: MapLayout, at: Sequence[int]) -> int:
    """Return the bytes of a tensor map's box at these coordinates that lie inside the tensor: only they are moved. A
    box with gaps, or of pixels of an image, counts whole."""
    if box.columns is not None or any(stride != 1 for stride in box.element_strides):
        return box.box_bytes
    inside = box.box_bytes
    for first, extent, size in zip(at, box.box, box.sizes, strict=True):
        inside = inside * max(min(first + extent, size) - max(first, 0), 0) // extent
    return inside


def _locate_shared(cta: Cta, address: int) -> tuple[int, int]:
    """Return the rank of the block and the local address that a shared-memory address names."""
    address = to_shared_address(address)
    rank = address >> SHARED_RANK_SHIFT
    return (rank - 1 if rank else cta.rank), address & ((1 << SHARED_RANK_SHIFT) - 1)
