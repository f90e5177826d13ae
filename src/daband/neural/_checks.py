"""Check terms of the objective.

    from daband.checks import check_term
    check_term(MyTerm)  # or its registered name

``check_term`` runs the functions ``check_*`` of this module, in their order. A check raises an
``AssertionError`` that describes the problem. daband's tests run all checks on all registered
terms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from daband.base._registry import Checks
from daband.neural._term import Batch, Term, TermSettings, terms

#: The checks of a term, in the order in which they run.
TERM_CHECKS = Checks()

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


def make_random_batch(*, n_arms: int = _N_ARMS) -> Batch:
    """Return a batch of random values, the same in every call, for ``n_arms`` arms."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    return Batch(
        predictions=draw(_N_ROUNDS, n_arms),
        arms=torch.arange(_N_ROUNDS) % n_arms,
        rewards=(torch.arange(_N_ROUNDS) % 2).double(),
        aligned=draw(_N_ROUNDS, _N_ALIGNED_FEATURES),
        target_predictions=draw(_N_TARGET_CONTEXTS, n_arms),
        target_bonuses=0.1 * draw(_N_TARGET_CONTEXTS, n_arms),
        target_aligned=draw(_N_TARGET_CONTEXTS, _N_ALIGNED_FEATURES) + 0.5,
        teacher_predictions=3 * draw(_N_TARGET_CONTEXTS, n_arms),
        weight=torch.ones((), dtype=torch.float64),
    )


def _build_term(term_class: type[Term], seed: int = 0) -> Term:
    """Return a term of this class in double precision, with initial parameters drawn from
    ``seed``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return term_class(_TERM_SETTINGS).double()


def _compute_gradients(term: Term, batch: Batch) -> dict[str, torch.Tensor | None]:
    """Return the gradient of a term's value with respect to each encoded field of the batch; None
    if it is not used.
    """
    tensors = {name: getattr(batch, name).clone().requires_grad_() for name in _ENCODED_FIELDS}
    value = term(replace(batch, **tensors))
    gradients = torch.autograd.grad(value, list(tensors.values()), allow_unused=True)
    return dict(zip(tensors, gradients, strict=True))


@TERM_CHECKS.add
def check_value_is_a_finite_scalar(term_class: type[Term]) -> None:
    """Check that the value is one finite number, and that the same batch gives the same value."""
    term = _build_term(term_class)
    value = term(make_random_batch())
    second_value = term(make_random_batch())
    assert value.shape == (), f"the value has shape {tuple(value.shape)}"
    assert torch.isfinite(value), f"the value is {value.item()}"
    assert torch.equal(value, second_value), "two calls with the same batch return different values"


@TERM_CHECKS.add
def check_encoder_gets_gradient(term_class: type[Term]) -> None:
    """Check that gradients are finite, and that at least one that reaches the encoder is not 0."""
    gradients = _compute_gradients(_build_term(term_class), make_random_batch()).values()
    used_gradients = [gradient for gradient in gradients if gradient is not None]
    assert all(torch.isfinite(gradient).all() for gradient in used_gradients), (
        "a gradient is not finite"
    )
    assert any((gradient != 0).any() for gradient in used_gradients), (
        "no gradient reaches the encoder"
    )


@TERM_CHECKS.add
def check_gradient_is_the_derivative(term_class: type[Term]) -> None:
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


@TERM_CHECKS.add
def check_works_without_target(term_class: type[Term]) -> None:
    """Check that a term that does not need the target works without target contexts."""
    if term_class.needs_target:
        return
    batch = make_random_batch()
    target_fields = (
        "target_predictions",
        "target_bonuses",
        "teacher_predictions",
        "target_aligned",
    )
    value = _build_term(term_class)(
        replace(batch, **{name: getattr(batch, name)[:0] for name in target_fields})
    )
    assert torch.isfinite(value), f"without target contexts the value is {value.item()}"


@TERM_CHECKS.add
def check_arms_can_be_added(term_class: type[Term]) -> None:
    """Check that a term that was built for K arms accepts a batch with K + 1 arms."""
    assert torch.isfinite(_build_term(term_class)(make_random_batch(n_arms=_N_ARMS + 1)))


@TERM_CHECKS.add
def check_row_counts_may_differ(term_class: type[Term]) -> None:
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
        measure: Any = getattr(term, "measure", None)
        measured = {} if measure is None else measure(changed_batch)
        values = {"value": term(changed_batch), **measured}
        for name, value in values.items():
            assert torch.isfinite(value), f"{case}, the {name} is {value.item()}"


def check_term(term: type[Term] | str) -> None:
    """Run every check on a term, given by its class or its registered name.

    The first failure raises an error, usually an ``AssertionError``. A note on the error states the
    violated rule.
    """
    TERM_CHECKS.run(terms.get(term) if isinstance(term, str) else term)
