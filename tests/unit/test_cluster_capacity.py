"""A run that a cluster can never hold is refused with the arithmetic and the keys to change."""

from __future__ import annotations

from typing import Any

import pytest

from cacherl.config import RunConfig, parse_config
from cacherl.errors import ConfigError
from cacherl.replay_settings import ReplaySettings
from deploy.cluster import _check_capacity, _check_nodes, cluster
from support import free_port


def config(actors: dict[str, Any], learner: dict[str, Any], **ray: Any) -> RunConfig:
    return parse_config({"actors": actors, "learner": learner, "ray": ray})


def test_too_few_cpus() -> None:
    wanted = config({"count": 3, "cpus_per_actor": 1.5}, {"workers": 2, "cpus_per_worker": 1})
    with pytest.raises(ConfigError) as caught:
        _check_capacity(wanted, {"CPU": 6.0, "memory": 1e9})
    assert str(caught.value) == (
        "the cluster has 6 CPUs, the run needs 6.5: actors.count 3 x actors.cpus_per_actor 1.5 + learner.workers 2 x "
        "learner.cpus_per_worker 1; lower one, add nodes, or set ray.autoscaling=true"
    )


def test_no_gpu_at_all() -> None:
    with pytest.raises(ConfigError, match=r"^the cluster has 0 GPUs, the run needs 3: .* x actors.gpus_per_actor 2 "):
        _check_capacity(config({"gpus_per_actor": 2}, {"gpus_per_worker": 1}), {"CPU": 64.0})


@pytest.mark.parametrize("cpus", [6.5, 6.5 - 1e-12, 100.0])
def test_enough_is_enough(cpus: float) -> None:
    _check_capacity(config({"count": 3, "cpus_per_actor": 1.5}, {"workers": 2}), {"CPU": cpus})


def test_a_cluster_that_grows_is_waited_for() -> None:
    _check_capacity(config({"count": 3, "gpus_per_actor": 8}, {}, autoscaling=True), {"CPU": 1.0})


def test_fractions_of_a_cpu_add_up_without_rounding_errors() -> None:
    _check_capacity(config({"count": 3, "cpus_per_actor": 0.1}, {"cpus_per_worker": 0.7}), {"CPU": 1.0})


def test_an_embedded_server_serves_one_node() -> None:
    _check_nodes(RunConfig(), 1)
    _check_nodes(RunConfig(replay=ReplaySettings(url="redis://example:6379")), 3)
    with pytest.raises(ConfigError, match=r"replay\.url: the cluster has 3 nodes"):
        _check_nodes(RunConfig(), 3)


@pytest.mark.timeout(60)
def test_an_address_at_which_nothing_listens_is_refused_at_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    wanted = config({}, {}, address=address)
    with pytest.raises(ConfigError, match=rf"^ray\.address: nothing listens at '{address}' "), cluster(wanted, "n"):
        pass
