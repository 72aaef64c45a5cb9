"""Error types, one per boundary.

Misconfiguration is a plain ``ValueError`` (``ConfigError``) raised before anything is loaded. A bad rollout
is data (a recorded `Status`), never one of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CacheRLError(Exception):
    """Base of every error that CacheRL raises on purpose."""


class ConfigError(CacheRLError, ValueError):
    """A setting is unknown, malformed or inconsistent; the message names the field, the value and what to do."""


class CodecError(CacheRLError):
    """A payload is truncated, oversized, foreign or of an unknown schema; nothing was decoded."""


class ReplayError(CacheRLError):
    """The replay service refused an operation or could not be reached within its retries."""


class EngineError(CacheRLError):
    """The inference engine failed or did not answer."""


class EngineDied(EngineError):
    """The engine's processes have ended; its actor must be replaced."""


class AgentError(CacheRLError):
    """An agent without a model, which plays in the policy's place, failed."""


class EnvironmentFault(CacheRLError):
    """An environment broke its contract (not: a tool call failed, which is an observation)."""


class LearnerError(CacheRLError):
    """The learner could not make or publish an update."""


class CheckpointError(CacheRLError):
    """A checkpoint cannot be written, is damaged, or does not fit the run."""


class NotFiniteError(LearnerError):
    """A loss or a gradient is not a number; no step was taken on it."""


class NoSolutionError(ConfigError):
    """Demonstrations were asked of an environment whose tasks nobody but the policy solves."""


class DeadlineExceeded(CacheRLError, TimeoutError):
    """A wait ended at its deadline.

    Args:
        waited_for: what did not happen, as a noun phrase ('engine actor-1 to acknowledge version 7').
        seconds: the deadline, in seconds.
    """

    def __init__(self, waited_for: str, seconds: float) -> None:
        super().__init__(f"gave up after {seconds:g} s waiting for {waited_for}")
        self.waited_for = waited_for
        self.seconds = seconds

    def __reduce__(self) -> tuple[type[DeadlineExceeded], tuple[str, float]]:
        return type(self), (self.waited_for, self.seconds)


@contextmanager
def boundary(kind: type[CacheRLError], what: str) -> Iterator[None]:
    """The edge of a subsystem: a foreign error leaves it as a `kind` that says `what` failed; ours pass unchanged."""
    try:
        yield
    except CacheRLError:
        raise
    except Exception as error:
        raise kind(f"{what}: {error!r}") from error
