"""Gradient steps of one learner, or of several of one shape at once.

A step draws its own batch from the memories, on the device, with shapes that never change and without waiting for the
device: so a whole step can be captured once and replayed. Whatever a step needs from the host (the head's coefficients,
the weights that its schedule gives) is copied into fixed buffers between steps.

Several learners are trained side by side: their parameters are rows of one matrix, the networks' channels stand next
to one another, and the objective is mapped over the rows. The number of operations stays near that of one learner, and
where a GPU spends its time on many small ones rather than on convolutions, that is what a step costs. Each learner
draws from its own generator and its own memories, so its results are those it would have had alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.func import functional_call

from daband.encoders.augmentation import augment
from daband.errors import DeviceOutOfMemory, InvalidInput
from daband.learning.adam import MOMENTS, RowAdam
from daband.learning.cuda_graph import GraphRunner
from daband.learning.layout import StatisticsLayout
from daband.learning.precision import single_precision, tensor_cores
from daband.learning.prefetch import Feed, feed_for, streams
from daband.learning.replay_buffer import ContextBuffer, ReplayBuffers, joined
from daband.objectives import Batch

if TYPE_CHECKING:
    from daband.learning.learner import Learner

__all__ = ["MOST_MEASURED", "Steps"]

MOST_MEASURED = 32
_MEASURE_EVERY = 8
_KINDS = ("source", "target", "target_rounds")
_SHARED_ROWS = ("theta", "inverse", "bonus", "faults", "totals")


class Steps:
    """Takes the gradient steps of ``learners``, which must agree in everything but seed, data and weights' values."""

    @single_precision()
    def __init__(self, learners: Sequence[Learner]) -> None:
        if len({learner.shape_key for learner in learners}) != 1:
            raise InvalidInput("only learners of one shape can be trained together")
        self.learners = list(learners)
        self.runs = len(self.learners)
        first = self.learners[0]
        if self.runs > 1 and not first.stackable:
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
        self.ema_statistics = self.ema_buffers = None
        if first.ema is not None:
            self.ema_statistics = statistics.pack([learner.ema for learner in self.learners])  # type: ignore[misc]
            self.ema_buffers = statistics.buffers(self.ema_statistics)
        self.run_of = statistics.run_of(self.device)
        self.schedule = torch.zeros(self.runs, 0, len(first.objective.weights) + 1, device=self.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.counts = torch.zeros(self.runs, len(_KINDS), dtype=torch.int64, device=self.device)
        self._ones = torch.ones(self.runs, device=self.device)
        self.feed: Feed | None = None
        """Where contexts come from that are not on the device; None where all are."""
        self.captures = first.captures
        self.captured = GraphRunner(self) if self.device.type == "cuda" and self.captures else None
        for learner in self.learners:
            learner.belong_to(self)

    def _join(self) -> None:
        """Let the learners' numbers be rows of common tensors; a single learner's stay where they are."""
        self.rows = {name: self._common([getattr(learner, name) for learner in self.learners]) for name in _SHARED_ROWS}
        vectors = [learner.vector.detach() for learner in self.learners]
        self.parameters = self._common(vectors)
        self.moments = [self._common([learner.moments[name] for learner in self.learners]) for name in MOMENTS]
        averages = [learner.ema_vector for learner in self.learners if learner.ema_vector is not None]
        self.ema_vectors = self._common(averages) if averages else None
        self.objective_rest: dict[str, torch.Tensor] = {}
        self._changeable = self.learners[0].other_buffers() if self.runs == 1 else []
        if self.runs > 1:
            for run, learner in enumerate(self.learners):
                learner.move_to(
                    vector=self.parameters[run],
                    average=None if self.ema_vectors is None else self.ema_vectors[run],
                    moments={n: m[run] for n, m in zip(MOMENTS, self.moments, strict=True)},
                    rows={name: tensor[run] for name, tensor in self.rows.items()},
                )
            rest = [learner.rest_of_objective() for learner in self.learners]
            self.objective_rest = {name: torch.stack([own[name] for own in rest]) for name in rest[0]}
            for run, own in enumerate(rest):
                for name, tensor in own.items():
                    tensor.data = self.objective_rest[name][run]  # what a step changes there is the learner's own
            self._changeable = list(self.objective_rest.values())
        self.adam = RowAdam(self.parameters, self.moments, learning_rate=self.recipe.learning.learning_rate)
        self.parameters.requires_grad_(True)

    def _common(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return tensors[0][None] if self.runs == 1 else torch.stack(list(tensors))

    # What the host does around the steps.

    @single_precision()
    def take(self, steps: int, memories: Sequence[ReplayBuffers]) -> list[dict[str, float]]:
        """Take ``steps`` steps and return, for each learner, means of all that was measured.

        Every eighth step measures, the last among them: to measure takes about a sixth of the operations of a small
        network's step. Steps that were skipped count in no mean; where nothing else was measured there is none. The
        device is read once, at the end.
        """
        self._begin(steps, memories)
        try:
            for left in range(steps, 0, -1):
                measure = left % _MEASURE_EVERY == 1 or left == 1
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
            raise DeviceOutOfMemory(
                f"the device ran out of memory at batch {batch}; try LearningSettings(batch={max(1, batch // 2)})"
                + ("" if self.runs == 1 else f", or fewer than {self.runs} runs together")
            ) from error
        faults, (counted, *totals) = self.rows["faults"], self.rows["totals"].unbind(1)
        numbers = torch.stack([faults[:, 0], faults[:, 2], counted, *totals[: len(self.measured_names)]], dim=1)
        return [self._means(*row) for row in numbers.cpu().tolist()]

    def _means(self, skipped: float, worst: float, counted: float, *totals: float) -> dict[str, float]:
        means = {name: total / counted for name, total in zip(self.measured_names, totals, strict=True) if counted}
        return {**means, "skipped_steps": skipped, "worst_streak": worst}

    def _begin(self, steps: int, memories: Sequence[ReplayBuffers]) -> None:
        parts = [own.parts() for own in memories]
        if len({tuple(part.kind for part in own) for own in parts}) > 1:
            raise InvalidInput("only runs whose memories hold the same kinds of things can be trained together")
        last = self.recipe.replay.sampling == "last"
        self.counts.copy_(torch.tensor([[part.n_seen if last else len(part) for part in own] for own in parts]))
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
        if self.captured is not None:
            self.captured.look_at(memories)

    def _draw_ahead(self, steps: int, memories: Sequence[ReplayBuffers]) -> None:
        """Where contexts are not on the device, draw for all coming steps, so that they can be sent in time."""
        before, self.feed = self.feed, None
        if streams(memories):
            (kinds, parts), size = self._parts(memories), self.recipe.learning.batch
            self.feed = feed_for(before, parts, steps=steps, draw=lambda: self._draw(kinds, size))
            if self.feed is not before and self.captured is not None:
                self.captured.forget()

    def _parts(self, memories: Sequence[ReplayBuffers]) -> tuple[list[int], list[list[ContextBuffer]]]:
        """Which kinds of memory a step draws from, and those memories of all runs."""
        with_target = self.learners[0].objective.needs_target
        kinds = [kind for kind in _KINDS if len(getattr(memories[0], kind)) and (with_target or kind != "target")]
        parts = [[getattr(memory, kind) for memory in memories] for kind in kinds]
        return [_KINDS.index(kind) for kind in kinds], parts

    # The step.

    def step(self, memories: Sequence[ReplayBuffers], measure: bool) -> None:
        """One gradient step on batches of the memories' choosing; what it measures, if it is to, goes to the totals."""
        encoder = self.learners[0].encoder
        if not encoder.training:
            encoder.train()
        with tensor_cores():
            self._step(memories, measure)

    def _step(self, memories: Sequence[ReplayBuffers], measure: bool) -> None:
        now = self.schedule.index_select(1, self.position).squeeze(1)
        before = self.statistics.clone()
        others = [buffer.clone() for buffer in self._changeable]
        losses, measured = self._losses(memories, now[:, :-1], measure)
        (gradient,) = torch.autograd.grad(losses, self.parameters, grad_outputs=self._ones)
        with torch.no_grad():
            losses = losses.detach()
            # Nothing times what is finite is nothing, and not a number otherwise: 1 where a step must not be taken.
            bad = torch.nan_to_num((losses + torch.linalg.vector_norm(gradient, dim=1)) * 0.0, nan=1.0)
            self.adam.step(gradient, bad)
            if self.statistics.numel():
                wrong = (bad if self.runs == 1 else bad[self.run_of]) > 0
                torch.where(wrong, before, self.statistics, out=self.statistics)
            for buffer, kept in zip(self._changeable, others, strict=True):
                whose = bad.view(-1, *[1] * (buffer.ndim - 1)) if self.runs > 1 else bad.squeeze(0)
                buffer.copy_(torch.where(whose > 0, kept, buffer))
            self._follow(now[:, -1], bad)
            faults = self.rows["faults"]  # skipped, present streak, longest streak
            faults[:, 1].add_(1).mul_(bad)
            faults[:, 0].add_(bad)
            torch.maximum(faults[:, 2], faults[:, 1], out=faults[:, 2])
            if measure:
                norms = torch.linalg.vector_norm(gradient[:, : self.encoder_size], dim=1)
                found = torch.cat([torch.stack([torch.ones_like(losses), losses, norms], dim=1), measured], dim=1)
                self.rows["totals"][:, : found.shape[1]].add_(torch.where(bad[:, None] > 0, 0.0, found))
            self.position += 1

    def _losses(
        self, memories: Sequence[ReplayBuffers], weights: torch.Tensor, measure: bool
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
        latent, alignment = self._encode(parameters["encoder"], joined(contexts), draws, n_source)
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
            alignment,
            teacher,
            joined(arms),
            joined(rewards).to(latent.dtype),
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
        losses, measured = torch.vmap(judged)({**of_objective, **self.objective_rest}, *together)
        return losses, measured

    def _contexts_per_round(self) -> int:
        first = self.learners[0]
        return first.n_arms if first.shared else 1

    def _draw(self, kinds: Sequence[int], size: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Rows (runs, size) of each kind's memories, and the draws (runs, contexts, n) of the augmentation.

        Rows are even draws with replacement, or the latest. All random numbers of a run come from one call.
        """
        shape = self.learners[0].encoder.context_shape
        per_context = self.recipe.learning.augmentation.draws(shape)
        n_contexts = len(kinds) * size * self._contexts_per_round()
        last = self.recipe.replay.sampling == "last"
        n_rows = 0 if last else len(kinds) * size
        total = n_rows + n_contexts * per_context
        drawn = [torch.rand(total, generator=generator, device=self.device) for generator in self.generators]
        uniform = self._common(drawn)
        # Column by column: a list of them would be sent to the device, which ends a recording.
        counts = torch.stack([self.counts[:, kind] for kind in kinds], dim=1)[:, :, None]
        if last:
            # Rows before the first are clamped to it: a short memory repeats its oldest, and the shape stays.
            rows = (torch.arange(size, device=self.device) + (counts - size)).clamp(min=0)
            rows = rows % self.recipe.replay.capacity  # a full memory writes over its oldest
        else:
            own = uniform[:, :n_rows].view(self.runs, len(kinds), size)
            rows = torch.minimum((own * counts).long(), counts - 1)
        return list(rows.unbind(1)), uniform[:, n_rows:].view(self.runs, n_contexts, per_context)

    def _gathered(self, part: Sequence[ContextBuffer], rows: torch.Tensor, column: str = "contexts") -> torch.Tensor:
        return self._common([getattr(memory, column)[own] for memory, own in zip(part, rows.unbind(), strict=True)])

    def _encode(
        self, parameters: Mapping[str, torch.Tensor], contexts: torch.Tensor, draws: torch.Tensor, n_source: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents (runs, R, d) and alignments (runs, R, w) of contexts (runs, R, *shape), augmented."""
        flat = augment(contexts.flatten(0, 1), self.recipe.learning.augmentation, draws.flatten(0, 1))
        augmented = flat.view(*contexts.shape[:2], *flat.shape[1:])
        return self._forward(self.learners[0].encoder, parameters, self.buffers, augmented, n_source)

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
            latent, alignment = functional_call(network, own, (contexts[0],), {"n_source": n_source})
            return latent[None], alignment[None]
        given = {**{name: parameter.flatten(0, 1) for name, parameter in parameters.items()}, **buffers}
        settings = {"n_source": n_source, "runs": self.runs}
        latent, alignment = functional_call(network, given, (contexts.transpose(0, 1),), settings)
        return latent.transpose(0, 1), alignment.transpose(0, 1)

    def _teacher(self, contexts: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """The EMA encoder's latents (runs, T, d) of contexts as they are, or the encoder's own."""
        average = self.learners[0].ema
        if average is None or self.ema_vectors is None or self.ema_buffers is None:
            return latent.detach()
        with torch.no_grad():
            parameters = self.layout.only("encoder").parameters(self.ema_vectors)["encoder"]
            return self._forward(average, parameters, self.ema_buffers, contexts, 0)[0]

    def _judge(
        self,
        parameters: dict[str, torch.Tensor],
        sizes: tuple[int, int],
        measure: bool,
        latent: torch.Tensor,
        alignment: torch.Tensor,
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
        source_alignment, target_alignment, _ = torch.split(
            alignment, [source, target, len(alignment) - source - target]
        )
        width = torch.zeros_like(of_target)
        if targets and objective.needs_width:
            z = latent[source : source + target].detach()
            variance = torch.einsum("nd,kde,ne->nk", z, inverse, z).clamp(min=0)
            width = bonus * variance.sqrt().view(targets, -1)
        batch = Batch(
            predicted=torch.cat([of_source, of_rounds]) if len(of_rounds) else of_source,
            arm=arm,
            reward=reward,
            alignment=source_alignment,
            target_predicted=of_target,
            target_width=width,
            target_alignment=target_alignment,
            alignments=alignment if source + target == len(alignment) else None,
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
        if len(self.measured_names) >= MOST_MEASURED:  # one place more has their number
            raise InvalidInput(f"an objective can have at most {MOST_MEASURED - 6} terms")
        return loss, torch.stack([value.to(loss.dtype) for value in measured.values()])

    def _follow(self, keep: torch.Tensor, bad: torch.Tensor) -> None:
        """Let the EMA encoder follow, not after a skipped step."""
        if self.ema_vectors is None or self.ema_statistics is None:
            return
        share = (1 - keep) * (1 - bad)
        self.ema_vectors.lerp_(self.parameters.detach()[:, : self.ema_vectors.shape[1]], share[:, None])
        self.ema_statistics.lerp_(self.statistics, share if self.runs == 1 else share[self.run_of])
        for learner in self.learners:
            learner.follow_other_buffers(share)
