"""Every network that comes with daband passes every public check; and the checks find one that is wrong."""

from contextlib import ExitStack

import pytest

from daband.neural._checks import ENCODER_CHECKS, check_encoder
from daband.neural.encoders._encoder import CustomFeatures, Features, encoders
from daband.neural.encoders._mlp import MlpFeatures
from tests.registries import temporarily

SHAPES = [("mlp", (5,)), ("mlp", (2, 3)), ("conv", (3, 16, 16)), ("conv", (1, 18, 17))]


@pytest.fixture
def registered():
    """Registers networks under names that are free again afterwards."""
    with ExitStack() as until_the_test_ends:

        def register(name, build):
            until_the_test_ends.enter_context(temporarily(encoders, name, build))
            return name

        yield register


@pytest.mark.parametrize("check", ENCODER_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_conformance(name, shape, check):
    check(name, shape)


def test_every_registered_network_is_checked_or_needs_what_is_not_here():
    assert set(encoders.names()) - {"pretrained"} == {name for name, _ in SHAPES}


def test_a_network_that_a_user_brings_passes(registered):
    import torch

    def brought(*, context_shape):
        return CustomFeatures(module=torch.nn.Linear(5, 4), context_shape=context_shape)

    check_encoder(registered("mine", brought), (5,))


class Crossed(MlpFeatures):
    """Gives every run the features of the first."""

    def forward(self, contexts, *, domain_rows, runs=1):
        features = super().forward(contexts, domain_rows=domain_rows, runs=runs)
        return features if runs == 1 else features[:, : self.width].repeat(1, runs)


class BatchBound(Features):
    def __init__(self, *, context_shape):
        super().__init__()
        self.context_shape, self.width = context_shape, 3

    def forward(self, contexts, *, domain_rows):
        return contexts - contexts.mean(dim=0)  # of the batch, so that a single is nothing


@pytest.mark.parametrize(
    ("build", "message"),
    [(Crossed, "run . has another gradient|run 1 has other latents"), (BatchBound, "row 0 has another latent alone")],
)
def test_the_checks_find_what_is_wrong(registered, build, message):
    with pytest.raises(AssertionError, match=message):
        check_encoder(registered("wrong", build), (3,))
