"""The pool against hand-written actors: no group is lost, errors come out as themselves, every wait names what is late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from actors.pool import ActorPool, PublishedWeights
from actors.report import GroupReport
from actors.rollout import GroupRequest
from actors.worker import WorkerSpec
from cacherl.config import parse_config
from cacherl.errors import DeadlineExceeded, EngineDied, EngineError, EnvironmentFault
from cacherl.policy import WeightManifest
from fakes import task

WEIGHTS = PublishedWeights(manifest=WeightManifest(version=4, tensors=(), nbytes=0, checksum="0"), buffer=None)  # type: ignore[arg-type]


class Method:
    """A method of an actor handle."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.remote = call


class FakeActor:
    """An actor handle whose methods run here; every call is noted in `events`, shared by all actors."""

    def __init__(self, name: str, events: list[str], node: str = "node-0") -> None:
        self.name = name
        self.node = node
        self.events = events
        self.broken: dict[str, Exception] = {}
        self.slow: set[str] = set()

    def __getattr__(self, method: str) -> Method:
        async def call(*arguments: Any) -> Any:
            self.events.append(f"{self.name} {method}")
            await asyncio.sleep(3600 if method in self.slow else 0.001)
            if method in self.broken:
                raise self.broken[method]
            return self.answer(method, *arguments)

        return Method(call)

    def answer(self, method: str, *arguments: Any) -> Any:
        if method == "play":
            return GroupReport(group_id=arguments[0].group_id, actor=self.name, push="ok", episodes=())
        return {"start": self.node, "stage_weights": f"/proc/{self.name}"}.get(method)


class Pool(ActorPool):
    """A pool that spawns fake actors; `prepare` breaks them before they start."""

    def __init__(self, count: int, prepare: Callable[[FakeActor], None] = lambda actor: None, **config: Any) -> None:
        settings = {"actors": {"count": count, "groups_in_flight": 2, "max_restarts": 1}, "weights": {"deadline_s": 0.1}}
        spec = WorkerSpec(
            name="actor",
            config=parse_config({**settings, **config}),
            model=Path("/m"),
            replay_url="",
            replay_namespace="",
            priority=lambda group: 0.0,
            log_file=Path("/logs/actor.log"),
        )
        self.notes: list[str] = []
        super().__init__(spec, namespace="test", placement=None, on_restart=self.notes.append)  # type: ignore[arg-type]
        self.events: list[str] = []
        self.prepare = prepare

    def _spawn(self, name: str, bundle: int, attempt: int = 0) -> Any:
        actor = FakeActor(name if not attempt else f"{name}.{attempt}", self.events, node=f"node-{bundle // 2}")
        self.prepare(actor)
        return actor

    def _kill(self, actor: Any) -> None:
        self.events.append(f"{actor.handle.name} killed")


class Requests:
    """Numbered requests."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> GroupRequest:
        self.made += 1
        return GroupRequest(group_id=f"g-{self.made}", task=task(), size=1, seed=self.made)


async def reports_of(pool: Pool, count: int) -> list[str]:
    """Group ids of the first `count` reports of a running pool."""
    await pool.start()
    seen: list[str] = []
    enough = asyncio.Event()

    def on_report(report: GroupReport) -> None:
        seen.append(report.group_id)
        if len(seen) >= count:
            enough.set()

    running = asyncio.create_task(pool.rollout(Requests(), on_report))
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=10)
    if running.done():
        waiting.cancel()
        running.result()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return seen


async def test_every_group_is_played_once() -> None:
    seen = await reports_of(Pool(2), 20)
    assert len(seen) == len(set(seen))
    assert {f"g-{number}" for number in range(1, 15)} <= set(seen)


@pytest.mark.parametrize("error", [EngineDied("its engine died"), RayActorError()])
async def test_an_actor_that_dies_is_replaced_and_its_groups_are_played_again(error: Exception) -> None:
    def first_dies(actor: FakeActor) -> None:
        if actor.name == "actor-0":
            actor.broken["play"] = error

    pool = Pool(1, first_dies)
    seen = await reports_of(pool, 10)
    assert {f"g-{number}" for number in range(1, 9)} <= set(seen)
    assert len(seen) == len(set(seen))
    assert pool.events.index("actor-0 killed") < pool.events.index("actor-0.1 start")
    assert pool.alive == 1


async def test_a_new_actor_gets_the_latest_weights_before_it_plays() -> None:
    def first_dies(actor: FakeActor) -> None:
        if actor.name == "actor-0":
            actor.broken["play"] = EngineDied("dead")

    pool = Pool(1, first_dies)
    publish, start = pool.publish, pool.start

    async def start_and_publish() -> None:
        await start()
        await publish(WEIGHTS)

    pool.start = start_and_publish  # type: ignore[method-assign]
    await reports_of(pool, 4)
    later = [event for event in pool.events if event.startswith("actor-0.1")]
    assert later[:4] == ["actor-0.1 start", "actor-0.1 stage_weights", "actor-0.1 load_weights", "actor-0.1 play"]


async def test_too_many_deaths_end_the_run() -> None:
    def all_die(actor: FakeActor) -> None:
        actor.broken["play"] = EngineDied("dead again")

    with pytest.raises(EngineError, match=r"^actor-0 died 2 times \(actors\.max_restarts\): dead again$"):
        await reports_of(Pool(1, all_die), 1)


@pytest.mark.parametrize("error", [DeadlineExceeded("a push", 1.0), RuntimeError("a bug")])
async def test_an_error_that_a_new_actor_would_meet_again_comes_out_as_itself(error: Exception) -> None:
    def breaks(actor: FakeActor) -> None:
        actor.broken["play"] = error

    with pytest.raises(type(error)) as caught:
        await reports_of(Pool(2, breaks), 1)
    assert caught.value is error


async def test_an_error_of_the_report_comes_out_as_itself() -> None:
    pool = Pool(2)
    await pool.start()

    def refuse(report: GroupReport) -> None:
        raise EnvironmentFault(f"enough of {report.actor}")

    with pytest.raises(EnvironmentFault, match=r"^enough of actor-"):
        await pool.rollout(Requests(), refuse)


async def test_weights_go_to_one_relay_a_node_and_to_every_engine() -> None:
    pool = Pool(4)
    await pool.start()
    pool.events.clear()
    await pool.publish(WEIGHTS)
    assert sorted(event for event in pool.events if "stage" in event) == ["actor-0 stage_weights", "actor-2 stage_weights"]
    assert sorted(event for event in pool.events if "load" in event) == [f"actor-{index} load_weights" for index in range(4)]


async def test_a_relay_that_is_gone_is_passed_over() -> None:
    def relay_is_gone(actor: FakeActor) -> None:
        if actor.name == "actor-0":
            actor.broken["stage_weights"] = RayActorError()

    pool = Pool(2, relay_is_gone)
    await pool.start()
    await pool.publish(WEIGHTS)
    assert pool.events[-2:] == ["actor-1 stage_weights", "actor-1 load_weights"]


async def test_what_was_staged_vanishes_with_a_relay_that_dies_and_the_next_one_stages_it_again() -> None:
    def first_dies_after_staging(actor: FakeActor) -> None:
        if actor.name == "actor-0":
            actor.broken["load_weights"] = RayActorError()
        else:
            actor.answer = lambda method, *given: FakeActor.answer(actor, method, *given) if lives(method, given) else None

    def lives(method: str, given: tuple[Any, ...]) -> bool:
        if method == "load_weights" and given[1] == "/proc/actor-0":
            raise EngineError("no such memory")
        return True

    pool = Pool(2, first_dies_after_staging)
    await pool.start()
    await pool.publish(WEIGHTS)
    assert pool.events[-2:] == ["actor-1 stage_weights", "actor-1 load_weights"]


async def test_an_engine_that_refuses_every_relay_ends_the_run() -> None:
    def second_refuses(actor: FakeActor) -> None:
        if actor.name == "actor-1":
            actor.broken["load_weights"] = EngineError("checksum differs")

    pool = Pool(2, second_refuses)
    await pool.start()
    with pytest.raises(EngineError, match=r"^checksum differs$"):
        await pool.publish(WEIGHTS)


async def test_engines_that_do_not_take_a_version_in_time_are_named() -> None:
    def two_are_slow(actor: FakeActor) -> None:
        if actor.name in ("actor-1", "actor-3"):
            actor.slow.add("load_weights")

    pool = Pool(4, two_are_slow)
    await pool.start()
    message = r"^gave up after 0\.1 s waiting for actor-1, actor-3 to acknowledge weights of version 4$"
    with pytest.raises(DeadlineExceeded, match=message):
        await pool.publish(WEIGHTS)


async def test_an_actor_that_does_not_start_is_named() -> None:
    def slow(actor: FakeActor) -> None:
        actor.slow.add("start")

    pool = Pool(1, slow, actors={"start_deadline_s": 0.05})
    with pytest.raises(DeadlineExceeded, match=r"waiting for the engine of actor-0 to start$"):
        await pool.start()
    assert pool.alive == 0


class Examiner(Pool):
    """A pool whose actors report the ids of the tasks that they were evaluated on."""

    def _spawn(self, name: str, bundle: int, attempt: int = 0) -> Any:
        actor = super()._spawn(name, bundle, attempt)
        answer = actor.answer
        actor.answer = lambda method, *given: (
            [each.task_id for each in given[0]] if method == "evaluate" else answer(method, *given)
        )
        return actor


TASKS = [task(number) for number in range(5)]
IDS = [each.task_id for each in TASKS]


async def test_evaluation_is_spread_over_the_actors() -> None:
    pool = Examiner(2)
    await pool.start()
    assert sorted(await pool.evaluate(TASKS, "e")) == IDS
    assert sorted(pool.events[-2:]) == ["actor-0 evaluate", "actor-1 evaluate"]
    assert await pool.evaluate(TASKS[:1], "e") == IDS[:1]


@pytest.mark.parametrize("error", [EngineDied("dead"), RayActorError()])
async def test_an_actor_that_dies_in_an_evaluation_is_replaced_and_its_share_goes_on(error: Exception) -> None:
    def first_dies(actor: FakeActor) -> None:
        if actor.name == "actor-0":
            actor.broken["evaluate"] = error

    pool = Examiner(1, first_dies)
    await pool.start()
    assert sorted(await pool.evaluate(TASKS, "e")) == IDS
    assert pool.alive == 1
    assert pool.events[-2:] == ["actor-0.1 start", "actor-0.1 evaluate"]


async def test_too_many_deaths_in_evaluations_end_the_run() -> None:
    def all_die(actor: FakeActor) -> None:
        actor.broken["evaluate"] = EngineDied("dead again")

    pool = Examiner(1, all_die)
    await pool.start()
    with pytest.raises(EngineError, match=r"^actor-0 died 2 times \(actors\.max_restarts\): dead again$"):
        await pool.evaluate(TASKS, "e")


async def test_a_death_that_two_have_met_restarts_the_actor_once() -> None:
    pool = Pool(1)
    await pool.start()
    actor = pool._actors[0]
    failed = actor.handle
    await asyncio.gather(*(pool._replace(actor, failed, EngineDied("dead")) for _ in range(3)))
    assert actor.restarts == 1
    assert pool.notes == ["actor-0 died and is started again (1 of 1; see logs/actor-0.log)"]
    assert [event for event in pool.events if event.endswith("start")] == ["actor-0 start", "actor-0.1 start"]


async def test_evaluation_waits_for_an_actor_that_is_being_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.pool._RETRY_S", 0.01)
    pool = Examiner(1)
    await pool.start()
    node, pool._actors[0].node = pool._actors[0].node, ""
    evaluation = asyncio.create_task(pool.evaluate(TASKS, "e"))
    await asyncio.sleep(0.05)
    assert not evaluation.done()
    pool._actors[0].node = node
    assert sorted(await evaluation) == IDS


async def test_a_new_actor_is_evaluated_with_the_latest_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.pool._RETRY_S", 0)
    pool = Examiner(1)
    await pool.start()
    await pool.publish(WEIGHTS)
    pool.events.clear()
    replacing = asyncio.create_task(pool._replace(pool._actors[0], pool._actors[0].handle, EngineDied("dead")))
    await asyncio.sleep(0)
    assert await pool.evaluate(TASKS, "e") == IDS
    await replacing
    assert [event for event in pool.events if event.startswith("actor-0.1")] == [
        f"actor-0.1 {method}" for method in ("start", "stage_weights", "load_weights", "evaluate")
    ]


async def test_an_evaluation_that_does_not_end_is_named() -> None:
    pool = Examiner(2, eval={"deadline_s": 0.05})
    await pool.start()
    pool._actors[1].handle.slow.add("evaluate")
    with pytest.raises(DeadlineExceeded, match=r"^gave up after 0\.05 s waiting for 5 held-out episodes \(e\)$"):
        await pool.evaluate(TASKS, "e")


async def test_a_deadline_inside_an_evaluation_keeps_its_own_name() -> None:
    pool = Examiner(1)
    await pool.start()
    pool._actors[0].handle.broken["evaluate"] = DeadlineExceeded("the engine to complete turn 0 of t", 2.0)
    with pytest.raises(DeadlineExceeded, match=r"^gave up after 2 s waiting for the engine to complete turn 0 of t$"):
        await pool.evaluate(TASKS, "e")


async def test_closing_stops_every_actor_and_does_not_wait_for_ever() -> None:
    pool = Pool(3)
    await pool.start()
    pool._actors[1].handle.slow.add("close")
    pool._actors[2].handle.broken["close"] = RayActorError()
    await asyncio.wait_for(pool.close(deadline_s=0.1), 5)
    assert sorted(pool.events[-3:]) == ["actor-0 killed", "actor-1 killed", "actor-2 killed"]
    assert pool.alive == 0
