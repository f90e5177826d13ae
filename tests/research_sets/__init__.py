"""Tests of ``benchmarks/research_sets``, which importing it here registers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import research_sets  # noqa: F401
