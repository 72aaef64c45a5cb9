"""Policy: whatever answers a token prefix with a completion. The engine is one; scripted agents are others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from cacherl.errors import AgentError, boundary
from cacherl.policy import FIRST_VERSION
from cacherl.trajectory import Float32Array, Int32Array, Source

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample: `temperature` > 0, `max_new_tokens` per turn, `greedy` takes the likeliest token instead."""

    temperature: float
    max_new_tokens: int
    greedy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """n sampled tokens, end of turn included.

    Attributes:
        token_ids: int32 [n].
        logprobs: float32 [n], under the sampled distribution.
        versions: int32 [n], weights that sampled each token.
        finish_reason: 'stop' (end of turn), 'length' (limit) or 'abort'.
    """

    token_ids: Int32Array
    logprobs: Float32Array
    versions: Int32Array
    finish_reason: FinishReason


class Policy(Protocol):
    """Answers prefixes of one or many episodes at once."""

    @property
    def source(self) -> Source:
        """Who acts."""

    async def complete(self, prefix: Sequence[int], sampling: Sampling, *, seed: int) -> Completion:
        """Sample one turn after `prefix`; `seed` fixes the draw.

        Raises:
            CacheRLError: no completion could be made; of a type that says whose fault it is.
        """


class ScriptedPolicy:
    """Something without a model that writes text, as a policy of one episode.

    Args:
        act: the next assistant turn's text.
        encode: text -> token ids, end of turn included.
        who: acts, for messages; a noun phrase.
        source: recorded in the trajectory.
    """

    def __init__(self, act: Callable[[], str], encode: Callable[[str], list[int]], *, who: str, source: Source) -> None:
        self._act = act
        self._encode = encode
        self._who = who
        self._source = source

    @property
    def source(self) -> Source:
        return self._source

    async def complete(self, prefix: Sequence[int], sampling: Sampling, *, seed: int) -> Completion:
        """The next text; its log-probabilities are 0 because no model sampled it.

        Raises:
            AgentError: `act` failed, or wrote what cannot be encoded.
        """
        del prefix, seed
        with boundary(AgentError, f"{self._who} failed"):
            ids = np.array(self._encode(self._act()), dtype=np.int32)
        kept = ids[: sampling.max_new_tokens]
        return Completion(
            token_ids=kept,
            logprobs=np.zeros(len(kept), dtype=np.float32),
            versions=np.full(len(kept), FIRST_VERSION, dtype=np.int32),
            finish_reason="stop" if len(kept) == len(ids) else "length",
        )
