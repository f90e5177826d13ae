import pytest

from daband.bench._settings import Experiment


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
