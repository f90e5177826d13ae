"""The policy that CONTRIBUTING shows works as it stands."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import daband
from daband.checks import check_policy
from daband.policies import policies

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_policy_of_contributing_passes_every_check(monkeypatch, tmp_path):
    section = PAGE.read_text().partition("## A new policy")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    # so that no other test finds it
    monkeypatch.setattr(policies, "_members", dict(policies._members))
    (tmp_path / "contributed_policy.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module("contributed_policy").Mine
    check_policy(mine)
    pair = daband.domains.load("synthetic", tiny=True)
    policy = mine.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)
    assert np.ptp(policy.decide(np.zeros((1, *pair.context_shape)), rule="greedy").mean) > 0


def test_every_name_of_the_map_is_in_its_file():
    rows = re.findall(
        r"^\| [^|]+ \| `([\w/]+)\.py` \| (.+) \|$", PAGE.read_text(), flags=re.MULTILINE
    )
    assert len(rows) >= 10
    for path, names in rows:
        if path == "neural/daband":
            pytest.importorskip("torch")
        module = importlib.import_module(f"daband.{path.replace('/', '.')}")
        for name in re.findall(r"`([\w.]+)`", names):
            thing = module
            for part in name.split("."):
                thing = getattr(thing, part)
            assert thing.__module__ == module.__name__, name
