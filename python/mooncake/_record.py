# SPDX-License-Identifier: Apache-2.0
"""A small part of `dataclasses`, which takes a third of the time that importing the store does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from dataclasses import dataclass as record
    from dataclasses import field
else:
    class field:  # noqa: N801
        """A default that is made anew for each object."""

        def __init__(self, *, default_factory: Callable[[], Any]) -> None:
            self.make = default_factory

    def record(cls: type) -> type:
        """As @dataclass: fields by position or name, a text, and comparison."""
        names = tuple(cls.__dict__.get("__annotations__", ()))
        defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}

        def __init__(self: Any, *values: Any, **named: Any) -> None:
            if len(values) > len(names):
                raise TypeError(f"{cls.__name__}() takes {len(names)} arguments but {len(values)} were given")
            for name, value in zip(names, values):
                if name in named:
                    raise TypeError(f"{cls.__name__}() got multiple values for argument {name!r}")
                setattr(self, name, value)
            for name in names[len(values):]:
                if name in named:
                    setattr(self, name, named.pop(name))
                elif name in defaults:
                    default = defaults[name]
                    setattr(self, name, default.make() if isinstance(default, field) else default)
                else:
                    raise TypeError(f"{cls.__name__}() missing required argument: {name!r}")
            if named:
                raise TypeError(f"{cls.__name__}() got an unexpected keyword argument {next(iter(named))!r}")

        def __repr__(self: Any) -> str:
            return f"{cls.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

        def __eq__(self: Any, other: object) -> Any:
            if other.__class__ is not self.__class__:
                return NotImplemented
            return all(getattr(self, name) == getattr(other, name) for name in names)

        cls.__init__, cls.__repr__, cls.__eq__, cls.__hash__ = __init__, __repr__, __eq__, None
        cls.__match_args__ = names
        return cls
