"""Take one gradient step for a stack of learners.

``GradientStep.__call__`` is the step. It has fixed shapes, reads nothing back from the device and draws no random
number, so that it can be recorded as a CUDA graph. Its inputs from the host (the head's coefficients, the scheduled
weights, the drawn batches) are tensors that the host fills before a block of steps.
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
from daband.neural.learning._stacked_runs import Parameters, RunInputs, Stack, TensorPair
from daband.neural.objectives._term import Batch

#: The weight of a step in the moving averages of arm frequencies.
_FREQUENCY_RATE = 0.01
#: Arm frequencies below this value are set to it, so that their logarithm is finite.
_MIN_FREQUENCY = 1e-3
#: The maximum number of measurements of a step.
_MAX_MEASUREMENTS = 32


class GradientStep:
    """A function that takes one gradient step for a stack of learners.

    Each call uses the next batch of ``batches``, and adds its measurements to ``totals``.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        #: The drawn batches, which ``Stepper`` sets.
        self.batches: Batches | None = None
        #: The names of the measurements in ``totals``, known after the first measured step.
        self.measurement_names: list[str] = []
        recipe, device, runs = stack.first.recipe, stack.device, stack.runs
        self._adam = RowAdam(stack.parameters, stack.moments, learning_rate=recipe.learning.learning_rate)
        self._encoder_size = stack.first.layout.count_values("encoder")
        n_weights = len(stack.first.objective.weights) + 1
        #: The weight of every term and the rate of the EMA, for each step of the block.
        self.schedule = torch.zeros(BLOCK_STEPS, runs, n_weights, dtype=torch.float32, device=device)
        #: The index of the next step in the block, (1,).
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        #: Sums over measured steps: the number of these steps, and then the values of ``measurement_names``.
        self.totals = torch.zeros(runs, _MAX_MEASUREMENTS, dtype=torch.float32, device=device)
        self._teacher_term_indices = stack.first.objective.teacher_term_indices
        own_statistics = all(norm.statistics == "own" for norm in stack.first.norms)
        #: True if only the norms use unlabelled contexts, which are then encoded without a gradient. On a GPU this is
        #: not done, because one pass over all contexts needs fewer kernels.
        self._only_norms_use_target = device.type == "cpu" and own_statistics and not stack.first.objective.needs_target
        self._ones = torch.ones(runs, dtype=torch.float32, device=device)
        self._zero_bonus = torch.zeros((), device=device)
        self._side_stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        term_streams = [torch.cuda.Stream(device) for _ in range(3)] if self._side_stream else []  # type: ignore[no-untyped-call]
        stack.first.objective.streams = [self._side_stream, *term_streams] if self._side_stream else []

    def __call__(self, measure: bool) -> None:
        """Take one step for every run; with ``measure``, add its measurements to ``totals``.

        The step is skipped for runs with a loss or gradient that is not finite.
        """
        stack = self.stack
        scheduled_values = self.schedule.index_select(0, self.position).squeeze(0)
        statistics = stack.statistics.clone()
        other_buffers = [buffer.clone() for buffer in stack.other_buffers]
        losses, measurements = self._compute_losses(scheduled_values[:, :-1], measure)
        (gradient,) = torch.autograd.grad(losses, stack.parameters, grad_outputs=self._ones)
        with torch.no_grad():
            losses = losses.detach()
            # 0 times a finite number is 0, otherwise NaN. So ``skip`` (runs,) is 1 if the step must be skipped, else 0.
            skip = torch.nan_to_num((losses + torch.linalg.vector_norm(gradient, dim=1)) * 0.0, nan=1.0)
            self._adam.step(gradient, skip)
            stack.restore_where(skip, statistics, other_buffers)
            stack.update_ema(torch.addcmul(scheduled_values[:, -1], scheduled_values[:, -1], skip, value=-1))
            n_skipped, streak, longest_streak = stack.skip_counts.unbind(1)
            torch.addcmul(skip, streak, skip, out=streak)  # streak + 1 if the step is skipped, else 0
            n_skipped.add_(skip)
            torch.maximum(longest_streak, streak, out=longest_streak)
            if measure:
                gradient_norms = torch.linalg.vector_norm(gradient[:, : self._encoder_size], dim=1)
                step_values = torch.stack([torch.ones_like(losses), losses, gradient_norms], dim=1)
                values = torch.cat([step_values, measurements], dim=1)
                self.totals[:, : values.shape[1]].add_(torch.where(skip[:, None] > 0, 0.0, values))
            self.position += 1

    def _compute_losses(self, weights: torch.Tensor, measure: bool) -> TensorPair:
        """Return the losses (runs,) and M measurements (runs, M) of the next batch, for term weights (runs, terms)."""
        stack, batches = self.stack, self.batches
        assert batches is not None
        drawn = batches.get_batch(self.position)
        parameters = stack.unpack_parameters()
        rows, unlabelled = batches.segment_rows, batches.unlabelled_indices
        has_teacher = bool(unlabelled) and self._uses_teacher(weights, measure)
        with self._autocast_maps():
            with self._on_side_stream():
                teacher_features = None
                if has_teacher:
                    contexts = _select_segments(drawn.contexts, rows, unlabelled, dim=1)
                    teacher_features = stack.encode_by_teacher(contexts, batches.count_rows(unlabelled))
            features, aligned = self._encode(parameters["encoder"], drawn.augmented, batches)
        self._join_side_stream()
        # The adversarial term reads ``aligned`` on the side stream, so its memory must not be reused before that ends.
        if self._side_stream is not None:
            aligned.record_stream(self._side_stream)
        teacher = features[:, :0]
        if has_teacher:
            if teacher_features is None:  # without an EMA encoder the encoder teaches itself
                teacher_features = _select_segments(features, rows, unlabelled, dim=1)
            source = _select_segments(features, rows, batches.source_indices, dim=1).detach()
            teacher = self._predict_by_teacher(teacher_features.detach(), source, common=batches.shape.committee)
        rounds = {"arm": drawn.arm, "reward": drawn.reward, "weights": weights}
        inputs = RunInputs(features, aligned, teacher, **rounds, **stack.loss_inputs)

        def compute_loss(run_parameters: Parameters, run: RunInputs) -> TensorPair:
            return self._compute_run_loss(run_parameters, run, batches, measure)

        return stack.compute_losses(compute_loss, parameters["objective"], inputs)

    def _predict_by_teacher(self, target: torch.Tensor, source: torch.Tensor, *, common: bool) -> torch.Tensor:
        """Return the rewards (runs, T, K) that the teachers predict for the target contexts.

        With ``match_arm_frequencies``, predictions are corrected by the log ratio of each arm's predicted frequencies
        in the source and in the target.

        Args:
            target: (runs, T, d), the teachers' features of the target contexts.
            source: (runs, B, d), the encoders' features of the source contexts.
            common: return the mean over runs for every run.
        """
        first, theta = self.stack.first, self.stack.loss_inputs["theta"]

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
            means = [torch.softmax(first.scale * rewards, dim=2).mean(dim=1) for rewards in (predict(source), teacher)]
            frequencies = self.stack.loss_inputs["arm_frequencies"].lerp_(
                average(torch.stack(means, dim=1)), _FREQUENCY_RATE
            )
            log_source, log_target = frequencies.clamp(min=_MIN_FREQUENCY).log().unbind(1)
            return teacher + (log_source - log_target)[:, None] / first.scale

    def _uses_teacher(self, weights: torch.Tensor, measure: bool) -> bool:
        """Return True if a term with a weight (runs, terms) above 0 uses the EMA encoder's predictions."""
        if measure or weights.device.type != "cpu":  # a CUDA graph has no branches
            return bool(self._teacher_term_indices)
        return bool(weights.numpy()[:, self._teacher_term_indices].any())

    def _encode(self, parameters: Parameters, contexts: torch.Tensor, batches: Batches) -> TensorPair:
        """Return features and aligned features of all contexts. Contexts that only norms use have no gradient."""
        rows = batches.count_splittable_rows() if self._only_norms_use_target else 0
        encode = self.stack.encode
        if not rows:
            return encode(parameters, contexts, batches.count_rows())
        labelled = encode(parameters, contexts[:, :rows], batches.count_rows(batches.labelled_indices))
        with torch.no_grad():
            unlabelled = encode(parameters, contexts[:, rows:], batches.count_rows(batches.unlabelled_indices))
        features, aligned = (torch.cat(parts, dim=1) for parts in zip(labelled, unlabelled, strict=True))
        return features, aligned

    def _autocast_maps(self) -> AbstractContextManager[object]:
        """Return a context manager in which a GPU computes maps of images in bfloat16, if torch may use TF32."""
        is_image = len(self.stack.first.encoder.context_shape) == 3
        is_allowed = is_image and has_bfloat16(self.stack.device) and torch.backends.cudnn.allow_tf32
        return torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False) if is_allowed else nullcontext()

    def _on_side_stream(self) -> AbstractContextManager[object]:
        """Return a context manager in which a GPU computes concurrently, until ``_join_side_stream``."""
        if self._side_stream is None:
            return nullcontext()
        self._side_stream.wait_stream(torch.cuda.current_stream(self.stack.device))
        return torch.cuda.stream(self._side_stream)

    def _join_side_stream(self) -> None:
        """Wait until the side stream has finished."""
        if self._side_stream is not None:
            torch.cuda.current_stream(self.stack.device).wait_stream(self._side_stream)

    def _compute_run_loss(self, parameters: Parameters, run: RunInputs, batches: Batches, measure: bool) -> TensorPair:
        """Return the loss of one run, and its measurements (M,)."""
        learner = self.stack.first
        objective, n_arms, per_round = learner.objective, learner.n_arms, learner.contexts_per_round
        if learner.shared:  # the features of a round's K contexts are adjacent rows
            predicted = (run.features @ run.theta[0]).view(-1, n_arms)
        else:
            predicted = predict_rewards(run.features, run.theta)
        rows, sources, unlabelled = batches.segment_rows, batches.source_indices, batches.unlabelled_indices
        predictions_by_segment = torch.split(predicted, rows // per_round)
        round_predictions = _join(predictions_by_segment, batches.labelled_indices, predicted)
        target_predictions = _join(predictions_by_segment, unlabelled, predicted)
        aligned_segments = torch.split(run.aligned, rows)
        # Rewarded target rounds are not aligned.
        aligned_indices = [*sources, *unlabelled]
        bonus = self._zero_bonus.expand(target_predictions.shape)
        if unlabelled and objective.needs_bonus:
            features = _pad_ones(_select_segments(run.features, rows, unlabelled).detach(), run.inverse.shape[-1])
            variance = torch.einsum("nd,kde,ne->nk", features, run.inverse, features).clamp(min=0)
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
        loss, objective_values = functional_call(objective, dict(parameters), (batch, run.weights, measure))
        if not measure:
            return loss, loss.detach()[None]
        measurements = {**objective_values, "latent_spread": run.features.detach().var(dim=0, correction=0).sum()}
        if unlabelled:
            chosen_arms = (target_predictions.detach() + bonus).argmax(dim=1)
            fractions = (chosen_arms[:, None] == torch.arange(n_arms, device=chosen_arms.device)).float().mean(dim=0)
            measurements["target_top_share"] = fractions.max()
        self.measurement_names = ["loss", "gradient_norm", *measurements]
        if len(self.measurement_names) >= _MAX_MEASUREMENTS:  # the first total is the number of steps
            raise InvalidInput(f"weights must name at most {_MAX_MEASUREMENTS - 6} terms, got {len(objective.weights)}")
        return loss, torch.stack([value.to(loss.dtype) for value in measurements.values()])


def predict_rewards(features: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """Return rewards (..., n, K) predicted from features (..., n, d) by theta (..., K, d), or d + 1 with intercepts."""
    return _pad_ones(features, theta.shape[-1]) @ theta.transpose(-1, -2)


def _pad_ones(features: torch.Tensor, n_columns: int) -> torch.Tensor:
    """Return features (..., d) with ones appended up to ``n_columns`` columns: the constant feature of an intercept."""
    n_missing = n_columns - features.shape[-1]
    return functional.pad(features, (0, n_missing), value=1.0) if n_missing else features


def _select_segments(tensor: torch.Tensor, rows: int, indices: Sequence[int], *, dim: int = 0) -> torch.Tensor:
    """Return the segments of a tensor with these indices as one tensor. Each segment has ``rows`` rows."""
    return _join(torch.split(tensor, rows, dim=dim), indices, tensor, dim=dim)


def _join(parts: Sequence[torch.Tensor], indices: Sequence[int], tensor: torch.Tensor, *, dim: int = 0) -> torch.Tensor:
    """Return the parts with these indices as one tensor; empty without indices.

    ``parts`` are the result of ``torch.split(tensor, ...)``, whose gradient is one concatenation. The gradient of every
    slice would have the size of ``tensor``.
    """
    if not indices:
        return tensor.narrow(dim, 0, 0)
    return parts[indices[0]] if len(indices) == 1 else torch.cat([parts[index] for index in indices], dim=dim)
