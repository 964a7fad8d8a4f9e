"""What `tilec emulate` says of a fault: the element of a tensor or a tile first, the address in a note."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from command import tilec

from tilec.driver.emulation.fault_elements import find_element
from tilec.ir.layout import SharedLayout, swizzled_layout, unswizzled_layout

HEAD = """import tilelang.language as T


@T.prim_func
def kernel(X: T.Tensor((64, 64), "float16"), Y: T.Tensor((2, 64), "float16")):
    with T.Kernel({blocks}, threads=128) as b:
        S = T.alloc_shared((64, 64), "float16")
"""


def fault_of(body: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], *more: str, blocks: int = 1) -> str:
    lines = "".join(f"        {line}\n" for line in body.split("\n"))
    (tmp_path / "kernel.tl").write_text(HEAD.format(blocks=blocks) + lines)
    assert tilec("emulate", "kernel.tl", "--target", "sm_90a", *more) == 1
    said = capfd.readouterr().err
    return said[said.index("error[") :]


def test_a_race_names_the_element_of_the_shared_tile(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = "T.copy(X, S)\nfor i in T.Parallel(64):\n    S[9, 41] = X[i, 0]\nT.copy(S[8:10, :], Y)"
    said = fault_of(body, tmp_path, capfd)
    assert "write different values to S[9, 41] at the same time" in said.splitlines()[0]
    assert "kernel.tl:10:" in said
    assert "note: S[9, 41] is shared address 0x" in said


def test_a_race_names_the_element_of_the_tensor(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = fault_of("for i in T.Parallel(64):\n    Y[1, 5] = X[i, 0]", tmp_path, capfd)
    assert "write different values to Y[1, 5] at the same time" in said.splitlines()[0]
    assert "note: Y[1, 5] is global address 0x" in said


def test_a_race_between_blocks_names_the_element(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = fault_of("for i in T.Parallel(64):\n    Y[1, i] = X[i, 0] + b", tmp_path, capfd, blocks=2)
    assert "Y[1, 0] is written here, and another block has written another value" in said.splitlines()[0]


def test_two_processes_name_it_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = "for i in T.Parallel(64):\n    Y[b, 7] = X[i, 0]"
    assert "to Y[0, 7] at" in fault_of(body, tmp_path, capfd, "--jobs", "2", blocks=2).splitlines()[0]


FOREIGN = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry fills(.param .u64 out)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [out];
    st.global.u32 [%rd0+OFFSET], 7;
    ret;
}
"""


@pytest.mark.parametrize(
    ("offset", "said"), [(64, "0 bytes after the end of out, whose shape is (4, 4)"), (-4, "4 bytes before")]
)
def test_an_access_out_of_bounds_names_the_array(
    offset: int, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fills.ptx").write_text(FOREIGN.replace("OFFSET", str(offset)))
    np.savez(tmp_path / "in.npz", out=np.zeros((4, 4), np.int32))
    assert tilec("emulate", "fills.ptx", "--block", "1", "--arg", "in.npz:out") == 1
    assert f"4 bytes at {said}" in capfd.readouterr().err


@pytest.mark.parametrize(
    "layout",
    [
        swizzled_layout((16, 128), 2),
        swizzled_layout((3, 8, 64), 2),
        swizzled_layout((8, 16), 2),
        unswizzled_layout((5, 12), 4),
        swizzled_layout((32, 32), 4),
    ],
)
def test_every_element_is_found_where_the_layout_puts_it(layout: SharedLayout) -> None:
    for index in itertools.product(*map(range, layout.shape)):
        panel, column = divmod(index[-1], layout.panel)
        row = sum(i * math.prod(layout.shape[d + 1 : -1]) for d, i in enumerate(index[:-1]))
        flat = panel * layout.panel_bytes + row * layout.row_bytes + column * layout.element_bytes
        bits = {0: 0, 32: flat >> 7 & 1, 64: flat >> 7 & 3, 128: flat >> 7 & 7}[layout.swizzle]
        assert find_element(flat ^ bits << 4, layout) == index
