"""LocalModel: a judge that is a Hugging Face scoring (sequence classification) model in this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from cacherl.errors import ConfigError
from rewards.judgement import Judgement, JudgementError


class LocalModel:
    """The probability of the last label, or the sigmoid of the only one, as reward models have it.

    The model is loaded at the first use, in float32 on the CPU. A transcript that is too long loses its beginning.

    Raises:
        ConfigError: no model in `folder`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser()
        if not (self._folder / "config.json").is_file():
            raise ConfigError(f"reward.judge.model: {folder} is not a Hugging Face folder (no config.json in it)")
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    def score(self, transcript: str, *, deadline_s: float) -> Judgement:
        """One forward pass; it cannot be interrupted, so `deadline_s` bounds only the caller's wait."""
        del deadline_s
        with self._lock:
            try:
                return Judgement(self._probability(transcript))
            except (RuntimeError, ValueError, OSError, IndexError) as error:
                raise JudgementError(f"{self._folder.name}: {error!r:.200}", final=True) from error

    def _probability(self, transcript: str) -> float:
        import torch

        tokenizer, model = self._loaded = self._loaded or self._load()
        limit = getattr(model.config, "max_position_embeddings", None)
        ids = tokenizer(transcript, add_special_tokens=True)["input_ids"][-limit if limit else None :]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0].float()
        return float(torch.sigmoid(logits[0]) if len(logits) == 1 else torch.softmax(logits, dim=0)[-1])

    def _load(self) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        model = AutoModelForSequenceClassification.from_pretrained(self._folder, dtype=torch.float32)
        return AutoTokenizer.from_pretrained(self._folder), model.eval()
