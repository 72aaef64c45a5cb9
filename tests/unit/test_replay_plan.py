"""Importance weights and annealing, as formulas; settings that contradict each other."""

from __future__ import annotations

import math
import traceback

import pytest

from cacherl.config import load_config
from cacherl.errors import ReplayError
from cacherl.replay_settings import ReplaySettings, without_password
from replay_service.addresses import address
from replay_service.configuration import encode
from replay_service.keys import Keys
from replay_service.plan import Wait, annealed_beta, importance_weights, inclusion_probability
from replay_service.store import Replay


def test_importance_weights_are_those_of_prioritized_experience_replay():
    chances, beta, pool = [0.1, 0.2, 0.4], 0.4, 1000
    raw = [(pool * chance) ** -beta for chance in chances]
    assert importance_weights(chances, beta) == pytest.approx([weight / max(raw) for weight in raw])
    assert importance_weights(chances, 0.0) == [1.0, 1.0, 1.0]
    assert importance_weights([], 0.4) == []


def test_inclusion_probability():
    assert inclusion_probability(2.0, 0.5) == pytest.approx(1 - math.exp(-1))
    assert inclusion_probability(1e-12, 1e-3) == pytest.approx(1e-15)
    assert inclusion_probability(2.0, -1) == 1.0


def test_beta_is_annealed_over_batches():
    settings = ReplaySettings(importance_beta=0.4, importance_beta_final=1.0, importance_anneal=10)
    assert [annealed_beta(settings, batch) for batch in (0, 5, 10, 99)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
    assert annealed_beta(ReplaySettings(importance_beta=0.4), 99) == 0.4
    assert annealed_beta(ReplaySettings(importance_sampling=False), 0) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 0}, "capacity must be >= 1, got 0"),
        (
            {"capacity": 100, "warmup_steps": 90, "max_ahead": 20},
            "warmup_steps 90 .* max_ahead 20 exceed capacity 100.*raise capacity",
        ),
        ({"max_uses": 0}, "max_uses must be >= 1, got 0"),
        ({"priority_exponent": 1.5}, r"priority_exponent must lie in \[0, 1\], got 1.5"),
        ({"priority_exponent": math.nan}, "priority_exponent must lie in"),
        ({"freshness_half_life": 0.0}, "freshness_half_life must be > 0, got 0.0"),
        ({"fresh_fraction": -0.1}, "fresh_fraction must lie in"),
        ({"eviction": "newest"}, "eviction must be one of oldest, stalest, divergent, utility, got 'newest'"),
        ({"importance_base": "both"}, "importance_base must be one of probability, inclusion"),
        ({"lease_s": math.nan}, "lease_s must be > 0, got nan"),
        ({"shards": ("redis://a",)}, "shards need a url"),
        ({"lease_s": math.inf}, r"lease_s must be <= 1e\+09, got inf"),
        ({"lease_s": 1e300}, "lease_s must be <= "),
        ({"deadline_s": math.inf}, "deadline_s must be <= "),
        ({"reconnect_s": math.inf}, "reconnect_s must be <= "),
        ({"freshness_half_life": math.inf}, "freshness_half_life must be <= "),
        ({"capacity": 10**20}, "capacity must be <= 9007199254740992, got 100000000000000000000"),
        ({"update_frequency": 0, "capacity": 8}, "warmup_steps 128 exceed capacity 8: raise capacity"),
        ({"namespace": "a b"}, "namespace 'a b' must be letters, digits and _ . : -"),
        ({"namespace": ""}, "namespace '' must be letters"),
        ({"url": ""}, r"url must start with redis:// or rediss:// \(leave url out for an embedded server\)"),
        ({"url": "http://:SECRET@h"}, r"^url must start with redis:// or rediss:// \(leave url out for an embedded server\)$"),
        ({"url": "redis://a", "shards": ("redis://b", "c:6379")}, "shards must start with redis:// or rediss://"),
        (
            {"importance_sampling": False, "importance_beta": 0.5},
            "importance_beta 0.5 has no effect without importance_sampling",
        ),
        ({"importance_sampling": False, "importance_beta_final": 1.0}, "importance_beta_final 1.0 has no effect without"),
        ({"importance_sampling": False, "importance_base": "inclusion"}, "importance_base inclusion has no effect without"),
        ({"importance_anneal": 10}, "importance_anneal 10 has no effect without importance_beta_final"),
        ({"clear_share": 0.5}, "clear_share 0.5 has no effect without clear_every"),
    ],
)
def test_settings_that_cannot_work_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ReplaySettings(**change)


def test_settings_are_stored_the_same_every_time():
    assert encode(ReplaySettings(max_uses=None)) == encode(ReplaySettings(max_uses=None))
    assert encode(ReplaySettings(max_uses=None)) != encode(ReplaySettings(max_uses=3))


def test_keys_share_the_hash_tag_of_their_namespace():
    keys = Keys("run-1")
    assert keys.state == "{run-1}:st"
    assert keys.payload("g:{x}") == b"{run-1}:g:g:{x}"
    for name in ("", "a{b}", "a*", "-a", "a b"):
        with pytest.raises(ValueError, match="must be letters, digits"):
            Keys(name)


def test_waits_read_as_noun_phrases():
    assert str(Wait(reason="eligible", have=3, need=16)) == "groups that may be sampled (3 of 16)"
    assert str(Wait(reason="stale", have=3, need=16)) == "the removal of stale groups (3 left)"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:pa:ss@host:1/0", "redis://user:***@host:1/0"),
        ("rediss://:p@ss@host", "rediss://:***@host"),
        ("redis://user@host", "redis://user@host"),
        ("redis://host:6379/0?ssl_ca_certs=a:b", "redis://host:6379/0?ssl_ca_certs=a:b"),
        ("redis://host/0?password=SECRET", "redis://host/0?password=***"),
        (
            "rediss://:SECRET@host?username=me&ssl_password=SECRET&PASSWORD=p@ss#x",
            "rediss://:***@host?username=me&ssl_password=***&PASSWORD=***#x",
        ),
        ("redis://:12/SECRET@host:1/0", "redis://:***@host:1/0"),
    ],
)
def test_what_is_written_of_a_config_holds_no_password(url, shown):
    assert without_password(url) == shown
    config = load_config(None, [f"replay.url={url}", f"replay.shards=[{url}]"])
    assert config.replay.url == url
    written = config.model_dump(mode="json")["replay"]
    assert (written["url"], written["shards"], written["capacity"]) == (shown, [shown], 10_000)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:12/SECRET@localhost:6379/0",
        "redis://:SEC/RET@localhost:6379/0",
        "redis://:SEC#RET@localhost:6379/0",
        "redis://:12?SECRET@localhost",
        "redis://u:SEC[RET@localhost:1/0",
        "redis://h:SECRET/0",
    ],
)
def test_nothing_of_a_malformed_url_is_quoted(url):
    with pytest.raises(ReplayError, match=r"percent-encode .* replay\.password_env") as refusal:
        Replay(url, "pool")
    assert "SEC" not in "".join(traceback.format_exception(refusal.value)).replace(f'"{url}"', "")


def test_what_is_said_of_a_url_is_scheme_host_and_port():
    for url in ("redis://me:SECRET@host:1/0?password=SECRET", "rediss://host?ssl_password=SECRET&username=SECRET"):
        pool = Replay(url, "pool")
        assert repr(pool) == f"Replay({address(url)}, 'pool')"
        assert "SECRET" not in repr(pool) + repr(pool._index) + repr(pool._settings)
    assert address("redis://me:SECRET@Host:1/0") == "redis://host:1"
    assert address("rediss://:SECRET@[::1]") == "rediss://[::1]:6379"
