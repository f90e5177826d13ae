"""Every registered term passes every check; and the checks find terms that are wrong."""

from dataclasses import replace

import pytest
import torch

from daband.neural import Batch, Term, Weight, terms
from daband.neural._learner import build_terms, compute_loss
from daband.neural._term import TermSettings

# The sizes of the batch on which terms are checked.
_N_ROUNDS = 7
_N_TARGET_CONTEXTS = 6
_N_ARMS = 4
_N_ALIGNED_FEATURES = 5
#: The settings from which terms are built.
_TERM_SETTINGS = TermSettings(
    n_arms=_N_ARMS, n_aligned_features=_N_ALIGNED_FEATURES, feedback="one_hot"
)
#: The fields of a batch through which gradients reach the encoder.
_ENCODED_FIELDS = ("predictions", "aligned", "target_predictions", "target_aligned")


def make_random_batch(*, n_arms=_N_ARMS):
    """Return a batch of random values, the same in every call, for ``n_arms`` arms."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    return Batch(
        predictions=draw(_N_ROUNDS, n_arms),
        arms=torch.arange(_N_ROUNDS) % n_arms,
        rewards=(torch.arange(_N_ROUNDS) % 2).double(),
        aligned=draw(_N_ROUNDS, _N_ALIGNED_FEATURES),
        target_predictions=draw(_N_TARGET_CONTEXTS, n_arms),
        target_aligned=draw(_N_TARGET_CONTEXTS, _N_ALIGNED_FEATURES) + 0.5,
        teacher_predictions=3 * draw(_N_TARGET_CONTEXTS, n_arms),
        arm_frequencies=torch.full((n_arms,), 1 / n_arms, dtype=torch.float64),
        weight=torch.ones((), dtype=torch.float64),
    )


def _build_term(term_class):
    """Return a term of this class in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return term_class(_TERM_SETTINGS).double()


def _compute_gradients(term, batch):
    """Return the gradient of a term's value with respect to each encoded field of the batch; None
    if it is not used.
    """
    tensors = {name: getattr(batch, name).clone().requires_grad_() for name in _ENCODED_FIELDS}
    value = term(replace(batch, **tensors))
    gradients = torch.autograd.grad(value, list(tensors.values()), allow_unused=True)
    return dict(zip(tensors, gradients, strict=True))


def check_value_is_a_finite_scalar(term_class):
    """Check that the value is one finite number, and that the same batch gives the same value."""
    term = _build_term(term_class)
    value = term(make_random_batch())
    second_value = term(make_random_batch())
    assert value.shape == (), f"the value has shape {tuple(value.shape)}"
    assert torch.isfinite(value), f"the value is {value.item()}"
    assert torch.equal(value, second_value), "two calls with the same batch return different values"


def check_encoder_gets_gradient(term_class):
    """Check that gradients are finite, and that at least one that reaches the encoder is not 0."""
    gradients = _compute_gradients(_build_term(term_class), make_random_batch()).values()
    used_gradients = [gradient for gradient in gradients if gradient is not None]
    assert all(torch.isfinite(gradient).all() for gradient in used_gradients), (
        "a gradient is not finite"
    )
    assert any((gradient != 0).any() for gradient in used_gradients), (
        "no gradient reaches the encoder"
    )


def check_gradient_is_the_derivative(term_class):
    """Check that the gradient agrees with finite differences, except for terms that apply their
    weight themselves.
    """
    if term_class.applies_weight:
        return
    term = _build_term(term_class)
    batch = make_random_batch()
    step_size = 1e-6
    for name, gradient in _compute_gradients(term, batch).items():
        if gradient is None:
            continue
        tensor = getattr(batch, name)
        direction = (
            torch.cos(torch.arange(tensor.numel(), dtype=torch.float64)).view_as(tensor) + 0.3
        )
        upper, lower = (
            term(replace(batch, **{name: tensor + step * direction}))
            for step in (step_size, -step_size)
        )
        slope = float((upper - lower) / (2 * step_size))
        expected_slope = float((gradient * direction).sum())
        is_close = abs(slope - expected_slope) <= 1e-5 * (1 + abs(slope))
        assert is_close, f"{name}: slope {slope:g}, gradient {expected_slope:g}"


def check_works_without_target(term_class):
    """Check that a term that does not need the target works without target contexts."""
    if term_class.needs_target:
        return
    batch = make_random_batch()
    target_fields = (
        "target_predictions",
        "teacher_predictions",
        "target_aligned",
    )
    value = _build_term(term_class)(
        replace(batch, **{name: getattr(batch, name)[:0] for name in target_fields})
    )
    assert torch.isfinite(value), f"without target contexts the value is {value.item()}"


def check_arms_can_be_added(term_class):
    """Check that a term that was built for K arms accepts a batch with K + 1 arms."""
    assert torch.isfinite(_build_term(term_class)(make_random_batch(n_arms=_N_ARMS + 1)))


def check_row_counts_may_differ(term_class):
    """Check that a batch's fields may differ in their numbers of rows, e.g. with target rounds or a
    context per arm.
    """
    batch = make_random_batch()
    term = _build_term(term_class)
    repeated_rounds = {
        name: torch.cat([getattr(batch, name)] * 2) for name in ("predictions", "arms", "rewards")
    }
    aligned_fields = ("aligned", "target_aligned")
    context_per_arm = {
        name: getattr(batch, name).repeat_interleave(_N_ARMS, 0) for name in aligned_fields
    }
    for case, changes in (
        ("with target rounds", repeated_rounds),
        ("with one context per arm", context_per_arm),
        ("with target rounds and one context per arm", {**repeated_rounds, **context_per_arm}),
        ("without source rounds", {"aligned": batch.aligned[:0]}),
    ):
        changed_batch = replace(batch, **changes)
        measure = getattr(term, "measure", None)
        measured = {} if measure is None else measure(changed_batch)
        values = {"value": term(changed_batch), **measured}
        for name, value in values.items():
            assert torch.isfinite(value), f"{case}, the {name} is {value.item()}"


CHECKS = (
    check_value_is_a_finite_scalar,
    check_encoder_gets_gradient,
    check_gradient_is_the_derivative,
    check_works_without_target,
    check_arms_can_be_added,
    check_row_counts_may_differ,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", terms.names())
def test_conformance(name, check):
    check(terms.get(name))


@pytest.mark.parametrize("name", terms.names())
def test_weight_zero_is_the_term_removed(name):
    """To the bit; the term is not computed, and no random number is drawn for it."""
    other = next(one for one in ("source_regret", "source_cross_entropy") if one != name)
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
    ("kind", "check", "message"),
    [
        (Deaf, check_encoder_gets_gradient, "no gradient"),
        (Wrong, check_gradient_is_the_derivative, "slope"),
        (Endless, check_value_is_a_finite_scalar, "value .*inf"),
    ],
)
def test_the_checks_find_what_is_wrong(kind, check, message):
    with pytest.raises(AssertionError, match=message):
        check(kind)
