"""The run's metrics reach the endpoint that Ray gives to Prometheus."""

from __future__ import annotations

import re
import subprocess
import sys

# A process of its own: the cluster it starts must not become the one of the tests that follow.
SCRIPT = """
import time, urllib.request
import ray
from deploy.ray_metrics import RayMetricSink

sink = RayMetricSink("demo")
sink.write(0, {"eval/success": 0.25})
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
sink.write(1, {"eval/success": 0.5, "rollout/failed": 3.0, "reward/tool_use": float("nan")})
sink.write(2, {"rollout/failed": float("inf")})
url = f"http://127.0.0.1:{ray.nodes()[0]['MetricsExportPort']}/metrics"
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        body = urllib.request.urlopen(url, timeout=5).read().decode()
    except OSError:
        body = ""
    if "ray_cacherl_eval_success" in body:
        break
    time.sleep(0.5)
print("\\n".join(line for line in body.splitlines() if "cacherl" in line))
ray.shutdown()
"""


def test_gauges_are_exported_with_help_unit_and_run() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    assert "# HELP ray_cacherl_eval_success greedy success on held-out tasks [fraction]" in done.stdout
    samples = {
        match["name"]: (match["run"], float(match["value"]))
        for match in re.finditer(r'^(?P<name>\w+)\{.*run="(?P<run>[^"]*)"\} (?P<value>\S+)$', done.stdout, re.MULTILINE)
    }
    assert samples == {"ray_cacherl_eval_success": ("demo", 0.5), "ray_cacherl_rollout_failed": ("demo", 3.0)}
