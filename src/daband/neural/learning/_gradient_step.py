"""Take one gradient step for a stack of learners.

``GradientStep.__call__`` is the step. It has fixed shapes, reads nothing back from the device and
draws no random number, so that it can be recorded as a CUDA graph. Its inputs from the host (the
head's coefficients, the scheduled weights, the drawn batches) are tensors that the host fills
before a block of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from daband.errors import InvalidInput
from daband.neural.encoders._domain_norm import has_bfloat16
from daband.neural.learning._batches import STEPS_PER_BLOCK, Batches
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
        #: The drawn batches, which ``StackTrainer`` sets.
        self.batches: Batches | None = None
        #: The names of the measurements in ``totals``, known after the first measured step.
        self.measurement_names: list[str] = []
        learner = stack.first_learner
        device = stack.device
        n_runs = stack.n_runs
        self._adam = RowAdam(
            stack.parameters, stack.moments, learning_rate=learner.recipe.learning.learning_rate
        )
        self._n_encoder_values = learner.layout.count_values("encoder")
        n_terms = len(learner.objective.weights)
        #: (steps, runs, terms + 1): the weight of every term, and then the rate of the EMA, in each
        #: step of the block.
        self.schedule = torch.zeros(
            STEPS_PER_BLOCK, n_runs, n_terms + 1, dtype=torch.float32, device=device
        )
        #: The index of the next step in the block, (1,).
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        #: Sums over measured steps: the number of these steps, and then the values of
        #: ``measurement_names``.
        self.totals = torch.zeros(n_runs, _MAX_MEASUREMENTS, dtype=torch.float32, device=device)
        self._teacher_term_indices = learner.objective.teacher_term_indices
        has_own_statistics = all(norm.statistics == "own" for norm in learner.norms)
        #: True if only the norms use unlabelled contexts, which are then encoded without a
        #: gradient. On a GPU this is not done, because one pass over all contexts needs fewer
        #: kernels.
        self._only_norms_use_target = (
            device.type == "cpu" and has_own_statistics and not learner.objective.needs_target
        )
        self._ones = torch.ones(n_runs, dtype=torch.float32, device=device)
        self._zero_bonus = torch.zeros((), device=device)
        self._side_stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        term_streams = [torch.cuda.Stream(device) for _ in range(3)] if self._side_stream else []  # type: ignore[no-untyped-call]
        learner.objective.streams = [self._side_stream, *term_streams] if self._side_stream else []

    def __call__(self, measure: bool) -> None:
        """Take one step for every run; with ``measure``, add its measurements to ``totals``.

        The step is skipped for runs with a loss or gradient that is not finite.
        """
        stack = self.stack
        scheduled_values = self.schedule.index_select(0, self.position).squeeze(0)
        old_statistics = stack.statistics.clone()
        old_buffers = [buffer.clone() for buffer in stack.other_buffers]
        losses, measurements = self._compute_losses(scheduled_values[:, :-1], measure)
        (gradient,) = torch.autograd.grad(losses, stack.parameters, grad_outputs=self._ones)
        with torch.no_grad():
            losses = losses.detach()
            # 0 times a finite number is 0, otherwise NaN. So ``is_skipped`` (runs,) is 1 for runs
            # to skip, else 0.
            is_skipped = torch.nan_to_num(
                (losses + torch.linalg.vector_norm(gradient, dim=1)) * 0.0, nan=1.0
            )
            self._adam.step(gradient, is_skipped)
            stack.restore_where(is_skipped, old_statistics, old_buffers)
            stack.update_ema(
                torch.addcmul(
                    scheduled_values[:, -1], scheduled_values[:, -1], is_skipped, value=-1
                )
            )
            n_skipped, streak, longest_streak = stack.skip_counts.unbind(1)
            # streak + 1 if the step is skipped, else 0
            torch.addcmul(is_skipped, streak, is_skipped, out=streak)
            n_skipped.add_(is_skipped)
            torch.maximum(longest_streak, streak, out=longest_streak)
            if measure:
                gradient_norms = torch.linalg.vector_norm(
                    gradient[:, : self._n_encoder_values], dim=1
                )
                step_measurements = torch.stack(
                    [torch.ones_like(losses), losses, gradient_norms], dim=1
                )
                summands = torch.cat([step_measurements, measurements], dim=1)
                self.totals[:, : summands.shape[1]].add_(
                    torch.where(is_skipped[:, None] > 0, 0.0, summands)
                )
            self.position += 1

    def _compute_losses(self, weights: Tensor, measure: bool) -> TensorPair:
        """Return the losses (runs,) and M measurements (runs, M) of the next batch, for term
        weights (runs, terms).
        """
        stack = self.stack
        batches = self.batches
        assert batches is not None
        batch = batches.get_batch(self.position)
        parameters = stack.unpack_parameters()
        rows_per_segment = batches.rows_per_segment
        target_indices = batches.unlabelled_indices
        needs_teacher = bool(target_indices) and self._uses_teacher(weights, measure)
        with self._autocast_maps():
            with self._on_side_stream():
                teacher_features = None
                if needs_teacher:
                    contexts = _select_segments(
                        batch.contexts, rows_per_segment, target_indices, dim=1
                    )
                    teacher_features = stack.encode_by_teacher(
                        contexts, batches.count_rows(target_indices)
                    )
            features, aligned = self._encode(
                parameters["encoder"], batch.augmented_contexts, batches
            )
        self._join_side_stream()
        # The adversarial term reads ``aligned`` on the side stream, so its memory must not be
        # reused before that ends.
        if self._side_stream is not None:
            aligned.record_stream(self._side_stream)
        teacher_predictions = features[:, :0]
        if needs_teacher:
            if teacher_features is None:  # without an EMA encoder the encoder teaches itself
                teacher_features = _select_segments(
                    features, rows_per_segment, target_indices, dim=1
                )
            source_features = _select_segments(
                features, rows_per_segment, batches.source_indices, dim=1
            )
            is_committee = batches.settings.is_committee
            teacher_predictions = self._predict_by_teacher(
                teacher_features, source_features, is_committee=is_committee
            )
        round_inputs = {"arms": batch.arms, "rewards": batch.rewards, "weights": weights}
        inputs = RunInputs(
            features, aligned, teacher_predictions, **round_inputs, **stack.loss_inputs
        )

        def compute_run_loss(run_parameters: Parameters, run_inputs: RunInputs) -> TensorPair:
            return self._compute_loss(run_parameters, run_inputs, batches, measure)

        return stack.compute_losses(compute_run_loss, parameters["objective"], inputs)

    def _predict_by_teacher(
        self, target_features: Tensor, source_features: Tensor, *, is_committee: bool
    ) -> Tensor:
        """Return the rewards (runs, T, K) that the teachers predict for the target contexts,
        without a gradient.

        With ``match_arm_frequencies``, predictions are corrected by the log ratio of each arm's
        predicted frequencies in the source and in the target.

        Args:
            target_features: (runs, T, d), the teachers' features of the target contexts.
            source_features: (runs, B, d), the encoders' features of the source contexts.
            is_committee: return the mean over runs for every run.
        """
        learner = self.stack.first_learner
        theta = self.stack.loss_inputs["theta"]

        def predict(features: Tensor) -> Tensor:
            """Return predicted rewards (runs, rounds, K)."""
            predictions = predict_rewards(features.detach(), theta)
            return (
                predictions.view(len(features), -1, learner.n_arms)
                if learner.has_shared_arms
                else predictions
            )

        def average_committee(tensor: Tensor) -> Tensor:
            """Return the mean over runs for every run if ``is_committee``, else the tensor."""
            return tensor.mean(dim=0, keepdim=True).expand_as(tensor) if is_committee else tensor

        target_predictions = average_committee(predict(target_features))
        if not learner.recipe.learning.match_arm_frequencies or not source_features.shape[1]:
            return target_predictions
        with torch.no_grad():
            logits = [
                learner.scale * rewards
                for rewards in (predict(source_features), target_predictions)
            ]
            new_frequencies = torch.stack(
                [torch.softmax(values, dim=2).mean(dim=1) for values in logits], dim=1
            )
            frequencies = self.stack.loss_inputs["arm_frequencies"]
            frequencies.lerp_(average_committee(new_frequencies), _FREQUENCY_RATE)
            log_source, log_target = frequencies.clamp(min=_MIN_FREQUENCY).log().unbind(1)
            return target_predictions + (log_source - log_target)[:, None] / learner.scale

    def _uses_teacher(self, weights: Tensor, measure: bool) -> bool:
        """Return True if a term with a weight (runs, terms) above 0 uses the EMA encoder's
        predictions.
        """
        if measure or weights.device.type != "cpu":  # a CUDA graph has no branches
            return bool(self._teacher_term_indices)
        return bool(weights.numpy()[:, self._teacher_term_indices].any())

    def _encode(self, parameters: Parameters, contexts: Tensor, batches: Batches) -> TensorPair:
        """Return features and aligned features of all contexts.

        Contexts that only norms use have no gradient.
        """
        n_labelled = batches.count_splittable_rows() if self._only_norms_use_target else 0
        encode = self.stack.encode
        if not n_labelled:
            return encode(parameters, contexts, batches.count_rows())
        labelled_pair = encode(
            parameters, contexts[:, :n_labelled], batches.count_rows(batches.labelled_indices)
        )
        with torch.no_grad():
            rows_per_domain = batches.count_rows(batches.unlabelled_indices)
            unlabelled_pair = encode(parameters, contexts[:, n_labelled:], rows_per_domain)
        features, aligned = (
            torch.cat(tensors, dim=1)
            for tensors in zip(labelled_pair, unlabelled_pair, strict=True)
        )
        return features, aligned

    def _autocast_maps(self) -> AbstractContextManager[object]:
        """Return a context manager in which a GPU computes maps of images in bfloat16, if torch may
        use TF32.
        """
        is_image = len(self.stack.first_learner.encoder.context_shape) == 3
        is_allowed = (
            is_image and has_bfloat16(self.stack.device) and torch.backends.cudnn.allow_tf32
        )
        return (
            torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)
            if is_allowed
            else nullcontext()
        )

    def _on_side_stream(self) -> AbstractContextManager[object]:
        """Return a context manager in which a GPU computes concurrently, until
        ``_join_side_stream``.
        """
        if self._side_stream is None:
            return nullcontext()
        self._side_stream.wait_stream(torch.cuda.current_stream(self.stack.device))
        return torch.cuda.stream(self._side_stream)

    def _join_side_stream(self) -> None:
        """Wait until the side stream has finished."""
        if self._side_stream is not None:
            torch.cuda.current_stream(self.stack.device).wait_stream(self._side_stream)

    def _compute_loss(
        self, parameters: Parameters, inputs: RunInputs, batches: Batches, measure: bool
    ) -> TensorPair:
        """Return the loss of one run, and its measurements (M,)."""
        learner = self.stack.first_learner
        objective = learner.objective
        n_arms = learner.n_arms
        rows_per_segment = batches.rows_per_segment
        if learner.has_shared_arms:  # the features of a round's K contexts are adjacent rows
            predictions = (inputs.features @ inputs.theta[0]).view(-1, n_arms)
        else:
            predictions = predict_rewards(inputs.features, inputs.theta)
        source_indices = batches.source_indices
        target_indices = batches.unlabelled_indices
        prediction_segments = torch.split(
            predictions, rows_per_segment // learner.contexts_per_round
        )
        target_predictions = _join_segments(prediction_segments, target_indices, predictions)
        aligned_segments = torch.split(inputs.aligned, rows_per_segment)
        # Rewarded target rounds are not aligned.
        is_all_aligned = len(source_indices) + len(target_indices) == len(aligned_segments)
        bonuses = self._zero_bonus.expand(target_predictions.shape)
        if target_indices and objective.needs_bonus:
            target_features = _select_segments(
                inputs.features, rows_per_segment, target_indices
            ).detach()
            target_features = _pad_ones(target_features, inputs.inverses.shape[-1])
            variances = torch.einsum(
                "nd,kde,ne->nk", target_features, inputs.inverses, target_features
            ).clamp(min=0)
            bonuses = inputs.alpha * variances.sqrt().view(len(target_predictions), -1)
        teacher_predictions = inputs.teacher_predictions
        batch = Batch(
            predictions=_join_segments(prediction_segments, batches.labelled_indices, predictions),
            arms=inputs.arms,
            rewards=inputs.rewards,
            aligned=_join_segments(aligned_segments, source_indices, inputs.aligned),
            target_predictions=target_predictions,
            target_bonuses=bonuses,
            target_aligned=_join_segments(aligned_segments, target_indices, inputs.aligned),
            joined_aligned=inputs.aligned if is_all_aligned else None,
            teacher_predictions=(
                teacher_predictions if len(teacher_predictions) else target_predictions.detach()
            ),
            weight=inputs.weights[0],
        )
        loss, term_values = functional_call(
            objective, dict(parameters), (batch, inputs.weights, measure)
        )
        if not measure:
            return loss, loss.detach()[None]
        measurements = {
            **term_values,
            "latent_spread": inputs.features.detach().var(dim=0, correction=0).sum(),
        }
        if target_indices:
            chosen_arms = (target_predictions.detach() + bonuses).argmax(dim=1)
            is_chosen = chosen_arms[:, None] == torch.arange(n_arms, device=chosen_arms.device)
            measurements["target_top_share"] = is_chosen.float().mean(dim=0).max()
        self.measurement_names = ["loss", "gradient_norm", *measurements]
        # the first total is the number of steps
        if len(self.measurement_names) >= _MAX_MEASUREMENTS:
            raise InvalidInput(
                f"weights must name at most {_MAX_MEASUREMENTS - 6} terms, got"
                f" {len(objective.weights)}"
            )
        return loss, torch.stack([value.to(loss.dtype) for value in measurements.values()])


def predict_rewards(features: Tensor, theta: Tensor) -> Tensor:
    """Return rewards (..., n, K) predicted from features (..., n, d) by theta (..., K, d), or d + 1
    with intercepts.
    """
    return _pad_ones(features, theta.shape[-1]) @ theta.transpose(-1, -2)


def _pad_ones(features: Tensor, n_columns: int) -> Tensor:
    """Return features (..., d) with ones appended up to ``n_columns`` columns: the constant feature
    of an intercept.
    """
    n_missing = n_columns - features.shape[-1]
    return functional.pad(features, (0, n_missing), value=1.0) if n_missing else features


def _select_segments(
    tensor: Tensor, rows_per_segment: int, indices: Sequence[int], *, dim: int = 0
) -> Tensor:
    """Return the segments of a tensor with these indices as one tensor."""
    return _join_segments(torch.split(tensor, rows_per_segment, dim=dim), indices, tensor, dim=dim)


def _join_segments(
    segments: Sequence[Tensor], indices: Sequence[int], tensor: Tensor, *, dim: int = 0
) -> Tensor:
    """Return the segments with these indices as one tensor; empty without indices.

    ``segments`` are the result of ``torch.split(tensor, ...)``, whose gradient is one
    concatenation. The gradient of every slice would have the size of ``tensor``.
    """
    if not indices:
        return tensor.narrow(dim, 0, 0)
    return (
        segments[indices[0]]
        if len(indices) == 1
        else torch.cat([segments[index] for index in indices], dim=dim)
    )
