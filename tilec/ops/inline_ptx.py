"""T.ptx: instructions that a kernel's author writes."""

from __future__ import annotations

from tilec.ops.signature import Parameter, Signature

PTX = Signature("T.ptx", (Parameter("text"), Parameter("ins", ()), Parameter("dtype", None), Parameter("out", None)))
"""`text` with {0} for the result and {1} and on for `ins`; `dtype` of the result; `out` is what a statement sets."""
