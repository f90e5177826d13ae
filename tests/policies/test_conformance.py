"""Every registered policy passes every public check, by itself and in its variants."""

import numpy as np
import pytest

import daband
from daband.checks import POLICY_CHECKS
from daband.policies import policies
from tests.policies.further_checks import FURTHER_CHECKS

VARIANTS = {
    "linucb-greedy": lambda **sizes: daband.LinUCB(**sizes, explore="greedy", epsilon=0.2),
    "linucb-ridge": lambda **sizes: daband.LinUCB(**sizes, alpha=0.3, ridge=0.1),
    "linucb-p": lambda **sizes: daband.LinUCB(**sizes, transform=_fitted_pca()),
    "mixture-network": lambda **sizes: _mixed(
        sizes, network=daband.NeuralLinUCB(**sizes, recipe="small")
    ),
    "mixture-trees": lambda **sizes: _mixed(sizes, trees=daband.Trees(**sizes)),
}


def _mixed(sizes, **other):
    return daband.Mixture(
        **sizes, members={"linucb": daband.LinUCB(**sizes, transform=_fitted_pca()), **other}
    )


def _fitted_pca():
    return daband.PCA(2).fit(np.random.default_rng(0).normal(size=(50, 3)))


MAKERS = {**{name: policies.get(name) for name in policies}, **VARIANTS}


@pytest.mark.parametrize(
    "check",
    [*POLICY_CHECKS, *FURTHER_CHECKS],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_conformance(name, check):
    check(MAKERS[name])
