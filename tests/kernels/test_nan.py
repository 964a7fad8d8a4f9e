"""What NaN does in each reduction, as docs/language/reductions.md says: max and min pass over it, sums do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.files import read_source
from tilec.support.options import CompileOptions

KERNEL = Path(__file__).parent / "reductions_nan.tl"
NAN = np.nan


@pytest.mark.parametrize("target", ["sm_80", "sm_100a"])
def test_reductions_of_rows_with_nan(target: str) -> None:
    x = np.ones((3, 64), np.float32)
    x[0, 1], x[1, 1], x[1, 2], x[2] = -3, NAN, 7, NAN
    made = build_kernel(read_source(str(KERNEL)), CompileOptions(target=target), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 0)
    given.tensors["X"][...] = x
    emulate.emulate_build(made, given)
    expected = [
        [60, NAN, NAN],  # sum
        [66, NAN, NAN],  # abssum
        [1, 7, NAN],  # max
        [-3, 1, NAN],  # min
        [3, 7, NAN],  # absmax
        [1, 7, -np.inf],  # a reducer of max, which is filled by the least number
        [-3, 1, np.inf],  # and of min
        [28, NAN, NAN],  # T.warp_reduce_sum, of the first 32
        [1, 7, NAN],
        [-3, 1, NAN],
    ]
    np.testing.assert_array_equal(given.tensors["Y"], np.array(expected, np.float32))
