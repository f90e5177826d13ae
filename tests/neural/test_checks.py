"""Every registered term passes every public check; and the checks find terms that are wrong."""

import pytest
import torch

from daband.neural._checks import (
    _TERM_SETTINGS,
    TERM_CHECKS,
    check_row_counts_may_differ,
    check_term,
    make_random_batch,
)
from daband.neural._learner import build_terms, compute_loss
from daband.neural._settings import Weight
from daband.neural._term import Term, terms


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
            objective = build_terms(weights, _TERM_SETTINGS).double()
            weight_values = torch.ones(len(objective), dtype=torch.float64)
            total, values = compute_loss(objective, make_random_batch(), weight_values)
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


class RowForRow(Term):
    needs_target = True

    def forward(self, batch):
        return (batch.aligned.sum(dim=1) * batch.predictions.sum(dim=1)).sum()


def test_a_term_that_needs_as_many_rounds_as_aligned_rows_is_found():
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
