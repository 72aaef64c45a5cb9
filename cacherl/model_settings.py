"""The section of the policy's model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from cacherl.section import Section


class TinyModelSection(Section):
    """A Qwen3 built on the spot, with a word-level tokenizer of the environment's vocabulary."""

    layers: int = Field(3, ge=1)
    hidden: int = Field(128, ge=16)
    heads: int = Field(4, ge=1)
    intermediate: int = Field(384, ge=16)

    @model_validator(mode="after")
    def _divisible(self) -> TinyModelSection:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(f"hidden {self.hidden} must be an even multiple of heads {self.heads}")
        return self


class ModelSection(Section):
    """The policy's model: a Hugging Face folder, or a tiny one when path is null."""

    path: Path | None = Field(None, description="Hugging Face folder; null: a tiny model is built")
    tiny: TinyModelSection = TinyModelSection()
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_length: int = Field(512, ge=16, description="tokens of one trajectory, prompt included")
