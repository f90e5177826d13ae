"""The part of a neural policy that learns by gradients: encoder, its average, objective and optimiser.

A step draws its own batch from the memories, on the device, with shapes that never change and without waiting for the
device: so a whole step can be captured once and replayed. Whatever a step needs from the host (the head's coefficients,
the recent reward) is copied into fixed buffers between steps.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from daband.arrays import AnyArray, FloatArray
from daband.encoders import DomainNorm, Encoded, Encoder, build_encoder
from daband.encoders.disturbance import disturb
from daband.errors import DabandError
from daband.objectives import Batch, Objective, TermShape
from daband.policies.captured import CapturedStep
from daband.policies.memory import ContextMemory, Memories
from daband.policies.recipe import Recipe
from daband.policies.threads import Threads

__all__ = ["Learner"]

_ENCODE_ROWS = 2048


class Learner:
    """Takes gradient steps; encodes contexts for the head.

    ``n_contexts`` is the number of contexts of one round: 1, or the number of arms where each arm has its own.
    """

    def __init__(
        self,
        *,
        recipe: Recipe,
        feature_shape: tuple[int, ...],
        n_arms: int,
        shared: bool,
        reveal: str,
        seed: int,
        device: torch.device,
    ) -> None:
        self.recipe = recipe
        self.shared = shared
        self.n_arms = n_arms
        self.device = device
        # The initial weights depend on the seed alone, and nobody else's random numbers are disturbed.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            settings = recipe.encoder
            encoder = build_encoder(
                settings.name, context_shape=feature_shape, latent=settings.latent, **settings.options
            )
            if settings.initialisation == "gaussian":
                _initialise_gaussian(encoder)
            shape = TermShape(n_arms=n_arms, tap_width=encoder.tap_width, reveal=reveal, scale=recipe.learning.scale)
            torch.manual_seed(seed + 1)  # a term more or less must not change another's start
            objective = Objective(weights=recipe.weights, shape=shape)
        if device.type == "cpu":  # the layout in which convolution and pooling are fastest there
            encoder = encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.encoder: Encoder = encoder.to(device).train()
        self.objective = objective.to(device)
        self.average: Encoder | None = None
        if recipe.learning.averaging > 0:
            self.average = copy.deepcopy(self.encoder).requires_grad_(False).eval()
        self.generator = torch.Generator(device).manual_seed(seed)
        trained = [p for p in [*self.encoder.parameters(), *self.objective.parameters()] if p.requires_grad]
        self.optimiser = torch.optim.Adam(
            trained, lr=recipe.learning.learning_rate, fused=True, capturable=device.type == "cuda"
        )
        heads = 1 if shared else n_arms
        dimension = self.encoder.dimension
        self.theta = torch.zeros(heads, dimension, device=device)
        self.inverse = torch.zeros(heads, dimension, dimension, device=device)
        self.bonus = torch.zeros((), device=device)
        """alpha, by which the target's own choice is made in P."""
        self.earned = torch.zeros((), device=device)
        self.step_number = torch.zeros((), device=device)
        self.bad = torch.zeros((), device=device)
        self.skipped = torch.zeros((), device=device)
        self.streak = torch.zeros((), device=device)
        self.worst_streak = torch.zeros((), device=device)
        self.totals: dict[str, torch.Tensor] = {}
        """Sums over the steps of one ``adapt``."""
        self._captured = CapturedStep(self) if device.type == "cuda" else None
        self.threads = Threads()

    @property
    def acting(self) -> Encoder:
        """The encoder whose features the head is built on: the averaged one where there is one."""
        return self.encoder if self.average is None else self.average

    def encode(self, contexts: AnyArray | torch.Tensor, domain: str) -> FloatArray:
        """Latents for the head, float64: (B, d), or (B, K, d) for shared arms."""
        tensor = contexts if isinstance(contexts, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(contexts))
        if tensor.dtype != torch.uint8:
            tensor = tensor.to(torch.float32)
        lead = tensor.shape[:2] if self.shared else tensor.shape[:1]
        flat = tensor.reshape(-1, *tensor.shape[len(lead) :])
        network = self.acting
        was_training = network.training
        network.eval()
        pieces = []
        with torch.no_grad(), self.threads.held():
            for start in range(0, len(flat), _ENCODE_ROWS):
                part = flat[start : start + _ENCODE_ROWS].to(self.device)
                pieces.append(network(part, n_source=len(part) if domain == "source" else 0).latent)
        network.train(was_training)
        latents: FloatArray = torch.cat(pieces).cpu().numpy().astype(np.float64)
        # Norms of exactly one, also behind float32: the head's algebra counts on it.
        latents /= np.maximum(np.linalg.norm(latents, axis=1, keepdims=True), 1e-12)
        return latents.reshape(*lead, -1)

    def take_head(self, theta: FloatArray, inverse: FloatArray, *, alpha: float, rate: float) -> None:
        """Copy what the losses treat as constants: coefficients, A^-1, alpha and the recent mean reward."""
        coefficients = torch.from_numpy(theta).to(torch.float32)
        if self.recipe.memory.unit_theta:
            coefficients = nn.functional.normalize(coefficients, dim=1)
        self.theta.copy_(coefficients)
        if self.objective.needs_width:
            self.inverse.copy_(torch.from_numpy(inverse))
        self.bonus.fill_(alpha)
        self.earned.fill_(rate**self.recipe.learning.earned)
        for module in self.encoder.modules():
            if isinstance(module, DomainNorm) and module.statistics == "earned":
                module.trust.copy_(self.earned)

    def adapt(self, steps: int, memories: Memories) -> dict[str, float]:
        """Take ``steps`` steps and return means over them of all that was measured, read from the device once."""
        for counter in (self.skipped, self.worst_streak, *self.totals.values()):
            counter.zero_()
        if self.device.type == "cpu":
            self.threads.choose(self._trial)
        try:
            with self.threads.held():
                for _ in range(steps):
                    self._captured.step(memories) if self._captured is not None else self.step(memories)
        except torch.OutOfMemoryError as error:
            batch = self.recipe.learning.batch
            raise DabandError(
                f"the device ran out of memory at batch {batch}; try Learning(batch={max(1, batch // 2)})"
            ) from error
        names = [*self.totals, "skipped_steps", "worst_streak"]
        stacked = torch.stack([*(value / steps for value in self.totals.values()), self.skipped, self.worst_streak])
        return dict(zip(names, stacked.cpu().tolist(), strict=True))

    def _trial(self) -> None:
        """Most of the work of a step, to be timed: it leaves no trace, in a copy of the encoder and without a draw."""
        encoder = copy.deepcopy(self.encoder)
        rows = self.recipe.learning.batch * (self.n_arms if self.shared else 1)
        contexts = torch.linspace(0, 1, 2 * rows * math.prod(encoder.context_shape))
        encoder(contexts.view(-1, *encoder.context_shape), n_source=rows).latent.sum().backward()

    def step(self, memories: Memories) -> None:
        """One gradient step on a batch of the memories' choosing; what it measures is added to ``totals``."""
        with_target = self.objective.needs_target and len(memories.target) > 0
        statistics = _statistics(self.encoder)
        before = [buffer.clone() for buffer in statistics]
        batch, latent = self._batch(memories, with_target)
        loss, values = self.objective(batch, self.step_number)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        gradients = [p.grad for p in self.encoder.parameters() if p.grad is not None]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        self.bad.copy_(~(torch.isfinite(loss.detach()) & torch.isfinite(norm)))
        # The fused optimiser leaves everything alone where this is 1, without asking the host.
        self.optimiser.found_inf = self.bad  # type: ignore[attr-defined]
        self.optimiser.step()
        with torch.no_grad():
            wrong = self.bad > 0
            for buffer, old in zip(statistics, before, strict=True):
                buffer.copy_(torch.where(wrong, old, buffer))
            self.skipped += self.bad
            self.streak.copy_(torch.where(wrong, self.streak + 1, torch.zeros_like(self.streak)))
            self.worst_streak.copy_(torch.maximum(self.worst_streak, self.streak))
            self.step_number += 1
            self._follow()
            for name, value in self._measured(batch, latent, loss, norm, values).items():
                if name not in self.totals:
                    self.totals[name] = torch.zeros((), device=self.device)
                self.totals[name] += value

    def _batch(self, memories: Memories, with_target: bool) -> tuple[Batch, torch.Tensor]:
        size = self.recipe.learning.batch
        rounds, n_source = [], 0
        if len(memories.source):
            rounds.append((memories.source, self._draw(memories.source, size)))
            n_source = len(rounds[0][1])
        contexts = [memory.contexts[rows] for memory, rows in rounds]
        target = torch.empty(0)
        if with_target:
            target = memories.target.contexts[self._draw(memories.target, size)]
            contexts.append(target)
        if len(memories.target_rounds):
            rounds.append((memories.target_rounds, self._draw(memories.target_rounds, size)))
            contexts.append(memories.target_rounds.contexts[rounds[-1][1]])
        per_round = self.n_arms if self.shared else 1
        flat = [part.reshape(-1, *self.encoder.context_shape) for part in contexts]
        encoded = self._encode_disturbed(flat, n_source * per_round)
        s, t = n_source * per_round, len(target) * per_round
        predicted = self._predict(encoded.latent)
        t_rounds = len(target)
        teacher = width = predicted[n_source : n_source + t_rounds]
        if with_target:
            teacher, width = self._constants(target, encoded.latent[s : s + t])
        one = torch.ones((), device=self.device)
        batch = Batch(
            predicted=torch.cat([predicted[:n_source], predicted[n_source + t_rounds :]]),
            arm=torch.cat([memory.arms[rows] for memory, rows in rounds]),
            reward=torch.cat([memory.rewards[rows] for memory, rows in rounds]).to(predicted.dtype),
            tap=encoded.tap[:s],
            target_predicted=predicted[n_source : n_source + t_rounds],
            target_width=width,
            target_tap=encoded.tap[s : s + t],
            target_teacher=teacher,
            weight=one,
            earned=self.earned,
        )
        return batch, encoded.latent

    def _draw(self, memory: ContextMemory, size: int) -> torch.Tensor:
        """Rows of a memory: even draws with replacement, or the latest."""
        if self.recipe.memory.replay == "last":
            # Rows before the first are clamped to it: a short memory repeats its oldest, and the shape stays.
            return (torch.arange(size, device=self.device) + (memory.count - size)).clamp(min=0)
        draws = torch.rand(size, generator=self.generator, device=self.device, dtype=torch.float64)
        return torch.minimum((draws * memory.count).long(), memory.count - 1)

    def _encode_disturbed(self, parts: list[torch.Tensor], n_source: int) -> Encoded:
        disturbance = self.recipe.learning.disturbance
        disturbed = [disturb(part, disturbance, generator=self.generator) for part in parts]
        if len({part.dtype for part in disturbed}) > 1:
            disturbed = [part.float() / 255 if part.dtype == torch.uint8 else part for part in disturbed]
        encoded: Encoded = self.encoder(torch.cat(disturbed), n_source=n_source)
        return encoded

    def _predict(self, latent: torch.Tensor) -> torch.Tensor:
        """Predicted rewards (rounds, K) of latents (rounds, d), or (rounds * K, d) for shared arms."""
        if self.shared:
            return (latent @ self.theta[0]).view(-1, self.n_arms)
        return latent @ self.theta.T

    def _constants(self, target: torch.Tensor, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The averaged encoder's predictions and the scaled widths at target contexts, where a term needs them."""
        teacher = width = torch.zeros(len(target), self.n_arms, device=self.device)
        with torch.no_grad():
            if self.objective.needs_teacher:
                contexts = target.reshape(-1, *self.encoder.context_shape)
                if self.average is None:
                    teacher = self._predict(latent.detach())
                else:
                    teacher = self._predict(self.average(contexts, n_source=0).latent)
            if self.objective.needs_width:
                z = latent.detach()
                variance = torch.einsum("nd,kde,ne->nk", z, self.inverse, z).clamp(min=0)
                width = self.bonus * variance.sqrt().view(len(target), -1)
        return teacher, width

    def _follow(self) -> None:
        """Let the averaged encoder follow, faster while training is young; not after a skipped step."""
        if self.average is None:
            return
        keep = torch.minimum(
            (1 + self.step_number) / (10 + self.step_number),
            torch.full_like(self.step_number, self.recipe.learning.averaging),
        )
        keep = torch.where(self.bad > 0, torch.ones_like(keep), keep)
        pairs = [
            *zip(self.average.parameters(), self.encoder.parameters(), strict=True),
            *zip(self.average.buffers(), self.encoder.buffers(), strict=True),
        ]
        slow = [a.data for a, b in pairs if a.is_floating_point()]
        fast = [b.data for a, b in pairs if a.is_floating_point()]
        torch._foreach_mul_(slow, keep)
        torch._foreach_add_(slow, torch._foreach_mul(fast, 1 - keep))
        for a, b in pairs:
            if not a.is_floating_point():
                a.copy_(b)

    def _measured(
        self,
        batch: Batch,
        latent: torch.Tensor,
        loss: torch.Tensor,
        norm: torch.Tensor,
        values: Mapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        measured = {"loss": loss.detach(), "gradient_norm": norm, **values}
        measured["latent_spread"] = latent.detach().var(dim=0, correction=0).sum()
        for term in self.objective.terms.values():
            accuracy = getattr(term, "accuracy", None)
            if isinstance(accuracy, torch.Tensor):
                measured["discriminator_accuracy"] = accuracy
        if len(batch.target_predicted):
            chosen = (batch.target_predicted.detach() + batch.target_width).argmax(dim=1)
            shares = nn.functional.one_hot(chosen, self.n_arms).float().mean(dim=0)
            measured["target_top_share"] = shares.max()
        return measured

    def grow(self) -> None:
        """One more arm."""
        self.objective.grow()
        self.n_arms += 1
        if self._captured is not None:
            self._captured.forget()
        if not self.shared:
            self.theta = torch.cat([self.theta, torch.zeros_like(self.theta[:1])])
            self.inverse = torch.cat([self.inverse, torch.zeros_like(self.inverse[:1])])

    def state(self) -> dict[str, AnyArray]:
        """Everything needed to go on to the last bit."""
        arrays: dict[str, AnyArray] = {}
        parts: dict[str, nn.Module] = {"encoder": self.encoder, "objective": self.objective}
        if self.average is not None:
            parts["average"] = self.average
        for prefix, module in parts.items():
            for name, tensor in module.state_dict().items():
                arrays[f"{prefix}.{name}"] = tensor.detach().cpu().numpy()
        for index, entry in self.optimiser.state_dict()["state"].items():
            for name, tensor in entry.items():
                arrays[f"optimiser.{index}.{name}"] = tensor.detach().cpu().numpy()
        arrays["generator"] = self.generator.get_state().numpy()
        arrays["threads"] = np.array([self.threads.count], np.int64)
        for name in ("step_number", "streak"):
            arrays[name] = getattr(self, name).detach().cpu().numpy().reshape(1)
        return arrays

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Take over what ``state`` returned."""

        def below(prefix: str) -> dict[str, torch.Tensor]:
            return {
                name.removeprefix(prefix): torch.from_numpy(np.array(array))
                for name, array in state.items()
                if name.startswith(prefix)
            }

        self.encoder.load_state_dict(below("encoder."))
        self.objective.load_state_dict(below("objective."))
        if self.average is not None:
            self.average.load_state_dict(below("average."))
        saved = self.optimiser.state_dict()
        entries: dict[int, dict[str, torch.Tensor]] = {}
        parameters = self.optimiser.param_groups[0]["params"]
        for name, tensor in below("optimiser.").items():
            index, key = name.split(".", 1)
            like = parameters[int(index)]
            # The fused optimiser walks through parameter and moments side by side: they must have one layout.
            placed = torch.empty_like(like).copy_(tensor) if tensor.shape == like.shape else tensor
            entries.setdefault(int(index), {})[key] = placed
        self.optimiser.load_state_dict({"state": entries, "param_groups": saved["param_groups"]})
        self.generator.set_state(torch.from_numpy(np.array(state["generator"])))
        self.threads.count = int(state["threads"][0]) if "threads" in state else 0
        if self._captured is not None:
            self._captured.forget()  # the optimiser's state has moved to other places in memory
        for name in ("step_number", "streak"):
            getattr(self, name).fill_(float(state[name][0]))


def _statistics(network: nn.Module) -> list[torch.Tensor]:
    norms = [module for module in network.modules() if isinstance(module, DomainNorm)]
    return [buffer for norm in norms for buffer in (norm.running_mean, norm.running_variance, norm.batches_seen)]


def _initialise_gaussian(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            inputs = module.weight[0].numel()
            nn.init.normal_(module.weight, std=math.sqrt(2 / inputs))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
