"""What ALCOP's kernels compute, by numpy."""

from __future__ import annotations

import numpy as np
from references import Array, Outputs, sample


@sample("alcop/matmul", M=128, N=72, K=160)
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B}


@sample("alcop/bmm", batch=2, M=128, N=64, K=96)
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B}


@sample(
    "alcop/conv2d", batch=2, H=7, W=7, C=64, F=64, also=({"stride": 2, "dilation": 2, "H": 9},), stride=1, dilation=1
)
def _(X: Array, weight: Array, stride: int, dilation: int) -> Outputs:
    reach = 2 * dilation + 1
    padded = np.pad(X, ((0, 0), (dilation, dilation), (dilation, dilation), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), (1, 2))[:, ::stride, ::stride]
    rows = np.moveaxis(seen[..., ::dilation, ::dilation], 3, 5).reshape(-1, weight.shape[0])
    return {"Y": rows @ weight}


@sample(
    "alcop/conv3d", batch=2, D=2, H=5, W=7, C=64, F=64, also=({"stride": 2, "dilation": 2},), stride=1, dilation=1
)
def _(X: Array, weight: Array, stride: int, dilation: int) -> Outputs:
    reach = 2 * dilation + 1
    padded = np.pad(X, ((0, 0), *[(dilation, dilation)] * 3, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (reach,) * 3, (1, 2, 3))
    seen = windows[:, ::stride, ::stride, ::stride, :, ::dilation, ::dilation, ::dilation]
    rows = np.moveaxis(seen, 4, 7).reshape(-1, weight.shape[0])
    return {"Y": rows @ weight}
