"""T.ptx: PTX instructions that the author of a kernel writes."""

from __future__ import annotations

from tilec.ops.signature import Parameter, Signature

PTX = Signature("T.ptx", (Parameter("text"), Parameter("ins", ()), Parameter("dtype", None), Parameter("out", None)))
"""`text` has {0} for the result, of type `dtype`, and {1}, {2}, … for `ins`; a statement sets the element `out`."""
