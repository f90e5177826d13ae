"""The rival of a training step on the CPU: the same step as PyTorch's tutorials write it, and nothing more.

Contiguous NCHW, ReLU before pooling, Adam as it comes, the threads that torch takes by itself. It draws a batch from
memory, computes the revealed cross-entropy and the adversarial term, and steps: no measurements, no EMA encoder,
no guard against bad gradients, so that it does less than the step it is compared with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, features: torch.Tensor) -> torch.Tensor:
        return features.view_as(features)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -2 * gradient


class PlainStep:
    """5x5 3-32, pool, 5x5 32-48, pool, dense 768-128-64, unit norm; discriminator 768-100-128-1."""

    def __init__(self, source: torch.Tensor, arms: torch.Tensor, rewards: torch.Tensor, target: torch.Tensor) -> None:
        self.source, self.arms, self.rewards, self.target = source, arms, rewards, target
        self.maps = nn.Sequential(
            nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 48, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.dense = nn.Sequential(nn.Linear(768, 128), nn.ReLU(), nn.Linear(128, 64))
        self.judge = nn.Sequential(nn.Linear(768, 100), nn.ReLU(), nn.Linear(100, 128), nn.ReLU(), nn.Linear(128, 1))
        self.theta = torch.rand(10, 64, device=source.device) / 8
        for part in (self.maps, self.dense, self.judge):
            part.to(source.device)
        parameters = [p for part in (self.maps, self.dense, self.judge) for p in part.parameters()]
        self.optimiser = torch.optim.Adam(parameters, lr=1e-3)

    def __call__(self, batch: int = 64) -> None:
        place = self.source.device
        rows, seen = (torch.randint(len(part), (batch,), device=place) for part in (self.source, self.target))
        images = torch.cat([self.source[rows], self.target[seen]]).float() / 255
        loss = self.loss(images, self.arms[rows], self.rewards[rows])
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    def loss(self, images: torch.Tensor, arm: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        """Of images, the first half of the source."""
        batch = len(images) // 2
        wide = self.maps(images).flatten(1)
        latent = functional.normalize(self.dense(wide), dim=1)
        chances = functional.log_softmax(10 * latent[:batch] @ self.theta.T, dim=1).gather(1, arm[:, None]).squeeze(1)
        others = torch.log1p(-chances.exp().clamp(max=1 - 1e-4))
        logits = self.judge(_Reversed.apply(wide)).squeeze(1)  # type: ignore[no-untyped-call]
        labels = torch.cat([torch.zeros(batch, device=wide.device), torch.ones(batch, device=wide.device)])
        loss = -torch.where(reward >= 1, chances, others).mean()
        return loss + functional.binary_cross_entropy_with_logits(logits, labels)
