"""Distil the mean prediction of several networks into one network."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from daband.neural.encoders._augmentation import Augmentation, augment
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import Encoder, make_rows_per_domain
from daband.neural.learning._gradient_step import predict_rewards
from daband.neural.learning._torch_settings import use_single_precision, use_tf32_matmul


@use_single_precision()
def distil(
    initial_encoder: Encoder,
    contexts: Tensor,
    soft_labels: Tensor,
    theta: Tensor,
    *,
    domain: int,
    augmentation: Augmentation,
    learning_rate: float,
    batch_size: int,
    n_steps: int,
    seed: int,
) -> Encoder:
    """Return a copy of an encoder, trained to predict ``soft_labels`` from augmented contexts, by
    cross-entropy.

    Args:
        initial_encoder: the encoder to start from; it is not changed.
        contexts: the contexts (N, *C), all of one domain.
        soft_labels: the probability of each arm for each context, (N, K).
        theta: (K, d), or (K, d + 1) with intercepts. Logits are features times these coefficients,
            which are not trained.
        domain: the index of the domain.
        augmentation: the augmentation of images. The soft labels are for images without
            augmentation.
        learning_rate: the initial learning rate of Adam, which falls to 0 along a cosine.
        batch_size: the number of contexts per step.
        n_steps: the number of gradient steps.
        seed: determines batches and augmentation.
    """
    student = copy.deepcopy(initial_encoder).requires_grad_(True).train()
    for module in student.modules():
        if isinstance(module, DomainNorm):
            # values that inference has cached, which training would make wrong
            module.frozen_affine = None
    device, generator = theta.device, torch.Generator(theta.device).manual_seed(seed)
    optimiser = torch.optim.Adam(student.parameters(), lr=learning_rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, n_steps))
    n_augmentation_draws = augmentation.count_draws(tuple(contexts.shape[1:]))
    with torch.enable_grad(), use_tf32_matmul():
        for _ in range(n_steps):
            rows = torch.randint(len(contexts), (batch_size,), generator=generator, device=device)
            augmentation_draws = torch.rand(
                batch_size, n_augmentation_draws, generator=generator, device=device
            )
            batch = contexts[rows.to(contexts.device)].to(device)
            augmented_contexts = augment(batch, augmentation, augmentation_draws)
            features = student(
                augmented_contexts, rows_per_domain=make_rows_per_domain(domain, batch_size)
            ).features
            loss = nn.functional.cross_entropy(predict_rewards(features, theta), soft_labels[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            scheduler.step()
    return student.requires_grad_(False).eval()
