"""`read_settings`: `env.settings` for the environment that they are meant for, validated by its own signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import ConfigDict, PydanticUserError, ValidationError, create_model

from cacherl.errors import ConfigError


def read_settings(target: Callable[..., Any], settings: Mapping[str, Any], *, skip: int) -> dict[str, Any]:
    """Arguments for `target` from the user's settings: its named parameters, with their types and defaults.

    Args:
        skip: how many parameters at the front are not settings.

    Raises:
        ConfigError: a setting that it does not have, a missing one, a value of another type, each by name; or its parameters
            cannot be settings.
    """
    try:
        fields = {part.name: (hint, default) for part, hint, default in _fields(target, skip)}
        model = create_model("Settings", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields)  # type: ignore[call-overload]
    except (NameError, TypeError, ValueError, PydanticUserError) as error:
        raise ConfigError(
            f"env.settings: the parameters of {getattr(target, '__qualname__', target)} cannot be settings: {error}; give each "
            "a type that is known while the program runs"
        ) from error
    try:
        read = model.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem, list(fields)) for problem in error.errors())) from None
    return {name: getattr(read, name) for name in settings}


def _fields(target: Callable[..., Any], skip: int) -> list[tuple[inspect.Parameter, Any, Any]]:
    # Not `target` itself for a class: `get_type_hints` of one gives its attributes.
    hints = get_type_hints(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]
    parts = list(inspect.signature(target).parameters.values())[skip:]
    return [
        (part, hints.get(part.name, Any), ... if part.default is part.empty else part.default)
        for part in parts
        if part.kind in (part.POSITIONAL_OR_KEYWORD, part.KEYWORD_ONLY)
    ]


def _explain(problem: Any, known: list[str]) -> str:
    field = ".".join(map(str, ("env.settings", *problem["loc"])))
    match problem["type"]:
        case "extra_forbidden":
            has = f"it has {', '.join(known)}" if known else "it has none"
            return f"{field}: the environment has no such setting; {has}"
        case "missing":
            return f"{field}: the environment needs this setting"
        case _:
            return f"{field}: {problem['msg']} (got {problem['input']!r})"
