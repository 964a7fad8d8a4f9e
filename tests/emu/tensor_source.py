"""Kernels around tcgen05: allocate, put a matrix into tensor memory, do something, dump all lanes of some columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from ptx_source import kernel

from tilec.emu import Report, launch
from tilec.emu.numbers import Array

SMEM_BYTES = 64 * 1024
SMEM = ".extern .shared .align 1024 .b8 smem[];\n.shared .align 8 .b64 mbar[126];\n.shared .align 16 .b32 slot[4];"
"""A KiB of static variables: dynamic shared memory begins right behind, operands at multiples of their swizzle."""
REGISTERS = ".reg .b32 %v<128>; .reg .b32 %taddr, %mine, %idesc, %m<8>; .reg .b64 %da, %db, %dz;"
ENABLED = "setp.eq.u32 %p2, 0, 1;"

COMMIT = "@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [mbar];"
AFTER = "tcgen05.fence::after_thread_sync;"
BEFORE = "tcgen05.fence::before_thread_sync;"


def wait(name: str = "mbar", parity: int = 0, label: str = "COMMITTED") -> str:
    return f"""
{label}:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [{name}], {parity};
    @!%p3 bra {label};
"""


def prologue(columns: int = 512, *, image_bytes: int = SMEM_BYTES, group: int = 1) -> str:
    """Copies the image of shared memory from `image`, makes an mbarrier, allocates columns. Afterwards %p1 is thread 0,
    %taddr the allocation, %mine the same at the lanes of the warp, %rd0 is `out`."""
    copy = f"""
    mov.u32 %r2, 0;
COPY:
    shl.b32 %r3, %r0, 4;
    add.u32 %r3, %r3, %r2;
    cvt.u64.u32 %rd2, %r3;
    add.u64 %rd2, %rd1, %rd2;
    ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd2];
    mov.u32 %r8, smem;
    add.u32 %r8, %r8, %r3;
    st.shared.v4.b32 [%r8], {{%r4, %r5, %r6, %r7}};
    add.u32 %r2, %r2, 2048;
    setp.lt.u32 %p0, %r2, {image_bytes};
    @%p0 bra COPY;
    fence.proxy.async.shared::cta;
"""
    return f"""
    ld.param.u64 %rd0, [out];
    ld.param.u64 %rd1, [image];
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    setp.eq.u32 %p1, %r0, 0;
    setp.eq.u32 %p4, %r1, 0;
    {copy if image_bytes else ""}
    @%p1 mbarrier.init.shared::cta.b64 [mbar], 1;
    @%p4 tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [slot], {columns};
    bar.sync 0;
    ld.shared.b32 %taddr, [slot];
    shl.b32 %mine, %r1, 21;
    add.u32 %mine, %mine, %taddr;
"""


def epilogue(columns: int = 512, *, group: int = 1) -> str:
    return f"""
    {BEFORE}
    bar.sync 0;
    @%p4 tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
    @%p4 tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %taddr, {columns};
"""


def dump(first: int, columns: int) -> str:
    """out[lane][column] = every lane of these columns, 16 at a time; the row of out has `columns` words."""
    lines = [f"mul.lo.u32 %r10, %r0, {4 * columns};", "cvt.u64.u32 %rd3, %r10;", "add.u64 %rd3, %rd3, %rd0;"]
    for start in range(0, columns, 8):
        names = ", ".join(f"%v{index}" for index in range(8))
        lines.append(f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{names}}}, [%mine+{first + start}];")
        lines.append("tcgen05.wait::ld.sync.aligned;")
        lines += [f"st.global.b32 [%rd3+{4 * (start + index)}], %v{index};" for index in range(8)]
    return "\n    ".join(lines)


def fill(first: int, columns: int) -> str:
    """Every lane of these columns = fill[lane][column]; columns in eights."""
    lines = [
        "ld.param.u64 %rd4, [fill];",
        f"mul.lo.u32 %r10, %r0, {4 * columns};",
        "cvt.u64.u32 %rd5, %r10;",
        "add.u64 %rd4, %rd4, %rd5;",
    ]
    for start in range(0, columns, 8):
        lines += [f"ld.global.b32 %v{index}, [%rd4+{4 * (start + index)}];" for index in range(8)]
        names = ", ".join(f"%v{index}" for index in range(8))
        lines.append(f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%mine+{first + start}], {{{names}}};")
    lines += ["tcgen05.wait::st.sync.aligned;", BEFORE, "bar.sync 0;", AFTER]
    return "\n    ".join(lines)


def tensor_kernel(body: str, *, params: str = ".param .u64 out, .param .u64 image, .param .u64 fill") -> str:
    return kernel(body, params, registers=REGISTERS, variables=SMEM, target="sm_100a", version="9.0")


def run(source: str, out: Array, image: Array, fill_data: Array | None = None, **more: Any) -> Report:
    block = more.pop("block", 128)
    data = np.zeros(4, np.uint32) if fill_data is None else fill_data
    return launch(
        source,
        "k",
        more.pop("grid", 1),
        block,
        [out, image, data],
        dynamic_smem=SMEM_BYTES,
        **more,
    )


def smem_start(static_bytes: int = 32 + 16) -> int:
    """Where dynamic shared memory starts: after the kilobyte of the system and the variables, on 1024 bytes."""
    return -(-(1024 + static_bytes) // 1024) * 1024


def codes(generator: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    """Random elements of a type, specials included where it has them, as codes of 8, 16 or 32 bits."""
    if kind in ("f16", "bf16", "tf32"):
        values = generator.standard_normal(shape).astype(np.float32)
        if kind == "f16":
            return values.astype(np.float16).view(np.uint16)
        bits = values.view(np.uint32)
        return (bits >> np.uint32(16)).astype(np.uint16) if kind == "bf16" else bits
    count = {"e2m1": 16, "e2m3": 64, "e3m2": 64}.get(kind, 256)
    found = generator.integers(0, count, shape).astype(np.uint8)
    if kind == "e4m3":
        found[(found & 0x7F) == 0x7F] = 0x3C
    if kind == "e5m2":
        found[(found & 0x7F) > 0x7B] = 0x3C
    return found


def value_of(code: int, kind: str) -> float:
    """The number that a code stands for, bit by bit, from the definition of the format."""
    if kind == "f16":
        return float(np.array(code, np.uint16).view(np.float16))
    if kind in ("bf16", "tf32"):
        bits = code << 16 if kind == "bf16" else code & 0xFFFFE000
        return float(np.array(bits, np.uint32).view(np.float32))
    if kind in ("s8", "u8"):
        return float(code - 256 if kind == "s8" and code >= 128 else code)
    if kind == "ue8m0":
        return float("nan") if code == 255 else 2.0 ** (code - 127)
    if kind == "ue4m3":
        return value_of(code & 0x7F, "e4m3")
    exponent_bits, mantissa_bits = int(kind[1]), int(kind[3])
    bias = (1 << exponent_bits - 1) - 1
    sign = -1.0 if code >> exponent_bits + mantissa_bits & 1 else 1.0
    exponent, mantissa = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
    if kind == "e4m3" and exponent == 15 and mantissa == 7:
        return float("nan")
    if kind == "e5m2" and exponent == 31:
        return float("nan") if mantissa else sign * float("inf")
    if not exponent:
        return sign * mantissa / (1 << mantissa_bits) * 2.0 ** (1 - bias)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def values_of(matrix: Array, kind: str) -> Array:
    return np.array([value_of(code, kind) for code in matrix.reshape(-1).tolist()]).reshape(matrix.shape)
