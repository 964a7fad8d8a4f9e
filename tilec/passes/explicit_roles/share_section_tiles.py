"""Find shared tiles of a kernel with explicit roles that may have the memory of tiles of earlier sections.

All warps meet between two sections (`explicit_roles.split_roles`), so that what their threads did to a tile is done.
What they began, copies and products, may go on: the barriers are run with vector clocks (`explicit_roles.role_clocks`),
and a later tile takes over only what is known to be complete, in all blocks of the cluster, at each of its accesses.
That has to hold for clusters anywhere in the grid, all of which do the same, and for any size that only the launch
knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tilec.analysis.rings import find_accesses
from tilec.ir import tile
from tilec.passes.explicit_roles import protocol
from tilec.passes.explicit_roles.known_values import UnknownValue, Values
from tilec.passes.explicit_roles.role_clocks import Actor, LimitReached, Moment, RoleClocks
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment
from tilec.passes.memory.live_ranges import ReusedTiles, align_bytes, find_scalar_uses, is_too_much
from tilec.support.diagnostics import CompileError
from tilec.support.identity import IdentityKey
from tilec.target.table import Target

SAMPLED_CLUSTERS = (0, 1, 7, 1021, 65_521)
"""The numbers, along each axis of the grid, of the clusters whose barriers are run."""


def plan_section_reuse(assignment: LayoutAssignment, target: Target) -> ReusedTiles:
    """Return, for each shared tile, the tiles of earlier sections whose memory it may have; {} for a kernel that fits
    without, and where the run of the barriers says nothing certain."""
    versions = dict(assignment.versions)
    sizes = (align_bytes(layout.bytes) * versions.get(name, 1) for name, layout in assignment.shared.items())
    if not is_too_much(sum(sizes), target):
        return {}
    pairs = set(_find_candidates(assignment))
    runs = [_CompletedAccesses() for _ in SAMPLED_CLUSTERS] if pairs else []
    for cluster, watch in zip(SAMPLED_CLUSTERS, runs, strict=False):
        try:
            is_done = protocol.run_barriers(assignment.kernel, assignment.roles, watch=watch, cluster=cluster)
        except (LimitReached, UnknownValue, CompileError):
            return {}
        if not is_done or watch.visited != runs[0].visited:
            return {}
        unseen = _find_unseen_tiles(assignment.roles, watch.visited)
        pairs = {pair for pair in pairs - watch.unfinished if unseen.isdisjoint(pair)}
    return {late: frozenset(early for other, early in pairs if other == late) for late, _ in pairs}


def _find_candidates(assignment: LayoutAssignment) -> Iterator[tuple[str, str]]:
    """Yield (later tile, earlier tile) for tiles of different sections. Asynchronous copies fill no later tile, and
    store no earlier one: no fence is between these and what the threads do."""
    sections: dict[str, set[int]] = {}
    left_out: set[str] = set()
    filled, stored = set[str](), set[str]()
    for role in assignment.roles:
        left_out |= set(find_scalar_uses(role.kernel.body))
        for stmt in _list_accessing_statements((role,)):
            for name in find_accesses(stmt).all_names & assignment.shared.keys():
                sections.setdefault(name, set()).add(role.section)
            if isinstance(stmt, tile.TileOp):
                filled |= find_accesses(stmt).writes if stmt.signals_barrier else frozenset()
                scopes = [region.buffer.scope for region in stmt.regions]
                stored |= find_accesses(stmt).reads if scopes == ["shared", "global"] else frozenset()
    for late in sections.keys() - left_out - filled:
        for early in sections.keys() - left_out - stored:
            if max(sections[early]) < min(sections[late]):
                yield late, early


def _list_accessing_statements(roles: Iterable[RoleAssignment]) -> Iterator[tile.Stmt]:
    """Yield the operations and nests of these roles, which a run of the barriers shows."""
    for role in roles:
        for stmt in tile.walk_statements(role.kernel.body):
            if isinstance(stmt, tile.TileOp | tile.Parallel):
                yield stmt


def _find_unseen_tiles(roles: Iterable[RoleAssignment], visited: Counter[IdentityKey[tile.Stmt]]) -> frozenset[str]:
    """Return the names of the buffers that a statement accesses which a run of the barriers has not shown."""
    unseen = (stmt for stmt in _list_accessing_statements(roles) if IdentityKey(stmt) not in visited)
    return frozenset(name for stmt in unseen for name in find_accesses(stmt).all_names)


class _CompletedAccesses(RoleClocks):
    """Collects the pairs of a tile and an earlier one that something may still access: `unfinished`. `visited` counts
    how often each statement was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[str, dict[Actor, int]] = {}
        self.visited: Counter[IdentityKey[tile.Stmt]] = Counter()
        self.unfinished: set[tuple[str, str]] = set()

    def visit_accesses(self, role: RoleAssignment, stmt: tile.Stmt, values: Values, moment: Moment) -> None:
        """Compare a statement's accesses with the latest ones of all other tiles."""
        self.visited[IdentityKey(stmt)] += 1
        for name in find_accesses(stmt).all_names:
            for early, accesses in self.latest.items():
                if not all(moment.is_behind(actor, tick) for actor, tick in accesses.items()):
                    self.unfinished.add((name, early))
            mine = self.latest.setdefault(name, {})
            mine[moment.actor] = max(mine.get(moment.actor, 0), moment.tick)
