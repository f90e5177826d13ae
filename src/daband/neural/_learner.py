"""Train the encoder of a neural policy: draw batches, compute the loss, take Adam steps.

``Learner.step`` is one gradient step. It has three parts, which ``_accelerator.py`` records as a
CUDA graph on a GPU. They have fixed shapes, draw no random number, and read no tensor on the host.
The EMA encoder is an exponential moving average of the encoder over gradient steps.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from daband.base._arguments import check_int
from daband.base._arrays import AnyArray, FloatArray, drop_prefix
from daband.errors import InvalidInput, TrainingDiverged
from daband.features._domain_names import DomainNames
from daband.linear._reward_moments import RewardMoments
from daband.neural._replay import BatchLayout, ReplayBuffers
from daband.neural._settings import CUSTOM, Recipe, Weight
from daband.neural._skill_gate import SkillGate
from daband.neural._term import Batch, Term, TermSettings, terms
from daband.neural._torch_settings import has_bfloat16, use_single_precision
from daband.neural.encoders._augmentation import augment
from daband.neural.encoders._domain_norm import DomainNorm
from daband.neural.encoders._encoder import (
    Encoder,
    Encoding,
    InferenceEncoder,
    build_encoder,
    needs_threads,
)

#: ``LearningSettings.scale`` is multiplied by this factor if rewards are standardised. It is the
#: standard deviation of a reward that is 1 in every fifth round and 0 otherwise.
_STANDARDISED_SCALE_FACTOR = 0.4
#: The maximum number of steps whose batches are drawn together.
_MAX_STEPS_PER_BLOCK = 64
#: The maximum number of values in the contexts that are drawn together.
_MAX_BLOCK_VALUES = 1 << 25
#: The weight of a step in the moving averages of arm frequencies.
_FREQUENCY_RATE = 0.01
#: Arm frequencies below this value are set to it, so that their logarithm is finite.
_MIN_FREQUENCY = 1e-3


class StepInputs(NamedTuple):
    """The inputs of one gradient step. With a further first dimension, those of several steps.

    N is the number of contexts, in the order of ``Learner.layout``, and R the number of rounds.
    """

    #: (N, *context_shape): the contexts as they were stored.
    contexts: Tensor
    #: (N, *context_shape): the contexts, augmented if they are images.
    augmented_contexts: Tensor
    #: (R,): the indices of the played arms.
    arms: Tensor
    #: (R,): the rewards of the played arms.
    rewards: Tensor
    #: (terms,): the weight of each term.
    weights: Tensor
    #: The fraction of the way by which the EMA encoder moves towards the encoder.
    ema_rate: Tensor


class Learner:
    """The encoder of one neural policy, its moving average, the terms of the objective, and Adam.

    In shapes, d is the number of coefficients of a regression: the encoder's features, plus 1 with
    an intercept.

    Args:
        recipe: the settings.
        context_shape: the shape of a context after the transform.
        n_arms: the number of arms.
        has_shared_arms: True if a round has one context per arm.
        feedback: "one_hot" if exactly one arm has reward 1 in each round and others 0, else
            "bandit".
        seed: determines initial weights and batches.
        device: the device of all tensors.
        standardise_rewards: True if rewards are standardised to mean 0 and standard deviation 1.
        module: a custom network; None if the recipe names a registered one.
        domains: the names of the domains.
        has_intercept: True if the head's regressions have an intercept, as regressions on arm
            features do.
    """

    @use_single_precision()
    def __init__(
        self,
        *,
        recipe: Recipe,
        context_shape: tuple[int, ...],
        n_arms: int,
        has_shared_arms: bool,
        feedback: str,
        seed: int,
        device: torch.device,
        standardise_rewards: bool = False,
        module: nn.Module | None = None,
        domains: DomainNames | None = None,
        has_intercept: bool = False,
    ) -> None:
        self.recipe = recipe
        self.has_shared_arms = has_shared_arms
        self.n_arms = n_arms
        self.seed = seed
        self.device = device
        #: Logits are predicted rewards times ``scale``.
        self.scale = recipe.learning.scale
        if standardise_rewards:
            self.scale *= _STANDARDISED_SCALE_FACTOR
        # The initial weights depend on the seed only, and torch's global random state does not
        # change.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = _build_encoder(recipe, context_shape, module, domains)
            # so that the encoder does not change the terms' initial weights
            torch.manual_seed(seed + 1)
            term_settings = TermSettings(
                n_arms, encoder.n_aligned_features, feedback, self.scale, standardise_rewards
            )
            objective = build_terms(recipe.weights, term_settings)
        self.encoder: Encoder = encoder.to(device).train()
        #: The terms with a weight above 0, by name, sorted; a ``torch.nn.ModuleDict``.
        self.terms: Any = objective.to(device)
        #: The parameters that are not trained, which copies of the encoder share.
        self._frozen_parameters = [
            parameter for parameter in self.encoder.parameters() if not parameter.requires_grad
        ]
        #: The EMA encoder, which decides; None if the recipe has no EMA.
        self.ema_encoder: Encoder | None = None
        #: The floating-point tensors of the EMA encoder.
        self._averages: list[Tensor] = []
        #: The same tensors of the encoder.
        self._averaged: list[Tensor] = []
        if recipe.learning.ema_decay > 0:
            self.ema_encoder = self._copy_encoder(self.encoder)
            for average, tensor in _zip_tensors(self.ema_encoder, self.encoder):
                if tensor.is_floating_point() and tensor is not average:
                    self._averages.append(average)
                    self._averaged.append(tensor)
        #: The trained parameters.
        self.parameters: list[Tensor] = [
            parameter
            for network in (self.encoder, self.terms)
            for parameter in network.parameters()
            if parameter.requires_grad
        ]
        #: The optimiser. ``start`` builds it, because that imports torch's compiler, which takes a
        #: second.
        self._optimiser: torch.optim.Adam | None = None
        #: The state of Adam for each parameter.
        self._moments = [
            {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            for parameter in self.parameters
        ]
        term_list = list(self.terms.values())
        self.needs_target = any(term.needs_target for term in term_list)
        self._is_gated = np.array([_is_gated(term) for term in term_list], np.bool_)
        self._needs_teacher = np.array([term.needs_teacher for term in term_list], np.bool_)
        has_own_statistics = any(
            isinstance(layer, DomainNorm) and layer.statistics == "own"
            for layer in self.encoder.modules()
        )
        #: True if steps use unlabelled target contexts: for a term, or for the statistics of norms.
        self.uses_target = self.needs_target or has_own_statistics
        self.skill_gate = SkillGate(n_arms=n_arms, feedback=feedback)
        #: True if the weights of some terms depend on the policy's skill.
        self.uses_gate = bool(self._is_gated.any()) and recipe.learning.gate_exponent > 0
        #: The factor of the weights of gated terms, in [0, 1].
        self.gate_factor = 1.0
        #: The number of gradient steps so far.
        self.step_number = 0
        #: The number of steps of the run; schedules are fractions of it.
        self.run_steps = recipe.learning.run_steps
        n_heads = 1 if has_shared_arms else n_arms
        n_coefficients = self.encoder.dimension + has_intercept
        #: (heads, d): the coefficients of each regression of the head.
        self.theta = torch.zeros(n_heads, n_coefficients, device=device)
        #: (2, K): moving averages of the predicted probability of each arm, in the source and in
        #: the target.
        self.arm_frequencies = torch.full((2, n_arms), 1 / n_arms, device=device)
        #: The mean and the standard deviation of rewards; 0 and 1 if they are not standardised.
        self._reward_unit = (0.0, 1.0)
        #: The number of steps before this ``adapt``.
        self._step_before = 0
        #: Copies of all tensors that steps change, from before this ``adapt``.
        self._tensors_before: list[Tensor] = []
        #: The order of contexts in batches; ``start`` sets it.
        self.layout = BatchLayout()
        #: The maximum number of steps whose inputs are drawn together; ``start`` sets it.
        self.steps_per_block = 1
        #: True if the next steps need the predictions of the EMA encoder.
        self.uses_teacher = False
        #: Sums over the steps of an ``adapt``: the loss, and the value of each term.
        self._totals = torch.zeros(1 + len(self.terms), device=device)
        #: The encoded batch of the last step, without gradients.
        self.last_batch: Batch | None = None
        #: The number of random numbers that augment one context.
        self._n_augmentation_draws = recipe.learning.augmentation.count_draws(context_shape)
        n_contexts = 2 * recipe.learning.batch * (n_arms if has_shared_arms else 1)
        #: True if steps on the CPU use more than one thread.
        self.needs_threads = needs_threads(
            self.encoder, context_shape=context_shape, n_contexts=n_contexts
        )
        is_image = len(context_shape) == 3
        uses_bfloat16 = is_image and has_bfloat16(device) and torch.backends.cudnn.allow_tf32
        #: A GPU computes maps of images in bfloat16, if torch may use TF32.
        self._precision: AbstractContextManager[object] = (
            torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)
            if uses_bfloat16
            else nullcontext()
        )

    # Batches.

    def start(self, buffers: ReplayBuffers, theta: FloatArray, moments: RewardMoments) -> None:
        """Prepare steps on the buffers with the current head, and set the gate by the current
        skill.

        Args:
            buffers: the replay buffers.
            theta: (heads, d), the coefficients of each regression in the unit of ``moments``. There
                is one regression per arm, or one for shared arms.
            moments: the moments of rewards, by which they are standardised.

        Raise ``TrainingDiverged`` if their standard deviation exceeds the range of float32.
        """
        if moments.scale > torch.finfo(torch.float32).max:
            raise TrainingDiverged(
                f"a network cannot learn rewards with a standard deviation of {moments.scale:g};"
                " remove outliers, or use a smaller unit"
            )
        segments = []
        for segment, buffer in buffers.by_segment.items():
            if buffer.n_seen and (segment.is_labelled or self.uses_target):
                segments.append(segment)
        contexts_per_round = self.n_arms if self.has_shared_arms else 1
        self.layout = BatchLayout(segments, self.recipe.learning.batch * contexts_per_round)
        n_contexts = self.layout.rows_per_segment * len(segments)
        step_values = max(1, n_contexts * math.prod(self.encoder.context_shape))
        self.steps_per_block = max(1, min(_MAX_STEPS_PER_BLOCK, _MAX_BLOCK_VALUES // step_values))
        coefficients = torch.from_numpy(np.ascontiguousarray(theta)).to(torch.float32)
        if self.recipe.replay.unit_theta:
            coefficients = functional.normalize(coefficients, dim=1)
        self.theta.copy_(coefficients)
        self._reward_unit = (moments.centre, moments.scale)
        if self.uses_gate:
            skill = self.skill_gate.compute_skill(moments.scale)
            self.gate_factor = skill**self.recipe.learning.gate_exponent
        if self._optimiser is None:
            self._optimiser = torch.optim.Adam(
                self.parameters,
                lr=self.recipe.learning.learning_rate,
                fused=True,
                capturable=self.device.type == "cuda",
            )
            self._optimiser.state.update(zip(self.parameters, self._moments, strict=True))
        self._totals.zero_()
        self._step_before = self.step_number
        self._tensors_before = list(map(torch.clone, self._get_tensors().values()))

    def draw_batches(self, buffers: ReplayBuffers, n_steps: int) -> Iterator[StepInputs]:
        """Yield the inputs of each of the next ``n_steps`` steps."""
        while n_steps > 0:
            block_steps = min(n_steps, self.steps_per_block)
            yield from map(StepInputs, *self.draw_block(buffers, block_steps))
            n_steps -= block_steps

    def draw_block(
        self, buffers: ReplayBuffers, n_steps: int, common: StepInputs | None = None
    ) -> StepInputs:
        """Draw the inputs of the next ``n_steps`` steps, and count these steps as taken.

        With ``common``, the inputs of another learner with the same layout, its unlabelled contexts
        replace the drawn ones.
        """
        learning = self.recipe.learning
        context_shape = self.encoder.context_shape
        # draws depend only on the seed and the number of the step, so no state has to be saved
        draw_seed = np.random.SeedSequence([self.seed, self.step_number])
        generator = torch.Generator(self.device)
        generator.manual_seed(int(draw_seed.generate_state(1, np.uint64)[0]))
        drawn = buffers.draw(self.layout.segments, n_steps, learning.batch, generator)
        contexts = drawn["contexts"].reshape(n_steps, -1, *context_shape)
        if common is not None:
            parts = torch.split(contexts, self.layout.rows_per_segment, dim=1)
            common_parts = torch.split(common.contexts, self.layout.rows_per_segment, dim=1)
            for index in self.layout.unlabelled:
                parts[index].copy_(common_parts[index])
        augmented = contexts
        if self._n_augmentation_draws:
            images = contexts.flatten(0, 1)
            shape = (len(images), self._n_augmentation_draws)
            draws = torch.rand(shape, generator=generator, device=self.device, dtype=torch.float32)
            augmented = augment(images, learning.augmentation, draws).view(contexts.shape)
        mean, deviation = self._reward_unit
        rewards = ((drawn["rewards"] - mean) / deviation).to(torch.float32)
        weights, ema_rates = self._compute_schedule(n_steps)
        return StepInputs(contexts, augmented, drawn["arms"], rewards, weights, ema_rates)

    def _compute_schedule(self, n_steps: int) -> tuple[Tensor, Tensor]:
        """Return the weights (steps, terms) and the EMA rates (steps,) of the next steps."""
        steps = np.arange(self.step_number, self.step_number + n_steps)
        self.step_number += n_steps
        weights = np.zeros((n_steps, len(self.terms)), np.float32)
        for index, name in enumerate(self.terms):
            weights[:, index] = compute_weights(self.recipe.weights[name], steps, self.run_steps)
        weights[:, self._is_gated] *= self.gate_factor
        self.uses_teacher = bool(weights[:, self._needs_teacher].any())
        # The EMA encoder follows faster at the start of training.
        decays = np.minimum((2 + steps) / (11 + steps), self.recipe.learning.ema_decay)
        ema_rates = torch.from_numpy((1 - decays).astype(np.float32))
        return torch.from_numpy(weights).to(self.device), ema_rates.to(self.device)

    # One gradient step.

    def step(self, inputs: StepInputs) -> None:
        """Take one gradient step."""
        self.descend(inputs, self.encode(inputs), self.teach(inputs))

    def encode(self, inputs: StepInputs) -> Encoding:
        """Return the encoder's features of all contexts.

        Contexts that only norms use have no gradient.
        """
        layout = self.layout
        contexts = inputs.augmented_contexts
        rows_per_domain = layout.count_rows(range(len(layout.segments)))
        with self._precision:
            if self.needs_target or layout.labelled != layout.sources or not layout.unlabelled:
                return self.encoder(contexts, rows_per_domain=rows_per_domain)
            n_rows = layout.rows_per_segment * len(layout.sources)
            source_rows = layout.count_rows(layout.sources)
            source = self.encoder(contexts[:n_rows], rows_per_domain=source_rows)
            with torch.no_grad():
                target_rows = layout.count_rows(layout.unlabelled)
                target = self.encoder(contexts[n_rows:], rows_per_domain=target_rows)
        return Encoding(*map(torch.cat, zip(source, target, strict=True)))

    @torch.no_grad()
    def teach(self, inputs: StepInputs) -> Tensor | None:
        """Return the EMA encoder's predictions (T, K) for target contexts without augmentation;
        None if they are not needed.
        """
        layout = self.layout
        if not layout.unlabelled or not self.uses_teacher or self.ema_encoder is None:
            return None
        contexts = layout.select(inputs.contexts, layout.unlabelled)
        target_rows = layout.count_rows(layout.unlabelled)
        with self._precision:
            encoding = self.ema_encoder(contexts, rows_per_domain=target_rows)
        return self._predict(encoding.features)

    def descend(
        self, inputs: StepInputs, encoding: Encoding, teacher_predictions: Tensor | None
    ) -> None:
        """Take an Adam step on the loss, and move the EMA encoder towards the encoder.

        Args:
            inputs: the inputs of the step.
            encoding: the result of ``encode``.
            teacher_predictions: (T, K), the result of ``teach``.
        """
        assert self._optimiser is not None
        batch = self._build_batch(inputs, encoding, teacher_predictions)
        loss, values = compute_loss(self.terms, batch, inputs.weights)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        with torch.no_grad():
            if self.ema_encoder is not None:
                differences = torch._foreach_sub(self._averaged, self._averages)
                torch._foreach_mul_(differences, inputs.ema_rate)
                torch._foreach_add_(self._averages, differences)
            totals = torch.stack([loss, *values.values()])
            self._totals[: len(totals)].add_(totals)
        self.last_batch = Batch(*map(Tensor.detach, vars(batch).values()))

    def _build_batch(
        self, inputs: StepInputs, encoding: Encoding, teacher_predictions: Tensor | None
    ) -> Batch:
        """Return the encoded batch, from which the terms are computed."""
        layout = self.layout
        features, aligned = encoding
        predictions = self._predict(features)
        source_predictions = layout.select(predictions, layout.sources).detach()
        target_predictions = layout.select(predictions, layout.unlabelled)
        if teacher_predictions is None:  # not needed, or the encoder teaches itself
            teacher_predictions = target_predictions.detach()
        arm_frequencies = torch.full_like(self.arm_frequencies[0], 1 / self.n_arms)
        max_ratio = self.recipe.learning.max_frequency_ratio
        # predictions before the first pseudo-labels are too uncertain for an estimate
        if max_ratio and self.uses_teacher and layout.sources and layout.unlabelled:
            source, target = self._average_frequencies(source_predictions, teacher_predictions)
            log_ratios = limit_frequencies(target, source, max_ratio).log() - target.log()
            teacher_predictions = teacher_predictions + log_ratios / self.scale
            arm_frequencies = limit_frequencies(target, arm_frequencies, max_ratio)
        return Batch(
            predictions=layout.select(predictions, layout.labelled),
            arms=inputs.arms,
            rewards=inputs.rewards,
            aligned=layout.select(aligned, layout.sources),
            target_predictions=target_predictions,
            target_aligned=layout.select(aligned, layout.unlabelled),
            teacher_predictions=teacher_predictions,
            arm_frequencies=arm_frequencies,
            weight=inputs.weights,
        )

    def _predict(self, features: Tensor) -> Tensor:
        """Return predicted rewards (rounds, K) from the features of all contexts."""
        predictions = self._append_one(features) @ self.theta.T
        # the K contexts of a round are adjacent rows
        return predictions.view(-1, self.n_arms) if self.has_shared_arms else predictions

    def _append_one(self, features: Tensor) -> Tensor:
        """Return features (n, d), with a column of ones if regressions have an intercept."""
        n_missing = self.theta.shape[1] - features.shape[1]
        return functional.pad(features, (0, n_missing), value=1.0) if n_missing else features

    def _average_frequencies(
        self, source_predictions: Tensor, target_predictions: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the predicted frequency of each arm in the source and in the target, (K,) each.

        The frequencies are moving averages over steps, which include this step.
        """
        source_frequencies = torch.softmax(self.scale * source_predictions, dim=1).mean(dim=0)
        target_frequencies = torch.softmax(self.scale * target_predictions, dim=1).mean(dim=0)
        frequencies = torch.stack([source_frequencies, target_frequencies])
        self.arm_frequencies.lerp_(frequencies, _FREQUENCY_RATE)
        return self.arm_frequencies.clamp(min=_MIN_FREQUENCY).unbind()

    # After the steps.

    def finish(self, n_steps: int) -> dict[str, float]:
        """Return the mean loss and terms of ``n_steps`` steps, and measurements of the last batch.

        If the loss or a parameter is not finite, undo the steps and raise ``TrainingDiverged``.
        """
        assert self.last_batch is not None
        batch = self.last_batch
        self.last_batch = None
        measured: dict[str, Tensor] = {}
        names = ["loss"]
        for name, term in self.terms.items():
            if len(batch.target_predictions) or not term.needs_target:
                names.append(name)
                if hasattr(term, "measure"):
                    measured |= term.measure(batch)
        with torch.no_grad():
            measured["norm"] = torch.stack(torch._foreach_norm(self.parameters)).sum()
        means = self._totals[: len(names)] / n_steps
        numbers = torch.cat([means, torch.stack(list(measured.values()))]).tolist()
        metrics = dict(zip([*names, *measured], numbers, strict=True))
        if not math.isfinite(metrics["loss"] + metrics.pop("norm")):
            self.rewind()
            raise TrainingDiverged(
                "the loss or a parameter is not finite after gradient steps, which are undone. Try"
                f" a learning rate below {self.recipe.learning.learning_rate:g}, or smaller weights"
            )
        self._tensors_before = []
        if self.ema_encoder is not None:
            for average, tensor in _zip_tensors(self.ema_encoder, self.encoder):
                if not tensor.is_floating_point():
                    average.copy_(tensor)
        return {**metrics, "gate": self.gate_factor}

    def rewind(self) -> None:
        """Undo all steps since ``start``."""
        self.last_batch = None
        self.step_number = self._step_before
        tensors = self._get_tensors().values()
        for tensor, tensor_before in zip(tensors, self._tensors_before, strict=True):
            tensor.copy_(tensor_before)

    def copy_acting_encoder(self) -> InferenceEncoder:
        """Return a copy of the encoder that decides: of the EMA encoder if there is one, else of
        the encoder.
        """
        network = self._copy_encoder(self.ema_encoder or self.encoder)
        return InferenceEncoder(network, device=self.device)

    def _copy_encoder(self, encoder: Encoder) -> Encoder:
        """Return a copy without gradients. Parameters that are not trained are shared with it."""
        frozen_parameters = self._frozen_parameters
        shared = dict(zip(map(id, frozen_parameters), frozen_parameters, strict=True))
        return copy.deepcopy(encoder, shared).requires_grad_(False).eval()

    def add_arm(self) -> None:
        """Add one arm without rounds."""
        self.n_arms += 1
        self.skill_gate.add_arm()
        if not self.has_shared_arms:
            self.theta = torch.cat([self.theta, torch.zeros_like(self.theta[:1])])
        self.arm_frequencies = functional.pad(self.arm_frequencies, (0, 1))

    def _get_tensors(self) -> dict[str, Tensor]:
        """Return all tensors that steps change, by their names in files."""
        modules = {"encoder": self.encoder, "terms": self.terms}
        if self.ema_encoder is not None:
            modules["average"] = self.ema_encoder
        tensors = {"arm_frequencies": self.arm_frequencies}
        for prefix, module in modules.items():
            for name, tensor in module.state_dict().items():
                tensors[f"{prefix}.{name}"] = tensor
        for index, moments in enumerate(self._moments):
            for name, tensor in moments.items():
                tensors[f"optimiser.{index}.{name}"] = tensor
        return tensors

    def state(self) -> dict[str, AnyArray]:
        """Return all arrays that are needed to continue training with the same results, bit for
        bit.
        """
        arrays = {name: tensor.cpu().numpy() for name, tensor in self._get_tensors().items()}
        arrays |= {f"gate.{name}": array for name, array in self.skill_gate.state().items()}
        return {**arrays, "progress": np.array([self.step_number, self.run_steps], np.int64)}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore a state that ``state`` returned."""
        for name, tensor in self._get_tensors().items():
            array = state[name]
            if array.shape != tuple(tensor.shape):
                raise InvalidInput(
                    f"the file must have {name!r} of shape {tuple(tensor.shape)}, got {array.shape}"
                )
            tensor.copy_(torch.from_numpy(np.array(array)))
        self.skill_gate.restore(drop_prefix("gate.", state))
        self.step_number, self.run_steps = (
            check_int(name, int(number), minimum=0)
            for name, number in zip(("step_number", "run_steps"), state["progress"], strict=True)
        )


def build_terms(weights: Mapping[str, Weight], settings: TermSettings) -> Any:
    """Return the terms with a weight above 0 by name, sorted, as a ``torch.nn.ModuleDict``.

    Other terms are not built, so they cost nothing and draw no random number.
    """
    for name in weights:
        terms.get(name)  # a misspelt name is an error even at weight 0
    used_names = sorted(name for name, weight in weights.items() if weight)
    return nn.ModuleDict({name: terms.get(name)(settings) for name in used_names})


def limit_frequencies(frequencies: Tensor, reference: Tensor, max_ratio: float) -> Tensor:
    """Return frequencies of arms (K,), changed to be within a factor of those of ``reference``."""
    limited = frequencies.clamp(min=reference / max_ratio, max=reference * max_ratio)
    return limited / limited.sum()


def compute_loss(objective: Any, batch: Batch, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss, the sum of all terms times their weights (eq:final_obj), and the value of
    each term by name.

    ``objective`` has the terms by name, and ``weights`` (terms,) are their weights. Terms that need
    the target are ignored if there are no target contexts.
    """
    values: dict[str, Tensor] = {}
    summands = []
    for (name, term), weight in zip(objective.items(), weights.unbind(), strict=True):
        if term.needs_target and len(batch.target_predictions) == 0:
            continue
        if term.applies_weight:
            values[name] = term(replace(batch, weight=weight))
            summands.append(values[name])
        else:
            values[name] = term(batch)
            summands.append(weight * values[name])
    if not summands:  # a 0 that has a gradient
        return batch.predictions.sum() * 0.0, {}
    return torch.stack(summands).sum(), values


def compute_weights(weight: Weight, steps: AnyArray, run_steps: int) -> AnyArray:
    """Return the weight of a term at these steps of a run of ``run_steps`` steps, by the schedule
    of ``Weight``.
    """
    start = weight.start * run_steps if weight.start < 1 else weight.start
    ramp = weight.ramp * run_steps if weight.ramp < 1 else weight.ramp
    progress = np.minimum((steps - start) / ramp, 1.0) if ramp else np.inf
    values = weight.value * (2 / (1 + np.exp(-10 * progress)) - 1)
    return np.where(steps < start, 0.0, values)


def _is_gated(term: Term) -> bool:
    """Return True if the skill gate scales the weight of a term, by default if the term needs the
    target.
    """
    return term.needs_target if term.is_gated is None else term.is_gated


def _zip_tensors(first: nn.Module, second: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return the pairs of equally named parameters and buffers of two networks of one kind."""
    parameters = zip(first.parameters(), second.parameters(), strict=True)
    buffers = zip(first.buffers(), second.buffers(), strict=True)
    return [*parameters, *buffers]


def _build_encoder(
    recipe: Recipe,
    context_shape: tuple[int, ...],
    module: nn.Module | None,
    domains: DomainNames | None,
) -> Encoder:
    """Return the encoder of a recipe with random weights; ``module`` is a custom network."""
    settings = recipe.encoder
    network, options = (module, {}) if module is not None else (settings.name, settings.options)
    if network == CUSTOM:
        raise InvalidInput(
            f"encoder must be given: the recipe or file names a custom module"
            f" ({options.get('module')}), but does not contain it; pass the module: encoder=..., or"
            " daband.load(path, encoder=module)"
        )
    encoder = build_encoder(
        network, context_shape=context_shape, dense=settings.dense, domains=domains, **options
    )
    if settings.initialisation == "gaussian":
        for layer in encoder.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.weight[0].numel()))
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    # convolutions are faster with the channels last
    if len(context_shape) == 3:
        encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return encoder
