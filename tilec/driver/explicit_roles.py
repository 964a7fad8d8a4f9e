"""Passes over kernels that assign their work to roles explicitly: mechanisms, and checks of barriers and races."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilec.driver.work import Work

if TYPE_CHECKING:
    from tilec.driver.observer import Observer
    from tilec.ir.tile import Kernel
    from tilec.passes.explicit_roles.protocol import Role

_BARRIER_MISTAKES = ("bad-cta-pair", "unbalanced-acquires", "missing-arrival", "barrier-deadlock", "transaction-bytes")
"""Errors that may follow from one another: only the first is reported."""


def split_roles(work: Work, observer: Observer) -> Work:
    """Split the kernel into one block of statements for each role."""
    from tilec.passes.explicit_roles.split_roles import split_roles

    return replace(work, kernel=split_roles(work.kernel))


def check_role_pairs(work: Work, observer: Observer) -> Work:
    """Check that products of CTA pairs are possible, and that TMA fills their tiles."""
    from tilec.passes.explicit_roles.role_pairs import check_cta_pairs

    if not work.mistakes.met:  # after an error a product may be missing
        with work.mistakes.caught():
            check_cta_pairs(work.kernel)
    return work


def check_tensor_memory(work: Work, observer: Observer) -> Work:
    """Check that the roles' tensor memory fits the machine."""
    from tilec.passes.layout.tensor_memory import check_columns

    if work.target.has("tcgen05"):
        with work.mistakes.caught():
            check_columns(work.kernel, work.target)
    return work


def role_mechanisms(work: Work, observer: Observer) -> Work:
    """Choose mechanisms for operations that only roles have, on the tile versions that they name."""
    from tilec.passes.explicit_roles.role_mechanisms import assign_role_mechanisms

    kernel, versions = assign_role_mechanisms(work.kernel, work.target)
    return replace(work, kernel=kernel, versions=versions)


def expected_bytes(work: Work, observer: Observer) -> Work:
    """Set the expected bytes of pipeline stages to the bytes that TMA brings."""
    from tilec.passes.explicit_roles.expected_bytes import compute_expected_bytes

    return replace(work, kernel=compute_expected_bytes(work.kernel, work.target))


def check_role_registers(work: Work, observer: Observer) -> Work:
    """Check that the roles' registers fit the machine."""
    from tilec.passes.explicit_roles.role_registers import check_role_registers

    with work.mistakes.caught():
        check_role_registers(work.kernel, work.assignment.roles, work.target)
    return work


def check_stage_counts(work: Work, observer: Observer) -> Work:
    """Check that all roles acquire equally many stages of each pipeline."""
    from tilec.passes.explicit_roles.pipeline_counts import check_stage_counts

    return _check_role_kernels(work, check_stage_counts)


def check_barriers(work: Work, observer: Observer) -> Work:
    """Check that no role waits for ever at a barrier, and that expected bytes are the bytes that come."""
    from tilec.passes.explicit_roles.protocol import check_barriers

    return _check_role_kernels(work, check_barriers)


def check_role_races(work: Work, observer: Observer) -> Work:
    """Check that barriers order all accesses of two roles to the same elements."""
    from tilec.passes.explicit_roles.role_races import check_role_races

    return _check_role_kernels(work, check_role_races)


def _check_role_kernels(work: Work, check: Callable[[Kernel, Sequence[Role]], None]) -> Work:
    from tilec.ir.tile import walk_statements
    from tilec.ops.placeholder import is_refused
    from tilec.passes.explicit_roles.protocol import Role

    # A refused statement may have been an arrival.
    if work.mistakes.has(*_BARRIER_MISTAKES) or any(map(is_refused, walk_statements(work.kernel.body))):
        return work
    with work.mistakes.caught():
        check(work.kernel, [Role(part.name, part.assignment.kernel, part.is_common) for part in work.assignment.roles])
    return work
