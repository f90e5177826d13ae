"""``Policy.for_pair``: what follows from a pair, for every policy alike."""

from typing import Any

import numpy as np
import pytest

import daband
from daband.bench._methods import build_policy, list_settings
from daband.domains import from_arrays, load
from daband.errors import InvalidInput
from daband.policies import policies
from tests.registries import temporarily

_X = np.abs(np.random.default_rng(1).normal(size=(120, 400)))
PAIR = from_arrays(source=(_X, np.arange(120) % 2), target=_X + 0.5)


@pytest.mark.parametrize("name", policies.names())
def test_every_policy_takes_every_common_setting(name):
    made = policies.get(name).for_pair(PAIR, seed=3, device="cpu", feedback="bandit", alpha=0.2)
    assert (made.context_shape, made.n_arms, made.arms, made.seed) == ((400,), 2, "disjoint", 3)
    assert made.settings().get("feedback", "bandit") == "bandit"


@pytest.mark.parametrize("name", policies.names())
def test_feedback_comes_from_the_pair_and_labels_are_not_standardised(name):
    euros = from_arrays(source=(np.eye(4), 17 * np.eye(4) - 5), target=np.eye(4), arms="disjoint")
    made = policies.get(name).for_pair(euros)
    assert made.standardise_rewards
    assert made.settings().get("feedback", "bandit") == "bandit"
    labelled = policies.get(name).for_pair(PAIR)
    assert not labelled.standardise_rewards
    assert labelled.settings().get("feedback", "one_hot") == "one_hot"


def test_linear_policies_standardise_vectors_and_leave_images_alone():
    assert isinstance(daband.LinUCB.for_pair(PAIR).transform, daband.Standardise)
    assert daband.LinUCB.for_pair(load("digit", tiny=True)).transform is None
    assert daband.LinUCB.for_pair(PAIR, transform=None).transform is None
    assert isinstance(daband.LinUCB.for_pair(PAIR, transform=daband.PCA(3)).transform, daband.PCA)
    assert daband.Random.for_pair(PAIR).transform is None


def test_a_wrong_setting_suggests_the_nearest():
    with pytest.raises(InvalidInput, match=r"LinUCB .*'ridgee'; .*'ridge'"):
        daband.LinUCB.for_pair(PAIR, ridgee=2.0)
    with pytest.raises(InvalidInput, match=r"pair .*daband\.domains\.Pair, .*dict"):
        daband.LinUCB.for_pair({})


def test_alpha_falls_with_the_dimension_where_contexts_are_standardised():
    chosen = []
    for dimension in (2, 15, 23, 31, 47, 3999):
        x = np.random.default_rng(0).normal(size=(20, dimension))
        pair = from_arrays(source=(x, np.arange(20) % 2), target=x)
        chosen.append(daband.LinUCB.for_pair(pair).settings()["alpha"])
        assert daband.LinUCB.for_pair(pair, alpha=0.7).settings()["alpha"] == 0.7
        bare = daband.LinUCB(context_shape=pair.context_shape, n_arms=2).settings()["alpha"]
        assert daband.LinUCB.for_pair(pair, transform=None).settings()["alpha"] == bare
    assert chosen == pytest.approx([1.0, 1.0, 4 / 9, 0.25, 1 / 9, 0.1])


def test_a_class_whose_constructor_hands_settings_on():
    class Bold(daband.LinUCB):
        def __init__(self, *, boldness: float = 2.0, **rest: Any) -> None:
            super().__init__(**rest)
            self.boldness = boldness

    made = Bold.for_pair(PAIR, boldness=3.0, ridge=2.0, device="cpu", seed=4)
    assert (made.boldness, made.settings()["ridge"], made.seed) == (3.0, 2.0, 4)
    assert (made.context_shape, made.n_arms) == (PAIR.context_shape, PAIR.n_arms)
    assert isinstance(made.transform, daband.Standardise)
    assert "ridge=2.0" in repr(made)
    assert "epsilon=" not in repr(made)  # it is the default
    with pytest.raises(InvalidInput, match=r"Bold .*'boldnes'; .*'boldness'"):
        Bold.for_pair(PAIR, boldnes=1.0)
    with temporarily(policies, "bold", Bold):
        assert {"boldness", "ridge", "alpha"} <= set(list_settings("bold"))
        by_name = build_policy(
            "bold", PAIR, seed=1, settings={"boldness": 5.0, "ridge": 3.0}, n_components=8
        )
        assert (by_name.boldness, by_name.settings()["ridge"]) == (5.0, 3.0)
