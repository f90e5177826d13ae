"""The benchmark scripts must not rot: each runs at a tiny size, without the peers."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_linear_writes_every_metric(tmp_path: Path) -> None:
    path = tmp_path / "new" / "linear.json"
    printed = run("linear.py", "--quick", "--only", "daband,bare numpy", "--json", str(path))
    document = json.loads(path.read_text())
    assert {comparison["metric"] for comparison in document["comparisons"]} == set(document["results"])
    assert "bare numpy loop" in printed
    # The bare loop is LinUCB too: but for ties in the first rounds the two must earn the same.
    reward = document["results"]["cumulative reward"]["values"]
    for ours, bare in zip(reward["daband LinUCB"], reward["bare numpy loop"], strict=True):
        assert abs(ours - bare) < 0.05


def test_dual_learns(tmp_path: Path) -> None:
    path = tmp_path / "dual.json"
    run("dual.py", "--rounds", "256", "--shape", "3,16,32", "--evaluate", "64", "--arms", "4", "--json", str(path))
    result = json.loads(path.read_text())
    assert result["rounds"] == 256
    assert result["evaluated"] == 64
    assert result["target_accuracy"] > 0.5
