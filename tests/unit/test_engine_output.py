"""What vLLM returns becomes a completion, token by token, or an error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engine import _completion, engine_environment
from actors.worker import engine_settings
from cacherl.config import parse_config
from cacherl.errors import EngineError


def output(spans: list[tuple[str, int, int]] | None, finish_reason: str | None = "stop", logprob: float = -0.5) -> Any:
    """Three tokens as vLLM's `CompletionOutput` has them."""
    tokens = [7, 8, 9]
    return SimpleNamespace(
        token_ids=tokens,
        logprobs=[{token: SimpleNamespace(logprob=logprob), token + 1: SimpleNamespace(logprob=-9.0)} for token in tokens],
        weight_versions=spans and [SimpleNamespace(version=v, start=a, end=b) for v, a, b in spans],
        finish_reason=finish_reason,
    )


def test_each_token_has_the_version_that_sampled_it() -> None:
    completion = _completion(output([("4", 0, 1), ("5", 1, 3)]))
    assert completion.token_ids.tolist() == [7, 8, 9]
    assert completion.versions.tolist() == [4, 5, 5]
    assert completion.logprobs.tolist() == [-0.5] * 3
    assert {array.dtype.name for array in (completion.token_ids, completion.versions)} == {"int32"}


@pytest.mark.parametrize("spans", [None, [], [("4", 0, 2)]])
def test_a_token_of_unknown_version_is_refused(spans: Any) -> None:
    with pytest.raises(EngineError, match=r"^the engine did not say which weights sampled its tokens$"):
        _completion(output(spans))


@pytest.mark.parametrize(("theirs", "ours"), [("stop", "stop"), ("length", "length"), ("abort", "abort"), (None, "abort")])
def test_finish_reasons(theirs: str | None, ours: str) -> None:
    assert _completion(output([("0", 0, 3)], theirs)).finish_reason == ours


def test_a_log_probability_rounded_above_zero_is_zero() -> None:
    assert _completion(output([("0", 0, 3)], logprob=1e-7)).logprobs.tolist() == [0.0] * 3


def test_settings_of_the_engine_follow_from_the_config() -> None:
    config = parse_config(
        {"actors": {"groups_in_flight": 20}, "rollout": {"group_size": 8}, "run": {"seed": 3}, "model": {"max_length": 200}}
    )
    settings = engine_settings(config, Path("/m"), end_of_turn=1)
    assert (settings.dtype, settings.max_length, settings.max_sequences, settings.gpus) == ("float32", 200, 160, 0)
    assert (settings.seed, settings.end_of_turn) == (3, 1)
    on_gpu = parse_config({"actors": {"gpus_per_actor": 2}})
    assert engine_settings(on_gpu, Path("/m"), end_of_turn=1).dtype == "auto"
    assert engine_settings(on_gpu, Path("/m"), end_of_turn=1).gpus == 2


def test_the_environment_of_an_engine_on_cpu_and_gpu() -> None:
    cpu = engine_environment(threads=3, kv_cache_gib=2, gpus=0)
    assert (cpu["OMP_NUM_THREADS"], cpu["VLLM_CPU_KVCACHE_SPACE"]) == ("3", "2")
    assert "OMP_NUM_THREADS" not in engine_environment(threads=3, kv_cache_gib=2, gpus=1)
