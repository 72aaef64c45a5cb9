"""Section: the base of every part of the configuration."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def refuse_idle(self, names: Iterable[str], needs: str) -> None:
        """Refuse keys that were changed although nothing reads them.

        Args:
            names: fields that have no effect as the section stands.
            needs: what would give them one, for the message.

        Raises:
            ValueError: one of them is not at its default; names it.
        """
        for name in names:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(f"{name} {value} has no effect without {needs}; remove it or change that")
