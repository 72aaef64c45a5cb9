"""How much a group is worth training on again: pure functions from what is known of it to a priority >= 0.

The pool draws groups in proportion to priority ** priority_exponent; age is weighed by the pool, hence by none of these.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

#: Advantages below this carry no gradient.
NO_GRADIENT = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What a priority may depend on, for one group of G members.

    Attributes:
        advantages: [G], as used in the loss.
        returns: [G], total rewards.
        ratios: [G], geometric-mean token ratio of the current policy over the behaviour policy; None: not trained on yet.
        mean_return, std_return: running statistics over earlier groups.
        td_errors: [turns of all members] by the critic; before it has judged the group, [G] those of a critic that knows
            only the running mean; None after training without one.
    """

    advantages: FloatArray
    returns: FloatArray
    ratios: FloatArray | None = None
    mean_return: float = 0.0
    std_return: float = 1.0
    td_errors: FloatArray | None = None


PriorityFunction = Callable[[Signals], float]


def mean_abs_advantage(signals: Signals) -> float:
    """mean_i |A_i| min(rho_i, 1): the size of the group's gradient, roughly (FreshPER, 2604.16918).

    |A| is high for very good and very bad members alike. A group whose tokens the policy no longer produces fades; one
    that it now produces more often is not favoured for it.
    """
    sizes = np.abs(signals.advantages)
    return float((sizes if signals.ratios is None else sizes * np.minimum(signals.ratios, 1.0)).mean())


def return_deviation(signals: Signals) -> float:
    """|mean return - running mean|: groups that went unlike the average."""
    return float(abs(signals.returns.mean() - signals.mean_return))


def extreme_return(signals: Signals) -> float:
    """max_i |R_i - running mean| / running std: groups with one very good or very bad member.

    While no return has differed from another there is no such unit, and the distance itself counts.
    """
    distance = float(np.abs(signals.returns - signals.mean_return).max())
    return distance / signals.std_return if signals.std_return > NO_GRADIENT else distance


def mean_abs_td_error(signals: Signals) -> float:
    """mean |delta| over turns (PER, 1511.05952, section 3.3).

    Raises:
        ValueError: there is no critic.
    """
    if signals.td_errors is None:
        raise ValueError("priority 'td_error' needs a critic: choose another priority or an estimator with a value head")
    return float(np.abs(signals.td_errors).mean()) if len(signals.td_errors) else 0.0


def constant(_: Signals) -> float:
    """1: uniform replay, up to age."""
    return 1.0


PRIORITIES: dict[str, PriorityFunction] = {
    "advantage": mean_abs_advantage,
    "return": return_deviation,
    "extreme": extreme_return,
    "td_error": mean_abs_td_error,
    "constant": constant,
}


def find_priority(name: str) -> PriorityFunction:
    """A function of `PRIORITIES` by name, or a user's own as ``package.module.function``, taking `Signals`.

    Raises:
        ValueError: neither is found; says what was tried.
    """
    if name in PRIORITIES:
        return PRIORITIES[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ValueError(f"priority {name!r} must be one of {', '.join(PRIORITIES)} or a dotted path to a function")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"priority {name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"priority {name!r} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def group_priority(function: PriorityFunction, signals: Signals) -> float:
    """The priority to push or acknowledge a group with: 0 for one without a gradient, whatever the function says.

    Raises:
        ValueError: the function returned a negative or non-finite value.
    """
    if float(np.abs(signals.advantages).max(initial=0.0)) < NO_GRADIENT:
        return 0.0
    value = float(function(signals))
    if not (np.isfinite(value) and value >= 0):
        raise ValueError(f"priority function {getattr(function, '__name__', function)!r} returned {value}, must be >= 0")
    return value


@dataclass(frozen=True, slots=True)
class RunningReturns:
    """Exponentially weighted mean and variance of returns, started as plain averages so that early values count fully.

    Attributes:
        decay: weight that history keeps, per return, once `count` is large.
    """

    decay: float = 0.999
    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    @property
    def std(self) -> float:
        """Standard deviation; 0 before the second value."""
        return float(np.sqrt(self.variance))

    def with_returns(self, returns: FloatArray) -> RunningReturns:
        """The statistics after further returns [G]."""
        count, mean, variance = self.count, self.mean, self.variance
        for value in returns.tolist():
            count += 1
            step = max(1 / count, 1 - self.decay)
            delta = value - mean
            mean += step * delta
            variance = (1 - step) * (variance + step * delta * delta)
        return RunningReturns(self.decay, count, mean, variance)


class Prioritizer:
    """A priority function by name, with the running statistics of the returns that its holder has seen.

    Args:
        name: as for `find_priority`.

    Raises:
        ValueError: there is no such function.
    """

    def __init__(self, name: str) -> None:
        self._function = find_priority(name)
        self._seen = RunningReturns()

    def fresh(self, advantages: FloatArray, returns: FloatArray) -> float:
        """Priority of a group seen for the first time, judged by what came before it; its returns [G] count from then on."""
        priority = self.trained(advantages, returns, ratios=None, td_errors=returns - self._seen.mean)
        self._seen = self._seen.with_returns(returns)
        return priority

    def trained(
        self, advantages: FloatArray, returns: FloatArray, *, ratios: FloatArray | None, td_errors: FloatArray | None
    ) -> float:
        """Priority of a group of G members after an update.

        Args:
            ratios, td_errors: as in `Signals`.
        """
        signals = Signals(
            advantages=advantages,
            returns=returns,
            ratios=ratios,
            td_errors=td_errors,
            mean_return=self._seen.mean,
            std_return=self._seen.std,
        )
        return group_priority(self._function, signals)
