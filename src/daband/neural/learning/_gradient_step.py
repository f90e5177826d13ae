"""Take one gradient step for a stack of learners.

A step has fixed shapes, reads nothing back from the device and draws no random number, so that it can be recorded as a
CUDA graph. Its inputs from the host (the head's coefficients, the schedule of weights, the batches' draws) are tensors
that the host fills between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.func import functional_call
from torch.nn import functional

from daband.errors import InvalidInput
from daband.neural.encoders._domain_norm import has_bfloat16
from daband.neural.learning._batches import BLOCK_STEPS, Batches
from daband.neural.learning._flat_parameters import RowAdam
from daband.neural.learning._stacked_runs import Parameters, RunInputs, Stack
from daband.neural.objectives._term import Batch

#: The rate of the moving averages of arm frequencies, and the smallest frequency that is told apart from 0.
_FREQUENCY_RATE, _MIN_FREQUENCY = 0.01, 1e-3
#: The maximum number of measurements of a step.
_MAX_MEASUREMENTS = 32


class GradientStep:
    """A gradient step of a stack of learners. Each call uses the next batch, and adds measurements to ``totals``."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.batches: Batches | None = None
        self.measured_names: list[str] = []
        recipe, device, runs = stack.first.recipe, stack.device, stack.runs
        self._adam = RowAdam(stack.parameters, stack.moments, learning_rate=recipe.learning.learning_rate)
        self._encoder_size = stack.first.layout.size_of("encoder")
        n_weights = len(stack.first.objective.weights) + 1
        #: The weight of every term and the rate of the EMA, for each of the coming steps.
        self.schedule = torch.zeros(BLOCK_STEPS, runs, n_weights, dtype=torch.float32, device=device)
        #: The number of scheduled steps that were taken, (1,).
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        #: Sums over measured steps: their number, and then the values of ``measured_names``.
        self.totals = torch.zeros(runs, _MAX_MEASUREMENTS, dtype=torch.float32, device=device)
        self._teacher_term_indices = stack.first.objective.teacher_term_indices
        by_domain = all(norm.statistics == "own" for norm in stack.first.norms)
        #: True if only the norms use unlabelled rows. On a GPU one pass over all rows has fewer kernels.
        self._target_for_norms = device.type == "cpu" and by_domain and not stack.first.objective.needs_target
        self._ones = torch.ones(runs, dtype=torch.float32, device=device)
        self._no_bonus = torch.zeros((), device=device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        other_streams = [torch.cuda.Stream(device) for _ in range(3)] if self._stream else []  # type: ignore[no-untyped-call]
        stack.first.objective.streams = [self._stream, *other_streams] if self._stream else []

    def __call__(self, measure: bool) -> None:
        """Take one step for every run. Runs with a loss or gradient that is not finite do not change."""
        stack = self.stack
        scheduled = self.schedule.index_select(0, self.position).squeeze(0)
        statistics = stack.statistics.clone()
        other_buffers = [buffer.clone() for buffer in stack.other_buffers]
        losses, measured = self._losses(scheduled[:, :-1], measure)
        (gradient,) = torch.autograd.grad(losses, stack.parameters, grad_outputs=self._ones)
        with torch.no_grad():
            losses = losses.detach()
            # Zero times a finite number is 0, otherwise NaN: ``bad`` is 1 if a step must be skipped.
            bad = torch.nan_to_num((losses + torch.linalg.vector_norm(gradient, dim=1)) * 0.0, nan=1.0)
            self._adam.step(gradient, bad)
            stack.restore_where(bad, statistics, other_buffers)
            stack.update_ema(torch.addcmul(scheduled[:, -1], scheduled[:, -1], bad, value=-1))
            skipped, streak, longest = stack.faults.unbind(1)
            torch.addcmul(bad, streak, bad, out=streak)  # plus 1, or 0 if the step was good
            skipped.add_(bad)
            torch.maximum(longest, streak, out=longest)
            if measure:
                norms = torch.linalg.vector_norm(gradient[:, : self._encoder_size], dim=1)
                values = torch.cat([torch.stack([torch.ones_like(losses), losses, norms], dim=1), measured], dim=1)
                self.totals[:, : values.shape[1]].add_(torch.where(bad[:, None] > 0, 0.0, values))
            self.position += 1

    def _losses(self, weights: torch.Tensor, measure: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the losses (runs,) and measurements (runs, M) of the next batch."""
        stack, batches = self.stack, self.batches
        assert batches is not None
        drawn = batches.batch_at(self.position)
        parameters = stack.by_module()
        rows, unlabelled = batches.segment_rows, batches.unlabelled
        has_teacher = bool(unlabelled) and self._uses_teacher(weights, measure)
        with self._autocast_maps():
            with self._on_side_stream():
                contexts = _select(drawn.contexts, rows, unlabelled, dim=1) if has_teacher else drawn.contexts[:, :0]
                teacher = stack.encode_by_teacher(contexts, batches.domain_rows(unlabelled)) if has_teacher else None
            features, aligned = self._encode(parameters["encoder"], drawn.augmented, batches)
        self._join_side_stream()
        if self._stream is not None:  # the stream's backward pass reads it, so its memory must not be reused before
            aligned.record_stream(self._stream)
        if teacher is None:  # without an EMA encoder the encoder teaches itself
            teacher = _select(features, rows, unlabelled, dim=1).detach() if has_teacher else features[:, :0]
        if has_teacher:
            source = _select(features, rows, batches.sources, dim=1)
            teacher = self._teacher_predictions(teacher.detach(), source.detach(), common=batches.shape.committee)
        rounds = {"arm": drawn.arm, "reward": drawn.reward, "weights": weights}
        inputs = RunInputs(features, aligned, teacher, **rounds, **stack.constants)

        def run_loss(run_parameters: Parameters, run: RunInputs) -> tuple[torch.Tensor, torch.Tensor]:
            return self._run_loss(run_parameters, run, batches, measure)

        return stack.losses(run_loss, parameters["objective"], inputs)

    def _teacher_predictions(self, target: torch.Tensor, source: torch.Tensor, *, common: bool) -> torch.Tensor:
        """Return predicted rewards (runs, T, K) for the teachers' target features; with ``common``, the mean over runs.

        With ``match_arm_frequencies`` they are corrected by the frequencies of predicted arms, of which those in the
        source are computed from the encoders' features ``source`` (runs, B, d).
        """
        first, theta = self.stack.first, self.stack.constants["theta"]

        def predict(features: torch.Tensor) -> torch.Tensor:
            """Return predicted rewards (runs, rounds, K)."""
            predicted = predict_rewards(features, theta)
            return predicted.view(len(features), -1, first.n_arms) if first.shared else predicted

        def average(values: torch.Tensor) -> torch.Tensor:
            """Return the mean over runs for every run if ``common``, else the values."""
            return values.mean(dim=0, keepdim=True).expand_as(values) if common else values

        teacher = average(predict(target))
        if not first.recipe.learning.match_arm_frequencies or not source.shape[1]:
            return teacher
        with torch.no_grad():
            means = [torch.softmax(first.scale * part, dim=2).mean(dim=1) for part in (predict(source), teacher)]
            frequencies = self.stack.constants["arm_frequencies"].lerp_(
                average(torch.stack(means, dim=1)), _FREQUENCY_RATE
            )
            log_source, log_target = frequencies.clamp(min=_MIN_FREQUENCY).log().unbind(1)
            return teacher + (log_source - log_target)[:, None] / first.scale

    def _uses_teacher(self, weights: torch.Tensor, measure: bool) -> bool:
        """Return True if a term with a weight (runs, terms) above 0 uses the EMA encoder's predictions."""
        if measure or weights.device.type != "cpu":  # a CUDA graph has no branches
            return bool(self._teacher_term_indices)
        return bool(weights.numpy()[:, self._teacher_term_indices].any())

    def _encode(
        self, parameters: Parameters, contexts: torch.Tensor, batches: Batches
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features and aligned features of all contexts. Rows that only norms use have no gradient."""
        rows = batches.count_labelled_apart() if self._target_for_norms else 0
        if not rows:
            return self.stack.encode(parameters, contexts, batches.domain_rows())
        labelled = self.stack.encode(parameters, contexts[:, :rows], batches.domain_rows(batches.labelled))
        with torch.no_grad():
            unlabelled = self.stack.encode(parameters, contexts[:, rows:], batches.domain_rows(batches.unlabelled))
        features, aligned = (torch.cat(parts, dim=1) for parts in zip(labelled, unlabelled, strict=True))
        return features, aligned

    def _autocast_maps(self) -> AbstractContextManager[object]:
        """Return a context manager in which maps of images are bfloat16 on a GPU, if torch may use TF32."""
        is_image = len(self.stack.first.encoder.context_shape) == 3
        is_allowed = is_image and has_bfloat16(self.stack.device) and torch.backends.cudnn.allow_tf32
        return torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False) if is_allowed else nullcontext()

    def _on_side_stream(self) -> AbstractContextManager[object]:
        """Return a context manager in which a GPU computes concurrently, until ``_join_side_stream``."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self.stack.device))
        return torch.cuda.stream(self._stream)

    def _join_side_stream(self) -> None:
        """Wait until the side stream has finished."""
        if self._stream is not None:
            torch.cuda.current_stream(self.stack.device).wait_stream(self._stream)

    def _run_loss(
        self, parameters: Parameters, run: RunInputs, batches: Batches, measure: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of one run, and its measurements (M,)."""
        learner = self.stack.first
        objective, n_arms, per_round = learner.objective, learner.n_arms, learner.contexts_per_round

        def predict(features: torch.Tensor) -> torch.Tensor:
            """Return predicted rewards (rounds, K) of features (rounds, d), or (rounds * K, d) for shared arms."""
            return (
                (features @ run.theta[0]).view(-1, n_arms) if learner.shared else predict_rewards(features, run.theta)
            )

        predicted = predict(run.features)
        rows, sources, unlabelled = batches.segment_rows, batches.sources, batches.unlabelled
        by_segment = torch.split(predicted, rows // per_round)
        round_predictions = _join(by_segment, batches.labelled, predicted)
        target_predictions = _join(by_segment, unlabelled, predicted)
        aligned_segments = torch.split(run.aligned, rows)
        # Target rounds are not aligned.
        aligned_indices = [*sources, *unlabelled]
        bonus = self._no_bonus.expand(target_predictions.shape)
        if unlabelled and objective.needs_bonus:
            z = _pad_ones(_select(run.features, rows, unlabelled).detach(), run.inverse.shape[-1])
            variance = torch.einsum("nd,kde,ne->nk", z, run.inverse, z).clamp(min=0)
            bonus = run.alpha * variance.sqrt().view(len(target_predictions), -1)
        batch = Batch(
            predicted=round_predictions,
            arm=run.arm,
            reward=run.reward,
            aligned=_join(aligned_segments, sources, run.aligned),
            target_predicted=target_predictions,
            target_bonus=bonus,
            target_aligned=_join(aligned_segments, unlabelled, run.aligned),
            unsplit_aligned=run.aligned if len(aligned_indices) == len(aligned_segments) else None,
            target_teacher=run.teacher if len(run.teacher) else target_predictions.detach(),
            weight=run.weights[0],
        )
        loss, values = functional_call(objective, dict(parameters), (batch, run.weights, measure))
        if not measure:
            return loss, loss.detach()[None]
        measured = {**values, "latent_spread": run.features.detach().var(dim=0, correction=0).sum()}
        if unlabelled:
            chosen = (target_predictions.detach() + bonus).argmax(dim=1)
            fractions = (chosen[:, None] == torch.arange(n_arms, device=chosen.device)).float().mean(dim=0)
            measured["target_top_share"] = fractions.max()
        self.measured_names = ["loss", "gradient_norm", *measured]
        if len(self.measured_names) >= _MAX_MEASUREMENTS:  # the first total is the number of steps
            raise InvalidInput(f"weights must name at most {_MAX_MEASUREMENTS - 6} terms, got {len(objective.weights)}")
        return loss, torch.stack([value.to(loss.dtype) for value in measured.values()])


def predict_rewards(features: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """Return rewards (..., n, K) predicted from features (..., n, d) by theta (..., K, d), or d + 1 with intercepts."""
    return _pad_ones(features, theta.shape[-1]) @ theta.transpose(-1, -2)


def _pad_ones(features: torch.Tensor, size: int) -> torch.Tensor:
    """Return features with a 1 appended if they have fewer numbers than ``size``."""
    missing = size - features.shape[-1]
    return functional.pad(features, (0, missing), value=1.0) if missing else features


def _select(tensor: torch.Tensor, rows: int, indices: Sequence[int], *, dim: int = 0) -> torch.Tensor:
    """Return the segments with these indices, of ``rows`` rows each, as one tensor."""
    return _join(torch.split(tensor, rows, dim=dim), indices, tensor, dim=dim)


def _join(parts: Sequence[torch.Tensor], indices: Sequence[int], tensor: torch.Tensor, *, dim: int = 0) -> torch.Tensor:
    """Return the parts of ``tensor`` with these indices as one tensor. Slices would have a gradient of full size."""
    if not indices:
        return tensor.narrow(dim, 0, 0)
    return parts[indices[0]] if len(indices) == 1 else torch.cat([parts[index] for index in indices], dim=dim)
