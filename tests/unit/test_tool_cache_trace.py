"""A recorded trace, played again through the rollout code: tiers in the stored turns, hit rates in the metrics."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from actors.chat import Chat
from actors.demonstrations import demonstrate
from actors.episode import EpisodeLimits
from actors.policy import Sampling
from actors.report import EpisodeSummary, GroupReport, rollout_metrics
from cacherl.codec import decode_group, encode_group
from cacherl.environment_settings import EnvSection, ToolCacheSection
from cacherl.trajectory import Trajectory, TrajectoryGroup
from envs.agents import OracleAgent
from envs.registry import load_source


async def played(chat: Chat, cache: ToolCacheSection, ids: list[str]) -> list[Trajectory]:
    source = load_source(EnvSection(transient_failure_rate=0.0, tool_cache=cache))
    trajectories = await demonstrate(
        [source.get(task_id) for task_id in ids],
        lambda _: OracleAgent(source),
        source=source,
        chat=chat,
        limits=EpisodeLimits(max_turns=9, max_length=512, timeout_s=60.0),
        sampling=Sampling(temperature=1.0, max_new_tokens=32),
    )
    groups = [TrajectoryGroup(group_id="g", task_id=one.task_id, trajectories=(one,)) for one in trajectories]
    return [decode_group(encode_group(group)).trajectories[0] for group in groups]


def tiers(trajectories: list[Trajectory]) -> list[list[str | None]]:
    return [[call.tier for turn in one.turns for call in turn.calls] for one in trajectories]


async def test_tiers_and_hit_rates_of_a_recorded_trace(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    known, new = [f"research/train/1/{seed}" for seed in range(3)], "research/train/1/99"
    trace = await played(chat, ToolCacheSection(mode="record", path=path), known)
    assert tiers(trace) == [["live", "live"]] * 3
    again = await played(chat, ToolCacheSection(mode="record_replay", path=path), [*known, *known, new, new])
    assert tiers(again) == [["exact", "exact"]] * 6 + [["live", "live"], ["exact", "exact"]]
    assert [one.token_ids.tolist() for one in again[:3]] == [one.token_ids.tolist() for one in trace]
    report = GroupReport(group_id="g", actor="a", push="ok", episodes=tuple(map(EpisodeSummary.of, again)))
    metrics = rollout_metrics([report])
    assert metrics["tool_cache/hit_rate"] == metrics["tool_cache/exact"] == 14 / 16
    for tool in ("search", "read"):
        assert metrics[f"tool_cache/tool/{tool}/live"] == 1 / 8
        assert metrics[f"tool_cache/tool/{tool}/exact"] == 7 / 8
    assert Counter(name.split("/")[2] for name in metrics if name.startswith("tool_cache/tool/")) == {"search": 4, "read": 4}


async def test_without_a_cache_there_is_no_tier_and_no_metric(chat: Chat) -> None:
    (bare,) = await played(chat, ToolCacheSection(), ["research/train/1/0"])
    assert tiers([bare]) == [[None, None]]
    report = GroupReport(group_id="g", actor="a", push="ok", episodes=(EpisodeSummary.of(bare),))
    assert not [name for name in rollout_metrics([report]) if name.startswith("tool_cache/")]
