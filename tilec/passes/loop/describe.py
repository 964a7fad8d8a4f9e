"""Names of statements in messages, schedules and traces."""

from __future__ import annotations

from tilec.ir import tile
from tilec.passes.memory.multicast import get_multicast_axes


def describe_statement(stmt: tile.Stmt) -> str:
    """Return a statement's short name for messages and traces, such as `copy A → A_shared` or `for k`."""
    match stmt:
        case tile.TileOp(moves=True, name=name, regions=(source, destination)):
            shared = f" multicast along {axes}" if (axes := get_multicast_axes(stmt)) else ""
            return f"{name} {source.buffer.name} → {destination.buffer.name}{shared}"
        case tile.TileOp(name=name, regions=regions):
            return f"{name} {', '.join(r.buffer.name for r in regions)}".rstrip()
        case tile.Parallel():
            written = dict.fromkeys(s.buffer.name for s in tile.walk_statements(stmt.body) if isinstance(s, tile.Store))
            return f"parallel {', '.join(written)}" if written else "print"
        case tile.For(var=var):
            return f"for {var.name}"
        case tile.If() | tile.While() | tile.Break() | tile.Print():
            return type(stmt).__name__.lower()
        case tile.Store(buffer=buffer):
            return f"store {buffer.name}"
        case tile.Bind(var=var):
            return f"bind {var.name}"
