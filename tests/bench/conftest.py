"""Run folders for the tests of reports: a few real runs, and copies of them that pass for
others.
"""

import json
import shutil

import pytest

from daband.bench import Experiment, bench


def copied(folder, record, out, *, accuracy=None, **changes):
    """A finished run once more, with some fields of its record changed; returns the new record."""
    new = {**record, **changes}
    if accuracy is not None:
        shift = accuracy - record["target_accuracy"]
        new["target_accuracy"] = new["target_value"] = accuracy
        new["per_class"] = [None if v is None else v + shift for v in record["per_class"]]
    new["folder"] = "-".join(
        str(new[name]).replace("/", "_") for name in ("pair", "method", "variant", "seed")
    )
    new["config_hash"] = new["folder"]
    shutil.copytree(folder / record["folder"], out / new["folder"])
    (out / new["folder"] / "result.json").write_text(json.dumps(new))
    return new


def write_results(out, records):
    (out / "results.json").write_text(json.dumps(records))


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Three methods on a tiny twin of DIGIT with two seeds."""
    out = tmp_path_factory.mktemp("images")
    small = Experiment(
        pair="digit",
        pair_options={"tiny": True},
        episodes=4,
        episode_length=8,
        seeds=(0, 1),
        components=3,
        compare=("linucb-p", "nlinucb", "daband"),
        methods={"nlinucb": {"recipe": "small"}, "daband": {"recipe": "small"}},
    )
    bench(small.runs(), out)
    return out


@pytest.fixture(scope="session")
def vectors(tmp_path_factory):
    """Linear methods on a tiny synthetic pair with three seeds."""
    out = tmp_path_factory.mktemp("vectors")
    small = Experiment(
        pair="synthetic",
        pair_options={"tiny": True},
        episodes=3,
        episode_length=8,
        seeds=(0, 1, 2),
        components=3,
        compare=("random", "linucb", "linucb-p"),
    )
    bench(small.runs(), out)
    return out


@pytest.fixture
def tiny_experiment():
    """Makes an experiment of some seconds: three episodes of eight rounds on the tiny twin, two
    seeds.
    """

    def make(**settings):
        tiny = {
            "pair": "synthetic",
            "pair_options": {"tiny": True},
            "episodes": 3,
            "episode_length": 8,
            "seeds": (0, 1),
        }
        return Experiment(**{**tiny, **settings})

    return make
