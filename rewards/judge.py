"""Judge: a model's opinion of finished episodes, which may fail to come without stopping or misleading anybody."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from cacherl.reward_settings import JUDGE, JUDGE_MISSING, JudgeSection
from cacherl.trajectory import Trajectory
from rewards.base import Reach
from rewards.judge_endpoint import EndpointModel
from rewards.judge_local import LocalModel
from rewards.judgement import Judgement, JudgementError

logger = logging.getLogger(__name__)

#: Score that all members of a group are given when none of them has a real one.
_NEUTRAL = 0.5
#: First pause before a further attempt, in seconds; each following one is twice as long.
_PAUSE_S = 0.1
#: Seconds that an answer may be late because of threads that had to wait for each other.
_SLACK_S = 1.0


class ScoringModel(Protocol):
    """Whatever scores a transcript."""

    def score(self, transcript: str, *, deadline_s: float) -> Judgement:
        """Between 0 and 1, within `deadline_s` seconds.

        Raises:
            JudgementError: there is no score.
        """


@dataclass(slots=True)
class _Memory:
    """The scores of the transcripts seen last; safe between threads. Failures are not remembered."""

    entries: int
    _scores: OrderedDict[bytes, float] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, transcript: str) -> float | None:
        key = _digest(transcript)
        with self._lock:
            if key in self._scores:
                self._scores.move_to_end(key)
            return self._scores.get(key)

    def put(self, transcript: str, score: float) -> None:
        with self._lock:
            self._scores[_digest(transcript)] = score
            while len(self._scores) > self.entries:
                self._scores.popitem(last=False)


class Judge:
    """`weight` times the model's score of each member.

    A member whose score does not come in time, or is not a number from 0 to 1, gets the mean of its siblings' real scores
    instead, which pulls it neither up nor down within the group. It is booked under another name, `JUDGE_MISSING`, so that
    it is never taken for a score, and counted as 'rollout/judge_failed'.
    """

    name = JUDGE
    blocking = True

    def __init__(self, model: ScoringModel, section: JudgeSection) -> None:
        self._model = model
        self._section = section
        self._memory = _Memory(section.cache_entries)
        self._lanes = section.parallel if section.backend == "endpoint" else 1
        self._threads = ThreadPoolExecutor(self._lanes, thread_name_prefix="judge")

    @classmethod
    def from_section(cls, section: JudgeSection) -> Judge:
        """The judge that `section` describes.

        Raises:
            ConfigError: malformed URL, missing key, or no such model folder.
        """
        model = EndpointModel(section) if section.backend == "endpoint" else LocalModel(section.model or "")
        return cls(model, section)

    def group(self, members: Sequence[Trajectory]) -> Sequence[Mapping[str, float]]:
        transcripts = [transcript_of(member) for member in members]
        scores = self._scores(list(dict.fromkeys(transcripts)))
        known = [score for score in map(scores.get, transcripts) if score is not None]
        neutral = fmean(known) if known else _NEUTRAL
        weight = self._section.weight
        values = map(scores.get, transcripts)
        return [{JUDGE_MISSING: weight * neutral} if value is None else {JUDGE: weight * value} for value in values]

    def reach(self, turns: int) -> Reach:
        del turns
        return Reach(gain=self._section.weight)

    def _scores(self, transcripts: Sequence[str]) -> dict[str, float | None]:
        scores = {text: self._memory.get(text) for text in transcripts}
        missing = [text for text, score in scores.items() if score is None]
        pending = [self._threads.submit(self._attempts, text) for text in missing]
        begin = time.monotonic()
        for place, (text, answer) in enumerate(zip(missing, pending, strict=True)):
            limit = self._section.deadline_s * (1 + place // self._lanes) + _SLACK_S
            scores[text] = self._collected(answer, begin + limit)
        return scores

    def _collected(self, answer: Future[float], deadline: float) -> float | None:
        try:
            return answer.result(timeout=max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            answer.cancel()
            logger.warning("no judgement within %g s", self._section.deadline_s)
        except JudgementError as error:
            logger.warning("no judgement: %s", error)
        except Exception:
            logger.exception("the judge failed")
        return None

    def _attempts(self, transcript: str) -> float:
        deadline = time.monotonic() + self._section.deadline_s
        for attempt in range(self._section.retries + 1):
            try:
                score = self._model.score(transcript, deadline_s=deadline - time.monotonic()).score
            except JudgementError as error:
                pause = _PAUSE_S * 2**attempt
                if error.final or attempt == self._section.retries or time.monotonic() + pause >= deadline:
                    raise
                time.sleep(pause)
            else:
                self._memory.put(transcript, score)
                return score
        raise AssertionError("unreachable")


def transcript_of(trajectory: Trajectory) -> str:
    """The episode as the judge reads it: task, completions and tool results in order."""
    lines = [f"{message.role}: {message.content}" for message in trajectory.prompt]
    for turn in trajectory.turns:
        lines.append(f"assistant: {turn.text}")
        lines += (f"tool {message.name or '?'}: {message.content}" for message in turn.messages)
    return "\n".join(lines)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
