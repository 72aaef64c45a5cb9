"""LocalModel: a judge that is a Hugging Face scoring (sequence classification) model in this process."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

from cacherl.errors import ConfigError
from rewards.judgement import Judgement, JudgementError

#: Ending of the classes whose checkpoints hold a scoring head.
_SCORING = "ForSequenceClassification"


class LocalModel:
    """The probability of the last label, or the sigmoid of the only one, as reward models have it.

    The model is loaded at the first use, in float32 on the CPU; one that cannot be loaded is not tried again. A transcript
    that is too long loses its beginning.

    Raises:
        ConfigError: no model in `folder`, or one of another kind, whose scoring head would be made up of random numbers.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser()
        if not (self._folder / "config.json").is_file():
            raise ConfigError(f"reward.judge.model: {folder} is not a Hugging Face folder (no config.json in it)")
        kinds = _architectures(self._folder / "config.json")
        if kinds and not any(kind.endswith(_SCORING) for kind in kinds):
            raise ConfigError(
                f"reward.judge.model: {folder} holds a {' / '.join(kinds)}, which has no scoring head; give a model saved as "
                f"…{_SCORING}, or serve this one and ask it with reward.judge.backend endpoint"
            )
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | str | None = None

    def score(self, transcript: str, *, deadline_s: float) -> Judgement:
        """One forward pass; it cannot be interrupted, so `deadline_s` bounds only the caller's wait."""
        del deadline_s
        with self._lock:
            try:
                return Judgement(self._probability(transcript))
            except (RuntimeError, ValueError, OSError, IndexError) as error:
                raise self._failure(error) from error

    def _failure(self, error: Exception) -> JudgementError:
        return JudgementError(f"{self._folder.name}: {error!r:.200}", final=True)

    def _model(self) -> tuple[Any, Any]:
        """Tokenizer and model; why there are none is kept as text, since an exception would hold on to every frame it met."""
        if self._loaded is None:
            try:
                self._loaded = self._load()
            except Exception as error:  # whatever a folder's config or weights make of the library
                self._loaded = str(self._failure(error))
        if isinstance(self._loaded, str):
            raise JudgementError(self._loaded, final=True)
        return self._loaded

    def _probability(self, transcript: str) -> float:
        import torch

        tokenizer, model = self._model()
        limit = min(getattr(model.config, "max_position_embeddings", None) or math.inf, tokenizer.model_max_length)
        ids = tokenizer(transcript, add_special_tokens=True)["input_ids"]
        ids = ids[-int(limit) :] if limit < len(ids) else ids
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0].float()
        return float(torch.sigmoid(logits[0]) if len(logits) == 1 else torch.softmax(logits, dim=0)[-1])

    def _load(self) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        model, report = AutoModelForSequenceClassification.from_pretrained(
            self._folder, dtype=torch.float32, output_loading_info=True
        )
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"weights {missing} are not in the checkpoint; its scores would be random")
        return AutoTokenizer.from_pretrained(self._folder), model.eval()


def _architectures(path: Path) -> list[str]:
    """Classes that the checkpoint was saved from; [] where it does not say."""
    try:
        return list(json.loads(path.read_text("utf-8")).get("architectures") or [])
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"reward.judge.model: {path} cannot be read: {error}") from error
