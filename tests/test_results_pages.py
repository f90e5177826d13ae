"""Pages of results are what their records say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_pages_are_what_their_records_say():
    command = [sys.executable, str(ROOT / "benchmarks" / "results_pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
