"""How a metric is called and described in Ray's export."""

from __future__ import annotations

import re

import pytest

from cacherl.metrics import _DECLARED
from deploy.ray_metrics import description, gauge_name


@pytest.mark.parametrize(
    ("name", "gauge"),
    [
        ("eval/success", "cacherl_eval_success"),
        ("eval/success/1", "cacherl_eval_success_1"),
        ("reward/tool-use.late", "cacherl_reward_tool_use_late"),
    ],
)
def test_names_are_prefixed_and_sanitised(name: str, gauge: str) -> None:
    assert gauge_name(name) == gauge


def test_all_declared_names_stay_distinct_and_valid() -> None:
    names = {gauge_name(name) for name in _DECLARED}
    assert len(names) == len(_DECLARED)
    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) for name in names)


def test_description_has_help_and_unit() -> None:
    assert description("learner/kl") == "estimate of KL to the reference policy [nats/token]"


def test_an_undeclared_metric_is_an_error() -> None:
    with pytest.raises(KeyError, match="learner/unheard_of"):
        description("learner/unheard_of")
