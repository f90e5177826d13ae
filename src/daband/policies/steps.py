"""Gradient steps of one learner, or of several of one shape at once.

A step draws its own batch from the memories, on the device, with shapes that never change and without waiting for the
device: so a whole step can be captured once and replayed. Whatever a step needs from the host (the head's coefficients,
the weights that its schedule gives) is copied into fixed buffers between steps.

Several learners are trained side by side: their parameters are rows of one matrix, the networks' channels stand next
to one another, and the objective is mapped over the rows. The number of operations stays that of one learner, and on a
GPU that number, not their size, is what a small network's step costs. Each learner draws from its own generator and
its own memories, so its results are those it would have had alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.func import functional_call

from daband.encoders.disturbance import disturb
from daband.errors import DabandError, InvalidInput
from daband.objectives import Batch
from daband.policies.captured import CapturedStep
from daband.policies.layout import StatisticsLayout
from daband.policies.memory import ContextMemory, Memories
from daband.policies.streaming import Feed, feed_for, streams

if TYPE_CHECKING:
    from daband.policies.learner import Learner

__all__ = ["MOST_MEASURED", "Steps"]

MOST_MEASURED = 32
_BETAS = (0.9, 0.999)
_EPSILON = 1e-8
_CHUNK = 8192
_MEASURE_EVERY = 8
_KINDS = ("source", "target", "target_rounds")
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_SHARED_ROWS = ("theta", "inverse", "bonus", "faults", "totals")


class Steps:
    """Takes the gradient steps of ``learners``, which must agree in everything but seed, data and weights' values."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        if len({learner.shape_key for learner in learners}) != 1:
            raise InvalidInput("only learners of one shape can be trained together")
        self.learners = list(learners)
        self.runs = len(self.learners)
        first = self.learners[0]
        if self.runs > 1 and not first.encoder.features.stackable:
            raise InvalidInput(f"encoder {first.recipe.encoder.name!r} cannot be trained together with others")
        self.recipe, self.device = first.recipe, first.device
        self.layout = first.layout
        self.encoder_size = self.layout.size_of("encoder")
        self.generators = [learner.generator for learner in self.learners]
        self.measured_names: list[str] = []
        self._join()
        statistics = StatisticsLayout(first.encoder, runs=self.runs)
        self.statistics = statistics.pack([learner.encoder for learner in self.learners])
        self.buffers = statistics.buffers(self.statistics)
        self.average_statistics = self.average_buffers = None
        if first.average is not None:
            self.average_statistics = statistics.pack([learner.average for learner in self.learners])  # type: ignore[misc]
            self.average_buffers = statistics.buffers(self.average_statistics)
        self.run_of = statistics.run_of(self.device)
        self.schedule = torch.zeros(self.runs, 0, len(first.objective.weights) + 1, device=self.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.counts = torch.zeros(self.runs, len(_KINDS), dtype=torch.int64, device=self.device)
        self.feed: Feed | None = None
        """Where contexts come from that are not on the device; None where all are."""
        self.captures = first.captures
        self.captured = CapturedStep(self) if self.device.type == "cuda" and self.captures else None
        for learner in self.learners:
            learner.belong_to(self)

    def _join(self) -> None:
        """Let the learners' numbers be rows of common tensors; a single learner's stay where they are."""
        self.rows = {name: self._common([getattr(learner, name) for learner in self.learners]) for name in _SHARED_ROWS}
        vectors = [learner.vector.detach() for learner in self.learners]
        self.parameters = self._common(vectors)
        self.moments = [self._common([learner.moments[name] for learner in self.learners]) for name in _MOMENTS]
        averages = [learner.average_vector for learner in self.learners if learner.average_vector is not None]
        self.averages = self._common(averages) if averages else None
        self.objective_buffers: dict[str, torch.Tensor] = {}
        if self.runs > 1:
            for run, learner in enumerate(self.learners):
                learner.move_to(
                    vector=self.parameters[run],
                    average=None if self.averages is None else self.averages[run],
                    moments={n: m[run] for n, m in zip(_MOMENTS, self.moments, strict=True)},
                    rows={name: tensor[run] for name, tensor in self.rows.items()},
                )
            named = [dict(learner.objective.named_buffers()) for learner in self.learners]
            self.objective_buffers = {name: torch.stack([own[name] for own in named]) for name in named[0]}
        # The fused optimiser gives every tensor a few blocks of the device: in pieces, one vector keeps all of it busy.
        self._chunks = [
            [list(torch.split(rows[run], _CHUNK)) for rows in (self.parameters, *self.moments[:2])]
            for run in range(self.runs)
        ]
        self.parameters.requires_grad_(True)

    def _common(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return tensors[0][None] if self.runs == 1 else torch.stack(list(tensors))

    # What the host does around the steps.

    def take(self, steps: int, memories: Sequence[Memories]) -> list[dict[str, float]]:
        """Take ``steps`` steps and return, for each learner, means of all that was measured.

        Every eighth step measures, the last among them: to measure takes a quarter of the operations of a small
        network's step. The device is read once, at the end.
        """
        self._begin(steps, memories)
        measured_steps = 0
        try:
            for left in range(steps, 0, -1):
                measure = left % _MEASURE_EVERY == 1 or left == 1
                measured_steps += measure
                if self.feed is not None:
                    self.feed.send(self._parts(memories)[1])
                if self.captured is not None:
                    self.captured.step(memories, measure)
                else:
                    self.step(memories, measure)
                if self.feed is not None:
                    self.feed.done()
        except torch.OutOfMemoryError as error:
            batch = self.recipe.learning.batch
            raise DabandError(
                f"the device ran out of memory at batch {batch}; try Learning(batch={max(1, batch // 2)})"
                + ("" if self.runs == 1 else f", or fewer than {self.runs} runs together")
            ) from error
        names = [*self.measured_names, "skipped_steps", "worst_streak"]
        totals = self.rows["totals"][:, : len(self.measured_names)] / measured_steps
        numbers = torch.cat([totals, self.rows["faults"][:, [0, 2]]], dim=1).cpu().tolist()
        return [dict(zip(names, row, strict=True)) for row in numbers]

    def _begin(self, steps: int, memories: Sequence[Memories]) -> None:
        parts = [[len(part) for part in (own.source, own.target, own.target_rounds)] for own in memories]
        self.counts.copy_(torch.tensor(parts))
        if steps > self.schedule.shape[1]:
            self.schedule = torch.zeros(self.runs, steps, self.schedule.shape[2], device=self.device)
            if self.captured is not None:
                self.captured.forget()
        table = torch.tensor([learner.schedule(steps) for learner in self.learners])
        self.schedule[:, :steps].copy_(table)
        self.position.zero_()
        self.rows["totals"].zero_()
        self.rows["faults"][:, 0].zero_()
        self.rows["faults"][:, 2].zero_()
        self._draw_ahead(steps, memories)

    def _draw_ahead(self, steps: int, memories: Sequence[Memories]) -> None:
        """Where contexts are not on the device, draw for all coming steps, so that they can be sent in time."""
        before, self.feed = self.feed, None
        if streams(memories):
            (kinds, parts), size = self._parts(memories), self.recipe.learning.batch
            self.feed = feed_for(before, parts, steps=steps, draw=lambda: self._draw(kinds, size))
            if self.feed is not before and self.captured is not None:
                self.captured.forget()

    def _parts(self, memories: Sequence[Memories]) -> tuple[list[int], list[list[ContextMemory]]]:
        """Which kinds of memory a step draws from, and those memories of all runs."""
        with_target = self.learners[0].objective.needs_target
        kinds = [kind for kind in _KINDS if len(getattr(memories[0], kind)) and (with_target or kind != "target")]
        parts = [[getattr(memory, kind) for memory in memories] for kind in kinds]
        return [_KINDS.index(kind) for kind in kinds], parts

    # The step.

    def step(self, memories: Sequence[Memories], measure: bool) -> None:
        """One gradient step on batches of the memories' choosing; what it measures, if it is to, goes to the totals."""
        with _tensor_cores():
            self._step(memories, measure)

    def _step(self, memories: Sequence[Memories], measure: bool) -> None:
        now = self.schedule.index_select(1, self.position).squeeze(1)
        before = self.statistics.clone()
        losses, measured = self._losses(memories, now[:, :-1], measure)
        (gradient,) = torch.autograd.grad(losses.sum(), self.parameters)
        with torch.no_grad():
            norms = torch.linalg.vector_norm(gradient[:, : self.encoder_size], dim=1)
            losses = losses.detach()
            good = (losses + norms).abs() < torch.inf  # false for what is not a number, too
            bad = 1.0 - good.float()
            self._update(gradient, bad)
            wrong = (bad if self.runs == 1 else bad[self.run_of]) > 0
            torch.where(wrong, before, self.statistics, out=self.statistics)
            self._follow(now[:, -1], bad)
            faults = self.rows["faults"]  # skipped, present streak, longest streak
            faults[:, 1].add_(1).mul_(bad)
            faults[:, 0].add_(bad)
            torch.maximum(faults[:, 2], faults[:, 1], out=faults[:, 2])
            if measure:
                found = torch.cat([losses[:, None], norms[:, None], measured], dim=1)
                self.rows["totals"][:, : found.shape[1]].add_(found)
            self.position += 1

    def _losses(
        self, memories: Sequence[Memories], weights: torch.Tensor, measure: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The runs' losses (runs,), and what was measured on the way (runs, M), named in ``measured_names``."""
        first = self.learners[0]
        objective, size = first.objective, self.recipe.learning.batch
        with_target = objective.needs_target and len(memories[0].target) > 0
        numbers, parts = self._parts(memories)
        kinds = [_KINDS[number] for number in numbers]
        shape, per_round = first.encoder.context_shape, self._contexts_per_round()
        if self.feed is None:
            rows, draws = self._draw(numbers, size)
            contexts = [self._gathered(part, own) for part, own in zip(parts, rows, strict=True)]
        else:
            rows, draws = self.feed.drawn(self.position)
            contexts = self.feed.contexts(self.position)
        contexts = [part.view(self.runs, size * per_round, *shape) for part in contexts]
        n_source = size * per_round if "source" in kinds else 0
        parameters = self.layout.parameters(self.parameters)
        latent, tap = self._encode(parameters["encoder"], _joined(contexts), draws, n_source)
        teacher = latent[:, :0]
        if with_target and objective.needs_teacher:
            teacher = self._teacher(contexts[kinds.index("target")], latent[:, n_source : n_source + size * per_round])
        arms, rewards = [], []
        for kind, part, own in zip(kinds, parts, rows, strict=True):
            if kind != "target":
                arms.append(self._gathered(part, own, "arms"))
                rewards.append(self._gathered(part, own, "rewards"))
        together = (
            latent,
            tap,
            teacher,
            torch.cat(arms, dim=1),
            torch.cat(rewards, dim=1).to(latent.dtype),
            self.rows["theta"],
            self.rows["inverse"],
            self.rows["bonus"],
            weights,
        )
        sizes = (n_source, size * per_round if with_target else 0)
        of_objective = parameters.get("objective", {})

        def judged(own: dict[str, torch.Tensor], *mine: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self._judge(own, sizes, measure, *mine)

        if self.runs == 1:
            alone = {name: parameter.squeeze(0) for name, parameter in of_objective.items()}
            loss, measured = judged(alone, *(tensor.squeeze(0) for tensor in together))
            return loss[None], measured[None]
        losses, measured = torch.vmap(judged)({**of_objective, **self.objective_buffers}, *together)
        return losses, measured

    def _contexts_per_round(self) -> int:
        first = self.learners[0]
        return first.n_arms if first.shared else 1

    def _draw(self, kinds: Sequence[int], size: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Rows (runs, size) of each kind's memories, and the draws (runs, contexts, n) of the disturbance.

        Rows are even draws with replacement, or the latest. All random numbers of a run come from one call.
        """
        shape = self.learners[0].encoder.context_shape
        per_context = self.recipe.learning.disturbance.draws(shape)
        n_contexts = len(kinds) * size * self._contexts_per_round()
        last = self.recipe.memory.replay == "last"
        n_rows = 0 if last else len(kinds) * size
        total = n_rows + n_contexts * per_context
        drawn = [torch.rand(total, generator=generator, device=self.device) for generator in self.generators]
        uniform = self._common(drawn)
        counts = self.counts[:, : len(kinds)] if list(kinds) == list(range(len(kinds))) else self.counts[:, list(kinds)]
        counts = counts[:, :, None]
        if last:
            # Rows before the first are clamped to it: a short memory repeats its oldest, and the shape stays.
            rows = (torch.arange(size, device=self.device) + (counts - size)).clamp(min=0)
        else:
            own = uniform[:, :n_rows].view(self.runs, len(kinds), size)
            rows = torch.minimum((own * counts).long(), counts - 1)
        return list(rows.unbind(1)), uniform[:, n_rows:].view(self.runs, n_contexts, per_context)

    def _gathered(self, part: Sequence[ContextMemory], rows: torch.Tensor, column: str = "contexts") -> torch.Tensor:
        return self._common([getattr(memory, column)[own] for memory, own in zip(part, rows.unbind(), strict=True)])

    def _encode(
        self, parameters: Mapping[str, torch.Tensor], contexts: torch.Tensor, draws: torch.Tensor, n_source: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents (runs, R, d) and taps (runs, R, w) of contexts (runs, R, *shape), disturbed."""
        flat = disturb(contexts.flatten(0, 1), self.recipe.learning.disturbance, draws.flatten(0, 1))
        disturbed = flat.view(*contexts.shape[:2], *flat.shape[1:])
        return self._forward(self.learners[0].encoder, parameters, self.buffers, disturbed, n_source)

    def _forward(
        self,
        network: nn.Module,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        contexts: torch.Tensor,
        n_source: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.runs == 1:
            # Squeezed, not selected: the gradient of a selection is a tensor of zeros with a copy in it.
            own = {name: parameter.squeeze(0) for name, parameter in parameters.items()}
            latent, tap = functional_call(network, own, (contexts[0],), {"n_source": n_source})
            return latent[None], tap[None]
        given = {**{name: parameter.flatten(0, 1) for name, parameter in parameters.items()}, **buffers}
        settings = {"n_source": n_source, "runs": self.runs}
        latent, tap = functional_call(network, given, (contexts.transpose(0, 1),), settings)
        return latent.transpose(0, 1), tap.transpose(0, 1)

    def _teacher(self, contexts: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """The averaged encoder's latents (runs, T, d) of contexts as they are, or the encoder's own."""
        average = self.learners[0].average
        if average is None or self.averages is None or self.average_buffers is None:
            return latent.detach()
        with torch.no_grad():
            parameters = self.layout.only("encoder").parameters(self.averages)["encoder"]
            return self._forward(average, parameters, self.average_buffers, contexts, 0)[0]

    def _judge(
        self,
        parameters: dict[str, torch.Tensor],
        sizes: tuple[int, int],
        measure: bool,
        latent: torch.Tensor,
        tap: torch.Tensor,
        teacher: torch.Tensor,
        arm: torch.Tensor,
        reward: torch.Tensor,
        theta: torch.Tensor,
        inverse: torch.Tensor,
        bonus: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One run's loss and measurements."""
        first = self.learners[0]
        objective, n_arms = first.objective, first.n_arms
        source, target = sizes

        def predict(latents: torch.Tensor) -> torch.Tensor:
            """Predicted rewards (rounds, K) of latents (rounds, d), or (rounds * K, d) for shared arms."""
            return (latents @ theta[0]).view(-1, n_arms) if first.shared else latents @ theta.T

        rounds, targets = source // self._contexts_per_round(), target // self._contexts_per_round()
        predicted = predict(latent)
        # Split, not sliced, for the same reason as above; what is left are rounds of the target.
        of_source, of_target, of_rounds = torch.split(predicted, [rounds, targets, len(predicted) - rounds - targets])
        source_tap, target_tap, _ = torch.split(tap, [source, target, len(tap) - source - target])
        width = torch.zeros_like(of_target)
        if targets and objective.needs_width:
            z = latent[source : source + target].detach()
            variance = torch.einsum("nd,kde,ne->nk", z, inverse, z).clamp(min=0)
            width = bonus * variance.sqrt().view(targets, -1)
        batch = Batch(
            predicted=torch.cat([of_source, of_rounds]) if len(of_rounds) else of_source,
            arm=arm,
            reward=reward,
            tap=source_tap,
            target_predicted=of_target,
            target_width=width,
            target_tap=target_tap,
            target_teacher=predict(teacher.detach()) if len(teacher) else of_target.detach(),
            weight=weights[0],
        )
        loss, values = functional_call(objective, parameters, (batch, weights, measure))
        if not measure:
            return loss, loss.detach()[None]
        measured = {**values, "latent_spread": latent.detach().var(dim=0, correction=0).sum()}
        if targets:
            chosen = (of_target.detach() + width).argmax(dim=1)
            shares = (chosen[:, None] == torch.arange(n_arms, device=chosen.device)).float().mean(dim=0)
            measured["target_top_share"] = shares.max()
        self.measured_names = ["loss", "gradient_norm", *measured]
        if len(self.measured_names) > MOST_MEASURED:
            raise InvalidInput(f"an objective can have at most {MOST_MEASURED - 5} terms")
        return loss, torch.stack([value.to(loss.dtype) for value in measured.values()])

    def _update(self, gradient: torch.Tensor, bad: torch.Tensor) -> None:
        """Adam, for every run whose loss and gradient are finite; the others are left alone."""
        self.moments[2] += 1 - bad
        for run, chunks in enumerate(self._chunks):
            # The fused optimiser leaves everything alone where found_inf is 1, without asking the host.
            torch._fused_adam_(
                chunks[0],
                list(torch.split(gradient[run], _CHUNK)),
                chunks[1],
                chunks[2],
                [],
                [self.moments[2][run]] * len(chunks[0]),
                lr=self.recipe.learning.learning_rate,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                weight_decay=0.0,
                eps=_EPSILON,
                amsgrad=False,
                maximize=False,
                found_inf=bad[run],
            )

    def _follow(self, keep: torch.Tensor, bad: torch.Tensor) -> None:
        """Let the averaged encoder follow, not after a skipped step."""
        if self.averages is None or self.average_statistics is None:
            return
        share = (1 - keep) * (1 - bad)
        self.averages.lerp_(self.parameters.detach()[:, : self.averages.shape[1]], share[:, None])
        self.average_statistics.lerp_(self.statistics, share if self.runs == 1 else share[self.run_of])
        for learner in self.learners:
            learner.follow_other_buffers(share)


@contextmanager
def _tensor_cores() -> Iterator[None]:
    """Within this block a GPU's products use TF32, as its convolutions do anyway; the head stays in float64."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Contexts of several memories, (runs, R, ...); bytes and numbers meet as numbers in [0, 1]."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part.float() / 255 if part.dtype == torch.uint8 else part for part in parts]
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
