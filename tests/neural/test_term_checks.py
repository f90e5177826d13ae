"""Every registered term passes every public check; and the checks find terms that are wrong."""

import pytest
import torch

from daband.neural._checks import (
    _TERM_SETTINGS,
    TERM_CHECKS,
    check_row_counts_may_differ,
    check_runs_can_be_mapped,
    check_term,
    make_random_batch,
)
from daband.neural.objectives._objective import Objective, Weight
from daband.neural.objectives._term import Term, terms


@pytest.mark.parametrize(
    "check", TERM_CHECKS, ids=lambda check: check.__name__.removeprefix("check_")
)
@pytest.mark.parametrize("name", terms.names())
def test_conformance(name, check):
    check(terms.get(name))


@pytest.mark.parametrize("name", terms.names())
def test_weight_zero_is_the_term_removed(name):
    """To the bit; the term is not computed, and no random number is drawn for it."""
    other = next(one for one in ("source_squared", "source_cross_entropy") if one != name)
    results = []
    for weights in ({other: Weight(1.0)}, {other: Weight(1.0), name: Weight(0.0)}):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            objective = Objective(weights=weights, settings=_TERM_SETTINGS).double()
            total, values = objective(
                make_random_batch(), torch.ones(len(objective.weights), dtype=torch.float64)
            )
            results.append((total, sorted(values), torch.rand(1)))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert torch.equal(results[0][2], results[1][2])


class Deaf(Term):
    def forward(self, batch):
        return batch.predictions.detach().sum() + 0 * batch.predictions.sum()


class Wrong(Term):
    def forward(self, batch):
        twice = batch.predictions.sum()
        return twice + (twice - twice.detach())  # the gradient is twice the derivative


class Endless(Term):
    def forward(self, batch):
        return batch.predictions.sum() / 0


class Branching(Term):
    def forward(self, batch):
        return (
            batch.predictions.sum()
            if batch.predictions.sum().item() > 0
            else batch.predictions.mean()
        )


class Hiding(Term):
    def __init__(self, settings):
        super().__init__(settings)
        # neither a parameter nor a buffer
        self.secret = torch.randn(settings.n_arms, dtype=torch.float64)

    def forward(self, batch):
        return (batch.predictions * self.secret).sum()


class RowForRow(Term):
    needs_target = True

    def forward(self, batch):
        return (batch.aligned.sum(dim=1) * batch.predictions.sum(dim=1)).sum()


def test_terms_that_cannot_be_mapped_over_runs_are_found():
    with pytest.raises(RuntimeError, match="item"):
        check_runs_can_be_mapped(Branching)
    with pytest.raises(AssertionError, match="changes the value of run 1"):
        check_runs_can_be_mapped(Hiding)
    with pytest.raises(RuntimeError, match="size"):
        check_row_counts_may_differ(RowForRow)


@pytest.mark.parametrize(
    ("kind", "message"), [(Deaf, "no gradient"), (Wrong, "slope"), (Endless, "the value is inf")]
)
def test_the_checks_find_what_is_wrong(kind, message):
    with pytest.raises(AssertionError, match=message):
        check_term(kind)


def test_torch_is_left_alone():
    before = torch.random.get_rng_state()
    for name in terms.names():
        check_term(terms.get(name))
    assert torch.equal(before, torch.random.get_rng_state())
