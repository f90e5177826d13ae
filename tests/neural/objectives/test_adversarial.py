"""The discriminator descends the domain cross-entropy; the encoder receives it reversed, times 2
lambda, exactly.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from daband.neural.objectives._adversarial import (
    compute_domain_accuracy,
    compute_domain_cross_entropy,
    reverse_gradient,
)
from daband.neural.objectives._objective import Objective, Weight
from daband.neural.objectives._term import terms
from tests.neural.objectives.batches import B, T, make_batch, term_settings, weights_at


def cross_entropy(source, target):
    return compute_domain_cross_entropy(torch.cat([source, target]), (len(source), len(target)))


@pytest.mark.parametrize("strength", [0.0, 0.3, 5.0])
def test_the_encoder_receives_exactly_the_reversed_gradient(strength):
    torch.manual_seed(0)
    term = terms.get("adversarial")(term_settings()).double()
    batch = make_batch()
    all_aligned = [
        batch.aligned.clone().requires_grad_(True),
        batch.target_aligned.clone().requires_grad_(True),
    ]
    held = replace(
        batch,
        aligned=all_aligned[0],
        target_aligned=all_aligned[1],
        weight=torch.tensor(strength, dtype=torch.float64),
    )
    parameters = list(term.parameters())
    received = torch.autograd.grad(term(held), [*all_aligned, *parameters])

    logits = term.discriminator(torch.cat(all_aligned))
    plain = (
        functional.binary_cross_entropy_with_logits(logits[:B], torch.zeros(B, dtype=torch.float64))
        / 2
    )
    plain = (
        plain
        + functional.binary_cross_entropy_with_logits(
            logits[B:], torch.ones(T, dtype=torch.float64)
        )
        / 2
    )
    descended = torch.autograd.grad(plain, [*all_aligned, *parameters])

    for ours, reference in zip(received[:2], descended[:2], strict=True):
        torch.testing.assert_close(ours, -2 * strength * reference, rtol=1e-12, atol=1e-15)
    for ours, reference in zip(received[2:], descended[2:], strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-15)


def test_the_discriminators_gradient_agrees_with_finite_differences():
    logits = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in (4, 6)]
    assert torch.autograd.gradcheck(cross_entropy, logits)


def test_chance_level_is_ln_2():
    assert float(cross_entropy(torch.zeros(3), torch.zeros(5))) == pytest.approx(math.log(2))


def test_domains_weigh_the_same_whatever_their_numbers():
    small = cross_entropy(torch.ones(1), torch.ones(1))
    torch.testing.assert_close(small, cross_entropy(torch.ones(9), torch.ones(1)))


def test_reversal_is_the_identity_forward():
    features = torch.randn(3, 2)
    assert torch.equal(reverse_gradient(features, torch.tensor(2.0)), features)


def test_the_weight_reaches_the_encoder_once_and_the_discriminator_not_at_all():
    def gradients(value):
        torch.manual_seed(1)
        objective = Objective(
            weights={"adversarial": Weight(value)}, settings=term_settings()
        ).double()
        batch = make_batch()
        batch.aligned.requires_grad_(True)
        loss, _ = objective(batch, weights_at(objective))
        first = next(objective.parameters())
        return torch.autograd.grad(loss, [batch.aligned, first])

    (aligned, first), (tap_twice, first_twice) = gradients(1.0), gradients(2.0)
    torch.testing.assert_close(tap_twice, 2 * aligned)
    assert torch.equal(first, first_twice)


def test_accuracy_is_measured():
    term = terms.get("adversarial")(term_settings())
    with torch.no_grad():
        for parameter in term.parameters():
            parameter.zero_()
        term.discriminator.layers[-1].bias.fill_(1.0)
    assert float(term.measure(make_batch(dtype=torch.float32))["discriminator_accuracy"]) == 0.5
    assert float(compute_domain_accuracy(torch.tensor([-1.0, -2.0, 3.0, 4.0]), (2, 2))) == 1.0
    assert float(compute_domain_accuracy(torch.tensor([-1.0, 2.0, 3.0]), (2, 1))) == 0.75


def test_taps_that_lie_together_are_not_copied():
    batch = make_batch()
    all_aligned = batch.both_aligned
    joint = replace(batch, joined_aligned=all_aligned)
    assert joint.both_aligned is all_aligned
    assert torch.equal(all_aligned, torch.cat([batch.aligned, batch.target_aligned]))
    term = terms.get("adversarial")(term_settings()).double()
    assert torch.equal(term(joint), term(batch))


def test_several_sources_are_one_mixture():
    torch.manual_seed(0)
    term = terms.get("adversarial")(term_settings()).double()
    batch = replace(make_batch(), weight=torch.tensor(0.5).double())
    moved = batch.aligned.detach()[torch.randperm(len(batch.aligned))]
    torch.testing.assert_close(term(replace(batch, aligned=moved)), term(batch))
    assert batch.rows_per_domain == (len(batch.aligned), len(batch.target_aligned))
    assert float(compute_domain_accuracy(torch.tensor([-1.0, -1.0, -1.0, 1.0]), (3, 1))) == 1.0
    assert float(compute_domain_accuracy(torch.tensor([1.0, -1.0, -1.0, 1.0]), (2, 2))) == 0.5
