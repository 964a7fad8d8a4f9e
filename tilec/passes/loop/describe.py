"""What statements are called in messages, schedules and traces."""

from __future__ import annotations

from tilec.ir.tile import Bind, Break, For, If, Parallel, Print, Stmt, Store, TileOp, While, walk
from tilec.passes.memory.multicast import shared_axes


def describe(stmt: Stmt) -> str:
    """A short name for messages and traces: `copy A → A_shared`."""
    match stmt:
        case TileOp(moves=True, name=name, regions=(source, destination)):
            shared = f" multicast along {axes}" if (axes := shared_axes(stmt)) else ""
            return f"{name} {source.buffer.name} → {destination.buffer.name}{shared}"
        case TileOp(name=name, regions=regions):
            return f"{name} {', '.join(r.buffer.name for r in regions)}".rstrip()
        case Parallel():
            written = dict.fromkeys(s.buffer.name for s in walk(stmt.body) if isinstance(s, Store))
            return f"parallel {', '.join(written)}" if written else "print"
        case For(var=var):
            return f"for {var.name}"
        case If():
            return "if"
        case While():
            return "while"
        case Break():
            return "break"
        case Store(buffer=buffer):
            return f"store {buffer.name}"
        case Print():
            return "print"
        case Bind(var=var):
            return f"bind {var.name}"
