"""The learning rate over the updates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cacherl.config import RunConfig, parse_config
from cacherl.errors import ConfigError
from learner.schedule import learning_rate


def config(updates: int = 11, **schedule: Any) -> RunConfig:
    return parse_config({"run": {"updates": updates}, "learner": {"lr": 2.0, "schedule": schedule}})


def rates(settings: RunConfig, count: int) -> list[float]:
    return [learning_rate(settings, version) for version in range(count)]


def test_constant_after_warm_up() -> None:
    assert rates(config(), 3) == [2.0, 2.0, 2.0]
    assert rates(config(warmup=4), 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_linear_ends_at_the_final_share_with_the_last_update_and_stays_there() -> None:
    assert rates(config(kind="linear", final=0.5), 13) == pytest.approx([2.0 - 0.1 * step for step in range(11)] + [1.0, 1.0])


def test_cosine_after_warm_up_over_updates_of_its_own() -> None:
    found = rates(config(kind="cosine", warmup=2, updates=7), 9)
    assert found[:2] == [1.0, 2.0]
    assert found[2:7] == pytest.approx([1.0 + math.cos(math.pi * step / 4) for step in range(5)])
    assert found[7:] == pytest.approx([0.0, 0.0])


def test_a_run_of_one_update_takes_the_final_rate() -> None:
    assert rates(config(updates=1, kind="linear", final=0.25), 1) == [0.5]


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        ({"schedule": {"final": 0.1}}, r"learner\.schedule: final and updates say how a rate falls"),
        ({"schedule": {"kind": "linear", "warmup": 5, "updates": 5}}, r"updates 5 must exceed warmup 5"),
        ({"offload": "optimizer"}, r"learner: offload optimizer needs zero_stage 1 or more, got 0"),
        ({"offload": "all", "zero_stage": 2}, r"learner: offload all needs zero_stage 3 or more, got 2"),
        ({"betas": [0.9, 1.0]}, r"learner: betas must lie in \[0, 1\), got \[0\.9, 1\.0\]"),
    ],
)
def test_contradictions_are_refused(learner: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"learner": learner})
