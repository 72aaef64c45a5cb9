"""A run whose model or file is missing is refused before anything is started, and an earlier run stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from cacherl.config import RunConfig, load_config
from cacherl.errors import ConfigError
from deploy.launch import run_training
from deploy.warm_start import require_inputs


def config(tmp_path: Path, *overrides: str) -> RunConfig:
    return load_config(None, [f"run.dir={tmp_path}/runs", "run.name=a", "run.if_exists=replace", *overrides])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.path=/nowhere"], "model.path: /nowhere is not a Hugging Face model folder (no config.json in it)"),
        (["warm_start.source=transcripts", "warm_start.path=/no.jsonl"], "warm_start.path: there is no file /no.jsonl"),
        (["warm_start.prefill=/no.crlp"], "warm_start.prefill: there is no file /no.crlp"),
    ],
)
def test_an_earlier_run_survives_a_wrong_path(tmp_path: Path, overrides: list[str], message: str) -> None:
    earlier = tmp_path / "runs" / "a"
    earlier.mkdir(parents=True)
    (earlier / "config.yaml").write_text("run: {name: a}\n")
    with pytest.raises(ConfigError) as caught:
        run_training(config(tmp_path, *overrides))
    assert str(caught.value) == message
    assert [path.name for path in earlier.iterdir()] == ["config.yaml"]


def test_what_is_there_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pool.crlp").touch()
    require_inputs(config(tmp_path, f"model.path={tmp_path}", f"warm_start.prefill={tmp_path}/pool.crlp"))


def test_a_run_that_goes_on_needs_no_prefill(tmp_path: Path) -> None:
    require_inputs(config(tmp_path, "warm_start.prefill=/no.crlp", "run.if_exists=resume"))
