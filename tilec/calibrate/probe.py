"""A probe: a kernel that times a chain of one instruction by the clock of its multiprocessor.

Its text is a frame around a body. The body runs a loop `trip_count` times, with the chain unrolled in it; the time of
one operation is the difference between a long and a short run, divided by the difference of their operations, so that
neither the launch nor the code around the loop counts. Each thread leaves a word by which the work is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir import manifest as launch
from tilec.ptx.text import print_variable
from tilec.support.records import dataclass
from tilec.support.sizes import Shape
from tilec.target.names import Feature

Array = NDArray[Any]

ROW_BYTES = 128
"""The bytes of a row of the probes' memory: the widest box with a swizzle of 128 bytes."""
BARS_BYTES = 64
"""The bytes of mbarriers, behind the shared memory that a probe asks for."""
DYNAMIC_ALIGNMENT, SMEM_ALIGNMENT = 16, 1024
"""With nvJitLink, dynamic shared memory begins at a multiple of the first only, whatever `.align` it is declared with;
a box under the widest swizzle begins at a multiple of the second. So probes align it themselves."""
POLLS = 1 << 22
"""The failed polls of an mbarrier after which a probe traps, instead of hanging: the host sees an error."""


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of a result: iterations of the loop, blocks, and the words of the memory before the launch."""

    trip_count: int
    blocks: int
    words: Array


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe and its launch.

    `readings` are what thread 0 of each block leaves in %t0, %t1, …: clock cycles, or nanoseconds where the name ends
    in `ns`. An iteration of the loop holds `operations` of the instruction. `trip_count` has those of the short and the
    long run. With `rows`, the kernel has that many rows of memory, zero at first, and with `box` a tensor map of it
    with that many rows a box. `expected` returns the word of each thread, within a relative `tolerance` for floats.
    """

    name: str
    body: str
    expected: Callable[[Run], Array]
    operations: int = 1
    trip_count: tuple[int, int] = (64, 1024)
    threads: int = 32
    smem_bytes: int = 0
    features: tuple[Feature, ...] = ()
    readings: tuple[str, ...] = ("cycles",)
    fills_chip: bool = False
    rows: int = 0
    box: int = 0
    registers: tuple[str, ...] = field(default=())
    tolerance: float = 0.0

    @property
    def entry(self) -> str:
        """Return the name of the probe's PTX entry: `probe_` and its name, with _ for signs."""
        return "probe_" + "".join(c if c.isalnum() else "_" for c in self.name)

    @property
    def figures(self) -> tuple[str, ...]:
        """Return the names of the probe's figures, one per reading: its own name, and the reading unless that is
        cycles.
        """
        return tuple(self.name if reading == "cycles" else f"{self.name} {reading}" for reading in self.readings)


def build_manifest(probe: Probe, target: str) -> launch.Manifest:
    """Return the probe's launch manifest: tensors for readings and words, and memory or tensor map if it has them.

    `blocks` and `rows` are given at launch.
    """
    memory: Shape = ("rows", ROW_BYTES // 2)
    tensors = [
        launch.TensorInfo("times", "int64", ("blocks", len(probe.readings)), "out"),
        launch.TensorInfo("result", "uint32", ("blocks", probe.threads), "out"),
    ]
    params: list[launch.Param] = [
        launch.PointerParam("times"),
        launch.PointerParam("result"),
        launch.ScalarParam("trips", "uint32"),
    ]
    scalars = [launch.ScalarInfo("trips", "uint32"), launch.ScalarInfo("blocks", "uint32")]
    if probe.rows:
        tensors.append(launch.TensorInfo("memory", "bfloat16", memory, "zeroed"))
        params += [launch.PointerParam("memory"), launch.ScalarParam("rows", "uint32")]
        scalars.append(launch.ScalarInfo("rows", "uint32"))
    if probe.box:
        params.append(launch.TensorMapParam("memory", "bfloat16", (probe.box, ROW_BYTES // 2), 128))
    smem = SMEM_ALIGNMENT - DYNAMIC_ALIGNMENT + _compute_barriers_offset(probe) + BARS_BYTES
    return launch.Manifest(
        probe.entry, target, ("blocks", 1, 1), (probe.threads, 1, 1), (1, 1, 1), dynamic_smem=smem,
        tensors=tuple(tensors), scalars=tuple(scalars), params=tuple(params),
    )  # fmt: skip


def build_ptx(probe: Probe, target: str, version: str) -> str:
    """Return the probe's whole PTX module: its body in a frame that sets registers up and stores readings and words.
    The body finds the thread in %thread, its warp and lane in %warp and %lane, the block in %block, shared memory at
    %smem, and the iterations in the parameter `trips`; it leaves its readings in %t0 … and the thread's word in %word.
    """
    params = [".param .u64 times", ".param .u64 result", ".param .u32 trips"]
    params += [".param .u64 memory", ".param .u32 rows"] if probe.rows else []
    params += [".param .align 64 .b8 map[128]"] if probe.box else []
    declared = "\n".join(f"    .reg {text};" for text in probe.registers)
    words = "\n".join(f"    st.global.u64 [%address+{8 * index}], %t{index};" for index, _ in enumerate(probe.readings))
    return f"""\
.version {version}
.target {target}
.address_size 64

{print_variable(launch.manifest_variable(build_manifest(probe, target)))}
.extern .shared .align {DYNAMIC_ALIGNMENT} .b8 smem[];

.visible .entry {probe.entry}({", ".join(params)})
.reqntid {probe.threads}, 1, 1
.minnctapersm 1
{{
    .reg .b32 %thread, %lane, %warp, %block, %smem, %bars, %left, %word, %polls, %place;
    .reg .b64 %t<4>, %begin, %end, %address, %memory, %map;
    .reg .pred %first, %more, %done, %lost;
    .reg .b32 %r<40>;
    .reg .b64 %rd<16>;
    .reg .f32 %f<32>;
    .reg .pred %p<4>;
{declared}
    mov.u32 %thread, %tid.x;
    and.b32 %lane, %thread, 31;
    shr.u32 %warp, %thread, 5;
    mov.u32 %block, %ctaid.x;
    mov.u32 %smem, smem;
    add.u32 %smem, %smem, {SMEM_ALIGNMENT - 1};
    and.b32 %smem, %smem, {-SMEM_ALIGNMENT};
    add.u32 %bars, %smem, {_compute_barriers_offset(probe)};
    setp.eq.u32 %first, %thread, 0;
    mov.u32 %word, 0;
    mov.u64 %t0, 0;
    mov.u64 %t1, 0;
    mov.u64 %t2, 0;
    mov.u64 %t3, 0;
{_emit_memory_parameters(probe)}{probe.body}
    ld.param.u64 %address, [times];
    cvta.to.global.u64 %address, %address;
    mad.wide.u32 %address, %block, {8 * len(probe.readings)}, %address;
    @!%first bra LEAVE;
{words}
LEAVE:
    mad.lo.u32 %place, %block, {probe.threads}, %thread;
    ld.param.u64 %address, [result];
    cvta.to.global.u64 %address, %address;
    mad.wide.u32 %address, %place, 4, %address;
    st.global.b32 [%address], %word;
    ret;
}}
"""


def _compute_barriers_offset(probe: Probe) -> int:
    """Return the offset of the mbarriers in bytes: the probe's shared memory, rounded up to 8."""
    return -(-probe.smem_bytes // 8) * 8


def _emit_memory_parameters(probe: Probe) -> str:
    """Return PTX that sets %memory and %map from the parameters, as far as the probe has them."""
    text = "    ld.param.u64 %memory, [memory];\n    cvta.to.global.u64 %memory, %memory;\n" if probe.rows else ""
    return text + ("    mov.u64 %map, map;\n    cvta.param.u64 %map, %map;\n" if probe.box else "")


def emit_loop(body: str, name: str = "LOOP") -> str:
    """Return PTX of a loop labelled `name` that runs the body as often as parameter `trips` says; %left counts down to
    1.
    """
    return f"""    ld.param.u32 %left, [trips];
{name}:
{body}
    sub.u32 %left, %left, 1;
    setp.ne.u32 %more, %left, 0;
    @%more bra {name};
"""


def emit_timed(inner: str, reading: int = 0) -> str:
    """Return PTX that runs the inner code and leaves its clock cycles in %t<reading>.

    The inner code is best a loop: the clock is then read in blocks of its own.
    """
    return f"""    mov.u64 %begin, %clock64;
{inner}    mov.u64 %end, %clock64;
    sub.u64 %t{reading}, %end, %begin;
"""


def emit_timed_twice(inner: str) -> str:
    """Return PTX that runs the inner code and leaves its time in cycles in %t0 and in nanoseconds in %t1."""
    return f"""    mov.u64 %t2, %globaltimer;
{emit_timed(inner)}    mov.u64 %t3, %globaltimer;
    sub.u64 %t1, %t3, %t2;
"""


def emit_fill(size: int, threads: int, word: str, is_async: bool = False) -> str:
    """Return PTX in which all `threads` threads of a block fill `size` bytes of shared memory, and then meet. `word` is
    PTX that computes in %r2 the word at offset %r0. With `is_async` each thread fences its writes for the asynchronous
    proxy.
    """
    return f"""    shl.b32 %r0, %thread, 2;
FILL:
    add.u32 %r1, %smem, %r0;
{word}
    st.shared.b32 [%r1], %r2;
    add.u32 %r0, %r0, {4 * threads};
    setp.lt.u32 %p0, %r0, {size};
    @%p0 bra FILL;
{"    fence.proxy.async.shared::cta;" if is_async else ""}
    bar.sync 0;
"""


def emit_barriers(count: int) -> str:
    """Return PTX in which thread 0 initialises `count` mbarriers at %bars, of one arrival each; then all meet."""
    inits = "\n".join(f"    @%first mbarrier.init.shared::cta.b64 [%bars+{8 * index}], 1;" for index in range(count))
    return f"{inits}\n    @%first fence.mbarrier_init.release.cluster;\n    bar.sync 0;\n"


def emit_wait(bar: int, parity: str, label: str) -> str:
    """Return PTX that polls mbarrier number `bar` until its phase of this parity, an operand, ends; too many polls
    trap. Its labels begin with `label`.
    """
    return f"""    mov.u32 %polls, 0;
{label}:
    mbarrier.try_wait.parity.shared::cta.b64 %done, [%bars+{8 * bar}], {parity};
    @%done bra {label}_OVER;
    add.u32 %polls, %polls, 1;
    setp.lt.u32 %lost, %polls, {POLLS};
    @%lost bra {label};
    trap;
{label}_OVER:
"""


def expect_same_word(
    value: Callable[[Run], int | float], threads: int, dtype: Any = np.uint32
) -> Callable[[Run], Array]:
    """Return the function of a run's expected words: every thread of every block has value(run)."""
    return lambda run: np.full((run.blocks, threads), value(run), dtype)
