"""`dataclass(slots=True)`, frozen or not, at a tenth of the standard library's definition cost.

A compiler's nodes are some two hundred classes, and the standard decorator compiles half a dozen methods for each: more
than a tenth of a second before anything has run. Here a class compiles its `__init__` when it is first needed – by the
first instance, `inspect.signature`, `help` – and shares every other method. `dataclasses.replace`, `fields`, `field`
and `match` work as usual, and a type checker sees the standard decorator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any

# The marker of a real field in `dataclasses`; `fields` and `replace` look for it.
_FIELD = vars(dataclasses)["_FIELD"]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, slots, frozen=False, eq=True, kw_only=False):
        """Make a class with slots a record, as `dataclasses.dataclass` does but cheaper to define.

        None may be both frozen and compared by identity.
        """
        assert slots and (eq or not frozen), "use dataclasses.dataclass"
        if cls is None:
            return lambda decorated: _make_class(decorated, frozen, eq, kw_only)
        return _make_class(cls, frozen, eq, kw_only)


def _make_class(cls: Any, is_frozen: bool, is_compared: bool, kw_only: bool) -> Any:
    """Return a new class like this one with slots, shared methods, and an `__init__` compiled at first use."""
    own = _find_own_fields(cls, kw_only)
    inherited = [base.__dataclass_fields__ for base in cls.__mro__[-1:0:-1] if "__dataclass_fields__" in vars(base)]
    fields: dict[str, Field[Any]] = {name: f for above in inherited for name, f in above.items()} | own
    namespace = {k: v for k, v in vars(cls).items() if k not in own and k not in ("__dict__", "__weakref__")}
    above_names = {name for above in inherited for name in above}
    kept = () if any(_HASH in getattr(base, "__slots__", ()) for base in cls.__mro__[1:]) else (_HASH,)
    namespace["__slots__"] = (*(name for name in own if name not in above_names), *(kept if is_frozen else ()))
    namespace["__dataclass_fields__"] = fields
    namespace["__match_args__"] = tuple(name for name, f in fields.items() if f.init and not f.kw_only)
    namespace["__qualname__"] = cls.__qualname__
    compared = [name for name, f in fields.items() if f.compare]
    methods = dict(_SHARED)
    if is_compared:
        namespace["_compared"] = attrgetter(*compared) if compared else staticmethod(_get_empty_tuple)
        methods |= {"__eq__": _compare_fields, "__hash__": _compute_cached_hash if is_frozen else None}
    for name, method in (methods | _FROZEN if is_frozen else methods).items():
        namespace.setdefault(name, method)
    # A second class, as with the standard `slots=True`: `super()` without arguments still refers to the first one.
    return type(cls)(cls.__name__, cls.__bases__, namespace)


def _find_own_fields(cls: type, kw_only: bool) -> dict[str, Field[Any]]:
    """Return the fields that the class itself declares, by name, without class variables."""
    found: dict[str, Field[Any]] = {}
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        if str(annotation).startswith(("ClassVar", "typing.ClassVar")):
            continue
        value = vars(cls).get(name, MISSING)
        made: Field[Any] = value if isinstance(value, Field) else dataclasses.field(default=value)
        made.name, made.type = name, annotation
        made._field_type = _FIELD  # type: ignore[attr-defined]
        if made.kw_only is MISSING:
            made.kw_only = kw_only
        found[name] = made
    return found


def _get_empty_tuple(_: object) -> tuple[()]:
    return ()


class _LazyInit:
    """Stands in for `__init__` until something asks for it, and puts the compiled one in its own place."""

    def __get__(self, instance: object, owner: Any) -> Any:
        cls = next(base for base in owner.__mro__ if vars(base).get("__init__") is self)
        cls.__init__ = _compile_init(cls)
        return cls.__init__ if instance is None else cls.__init__.__get__(instance, owner)


def _compile_init(cls: Any) -> Callable[..., None]:
    """Compile the `__init__` of a record class from its fields, and return it."""
    fields: dict[str, Field[Any]] = cls.__dataclass_fields__
    is_frozen = cls.__setattr__ is _refuse_setattr
    given: dict[str, Any] = {"_set": object.__setattr__, "_absent": _ABSENT}
    ordered: list[str] = []
    keyword: list[str] = []
    body: list[str] = []
    for name, f in fields.items():
        value = name
        if f.default is not MISSING:
            given[f"_default_{name}"] = f.default
            parameter = f"{name}=_default_{name}"
            value = name if f.init else f"_default_{name}"
        elif f.default_factory is not MISSING:
            given[f"_make_{name}"] = f.default_factory
            parameter = f"{name}=_absent"
            value = f"_make_{name}() if {name} is _absent else {name}" if f.init else f"_make_{name}()"
        else:
            parameter = name
            if not f.init:
                continue
        if f.init:
            (keyword if f.kw_only else ordered).append(parameter)
        body.append(f"    _set(_self, {name!r}, {value})" if is_frozen else f"    _self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("    _self.__post_init__()")
    parameters = ["_self", *ordered, *(["*", *keyword] if keyword else [])]
    source = f"def __init__({', '.join(parameters)}):\n" + "\n".join(body or ["    pass"])
    exec(source, given)
    made: Callable[..., None] = given["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {name: f.type for name, f in fields.items() if f.init} | {"return": None}
    return made


class _Absent:
    """The default of a parameter whose value is made anew for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_ABSENT = _Absent()


def _compare_fields(self: Any, other: Any) -> Any:
    """Return whether two records have equal compared fields; NotImplemented for another class."""
    if self is other:
        return True
    if type(self) is not type(other):
        return NotImplemented
    return self._compared(self) == self._compared(other)


_HASH = "_known_hash"
"""The slot of the cached hash: expressions, with all their parts, are looked up again and again."""


def _compute_cached_hash(self: Any) -> int:
    """Return the hash of a record's compared fields, computed once and kept in the record."""
    try:
        known: int = self._known_hash
    except AttributeError:
        known = hash(self._compared(self))
        object.__setattr__(self, _HASH, known)
    return known


def _represent_fields(self: Any) -> str:
    """Return a record's text: its class's name, and its fields as name=value."""
    shown = [f"{name}={getattr(self, name)!r}" for name, f in self.__dataclass_fields__.items() if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_setattr(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delattr(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__dataclass_fields__]


def _set_state(self: Any, state: list[Any]) -> None:
    """Set all fields of an unpickled record, frozen or not, from the list of their values."""
    for name, value in zip(self.__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, value)


_SHARED: dict[str, Any] = {
    "__init__": _LazyInit(),
    "__repr__": _represent_fields,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
}
_FROZEN: dict[str, Any] = {"__setattr__": _refuse_setattr, "__delattr__": _refuse_delattr}
