"""Rules of the trip family's markets, its tools, and its verdict."""

from __future__ import annotations

import pytest

from cacherl.environment_settings import EnvSection
from envs.registry import load_source
from envs.trip.market import LEVELS, SHAPES, build_market, is_comp_pair, is_val_leg
from envs.trip.names import AMPLE, CITIES, FLIGHT_IDS, HOTEL_IDS

CALM = load_source(EnvSection(name="trip", levels=(1,), transient_failure_rate=0.0))
EVERY = [(split, level) for split, levels in LEVELS.items() for level in levels]


def call(tool: str, /, **arguments: str) -> str:
    inner = ",".join(f'"{key}":"{value}"' for key, value in arguments.items())
    return f"[TOOL_CALL] {tool} {{{inner}}} [/TOOL_CALL]"


async def begin(level: int, seed: int = 1):
    env = CALM.make_env()
    task = CALM.get(f"trip/train/{level}/{seed}")
    await env.reset(task, rollout_seed=0)
    return env, build_market(split="train", level=level, seed=seed)


async def say(env, text: str) -> str:
    return (await env.step(text)).messages[0].content


def test_words_are_single_and_distinct():
    words = [*CITIES, *FLIGHT_IDS, *HOTEL_IDS]
    assert len(set(words)) == len(words) == 200
    assert all(word.isalnum() for word in words)


@pytest.mark.parametrize(("split", "level"), EVERY)
def test_the_optimum_is_unique_affordable_and_of_its_split(split, level):
    for seed in range(100):
        market, shape = build_market(split=split, level=level, seed=seed), SHAPES[level]
        assert market == build_market(split=split, level=level, seed=seed)
        legs = list(zip(market.route, market.route[1:], strict=False))
        assert len(set(market.route)) == shape.legs + 1
        assert {is_val_leg(*leg) for leg in legs} == {split == "val"}
        threes = zip(market.route, market.route[1:], market.route[2:], strict=False)
        assert any(is_comp_pair(*three) for three in threes) == (split == "comp")
        assert list(market.best) == legs + ([(market.route[-1],)] if shape.hotel else [])
        assert bool(market.refused) == shape.sold_out
        cost = sum(market.offers[best].price for best in market.best.values())
        assert cost <= market.budget <= AMPLE
        for listing, best in market.best.items():
            prices = {offer: market.offers[offer].price for offer in market.listings[listing]}
            assert len(set(prices.values())) == len(prices) == 4
            refused = market.refused.get(listing)
            if not (shape.budget and len(listing) == 1):
                assert best == min((offer for offer in prices if offer != refused), key=prices.__getitem__)
            if refused:
                assert prices[refused] < prices[best]


def test_within_the_budget_the_best_hotel_is_neither_the_dearest_nor_beyond_the_money():
    for seed in range(200):
        market = build_market(split="train", level=6, seed=seed)
        home = (market.route[-1],)
        left = market.budget - sum(market.offers[best].price for listing, best in market.best.items() if listing != home)
        hotels = [market.offers[offer] for offer in market.listings[home]]
        best = market.offers[market.best[home]]
        assert best.stars == max(hotel.stars for hotel in hotels if hotel.price <= left)
        assert max(hotel.stars for hotel in hotels) > best.stars


async def test_offers_bookings_and_money():
    env, market = await begin(1)
    (leg, best), *_ = market.best.items()
    first, *_, last = market.listings[leg]
    prices = [market.offers[offer].price for offer in market.listings[leg]]
    assert first == best
    assert prices == sorted(prices)
    listing = ",".join(f'"{offer}":{market.offers[offer].price}' for offer in market.listings[leg])
    assert await say(env, call("flights", src=leg[0], dst=leg[1])) == f"{{{listing}}}"
    assert await say(env, call("book", id=last)) == f'{{"booked":"{last}"}}'
    assert await say(env, call("budget")) == f'{{"left":{500 - prices[-1]}}}'
    assert await say(env, call("book", id=last)) == '{"error":"already booked"}'
    assert await say(env, call("book", id="f200")) == '{"error":"not found"}'
    assert await say(env, call("flights", src=leg[0], dst="rome")) == '{"error":"not found"}'
    assert await say(env, call("cancel", id=first)) == '{"error":"not booked"}'
    assert await say(env, call("cancel", id=last)) == f'{{"cancelled":"{last}"}}'
    assert env.verdict() == 0.0
    assert await say(env, call("book", id=best)) == f'{{"booked":"{best}"}}'
    assert env.verdict() == 1.0
    assert (await env.step("[ANSWER] done")).outcome == 1.0


async def test_tags_reward_no_cancelling_and_booking_again():
    env, market = await begin(1)
    (leg, best), *_ = market.best.items()
    wrong = market.listings[leg][1]
    texts = [call("book", id=offer) for offer in (wrong, best)] + [call("cancel", id=offer) for offer in (wrong, best)]
    tags = [(await env.step(text)).calls[0].tags for text in [*texts, call("book", id=best)]]
    assert tags == [("irrelevant", "first"), ("needed", "first"), (), ("irrelevant", "first"), ("needed", "repeat")]


async def test_a_sold_out_offer_is_learned_of_by_booking_it():
    env, market = await begin(5)
    refused = next(iter(market.refused.values()))
    step = await env.step(call("book", id=refused))
    assert step.messages[0].content == '{"error":"sold out"}'
    assert step.calls[0].tags == ("needed", "first")


async def test_overbooking_fails():
    env, market = await begin(3)
    for listing, ids in market.listings.items():
        if listing in market.best:
            for offer in ids:
                await env.step(call("book", id=offer))
    assert (await env.step("[ANSWER] done")).outcome == 0.0


async def test_the_budget_is_a_limit():
    env, market = await begin(6)
    home = (market.route[-1],)
    dearest = max(market.listings[home], key=lambda offer: market.offers[offer].price)
    for listing, best in market.best.items():
        if listing != home:
            await env.step(call("book", id=best))
    assert await say(env, call("book", id=dearest)) == '{"error":"over budget"}'


async def test_a_plan_that_is_not_declared_done_counts_only_when_cut_off():
    env, market = await begin(1)
    await env.step(call("book", id=next(iter(market.best.values()))))
    assert env.verdict() == 1.0
    assert (await env.step("[ANSWER] nothing")).outcome == 0.0
    assert env.verdict() == 0.0
