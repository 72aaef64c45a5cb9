"""The judge against a real HTTP server on loopback that answers well, fails, hangs, drips and talks nonsense."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from actors.report import EpisodeSummary, GroupReport, rollout_metrics
from cacherl.errors import ConfigError
from cacherl.trajectory import Trajectory
from deploy.tiny_model import build_tokenizer
from reward_data import episode, good, run_config, says
from rewards.composer import Composer
from rewards.judge import transcript_of
from rewards.judge_endpoint import read_reply
from rewards.judge_local import LocalModel
from rewards.judgement import JudgementError


class Server:
    """An OpenAI-compatible endpoint. `behave(handler, transcript)` answers; `asked` counts transcripts."""

    def __init__(self) -> None:
        self.behave: Callable[[Any, str], None] = lambda handler, transcript: reply(handler, "0.5")
        self.asked: Counter[str] = Counter()
        self.requests: list[tuple[str, dict[str, Any], str | None]] = []
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                transcript = body["messages"][-1]["content"]
                outer.asked[transcript] += 1
                outer.requests.append((self.path, body, self.headers["Authorization"]))
                outer.behave(self, transcript)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def reply(handler: Any, score: str, *, status: int = 200) -> None:
    """Answer with a chat completion whose content is ``{"score": <score>}``."""
    raw(handler, json.dumps({"choices": [{"message": {"content": f'{{"score": {score}}}'}}]}), status=status)


def raw(handler: Any, text: str, *, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text.encode())


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def composer(server: Server, **judge: Any) -> Composer:
    settings = {"weight": 0.4, "url": server.url, "model": "grader", "deadline_s": 5.0, **judge}
    return Composer.from_config(run_config({"judge": settings, "tool_use": 0.0, "step_penalty": 0.0}))


def answer(text: str, outcome: float = 1.0) -> Trajectory:
    return episode(says("read d17", (good(), '{"value":"tamik"}')), says(text), outcome=outcome, prompt=["Who is it?"])


def test_an_endpoint_s_score_is_weighed_and_the_transcript_is_whole(server, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")
    server.behave = lambda handler, transcript: reply(handler, "0.75")
    scorer = composer(server, api_key_env="JUDGE_KEY", instructions="Grade it.")
    (scored,) = scorer.score([answer("[ANSWER] tamik")])
    assert scored.rewards == pytest.approx({"final": 1.0, "judge": 0.3})
    lines = ["user: Who is it?", "assistant: read d17", 'tool read: {"value":"tamik"}', "assistant: [ANSWER] tamik"]
    ((path, body, key),) = server.requests
    assert (path, key, body["model"], body["temperature"]) == ("/v1/chat/completions", "Bearer secret", "grader", 0)
    assert body["messages"] == [
        {"role": "system", "content": "Grade it."},
        {"role": "user", "content": "\n".join(lines)},
    ]
    assert scorer.blocking
    assert not Composer.from_config(run_config()).blocking


def test_equal_transcripts_are_asked_about_once(server):
    scorer = composer(server)
    scorer.score([answer("a"), answer("a"), answer("b")])
    scorer.score([answer("b"), answer("a")])
    assert sorted(server.asked.values()) == [1, 1]
    assert composer(server, cache_entries=0).score([answer("a")])
    assert server.asked[transcript_of(answer("a"))] == 2


def test_the_oldest_scores_are_forgotten_first(server):
    scorer = composer(server, cache_entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        scorer.score([answer(text)])
    assert [server.asked[transcript_of(answer(text))] for text in "abc"] == [1, 2, 1]


def hang(server: Server) -> Callable[[Any, str], None]:
    return lambda handler, transcript: server.over.wait(30)


def drip(server: Server) -> Callable[[Any, str], None]:
    """A byte every 50 ms: no single read is late."""

    def behave(handler: Any, transcript: str) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not server.over.wait(0.05):
            try:
                handler.wfile.write(b" ")
                handler.wfile.flush()
            except OSError:
                return

    return behave


def speaks(text: str) -> Callable[[Server], Callable[[Any, str], None]]:
    return lambda server: lambda handler, transcript: raw(handler, text)


def steadily(server: Server, start: bytes, more: bytes) -> Callable[[Any, str], None]:
    """`start`, then `more` every 50 ms."""

    def behave(handler: Any, transcript: str) -> None:
        handler.wfile.write(start)
        while not server.over.wait(0.05):
            try:
                handler.wfile.write(more)
            except OSError:
                return

    return behave


def drip_headers(server: Server) -> Callable[[Any, str], None]:
    return steadily(server, b"HTTP/1.1 200 OK\r\nX-Header: ", b"x")


def not_yet(server: Server) -> Callable[[Any, str], None]:
    return steadily(server, b"", b"HTTP/1.1 100 Continue\r\n\r\n")


def flood(server: Server) -> Callable[[Any, str], None]:
    return lambda handler, transcript: raw(handler, " " * 2_000_000)


def close_at_once(server: Server) -> Callable[[Any, str], None]:
    return lambda handler, transcript: handler.connection.close()


FAILURES = [
    pytest.param(lambda server: lambda handler, transcript: reply(handler, "0.9", status=500), 3, id="error 500"),
    pytest.param(lambda server: lambda handler, transcript: reply(handler, "0.9", status=429), 3, id="too many requests"),
    pytest.param(lambda server: lambda handler, transcript: reply(handler, "0.9", status=401), 1, id="refused: not again"),
    pytest.param(lambda server: lambda handler, transcript: reply(handler, "1.5"), 3, id="out of range"),
    pytest.param(lambda server: lambda handler, transcript: reply(handler, "NaN"), 3, id="not a number"),
    pytest.param(lambda server: lambda handler, transcript: reply(handler, '"0.9"'), 3, id="text for a number"),
    pytest.param(lambda server: lambda handler, transcript: reply(handler, "true"), 3, id="true is no 1"),
    pytest.param(speaks("I would say 0.9!"), 3, id="prose"),
    pytest.param(speaks('{"choices": []}'), 3, id="no choice"),
    pytest.param(speaks('{"choices": [{"message": {"content": null}}]}'), 3, id="no content"),
    pytest.param(speaks('{"choices": [{"message": {"content": "about 0.9"}}]}'), 3, id="prose as content"),
    pytest.param(speaks("\xff\xfe[["), 3, id="bytes"),
    pytest.param(flood, 3, id="endless reply"),
    pytest.param(close_at_once, 3, id="closed connection"),
]


@pytest.mark.parametrize(("behaviour", "attempts"), FAILURES)
def test_a_failure_is_no_score_and_pulls_nobody_up_or_down(server, behaviour, attempts):
    """One member of three has no score: it gets the mean of the others', under another name."""
    broken = behaviour(server)

    def behave(handler: Any, transcript: str) -> None:
        if "bad" in transcript:
            broken(handler, transcript)
        else:
            reply(handler, "0.25" if "low" in transcript else "0.75")

    server.behave = behave
    scored = composer(server).score([answer("low"), answer("bad"), answer("high")])
    assert [dict(member.rewards) for member in scored] == [
        {"final": 1.0, "judge": pytest.approx(0.1)},
        {"final": 1.0, "judge_missing": pytest.approx(0.2)},
        {"final": 1.0, "judge": pytest.approx(0.3)},
    ]
    assert server.asked[transcript_of(answer("bad"))] == attempts


@pytest.mark.parametrize("behaviour", [hang, drip, drip_headers, not_yet])
def test_a_server_that_does_not_finish_is_left_at_the_deadline(server, behaviour):
    """Not only does the caller stop waiting: the connection ends too, or the judge would run out of them."""
    server.behave = behaviour(server)
    scorer = composer(server, deadline_s=0.4, parallel=1)
    begin = time.monotonic()
    scored = scorer.score([answer("a"), answer("b")])
    assert time.monotonic() - begin < 2.0
    assert [dict(member.rewards) for member in scored] == [{"final": 1.0, "judge_missing": 0.2}] * 2
    server.behave = lambda handler, transcript: reply(handler, "1")
    assert any(scorer.score([answer("c")])[0].rewards.get("judge") == 0.4 for _ in range(10))  # on a busy machine


def test_a_server_that_is_not_there_costs_no_more_than_its_retries(server):
    url, _ = server.url, server.close()
    begin = time.monotonic()
    (scored,) = composer(server, url=url, retries=1).score([answer("a")])
    assert time.monotonic() - begin < 2.0
    assert set(scored.rewards) == {"final", "judge_missing"}


def test_a_passing_failure_is_overcome_and_a_failure_is_not_remembered(server):
    server.behave = lambda handler, transcript: reply(handler, "1", status=200 if server.asked[transcript] > 2 else 503)
    (scored,) = composer(server, retries=2).score([answer("a")])
    assert scored.rewards["judge"] == pytest.approx(0.4)
    scorer = composer(server, retries=0)
    server.asked.clear()
    names = [set(scorer.score([answer("b")])[0].rewards) - {"final"} for _ in range(3)]
    assert names == [{"judge_missing"}, {"judge_missing"}, {"judge"}]


def test_failures_are_counted_and_do_not_lower_the_mean_score(server):
    server.behave = lambda handler, transcript: reply(handler, "0.5", status=200 if "good" in transcript else 401)
    scored = composer(server).score([answer("good"), answer("bad"), answer("bad too"), answer("a good one")])
    report = GroupReport(group_id="g", actor="a", push="ok", episodes=tuple(map(EpisodeSummary.of, scored)))
    metrics = rollout_metrics([report])
    assert metrics["rollout/judge_failed"] == 0.5
    assert metrics["reward/judge"] == pytest.approx(0.2)
    plain = Composer.from_config(run_config()).score([answer("good")])
    assert "rollout/judge_failed" not in rollout_metrics(
        [GroupReport(group_id="g", actor="a", push="ok", episodes=tuple(map(EpisodeSummary.of, plain)))]
    )


def test_requests_go_out_side_by_side(server):
    server.behave = lambda handler, transcript: (time.sleep(0.3), reply(handler, "0.5"))[1]
    begin = time.monotonic()
    composer(server, parallel=4).score([answer(str(number)) for number in range(4)])
    assert time.monotonic() - begin < 1.0


def test_a_schedule_scales_missing_scores_like_real_ones(server):
    server.behave = lambda handler, transcript: reply(handler, "1", status=401 if "bad" in transcript else 200)
    scored = composer(server).score([answer("good"), answer("bad")], {"judge": 0.5})
    assert [member.rewards for member in scored] == [{"final": 1.0, "judge": 0.2}, {"final": 1.0, "judge_missing": 0.2}]


def test_a_missing_score_stays_neutral_where_scores_are_normalised(server):
    server.behave = lambda handler, transcript: reply(handler, "0.2", status=401 if "bad" in transcript else 200)
    reward = {"judge": {"weight": 0.4, "url": server.url, "model": "grader"}, "normalize": ["judge"]}
    scorer = Composer.from_config(run_config({**reward, "tool_use": 0.0, "tool_misuse": 0.0, "step_penalty": 0.0}))
    scored = scorer.score([answer("good"), answer("bad")])
    assert [dict(member.rewards) for member in scored] == [
        {"final": 1.0, "judge": pytest.approx(0.4)},
        {"final": 1.0, "judge_missing": pytest.approx(0.4)},
    ]


def test_a_query_of_the_url_is_asked_with(server):
    composer(server, url=f"{server.url}?api-version=7").score([answer("a")])
    assert server.requests[0][0] == "/v1/chat/completions?api-version=7"


def test_a_fenced_reply_is_read_and_nothing_else_is():
    def completion(content: str) -> str:
        return json.dumps({"choices": [{"message": {"content": content}}]})

    assert read_reply(completion('```json\n{"score": 1}\n```')).score == 1
    with pytest.raises(JudgementError, match="not a judgement"):
        read_reply(completion('{"score": 1} because 0.3'))


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ({"url": "localhost:8000"}, r"reward.judge.url 'localhost:8000' must be an http:// or https:// URL"),
        ({"url": "http://host:99999/v1"}, r"reward.judge.url 'http://host:99999/v1' must be an http:// or https:// URL"),
        ({"url": "http://[::1/v1"}, r"reward.judge.url 'http://\[::1/v1' must be"),
        ({"url": "http://me:secret@host/v1"}, r"without a user: the key goes into the environment variable"),
        ({"api_key_env": "NOT_SET_ANYWHERE"}, r"reward.judge.api_key_env 'NOT_SET_ANYWHERE' is not set"),
        ({"backend": "local", "url": None, "model": "/nowhere"}, r"reward.judge.model: /nowhere is not a Hugging Face folder"),
    ],
)
def test_a_judge_that_cannot_be_reached_by_these_settings_is_refused_before_anything_starts(server, judge, message):
    with pytest.raises(ConfigError, match=message):
        composer(server, **judge)


@pytest.fixture(scope="module")
def local_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scorer")
    tokenizer = build_tokenizer(["Who", "is", "it", "?", "user", ":", "assistant", "tool", "read", "d17", "tamik", " "], (), 64)
    tokenizer.save_pretrained(folder)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
    config = Qwen3Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, num_labels=1, pad_token_id=0, max_position_embeddings=64, **shape
    )
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_a_local_model_scores_too_and_a_long_transcript_loses_its_beginning(local_folder, server):
    judge = {"backend": "local", "url": None, "model": str(local_folder)}
    short, long = answer("tamik"), answer("tamik " * 500)
    first = composer(server, **judge).score([short, long])
    for member in first:
        assert 0 < member.rewards["judge"] < 0.4
    assert [member.rewards for member in composer(server, **judge).score([short, long])] == [member.rewards for member in first]
    assert first[0].rewards["judge"] != first[1].rewards["judge"]


def test_a_model_without_a_scoring_head_is_refused_since_it_would_be_a_random_one(local_folder, server, tmp_path):
    folder = Path(shutil.copytree(local_folder, tmp_path / "causal"))
    config = Qwen3Config.from_pretrained(folder)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    judge = {"backend": "local", "url": None, "model": str(folder)}
    with pytest.raises(ConfigError, match=r"causal holds a Qwen3ForCausalLM, which has no scoring head"):
        composer(server, **judge)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"architectures": None}))  # it does not say what it is
    (scored,) = composer(server, **judge).score([answer("a")])
    assert scored.rewards == {"final": 1.0, "judge_missing": 0.2}


def test_a_local_model_that_cannot_be_loaded_is_a_failure_like_any_other_and_tried_once(tmp_path, server, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    loads = []
    load = LocalModel._load
    monkeypatch.setattr(LocalModel, "_load", lambda model: loads.append(model) or load(model))
    for member in composer(server, backend="local", url=None, model=str(tmp_path)).score([answer("a"), answer("b")]):
        assert member.rewards == {"final": 1.0, "judge_missing": 0.2}
    assert len(loads) == 1


def test_the_judge_speaks_of_the_answer_so_its_score_is_weighed_by_tier_like_the_outcome(server):
    server.behave = lambda handler, transcript: reply(handler, "1", status=401 if "bad" in transcript else 200)
    settings = {"weight": 0.4, "url": server.url, "model": "grader"}
    reward = {"judge": settings, "tiers": {"enabled": True}}
    good_one, bad_one = (
        episode(says("look", (good(tier="normalised"), "{}")), says(text), outcome=1.0) for text in ("good", "bad")
    )
    scored = Composer.from_config(run_config(reward)).score([good_one, bad_one])
    assert [member.rewards for member in scored] == [
        {"final": 0.3, "judge": pytest.approx(0.12)},
        {"final": 0.3, "judge_missing": pytest.approx(0.12)},
    ]
