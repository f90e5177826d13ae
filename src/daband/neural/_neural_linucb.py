"""Neural-LinUCB: LinUCB on the latent of an encoder that is learned on the way. DABand: the same with other weights.

Xu, Wen, Zhao, Gu: "Neural contextual bandits with deep representation and shallow exploration" (2020). "Towards Domain
Adaptive Neural Contextual Bandits" (ICLR 2025): the encoder also aligns the target's contexts with the source's. Its
objective adds the terms of the target-regret bound to the source regret; with all of those at weight 0 it is
Neural-LinUCB, to the bit.

On vectors the network does not act alone. It is one of several *experts*, each of which predicts every arm's reward:
the network with a ridge regression on its latent, a ridge regression on all standardised numbers of a context, on up
to 64 columns with disjoint arms another one on pieces of them (``linear/piecewise.py``), and every arm's mean. A
network overfits a small table, and extrapolates badly where contexts are far from those it was trained on; ridge
regression does neither, but misses what is not linear. On pieces it follows what is not linear in a number, and beyond
the contexts that were seen it stays as it is at their edge. What an expert counts is decided by how well it predicted
rounds before it learned them (``linear/expert_shares.py``).

Of more than 64 numbers there are three ridge regressions, since predicting and exploring need different ones. A small
ridge explores well: its width falls at once for a context that was seen, so that arms which failed there are not tried
again. A large one predicts well in another domain: one in units of the squared norm of a context, so that the prior
variance of a prediction is that of a reward, whatever the number of features. It has the largest prior share; the two
small ones, on all numbers and on their 64 leading principal components, have the widths. There DABand also learns from
its own choices in the target, until that has rewards; indicators are no numbers (``linear/pseudo_labels.py``).
"""

from __future__ import annotations

import copy
import math
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from torch import nn

from daband._arguments import one_of
from daband._arrays import (
    AnyArray,
    BoolArray,
    FloatArray,
    IntArray,
    Mask,
    Weights,
    below,
    checked_number,
    unit_scale,
)
from daband._domain_names import DomainNames
from daband._image_layout import channels_first, channels_first_shape, image_layout
from daband._shift import Shift, ShiftLike
from daband.errors import InvalidInput, TrainingDiverged
from daband.linear._arm_frequencies import arm_probabilities, calibrated_scale, label_shift
from daband.linear._expert_shares import ExpertShares, revealed_predictions
from daband.linear._exploration import Decision, Exploration, join_decisions, seeded_draws
from daband.linear._pca import PCA
from daband.linear._piecewise import Piecewise
from daband.linear._primal_ridge import PrimalRidge, RidgeSums, mixed_scores
from daband.linear._pseudo_labels import PseudoLabelRegression, count_numbers, fit_pseudo_labels
from daband.linear._ridge_head import ArmModel, EpisodeScores, RidgeHead, check_head_memory
from daband.linear._standardise import Standardise
from daband.linear._transforms import shift_transform
from daband.neural._devices import device_named
from daband.neural._recipes import UNALIGNED_STEPS, changes_setting, resolve_recipe, with_encoder
from daband.neural.encoders._encoder import InferenceEncoder, latents_of_head
from daband.neural.encoders._frozen_encoder import freeze_encoder
from daband.neural.learning._learner import Learner
from daband.neural.learning._replay_buffer import ContextBuffer, ReplayBuffers, RoundBuffer
from daband.neural.learning._settings import EncoderSettings, Recipe
from daband.neural.learning._step_runners import encode_ahead, start_steps
from daband.neural.objectives._term import FEEDBACKS
from daband.policies._pair_defaults import standardised_alpha, standardised_ridge
from daband.policies._policy import Policy, exploration_setting, transformed_contexts
from daband.policies._registered import policies
from daband.serving._frozen_policy import FrozenParts
from daband.serving._members import Member
from daband.serving._monitor import MOST_CONTEXTS

_RATE_DECAY = 0.9 ** (1 / 64)
"""Of the recent mean reward, per round: it spans some six hundred rounds."""
_LARGEST_PIXEL = 2.0
_LARGEST_INPUT = 4096
"""Numbers of a context beyond which the network acts alone: the other expert would take longer than it."""
_LEAST_STEPS, _LEAST_WITH_TWO_ARMS, _MOST_AN_EPISODE = 1024, 256, 32
"""Gradient steps of a planned run on at most ``_COMPONENTS`` numbers, at the least, but for so many an episode. Of two
arms one function tells which is better, and a reward often tells of both: there more steps overfit, as they do on more
numbers."""
_STREAK_THAT_STOPS = 3
_PLAYED_TOGETHER = 64
"""Rounds whose covariances are computed at once; they grow with its square."""
_NUMBERS_AT_ONCE = 1 << 24
"""Numbers that sums on a device multiply at a time."""
_MOST_CONTEXTS = 2048
"""Contexts of a domain from which arm frequencies are estimated: more take time and change little."""
_RAREST = 1e-3
"""The smallest frequency of an arm that counts."""
_MOST_DISTINCT = 1 << 16
_SELF_TRAINED = "shrunk"
"""The expert on whose features a policy's own choices in the target are regressed."""
_COMPONENTS, _MOST_ROWS = 64, 4096
"""Principal components of the expert of that name, and the contexts of a domain that they are fitted to."""


Features: TypeAlias = Sequence[FloatArray]
"""Of each expert its own: (B, d), or (B, K, d) with shared arms."""
OfRounds: TypeAlias = BoolArray | None
"""Which rounds are meant, (B,); None where it does not matter."""


class ContextFeatures:
    """The features of a ridge expert: contexts of this shape behind ``transform``, as they are without one, or a 1."""

    def __init__(
        self,
        context_shape: tuple[int, ...],
        transform: Standardise | Piecewise | None = None,
        *,
        constant: bool = False,
    ) -> None:
        self.context_shape = context_shape
        self.transform = transform
        self.constant = constant

    @property
    def dimension(self) -> int:
        """How many features there are."""
        if self.constant:
            return 1
        if self.transform is None:
            return math.prod(self.context_shape)
        return self.transform.n_features(self.context_shape)

    def encode(self, contexts: AnyArray, domain: int) -> FloatArray:
        """(B, d), or (B, K, d) with shared arms."""
        if self.constant:
            return np.ones((len(contexts), 1))
        lead = contexts.shape[: -len(self.context_shape)]
        if self.transform is None:
            return unit_scale(contexts).reshape(*lead, -1)
        return self.transform(contexts.reshape(-1, *self.context_shape), domain).reshape(*lead, -1)

    def fit(self, *contexts: AnyArray) -> None:
        """Fit the transform to contexts of each domain, where there are enough."""
        if self.transform is None:
            return
        batches = [batch.reshape(-1, *self.context_shape) for batch in contexts]
        if self.transform.components is not None:  # principal components of more rows take long and change little
            batches = [batch[:: max(1, len(batch) // _MOST_ROWS)] for batch in batches]
        if sum(map(len, batches)) >= (self.transform.components or 1):
            self.transform.fit(*batches)

    def state(self) -> dict[str, AnyArray]:
        """What was fitted."""
        return {} if self.transform is None else self.transform.state()

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``state`` returned."""
        if self.transform is not None:
            self.transform = type(self.transform)(**self.transform.settings())  # one that was not fitted has no state
            self.transform.restore(state)


class DistinctContexts:
    """Which contexts were learned before, by their checksums: an error on those says nothing of new ones."""

    def __init__(self) -> None:
        self._checksums: dict[int, None] = {}

    def add(self, contexts: AnyArray) -> BoolArray:
        """Note contexts (B, ...); returns which of them are new. Beyond 65,536 none is noted, and all count as new."""
        rows = np.ascontiguousarray(contexts, None if contexts.dtype == np.uint8 else np.float32)
        new = np.empty(len(rows), np.bool_)
        for place, row in enumerate(rows):
            checksum = zlib.crc32(row.tobytes())
            new[place] = checksum not in self._checksums
            if len(self._checksums) < _MOST_DISTINCT:
                self._checksums[checksum] = None
        return new

    def state(self, *, rounds: bool) -> AnyArray:
        """The checksums; without ``rounds`` none, as they would tell whether a context was among those learned."""
        return np.array(list(self._checksums) if rounds else [], np.int64)

    def restore(self, state: AnyArray) -> None:
        """Restore what ``state`` returned."""
        self._checksums = dict.fromkeys(state.tolist())


@dataclass(frozen=True)
class Expert:
    """One member of the ensemble: features of contexts, and a ridge head on them."""

    name: str
    features: InferenceEncoder | ContextFeatures
    head: RidgeHead
    prior: float
    """Its share in predictions before the first round."""
    exploring: float
    """Its share in bonuses, which stays."""
    alpha: float | None = None
    """The largest alpha of its bonus; None: the policy's."""

    @property
    def ready(self) -> bool:
        """Whether there are features: a transform has to be fitted first."""
        fitted = self.features.transform if isinstance(self.features, ContextFeatures) else None
        return fitted is None or fitted.fitted


@dataclass(frozen=True)
class Acting:
    """What decisions rest on. ``adapt`` replaces all of it at once; rounds that are learned change the heads."""

    experts: tuple[Expert, ...]
    """The network first."""
    shares: tuple[float, ...]
    """What each counts in predictions."""
    exploring: tuple[float, ...]
    """What each counts in widths."""

    offset: FloatArray | None = None
    """What is added to every arm's predicted reward in a target, (K,), where arms are differently frequent there."""
    pseudo: PseudoLabelRegression | None = None
    """What is added in a target to the experts' predictions, which then count less."""

    def mix(self, scores: Sequence[tuple[FloatArray, FloatArray]], alpha: float) -> tuple[FloatArray, FloatArray]:
        """Means and bonuses (B, K) from those of each expert."""
        return mixed_scores(scores, self.shares, self.bonus_shares(alpha))

    def bonus_shares(self, alpha: float) -> list[float]:
        """What each expert's bonus counts, in units of the policy's alpha."""
        ratios = [expert.alpha / alpha if expert.alpha is not None and alpha > 0 else 1.0 for expert in self.experts]
        return [share * min(ratio, 1.0) for share, ratio in zip(self.exploring, ratios, strict=True)]

    def added(self, mean: FloatArray, features: Sequence[FloatArray]) -> FloatArray:
        """Predictions in a target, with what is added there."""
        if self.pseudo is None:
            return mean if self.offset is None else mean + self.offset
        mean = mean + features[self.labelled] @ self.pseudo.theta.T
        return self.pseudo.share * (mean if self.offset is None else mean + self.offset)

    @property
    def labelled(self) -> int:
        """The place of the expert whose features the pseudo-labels are regressed on; -1 where there is none."""
        return next((place for place, expert in enumerate(self.experts) if expert.name == _SELF_TRAINED), -1)


class StartedRefit(NamedTuple):
    """A network that acts from now on, and what reads the sums that a GPU has begun with, where a refit is due."""

    network: Expert
    sums: Callable[[], RidgeSums] | None


@policies.register("nlinucb")
class NeuralLinUCB(Policy):
    """LinUCB on learned features.

    Args:
        context_shape: the shape of one context.
        n_arms: how many arms there are; more can be added later.
        recipe: a name ("default", "default-rpd", "paper", "small"), here without the target's terms; a ``Recipe``; or a
            change of a named one, "default" unless it has a base: ``{"base": "paper", "learning": {"steps": 16}}``.
        encoder: another network than the recipe's: a registered name, ``EncoderSettings``, or a ``torch.nn.Module`` of
            your own, which is copied; a file holds its weights alone: ``daband.load(path, encoder=module)``.
        feedback: what a reward tells: "bandit" (of that arm alone), or "one_hot" where exactly one arm has reward 1
            and all others 0, without noise, so that a reward of 1 tells of every arm. Never guessed.
        alpha: how much of the width is added to the predicted reward; the recipe's own by default.
        ridge: the penalty of the head's regressions.
        arms: "disjoint" (one context a round, a regression per arm) or "shared" (one context per arm, one regression).
        explore: "ucb", "greedy", or "thompson" (disjoint arms only).
        epsilon: the probability with which an arm is drawn evenly instead.
        standardise_rewards: as in ``LinUCB``; by default True, unless ``feedback`` is "one_hot".
        transform: put in front of the encoder, e.g. ``daband.PCA(64)``.
        device: "auto" (a GPU where there is one), "cpu", "cuda", "cuda:1", ...
        seed: decides initial weights, batches, ties and draws.
        shift: what may differ between the domains, e.g. "covariate" (``daband.Shift``); by the shape of a context,
            unless given. It decides whose statistics normalise, and which terms of the named recipes are aligned.
        domains: the names of the sources and targets, one of each by default.

    >>> policy = daband.NeuralLinUCB(context_shape=(8,), n_arms=3, recipe="small", seed=0)
    >>> skipped = policy.update([[1.0] * 8] * 64, [0] * 64, [1.0] * 64)
    >>> measured = policy.adapt(steps=2)
    >>> "loss" in measured
    True
    """

    source_terms_only: ClassVar[bool] = True
    """Whether the name of a recipe means that recipe without the target's terms."""
    learns_by_gradients = True
    scale_matters = True
    locks_state = False  # encoding takes long; the state lock is held for what the heads do
    alpha = exploration_setting("alpha")
    epsilon = exploration_setting("epsilon")
    explore = exploration_setting("rule")

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        recipe: str | Recipe | Mapping[str, Any] | None = None,
        encoder: str | EncoderSettings | nn.Module | None = None,
        feedback: str = "bandit",
        alpha: float | None = None,
        ridge: float = 1.0,
        arms: ArmModel = "disjoint",
        explore: Literal["ucb", "greedy", "thompson"] = "ucb",
        epsilon: float = 0.0,
        standardise_rewards: bool | None = None,
        transform: Any = None,
        device: str = "auto",
        seed: int = 0,
        shift: ShiftLike = None,
        domains: DomainNames | None = None,
    ) -> None:
        super().__init__(
            context_shape=context_shape,
            n_arms=n_arms,
            arms=arms,
            standardise_rewards=feedback != "one_hot" if standardise_rewards is None else standardise_rewards,
            transform=transform,
            seed=seed,
            shift=shift,
            domains=domains,
        )
        one_of("feedback", feedback, FEEDBACKS)
        self.feedback = feedback
        self.device_setting = device
        # Units are the business of a transform, where there is one: behind it there are other numbers.
        kinds = tuple(kind for kind in self.shift.kinds if kind != "units") or ("covariate",)
        chosen = resolve_recipe(
            recipe,
            context_shape=self.feature_shape,
            source_terms_only=self.source_terms_only,
            shift=self.shift if self.transform is None else Shift(kinds, stated=self.shift.stated),
            standardised=isinstance(self.transform, Standardise),
        )
        self.recipe = with_encoder(chosen, encoder)
        # Networks of daband's own take images with the channels first; any other gets contexts as they are.
        of_ours = self.recipe.encoder.name in ("auto", "conv", "pretrained")
        self._layout = image_layout(self.feature_shape) if of_ours else None
        self._encoded_shape = channels_first_shape(self.feature_shape) if of_ours else self.feature_shape
        self._device = device_named(device)
        check_head_memory(n_arms=self.n_arms, dim=self.recipe.encoder.latent.dimension, arms=arms, primal=True)
        self._learner = Learner(
            recipe=self.recipe,
            feature_shape=self._encoded_shape,
            n_arms=self.n_arms,
            shared=arms == "shared",
            feedback=feedback,
            seed=self.seed,
            device=self._device,
            module=encoder if isinstance(encoder, nn.Module) else None,
            domains=self.domains,
        )
        self.exploration = Exploration(
            explore,
            checked_number("alpha", self.recipe.alpha if alpha is None else alpha),
            checked_number("epsilon", epsilon),
        )
        ridge = checked_number("ridge", ridge)
        self._experts = self._make_experts(arms, ridge)
        self._steps = self.recipe.learning.steps
        """Gradient steps of one ``adapt``; ``plan`` takes more where a run has few episodes."""
        self._steps_given = changes_setting(recipe, "learning", "steps")
        self._shares = ExpertShares([expert.prior for expert in self._experts])
        self._distinct = DistinctContexts()
        # On more numbers than that, shares by the chosen arm alone do better in the target (development half).
        few = math.prod(self._encoded_shape) <= _COMPONENTS
        self._counts_every_arm = few and feedback == "one_hot" and arms == "disjoint"
        self._offset: FloatArray | None = None
        self._pseudo: PseudoLabelRegression | None = None
        self._publish()
        self._buffers = self._make_buffers(self.n_arms)
        self._rate = 0.0
        self._prior: FloatArray | None = None
        self._refitted_at = 0
        self._warned_no_target = False
        self._warned_large_pixels = False
        self._expected: Callable[[], Sequence[tuple[AnyArray, str]]] | None = None

    @classmethod
    def for_pair(cls, pair: Any, **settings: Any) -> Self:
        """Return a policy for a ``daband.domains.Pair``; see ``Policy.for_pair``.

        A custom module as ``encoder`` gets contexts as the pair has them, without a transform unless one is given.
        """
        if isinstance(settings.get("encoder"), nn.Module):
            settings.setdefault("transform", None)
        return super().for_pair(pair, **settings)

    def _make_experts(self, arms: ArmModel, ridge: float) -> tuple[Expert, ...]:
        def head(dim: int, form: str, ridge: float) -> RidgeHead:
            return RidgeHead(n_arms=self.n_arms, dim=dim, arms=arms, ridge=ridge, form=form)

        latent = self._learner.encoder.dimension
        network = Expert("network", self._learner.acting_copy(), head(latent, "primal", ridge), 1.0, 1.0)
        if not (self.recipe.learning.linear_weight > 0 and math.prod(self.feature_shape) <= _LARGEST_INPUT):
            return (network,)
        shape, dim = self._encoded_shape, math.prod(self._encoded_shape)
        # Behind a Standardise contexts are features already.
        shift = self.shift if self.transform is None else Shift(("covariate",))
        standardise = shift_transform(Standardise(), shift, dim)
        every = ContextFeatures(shape, None if isinstance(self.transform, Standardise) else standardise)
        # By name: features, the ridge, the share in predictions before the first round, and that in widths.
        usual = ridge * standardised_ridge(every.dimension)
        parts = {"ridge": (every, usual, 0.75, 2 / 3)}
        # Principal components are no columns: on DIGIT pieces of them cost time and changed nothing.
        of_columns = not (isinstance(self.transform, PCA) or getattr(self.transform, "components", None) is not None)
        if dim <= _COMPONENTS and arms == "disjoint" and of_columns:
            piecewise = ContextFeatures(shape, Piecewise(shift_transform(Standardise(), shift, dim)))
            parts = {"ridge": (every, usual, 0.5, 2 / 3), "piecewise": (piecewise, 4 * usual, 0.25, 0.0)}
        if dim > _COMPONENTS:
            components = ContextFeatures(shape, shift_transform(Standardise(components=_COMPONENTS), shift, dim))
            parts = {
                "ridge": (every, usual, 0.0, 1 / 3),
                "components": (components, usual, 0.1, 1 / 3),
                "shrunk": (copy.deepcopy(every), usual * every.dimension / 16, 0.75, 0.0),
            }
        if arms == "disjoint":
            parts["constant"] = (ContextFeatures(shape, constant=True), ridge, 0.0, 0.0)
        narrower = standardised_alpha(every.dimension)
        others = [
            Expert(name, part, head(part.dimension, "auto", penalty), prior, exploring, narrower)
            for name, (part, penalty, prior, exploring) in parts.items()
        ]
        return replace(network, prior=1.0 - sum(other.prior for other in others), exploring=1 / 3), *others

    # What a policy offers.

    @property
    def counts(self) -> IntArray:
        """How many rounds each regression of the network's head holds: (K,), or (1,) with shared arms."""
        return self._head.statistics.counts

    def latent(self, contexts: AnyArray, domain: str = "source") -> FloatArray:
        """The features that the network's head works on: (B, d), or (B, K, d) with shared arms."""
        transformed, where = transformed_contexts(self, contexts, domain), self.domains.index(domain)
        return self._encode(self._acting.experts[0], self._images(transformed), where)

    def settings(self) -> dict[str, Any]:
        exploration = self.exploration
        return {
            **super().settings(), "recipe": self.recipe.settings(), "feedback": self.feedback,
            "alpha": exploration.alpha, "ridge": self._head.ridge, "explore": exploration.rule,
            "epsilon": exploration.epsilon, "device": self.device_setting,
        }  # fmt: skip

    @property
    def learner(self) -> Learner:
        """What learns by gradients."""
        return self._learner

    @property
    def buffers(self) -> ReplayBuffers:
        """The replay buffers that steps draw from."""
        return self._buffers

    @property
    def alignment(self) -> str:
        behind_transform = self.transform is not None and not self._learner.uses_target
        line = "nothing is aligned: a number means the same in every domain"
        if self.shift.stated and any(self.shift.own_statistics(math.prod(self.context_shape))):
            line = f"nothing is aligned but the scale: each domain has its own statistics (shift: {self.shift})"
        line = line if behind_transform else self._learner.alignment
        line += "; predictions follow the arms' frequencies estimated there" if self._offset is not None else ""
        return line + ("; in the target it also learns from its own choices" if self._pseudo is not None else "")

    @property
    def adapts_to_target(self) -> bool:
        return self._learner.objective.needs_target or self._pseudo is not None

    @property
    def self_trains(self) -> bool:
        """Whether it learns from its own choices in the target too, where enough columns are numbers."""
        one_best = self.feedback == "one_hot" and self.arms == "disjoint"
        many = any(expert.name == _SELF_TRAINED for expert in self._experts)
        return one_best and many and not self.source_terms_only

    def plan(self, episodes: int) -> None:
        if self._learner.step_number > 0:  # a run that goes on keeps its plan
            return
        few = len(self._experts) > 1 and math.prod(self._encoded_shape) <= _COMPONENTS
        # Another number was asked for, and holds; the same one may have been.
        if few and self.recipe.learning.steps == UNALIGNED_STEPS and not self._steps_given:
            least = _LEAST_STEPS if self.n_arms > 2 else _LEAST_WITH_TWO_ARMS
            self._steps = max(self._steps, min(_MOST_AN_EPISODE, math.ceil(least / episodes)))
        self._learner.plan(episodes * self._steps)

    @property
    def expert_shares(self) -> dict[str, float]:
        """What each expert counts in predictions, by name: network, ridge, ...; few features have others than many."""
        acting = self._acting
        return {expert.name: share for expert, share in zip(acting.experts, acting.shares, strict=True)}

    def expert_means(self, contexts: AnyArray, domain: str | None = None) -> dict[str, FloatArray]:
        """The rewards that each expert predicts, by its name, (B, K) in the user's units."""
        where = self.domains.index(self.domain if domain is None else domain)
        transformed, means = self._images(transformed_contexts(self, contexts, domain)), {}
        for expert in self._acting.experts:
            features = self._encode(expert, transformed, where)
            with self._locks.state:
                means[expert.name] = expert.head.score(features, centre=self.reward_moments.centre, bonuses=False)[0]
        return means

    # Deciding and learning.

    @property
    def _head(self) -> RidgeHead:
        return self._experts[0].head

    def _publish(self) -> None:
        """Let decisions rest on the present experts and shares; one that has begun keeps those it began with."""
        ready = np.array([expert.ready for expert in self._experts])
        shares = np.where(ready, self._shares.shares, 0.0)
        if not shares[0] and not all(ready):  # until all are ready nothing is known of them: the network is never out
            shares[0] = self._experts[0].prior
        exploring = np.where(ready, [expert.exploring for expert in self._experts], 0.0)
        predicting, widening = (tuple((part / part.sum())[ready].tolist()) for part in (shares, exploring))
        experts = tuple(expert for expert in self._experts if expert.ready)
        self._acting = Acting(experts, predicting, widening, self._offset, self._pseudo)

    def _images(self, contexts: AnyArray) -> AnyArray:
        return contexts if self._layout is None else channels_first(contexts, self._layout)

    def _encode(self, expert: Expert, contexts: AnyArray | torch.Tensor, domain: int) -> FloatArray:
        """The features of contexts for an expert's head: (B, d), or (B, K, d) with shared arms."""
        if isinstance(expert.features, InferenceEncoder):
            return expert.features.encode(contexts, domain)
        return expert.features.encode(np.asarray(contexts), domain)

    def _score(self, contexts: AnyArray, domain: int, bonuses: bool) -> tuple[FloatArray, FloatArray]:
        acting, contexts = self._acting, self._images(contexts)  # once: its parts belong together
        features = [self._encode(expert, contexts, domain) for expert in acting.experts]
        mean, bonus = self._score_by_heads(acting, features, bonuses)
        return (acting.added(mean, features) if self.domains.is_target(domain) else mean), bonus

    def _score_by_heads(self, acting: Acting, features: Features, bonuses: bool) -> tuple[FloatArray, FloatArray]:
        moments, both = self.reward_moments, zip(acting.experts, features, strict=True)
        centre, scale = moments.centre, moments.scale
        with self._locks.state:
            scores = [expert.head.score(part, centre=centre, scale=scale, bonuses=bonuses) for expert, part in both]
        return acting.mix(scores, self.exploration.alpha)

    def _freeze(self, domain: int) -> FrozenParts:
        acting, settings, members = self._acting, self.recipe.encoder, []
        in_target = self.domains.is_target(domain)
        pseudo = acting.pseudo if in_target else None
        part = 1.0 if pseudo is None else pseudo.share
        moments = self.reward_moments
        shares = acting.bonus_shares(self.exploration.alpha)
        for place, (expert, width) in enumerate(zip(acting.experts, shares, strict=True)):
            share = part * acting.shares[place]
            labelled = pseudo is not None and place == acting.labelled
            if share == 0.0 and width == 0.0 and not labelled:
                continue
            theta, inverse = expert.head.frozen(moments, widths=width > 0)
            if pseudo is not None and labelled:  # two regressions on the same features are one
                theta, share = share * theta + part * pseudo.theta / moments.scale, 1.0
            member = Member(theta, inverse, share=share, width_share=width)
            if isinstance(expert.features, InferenceEncoder):
                encoder = expert.features.network
                network = freeze_encoder(encoder, name=settings.name, options=settings.options, domain=domain)
                members.append(replace(member, network=network))
            elif expert.features.transform is not None:
                step = copy.deepcopy(expert.features.transform.frozen(domain))
                theta = np.ascontiguousarray(member.theta[:, : step.n_features])  # without features that are left over
                members.append(replace(member, theta=theta, transform=step))
            else:
                members.append(replace(member, constant=expert.features.constant))
        if acting.offset is not None and in_target:
            nothing = np.zeros((self.n_arms, 0, 0))
            members.append(
                Member(acting.offset[:, None] / moments.scale, nothing, share=part, width_share=0.0, constant=True)
            )
        reference = None
        if self.transform is None and self._layout in (None, "channels_first"):  # contexts are kept as they came
            buffer: ContextBuffer = self._buffers.rounds[domain]
            if self.domains.is_target(domain):
                buffer = self._buffers.unlabelled[domain - self.domains.first_target]
            reference = buffer.contexts[: min(len(buffer), MOST_CONTEXTS)].cpu().numpy() if len(buffer) else None
        return FrozenParts(
            tuple(members),
            self.counts.copy(),
            layout=self._layout,
            reference=reference,
            seen_target=any(len(buffer) for buffer in self._buffers.unlabelled),
        )

    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: Weights) -> None:
        contexts = self._images(contexts)
        self._warn_of_large_pixels(contexts)
        experts = self._acting.experts
        new = self._distinct.add(contexts) if len(experts) == len(self._experts) > 1 else None
        features = [self._encode(expert, contexts, domain) for expert in experts]
        predicted = None
        in_source = domain < self.domains.first_target
        if self._learner.gated and in_source:
            predicted = self._score_by_heads(self._acting, features, bonuses=False)[0]
        self._learn_by_heads(features, arms, rewards, weights, new)
        self._remember(contexts, arms, rewards, domain, weights, predicted)

    def _learn_by_heads(
        self, features: Features, arms: IntArray, rewards: FloatArray, weights: Weights, new: OfRounds
    ) -> None:
        """Let every head learn rounds; of ``new`` contexts it is noted before what each had predicted."""
        experts, centre = self._acting.experts, self.reward_moments.centre
        with self._locks.state:
            if new is not None and new.any():
                both = zip(experts, features, strict=True)
                if self._counts_every_arm:
                    scores = [expert.head.score(part[new], centre=centre, bonuses=False)[0] for expert, part in both]
                    noted = revealed_predictions(np.stack(scores, axis=2), arms[new], rewards[new])
                else:
                    predicted = [expert.head.predict(part[new], arms[new], centre=centre) for expert, part in both]
                    noted = np.stack(predicted, axis=1), rewards[new]
                if self._shares.add(*noted):
                    self._publish()
            for expert, part in zip(experts, features, strict=True):
                expert.head.learn(part, arms, rewards, weights)

    def _play(
        self,
        contexts: AnyArray,
        rewards: FloatArray,
        domain: int,
        available: Mask,
        first_round: int,
        weights: Weights,
    ) -> Decision:
        added = self._acting.offset is not None or self._acting.pseudo is not None
        experts = self._acting.experts
        alone = len(experts) == 1
        blocked = self.arms == "disjoint" and weights is None
        if (added and self.domains.is_target(domain)) or not (alone or blocked):
            return super()._play(contexts, rewards, domain, available, first_round, weights)
        contexts = self._images(contexts)
        self._warn_of_large_pixels(contexts)
        features = [self._encode(expert, contexts, domain) for expert in experts]
        if alone:
            with self._locks.state:
                decision = self._head.play(
                    features[0],
                    rewards,
                    exploration=self.exploration,
                    draws=lambda row: seeded_draws(self._key, first_round + row),
                    moments=self.reward_moments,
                    available=available,
                    weights=weights,
                )
        else:
            new = self._distinct.add(contexts) if len(experts) == len(self._experts) > 1 else None
            parts = []
            for start in range(0, len(contexts), _PLAYED_TOGETHER):
                part = slice(start, start + _PLAYED_TOGETHER)
                rows, mask = [column[part] for column in features], None if available is None else available[part]
                is_new = None if new is None else new[part]
                parts += self._play_block(rows, rewards[part], mask, is_new, first_round + start)
            decision = join_decisions(parts)
        played = rewards[np.arange(len(contexts)), decision.arm]
        self._remember(contexts, decision.arm, played, domain, weights, decision.mean)
        return decision

    def _play_block(
        self, features: Features, rewards: FloatArray, available: Mask, new: OfRounds, first_round: int
    ) -> list[Decision]:
        """Decide and learn each of these rounds in turn, with one update of every head after the last."""
        experts, moments, exploration = self._acting.experts, self.reward_moments, self.exploration
        with self._locks.state:
            scores = EpisodeScores([expert.head for expert in experts], features)
        acting, decisions = self._acting, []
        for row in range(len(rewards)):
            one, centre, scale = slice(row, row + 1), moments.centre, moments.scale
            means, widths = scores.score(row, centre=centre)
            mean, width = acting.mix(list(zip(means[:, None], widths[:, None], strict=True)), exploration.alpha)
            mask, draws = None if available is None else available[one], seeded_draws(self._key, first_round + row)
            chosen, propensity = exploration.choose((mean - centre) / scale, width, draws, available=mask)
            decisions.append(Decision(chosen, propensity, mean, scale * width))
            arm = int(chosen[0])
            if new is not None and new[row]:
                noted = means[:, arm][None], rewards[one, arm]
                if self._counts_every_arm:
                    noted = revealed_predictions(means.T[None], chosen, rewards[one, arm])
                if self._shares.add(*noted):
                    self._publish()
                    acting = self._acting
            scores.learn(row, arm, float(rewards[row, arm]))
            moments.add(rewards[one, arm])
        arms = np.concatenate([decision.arm for decision in decisions])
        with self._locks.state:
            for expert, part in zip(experts, features, strict=True):
                expert.head.learn(part, arms, rewards[np.arange(len(arms)), arms])
        return decisions

    @property
    def prepared(self) -> bool:
        # Once rounds were learned, the next refit fits the standardisation to the contexts they had.
        waiting = self.rounds_learned == 0 and not all(expert.ready for expert in self._experts)
        return super().prepared and not waiting

    def _prepare(self, contexts: Sequence[AnyArray]) -> None:
        contexts = [self._images(batch) for batch in contexts]
        for expert in self._experts:
            if isinstance(expert.features, ContextFeatures):
                expert.features.fit(*contexts)
        self._publish()

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        contexts = self._images(contexts)
        self._warn_of_large_pixels(contexts)
        if self._learner.stores_target or self.self_trains:
            self._buffers.unlabelled[domain - self.domains.first_target].add(contexts)

    def _grow(self) -> None:
        if self.arms == "shared":
            # Stored rounds hold one context per arm, and the new arm has none in them. The head keeps what they taught
            # it: the next refit waits until there are as many rounds again, or it would forget more than it mends.
            self._buffers = self._make_buffers(self.n_arms + 1)
        experts = [replace(expert, head=copy.deepcopy(expert.head)) for expert in self._experts]
        for expert in experts:
            expert.head.add_arm()
        self._learner.grow()
        self._prior = self._offset = self._pseudo = None
        self._experts = tuple(experts)
        self._publish()

    def _remember(
        self,
        contexts: AnyArray,
        arms: IntArray,
        rewards: FloatArray,
        domain: int,
        weights: Weights,
        predicted: FloatArray | None,
    ) -> None:
        """Store rounds; ``predicted`` (B, K) is what was predicted before they were learned."""
        self._buffers.rounds[domain].add_rounds(contexts, arms, rewards, weights)
        if self._pseudo is not None and self.domains.is_target(domain):  # rewards are there, and say more
            self._pseudo = None
            self._publish()
        if domain < self.domains.first_target:
            if predicted is not None and self._learner.gated:
                self._learner.skill_gate.add(predicted, arms, rewards)
            fading = _RATE_DECAY ** np.arange(len(rewards) - 1, -1, -1)
            self._rate = float(self._rate * _RATE_DECAY ** len(rewards) + (1 - _RATE_DECAY) * (fading @ rewards))

    def _warn_of_large_pixels(self, contexts: AnyArray) -> None:
        """Floating-point images are taken as they are, and networks learn worse from pixels of 0..255."""
        if self._warned_large_pixels or self._layout is None or contexts.dtype.kind != "f":
            return
        largest = float(contexts.max())
        if largest > _LARGEST_PIXEL:
            self._warned_large_pixels = True
            warnings.warn(
                f"contexts are images of floating-point numbers up to {largest:g}; pass them as uint8, or divide them "
                "by 255, so that pixels lie in [0, 1]",
                stacklevel=5,
            )

    # Gradient steps, and the heads that are refitted after them.

    @property
    def encodes_ahead(self) -> bool:
        as_they_are = self.transform is None and self._layout in (None, "channels_first")
        return as_they_are and self._learner.encodes_ahead

    def expect(self, read: Callable[[], Sequence[tuple[AnyArray, str]]]) -> None:
        self._expected = read if self.encodes_ahead else None

    def _read_expected(self) -> dict[int, AnyArray]:
        read, self._expected = self._expected, None
        try:
            return {} if read is None else {self.domains.index(name): np.asarray(part) for part, name in read()}
        except Exception:  # whoever asks for the contexts gets it
            return {}

    def _adapt(self, steps: int | None) -> dict[str, float]:
        due = self.before_steps(steps)
        if not due:
            return {}
        (measured,), hand_over = self._take_steps(due)
        measured = self.after_steps(measured)
        hand_over()
        return measured

    def _take_steps(self, steps: int) -> tuple[list[dict[str, float]], Callable[[], None]]:
        return _take_steps([self], steps)

    def before_steps(self, steps: int | None) -> int:
        """Prepare gradient steps, and return how many are due: 0 where there is nothing to learn from."""
        steps = self._steps if steps is None else steps
        buffers = self._buffers
        if steps == 0 or not any(len(buffer) for buffer in buffers.rounds):
            self._expected = None
            return 0
        if (
            self._learner.objective.needs_target
            and not any(map(len, buffers.unlabelled))
            and not self._warned_no_target
        ):
            self._warned_no_target = True
            warnings.warn(
                f"{self.name} has seen no target context, so it learns from the source alone, as Neural-LinUCB does; "
                "show it some with observe_target, or give daband.train a target",
                stacklevel=4,
            )
        statistics = self._head.statistics
        assert isinstance(statistics, PrimalRidge)
        alpha = self.exploration.alpha
        self._learner.take_head(statistics.coefficients(), statistics.inverse, alpha=alpha, prior=self._prior)
        return steps

    def start_refit(self) -> StartedRefit:
        """The network as it acts from now on; where a refit is due, a GPU begins with its sums."""
        network, sums = replace(self._experts[0], features=self._learner.acting_copy()), None
        if self._refit_is_due() and self._device.type == "cuda" and self.arms == "disjoint":
            sums = self._start_sums(network)
        return StartedRefit(network, sums)

    def after_steps(self, measured: dict[str, float], started: StartedRefit | None = None) -> dict[str, float]:
        """Publish the encoder, with the heads refitted where that is due, unless the steps diverged."""
        streak = measured.pop("worst_streak", 0.0)
        if streak >= _STREAK_THAT_STOPS:
            raise TrainingDiverged(
                f"{int(streak)} gradient steps in a row had a loss or gradient that is not finite; they were skipped, "
                f"and training stops here. The last saved state is good; try a learning rate below "
                f"{self.recipe.learning.learning_rate:g}, or smaller weights"
            )
        network, sums = self.start_refit() if started is None else started
        others = self._experts[1:]
        if refitted := self._refit_is_due():
            network = replace(network, head=self._refit_head(network, sums))
            others = tuple(self._start_expert(expert) for expert in others)
            measured["refitted"] = 1.0
        self._experts = (network, *others)
        self._publish()
        if refitted:
            if self.recipe.learning.prior == "estimated":
                self._estimate_frequencies()
            if self.self_trains:
                self._self_train()
            self._publish()
        measured["recent_reward"] = self._rate
        measured["gate"] = self._learner.gate
        return measured

    def _refit_is_due(self) -> bool:
        settings = self.recipe.replay
        n_seen = self._buffers.rounds_seen
        wait = max(settings.refit_after, int(settings.refit_growth * n_seen))
        # A young head rests on an encoder that changes fast: it is fitted anew more often, at little cost.
        wait = min(wait, max(1, n_seen // 8)) if n_seen < 8 * settings.refit_after else wait
        return settings.refit and n_seen - self._refitted_at >= wait

    def _refit_head(self, network: Expert, sums: Callable[[], RidgeSums] | None) -> RidgeHead:
        """The network's head fitted to every stored round, each once, with the features of its encoder."""
        if sums is not None:
            head = copy.copy(self._head)
            fresh = PrimalRidge(head.statistics.n_heads, head.dim, head.ridge)
            with suppress(InvalidInput):  # too ill-conditioned for sums: the host does better
                fresh.add_sums(sums())
                head.statistics, self._refitted_at = fresh, self._buffers.rounds_seen
                return head
        rounds = [self._encode_rounds(network, domain, buffer) for domain, buffer in enumerate(self._buffers.rounds)]
        self._refitted_at = self._buffers.rounds_seen
        head = copy.copy(self._head)  # a decision under way keeps the head it began with
        head.statistics = self._fit_head(*(np.concatenate(column) for column in zip(*rounds, strict=True)))
        return head

    def _start_sums(self, network: Expert) -> Callable[[], RidgeSums]:
        """Start to sum over every stored round, with the network's features, where the rounds lie; the call reads."""
        assert isinstance(network.features, InferenceEncoder)
        n_heads, dim = network.head.statistics.n_heads, network.head.dim
        parts = []
        for domain, buffer in enumerate(self._buffers.rounds):
            n = len(buffer)
            if n:
                latents = network.features.encode_on_device(buffer.contexts[:n], domain).double()
                latents /= torch.linalg.vector_norm(latents, dim=1, keepdim=True).clamp(min=1e-12)
                columns = buffer.arms[:n], buffer.rewards[:n], buffer.weights[:n]
                parts.append(sums_on_device(n_heads, latents, *columns))

        def read() -> RidgeSums:
            sums = RidgeSums(n_heads, dim)
            for total, counts in parts:
                numbers = total.cpu().numpy()
                sums.gram += numbers[:, :, :-2]
                sums.moment += numbers[:, :, -2:].transpose(0, 2, 1)
                sums.counts += counts.cpu().numpy()
            return sums

        return read

    def _encode_rounds(
        self, network: Expert, domain: int, buffer: RoundBuffer
    ) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
        """Latents, arms, rewards and weights of every round in a buffer."""
        n = len(buffer)
        lead = (self.n_arms,) if self.arms == "shared" else ()
        latents = self._encode(network, buffer.contexts[:n], domain) if n else np.zeros((0, *lead, network.head.dim))
        arms, rewards, weights = (column[:n].cpu().numpy() for column in (buffer.arms, buffer.rewards, buffer.weights))
        return latents, arms, rewards, weights

    def _fit_head(self, latents: FloatArray, arms: IntArray, rewards: FloatArray, weights: FloatArray) -> PrimalRidge:
        weighted = any(buffer.weighted for buffer in self._buffers.rounds)
        statistics = self._head.refitted(latents, arms, rewards, weights if weighted else None)
        assert isinstance(statistics, PrimalRidge)
        return statistics

    def _start_expert(self, expert: Expert) -> Expert:
        """Fit the transform to the stored rounds where nobody called ``prepare`` before the first of them."""
        if expert.ready or not isinstance(expert.features, ContextFeatures):
            return expert
        rounds = self._buffers.rounds
        stored = [(*buffer.columns(), buffer.weights[: len(buffer)]) for buffer in rounds]
        contexts, arms, rewards, weights = (
            [column.cpu().numpy() for column in columns] for columns in zip(*stored, strict=True)
        )
        seen = list(contexts)
        for domain, buffer in enumerate(self._buffers.unlabelled, start=self.domains.first_target):
            seen[domain] = np.concatenate([seen[domain], buffer.contexts[: len(buffer)].cpu().numpy()])
        expert.features.fit(*seen)
        if not expert.ready:
            return expert
        filled = [domain for domain, rows in enumerate(contexts) if len(rows)]
        features = np.concatenate([expert.features.encode(contexts[domain], domain) for domain in filled])
        head = copy.copy(expert.head)
        head.statistics = head.refitted(features, *(np.concatenate(column) for column in (arms, rewards, weights)))
        return replace(expert, head=head)

    def _estimate_frequencies(self) -> None:
        """Estimate how often each arm is the best one in the target, as soon as there are rounds and target contexts.

        Predictions are calibrated on source rounds, and EM does the rest. Where no term of the objective goes by the
        frequencies, predictions in the target do: with p(context | best arm) the same in both domains, the odds of an
        arm there are those of the source times the ratio of its frequencies (Saerens, Latinne and Decaestecker 2002).
        Several sources are one mixture, and so are several targets.
        """
        sources = enumerate(self.buffers.rounds[: self.domains.first_target])
        rounds = [(domain, buffer.columns(_MOST_CONTEXTS)) for domain, buffer in sources if len(buffer)]
        targets = self._target_contexts()
        if not rounds or not targets:
            return
        in_source = np.concatenate([self._predict(columns[0], domain) for domain, columns in rounds])
        in_target = np.concatenate([self._predict(contexts, domain) for domain, contexts in targets])
        arms, rewards = (np.concatenate([columns[at].cpu().numpy() for _, columns in rounds]) for at in (1, 2))
        scale = calibrated_scale(in_source, arms, rewards)
        before = arm_probabilities(in_source, scale)
        self._prior = label_shift(before, arm_probabilities(in_target, scale))
        if self.feedback == "one_hot" and self.arms == "disjoint" and "target_diversity" not in self.recipe.weights:
            ratio = np.maximum(self._prior, _RAREST) / np.maximum(before.mean(axis=0), _RAREST)
            self._offset = np.log(ratio) / scale

    def _self_train(self) -> None:
        """Fit the regression on pseudo-labels, unless a target has rewards, or 64 columns or fewer are numbers."""
        contexts, rewarded = self._target_contexts(), self._buffers.rounds[self.domains.first_target :]
        if not contexts or self._acting.labelled < 0 or any(map(len, rewarded)):
            return
        expert = self._acting.experts[self._acting.labelled]
        features = [self._encode(expert, rows.cpu().numpy(), domain) for domain, rows in contexts]
        self._pseudo = None
        # Of each target by itself: with statistics of their own, an indicator has two values in every one.
        if min(map(count_numbers, features)) > _COMPONENTS:
            predicted = np.concatenate([self._predict(rows, domain) for domain, rows in contexts])
            predicted += 0.0 if self._offset is None else self._offset
            self._pseudo = fit_pseudo_labels(np.concatenate(features), predicted, ridge=expert.head.ridge)

    def _target_contexts(self) -> list[tuple[int, torch.Tensor]]:
        """Every target that was seen, with up to 2,048 of its contexts."""
        targets = enumerate(self._buffers.unlabelled, start=self.domains.first_target)
        return [(domain, part.contexts[: len(part)][:_MOST_CONTEXTS]) for domain, part in targets if len(part)]

    def _predict(self, contexts: torch.Tensor, domain: int) -> FloatArray:
        """The rewards that all experts predict together, (B, K), without an offset."""
        acting = self._acting
        features = [self._encode(expert, contexts.cpu().numpy(), domain) for expert in acting.experts]
        return self._score_by_heads(acting, features, bonuses=False)[0]

    def _make_buffers(self, n_arms: int) -> ReplayBuffers:
        lead = (n_arms,) if self.arms == "shared" else ()
        return ReplayBuffers.empty(
            (*lead, *self._encoded_shape), self.recipe.replay, seed=self.seed, device=self._device, domains=self.domains
        )

    # Files.

    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        arrays = {f"head.{name}": array for name, array in self._head.state(rounds=replay).items()}
        arrays.update({f"learner.{name}": array for name, array in self._learner.state().items()})
        buffers = self._buffers if replay else self._make_buffers(self.n_arms)
        arrays.update({f"replay.{name}": array for name, array in buffers.state().items()})
        for expert in self._experts[1:]:
            assert isinstance(expert.features, ContextFeatures)
            fitted, head = expert.features.state(), expert.head.state(rounds=replay)
            arrays.update({f"{expert.name}.transform.{name}": array for name, array in fitted.items()})
            arrays.update({f"{expert.name}.head.{name}": array for name, array in head.items()})
        if len(self._experts) > 1:
            arrays.update({f"shares.{name}": array for name, array in self._shares.state().items()})
            arrays["distinct"] = self._distinct.state(rounds=replay)
        if self._prior is not None:
            arrays["prior"] = self._prior
        if self._offset is not None:
            arrays["offset"] = self._offset
        if self._pseudo is not None:
            arrays |= {"pseudo": self._pseudo.theta, "pseudo_share": np.array([self._pseudo.share])}
        arrays["rate"] = np.array([self._rate])
        arrays["steps"] = np.array([self._steps], np.int64)
        arrays["refitted_at"] = np.array([self._refitted_at if replay else self._rounds_in_head()], np.int64)
        return arrays

    def _rounds_in_head(self) -> int:
        """How many rounds the head rests on.

        Written in place of the last refit where the replay buffers are left out, it makes the next refit wait for as
        many new rounds: an earlier one would forget more than it mends.
        """
        n_seen = self._buffers.rounds_seen
        return n_seen if self._refitted_at <= n_seen else self._refitted_at + n_seen

    def _restore(self, state: dict[str, AnyArray]) -> None:
        if len(self._experts) > 1 and "distinct" not in state:
            raise InvalidInput(
                "an older version of daband wrote the file: it averaged a network and one linear part, where several "
                "experts have shares by their predictions now; train the policy anew"
            )
        if not below("piecewise.", state):  # or an older version wrote the file: what it had goes on
            self._experts = _without_pieces(self._experts)
            self._shares = ExpertShares([expert.prior for expert in self._experts])
        self._head.restore(below("head.", state))
        self._learner.restore(below("learner.", state))
        self._experts = (replace(self._experts[0], features=self._learner.acting_copy()), *self._experts[1:])
        for expert in self._experts[1:]:
            assert isinstance(expert.features, ContextFeatures)
            expert.features.restore(below(f"{expert.name}.transform.", state))
            expert.head.restore(below(f"{expert.name}.head.", state))
        if len(self._experts) > 1:
            self._shares.restore(below("shares.", state))
            self._distinct.restore(state["distinct"])
        self._buffers.restore(below("replay.", state))
        self._rate = float(state["rate"][0])
        self._steps = int(state["steps"][0]) if "steps" in state else self.recipe.learning.steps
        if "learner.gate.sums" not in state:  # an older version wrote the file
            self._learner.skill_gate.restore({"rate": state["rate"]})
        self._prior, self._offset = state.get("prior"), state.get("offset")
        self._pseudo = (
            PseudoLabelRegression(state["pseudo"], float(state["pseudo_share"][0])) if "pseudo" in state else None
        )
        self._publish()
        self._refitted_at = int(state["refitted_at"][0])


@policies.register("daband")
class DABand(NeuralLinUCB):
    """Learns where rewards are seen, acts where they are not.

    Show it the target with ``observe_target`` and call ``adapt`` now and then (``daband.train`` does both). Its
    arguments are those of ``NeuralLinUCB``; a recipe's name means all of its terms.

    >>> policy = daband.DABand(context_shape=(8,), n_arms=3, recipe="small", seed=0)
    >>> policy.observe_target([[0.5] * 8] * 64)
    >>> skipped = policy.update([[1.0] * 8] * 64, [0] * 64, [1.0] * 64)
    >>> measured = policy.adapt(steps=2)
    >>> policy.deploy("target")
    >>> policy.select([[0.5] * 8]).arm.shape
    (1,)
    """

    source_terms_only = False


def _without_pieces(experts: tuple[Expert, ...]) -> tuple[Expert, ...]:
    """The experts without that on pieces of numbers, whose share the ridge regression on numbers has."""
    prior = sum(expert.prior for expert in experts if expert.name in ("ridge", "piecewise"))
    others = (expert for expert in experts if expert.name != "piecewise")
    return tuple(replace(expert, prior=prior) if expert.name == "ridge" else expert for expert in others)


def can_stack(members: Sequence[Policy]) -> bool:
    """Whether ``adapt_stacked`` can take the steps of these policies: neural ones of one shape and recipe.

    Seeds may differ, and the values of weights as long as the same terms are there. No policy may be there twice.
    """
    learners = [policy.learner for policy in members if isinstance(policy, NeuralLinUCB)]
    if not learners or len({id(learner) for learner in learners}) < len(members):
        return False
    return learners[0].stackable and len({learner.shape_key for learner in learners}) == 1


def adapt_stacked(members: Sequence[Policy]) -> list[dict[str, float] | Exception]:
    """What ``adapt`` does, for several policies that ``can_stack``.

    On a GPU five of them took about half the time that they take one after the other. Where one of them fails, its
    place has the exception, and the others are as they would be without it.
    """
    with ExitStack() as held:
        for policy in sorted(members, key=id):  # in one order, whoever else stacks them
            held.enter_context(policy._locks.write)
        return _adapt_locked(members)


def _adapt_locked(members: Sequence[Policy]) -> list[dict[str, float] | Exception]:
    results: dict[int, dict[str, float] | Exception] = {index: {} for index in range(len(members))}
    ready: dict[tuple[int, object], list[tuple[int, NeuralLinUCB]]] = {}
    for index, policy in enumerate(members):
        assert isinstance(policy, NeuralLinUCB)
        # One that has seen the target, or has rewards of it, takes other steps than one that has not.
        steps, kinds = policy.before_steps(None), tuple(buffer.kind for buffer in policy.buffers.parts().values())
        if steps:
            ready.setdefault((steps, kinds), []).append((index, policy))
    for (steps, _), some in ready.items():
        every_measured, hand_over = _take_steps([policy for _, policy in some], steps)
        started: dict[int, StartedRefit] = {}
        for index, policy in some:  # a GPU sums for one policy while the host solves for another
            try:
                started[index] = policy.start_refit()
            except Exception as error:
                results[index] = error
        for (index, policy), measured in zip(some, every_measured, strict=True):
            try:
                results[index] = policy.after_steps(measured, started[index]) if index in started else results[index]
            except Exception as error:
                results[index] = error
        hand_over()
    return [results[index] for index in range(len(members))]


def sums_on_device(
    n_heads: int, latents: torch.Tensor, arms: torch.Tensor, rewards: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``RidgeSums.add`` sums over float64 rounds (n, d), on their device, in products for all heads at once.

    Returns Z'Z with Z'r and Z'1 as its last columns, (heads, d, d + 2), and counts (heads,).
    """
    dim, heads = latents.shape[1], torch.arange(n_heads, device=latents.device)
    total = torch.zeros(n_heads, dim, dim + 2, dtype=torch.float64, device=latents.device)
    counted = torch.cat([latents, rewards[:, None], torch.ones_like(rewards[:, None])], dim=1) * weights[:, None]
    at_once = max(1, _NUMBERS_AT_ONCE // (n_heads * dim))
    for some in torch.split(torch.arange(len(latents), device=latents.device), at_once):
        of_head = (arms[some] == heads[:, None]).double()
        total.baddbmm_((of_head[:, :, None] * latents[some]).transpose(1, 2), counted[some].expand(n_heads, -1, -1))
    return total, (arms == heads[:, None]).sum(dim=1)


def _take_steps(members: Sequence[NeuralLinUCB], steps: int) -> tuple[list[dict[str, float]], Callable[[], None]]:
    """What the policies' steps measured, and what ``encode_expected`` returns: a GPU has begun with it by then."""
    finish = start_steps([policy.learner for policy in members], steps, [policy.buffers for policy in members])
    hand_over = encode_expected(members)
    return finish(), hand_over


def encode_expected(members: Sequence[Policy]) -> Callable[[], None]:
    """Start to encode what these policies, whose steps were stacked, expect; the returned call gives them the latents.

    The contexts of a domain are encoded for all policies at once. Where the policies expect different numbers of them,
    they are encoded when somebody asks.
    """
    neural = [policy for policy in members if isinstance(policy, NeuralLinUCB)]
    expected = [policy._read_expected() for policy in neural]
    learners = [policy.learner for policy in neural]
    encoded = {
        domain: encode_ahead(learners, [parts[domain] for parts in expected], domain)
        for domain in (expected[0] if expected else ())
        if len({(len(parts[domain]), parts[domain].dtype) for parts in expected if domain in parts}) == 1
        and all(domain in parts for parts in expected)
    }

    def hand_over() -> None:
        latents = {domain: latents_of_head(rows) for domain, rows in encoded.items()}
        for run, (policy, parts) in enumerate(zip(neural, expected, strict=True)):
            encoder = policy._experts[0].features
            assert isinstance(encoder, InferenceEncoder)
            encoder.ahead = {domain: (parts[domain], latents[domain][run]) for domain in latents}

    return hand_over
