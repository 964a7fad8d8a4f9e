"""What the emulator does not know is an error that names the opcode and its line, before anything runs."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from ptx_source import kernel
from test_in_the_wild import INSTRUCTIONS, SPELLINGS, decode, whole

from tilec.emu import Fault, launch

FORMS = [
    "add.foo.s32 %r1, %r2, %r3;",
    "add.s32.s32 %r1, %r2, %r3;",
    "add.f16.f32 %h1, %f2, %h3;",
    "mov.wide.b32 %r1, %r2;",
    "mul.mid.u32 %r1, %r2, %r3;",
    "sub.u32 %r1, %r2, %clock;",
    "cvt.rs.f16x2.f32 %r1, %f1, %f2, %r2;",
    "cvt.rn.e4m3.f32 %h1, %f1;",
    "min.xorsign.s32 %r1, %r2, %r3;",
    "ld.global.secret.u32 %r1, [%rd1];",
    "st.param::entry.u32 [%rd1], %r1;",
    "atom.global.nand.b32 %r1, [%rd1], %r2;",
    "bar.warp.join 1;",
    "shfl.sync.rotate.b32 %r1, %r2, 1, 31, -1;",
    "shfl.bfly.b32 %r1, %r2, 1, 31;",
    "redux.sync.mul.s32 %r1, %r2, -1;",
    "ldmatrix.sync.aligned.m8n16.x1.trans.shared.b8x16.b4x16_p64 {%r1}, [%r2];",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b8 {%r1}, [%r2];",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16.b4x16_p64 {%r1}, [%r2];",
    "ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%r1, %r2, %r3, %r4}, [%r2];",
    "stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r1], {%r2};",
    "mma.sync.aligned.m16n8k4.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1}, {%r2}, {%f1, %f2, %f3, %f4};",
    "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32"
    " {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4};",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32"
    " {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4};",
    "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    " {%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r5, %r6}, {%f1, %f2, %f3, %f4}, %r7, 4;",
    "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%f1, %f2, %f3, %f4, %f5, %f6}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.bf16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
    "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%f1, %f2, %f3, %f4}, %rd1, %rd2, %p1, 1, 1, 1, 0;",
    "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.xor.popc {%r1, %r2, %r3, %r4}, %rd1, %rd2, %p1;",
    "cp.async.bulk.tensor.3d.shared::cta.global.im2col::w.mbarrier::complete_tx::bytes"
    " [%r1], [%rd1, {%r2, %r3, %r4}], [%r5], {%h1, %h2};",
    "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes"
    " [%r1], [%rd1, {%r2, %r3}], [%r5];",
    "cp.async.ca.shared.global [%r1], [%rd1], 12;",
    "st.async.release.global.b32 [%rd1], %r1, [%r2];",
    "multimem.ld_reduce.relaxed.sys.global.add.f32 %f1, [%rd1];",
    "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f5, %f6}];",
    "suld.b.1d.b32.trap %r1, [%rd1, {%r2}];",
    "vset.u32.u32.lt %r1, %r2, %r3;",
    "stacksave.u64 %rd1;",
    "getctarank.u32.fast %r1, %r2;",
]


@pytest.mark.parametrize("instruction", FORMS)
def test_is_named_before_anything_runs(instruction: str) -> None:
    out = np.zeros(1, np.uint32)
    body = f"ld.param.u64 %rd9, [out];\nst.global.u32 [%rd9], 7;\n{instruction}\n"
    source = kernel(body)
    with pytest.raises(Fault) as found:
        launch(source, "k", 1, 1, [out])
    assert found.value.kind == "unsupported"
    assert instruction.split()[0] in str(found.value)
    assert found.value.line == 1 + source.split("\n").index(instruction)
    assert out[0] == 0


def test_no_misspelling_breaks_the_decoder() -> None:
    """A modifier too many is named; with one too few a form is another one or an error, never a crash."""
    for target, group in {"sm_90a": INSTRUCTIONS, **SPELLINGS}.items():
        for index, instruction in enumerate(group):
            opcode, *rest = instruction.rstrip(";").split(" ", 1)
            parts = opcode.split(".")
            with pytest.raises(Fault, match="nonsense"):
                decode(whole([" ".join([f"{opcode}.nonsense", *rest]) + ";"], target=target))
            if len(parts) > 1:
                dropped = 1 + index % (len(parts) - 1)
                fewer = ".".join(parts[:dropped] + parts[dropped + 1 :])
                with suppress(Fault):
                    decode(whole([" ".join([fewer, *rest]) + ";"], target=target))
