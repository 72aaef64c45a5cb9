"""RayMetricSink: the run's metrics as gauges of the Ray cluster, for its dashboard and for Prometheus."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ray.util.metrics import Gauge

from cacherl.metrics import lookup

#: Ray puts 'ray_' before it on the way out: `eval/success` becomes `ray_cacherl_eval_success`.
PREFIX = "cacherl_"
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_]")


class RayMetricSink:
    """A `MetricSink` over `ray.util.metrics`; every gauge has the tag 'run'.

    Ray exports no value that is not finite: the gauge keeps the last finite one, and the other sinks show the fault. What is
    written while no cluster is connected is lost.

    Args:
        run: the run's name.
    """

    def __init__(self, run: str) -> None:
        self._tags = {"run": run}
        self._gauges: dict[str, Gauge] = {}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Set the gauges; `step` is not exported, since Prometheus has a time of its own.

        Raises:
            KeyError: a name is not declared.
        """
        for name, value in values.items():
            gauge = self._gauge(name)
            if math.isfinite(value):
                gauge.set(float(value))

    def close(self) -> None:
        """Nothing to release: the gauges end with the process."""

    def _gauge(self, name: str) -> Gauge:
        if name not in self._gauges:
            gauge = Gauge(gauge_name(name), description=description(name), tag_keys=tuple(self._tags))
            self._gauges[name] = gauge.set_default_tags(self._tags)
        return self._gauges[name]


def gauge_name(name: str) -> str:
    """A metric's name in the alphabet of Prometheus, prefixed: 'eval/success/1' -> 'cacherl_eval_success_1'."""
    return PREFIX + _FORBIDDEN.sub("_", name)


def description(name: str) -> str:
    """A metric's help with its unit.

    Raises:
        KeyError: nothing declares it.
    """
    metric = lookup(name)
    return f"{metric.help} [{metric.unit}]"
