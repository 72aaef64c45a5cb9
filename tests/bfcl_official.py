"""The official BFCL checker, for a process of its own: it evaluates call strings and keeps its worlds in module globals.

Reads lines of JSON {"category", "number", "turns": [[[call string, ...] per step] per turn]} and writes a verdict each: 0, 1.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    spec = importlib.util.find_spec("bfcl_eval")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "data"
    known: dict[str, Any] = {}
    for index, line in enumerate(sys.stdin):
        asked = json.loads(line)
        name = f"BFCL_v4_multi_turn_{asked['category']}.json"
        if name not in known:
            known[name] = [
                [json.loads(row) for row in (folder / path).read_text().splitlines()]
                for path in (name, f"possible_answer/{name}")
            ]
        entries, truths = known[name]
        entry, truth = entries[asked["number"]], truths[asked["number"]]
        assert entry["id"] == truth["id"]
        checked = multi_turn_checker(asked["turns"], truth["ground_truth"], entry, asked["category"], f"episode{index}")
        sys.stdout.write(f"{int(checked['valid'])}\n")


if __name__ == "__main__":
    main()
