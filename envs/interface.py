"""`require`: does an object offer what a protocol of ours asks for? Says what is missing before anything uses it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from cacherl.errors import ConfigError

_GUIDE = "see 'Write your own environment' in docs/environments.md"


def require(thing: object, protocol: type, where: str) -> None:
    """Refuse a `thing` that lacks members of `protocol`, or whose methods do not take the arguments of the protocol's.

    Args:
        where: what the user wrote that led to it ("env.name 'doors:Doors'").

    Raises:
        ConfigError: names the class, every missing member with its signature, and where to read about it.
    """
    problems = [
        problem
        for name, member in vars(protocol).items()
        if not name.startswith("_") and (problem := _problem(thing, name, member)) is not None
    ]
    if problems:
        kind = thing.__name__ if isinstance(thing, type) else type(thing).__name__
        raise ConfigError(f"{where}: {kind} is no {protocol.__name__}: {'; '.join(problems)} ({_GUIDE})")


def _problem(thing: object, name: str, member: Any) -> str | None:
    is_method = inspect.isfunction(member)
    if not hasattr(thing, name):
        return f"it lacks {'the method ' + _wanted(name, member) if is_method else f'the attribute {name}'}"
    if not is_method:
        return None
    found = getattr(thing, name)
    if not callable(found):
        return f"{name} must be the method {_wanted(name, member)}"
    return None if _accepts(found, member) else f"{name}{_found(found)} must take {_wanted(name, member)}"


def _parameters(member: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(member).parameters.values())[1:]


def _wanted(name: str, member: Callable[..., Any]) -> str:
    signature = inspect.signature(member)
    return name + str(signature.replace(parameters=_parameters(member))).replace("'", "")


def _found(method: Callable[..., Any]) -> str:
    return str(inspect.signature(method)).replace("'", "")


def _accepts(method: Callable[..., Any], member: Callable[..., Any]) -> bool:
    """Whether `method` can be called in the way in which the protocol's `member` is."""
    wanted = _parameters(member)
    positional = [None for part in wanted if part.kind is not part.KEYWORD_ONLY]
    named = {part.name: None for part in wanted if part.kind is part.KEYWORD_ONLY}
    try:
        inspect.signature(method).bind(*positional, **named)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True
