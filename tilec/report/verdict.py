"""Summarises a report in three lines: the kernel's time, what bounds it, and what to try."""

from __future__ import annotations

from tilec.passes.cost.report import Report
from tilec.support.shares import show_share


def summarise_report(report: Report, spilled_bytes: int, sms: int) -> tuple[str, str, str]:
    """Return the prediction, what binds it, and one piece of advice."""
    kernel = f"{report.kernel} on {report.machine}{report.assumption}"
    first = f"{report.at(report.predicted):,.1f} µs predicted for {report.counted_blocks} of {kernel}."
    near = (
        "the prediction is the roofline itself"
        if report.is_a_bound
        else f"{show_share(report.achieved)} of the roofline's rate"
    )
    second = f"Bound by {report.bound}; {near if report.roofline else 'no roofline is known'}."
    return first, second, f"Advice: {_choose_advice(report, spilled_bytes, sms)}."


def _choose_advice(report: Report, spilled_bytes: int, sms: int) -> str:
    if spilled_bytes:
        return "registers are spilled to memory: use a smaller tile, or more threads"
    if report.bound == "DRAM bandwidth":
        return "move fewer bytes, with narrower types or by fusing kernels; no schedule helps"
    if report.ctas < sms and not report.is_one_wave:
        return f"{report.ctas:,} of {sms} multiprocessors have a block: use smaller tiles, or split the longest loop"
    if report.bound == "L2 bandwidth" or report.bound.startswith("bandwidth of"):
        return "use larger tiles, which load fewer bytes for each product, or a cluster with multicast"
    if report.bound.startswith("latency of"):
        return "raise num_stages, or use a smaller tile, so that more blocks fit on a multiprocessor"
    if report.bound.startswith("statements outside"):
        return "put the loads and their uses into a T.Pipelined loop"
    if report.bound.startswith("statements around"):
        return "give each block more iterations, or make the kernel persistent"
    if report.achieved >= 0.8:
        return "the model sees little to gain; measure it"
    return "try other tiles and options: tilec tune"
