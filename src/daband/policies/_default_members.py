"""Choose the default policies for a pair of domains.

``build_mixture_settings`` returns the members of ``Mixture.for_pair``. ``default_candidates`` returns
the policies that ``daband.choose`` trains and compares. Both were selected on the development half
of the data sets (benchmarks/records/split.json).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daband.features._piecewise import Piecewise
from daband.features._shift import as_shift
from daband.features._standardise import Standardise
from daband.features._table_transform import CategoricalColumn
from daband.policies._log_policy import MAX_DIMENSIONS
from daband.policies._pair_defaults import (
    DEFAULT_JOINT_ALPHA,
    choose_transform,
    compute_default_alpha,
    compute_default_ridge,
    count_joint_components,
)
from daband.policies._policy import Policy
from daband.policies._registered import policies
from daband.policies._ridge import Constant, LinUCB
from daband.policies._self_training import SelfTraining

#: Maximum dimension of a small context. For small contexts, a mixture has piecewise features, and a
#: one-hot reward of 1 counts for every arm in the members' errors.
MAX_SMALL_DIM = 64
#: Maximum number of principal components of the regression on principal components.
_MAX_COMPONENTS = 64
#: Maximum dimension of contexts for which a mixture has linear members next to the network. For
#: larger contexts the only member is the network or, without torch, a regression on principal
#: components.
_MAX_LINEAR_DIM = 4096
#: The suffix of methods that are fitted on principal components.
PCA_SUFFIX = "-p"
#: Default number of principal components.
_N_COMPONENTS = 64
#: Vectors of at least this many numbers are wide. Trees are then not candidates.
_MIN_WIDE_DIMENSIONS = 512
#: Number of principal components for wide vectors.
_N_WIDE_COMPONENTS = 512
#: Maximum number of arms times squared dimensions, which is the number of values that a regression
#: stores twice. They take 0.5 GB. Above it, policies are fitted on principal components.
_MAX_REGRESSION_VALUES = 1 << 25
#: Maximum number of arms that are each a candidate: 50 rewards, the fewest that ``choose`` asks for,
#: are then ten for each of them.
_MAX_SINGLE_ARMS = 5
#: Gradient steps per episode on wide vectors.
_WIDE_STEPS = 8
#: Name of the candidate for images that estimates the frequencies of arms in the target.
UNEQUAL_FREQUENCIES_NAME = "daband, other frequencies"
#: Number of dimensions of an image: channels, height and width.
_N_IMAGE_DIMENSIONS = 3


def build_mixture_settings(pair: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a mixture for a pair: ``settings``, and the members with their
    weights.

    For vectors the members are a ridge regression on standardised numbers, the mean reward of every
    arm, and ``DABand`` if torch is installed. With at most 64 numbers there is also a regression on
    piecewise features. With more numbers there are also a regression on principal components, and a
    regression with a large penalty. A small penalty explores well, because the bonus of a context
    falls quickly once that context has been seen. A large penalty predicts better in another
    domain. If the source has labels, the latter regression also learns pseudo-labels of target
    contexts (``SelfTraining``). Tables with categorical columns have no such self-training: on 14
    of these tables it changed the accuracy by -0.065 to 0.050, and by -0.002 on average. With a
    catalogue there is also "joint", a regression on products of context and arm features. With
    shared arms there are no mean rewards and no regression on piecewise features. For images and
    more than 4,096 numbers the only member is ``DABand``, or without torch a regression on 64
    principal components; both use a catalogue.
    """
    settings = dict(settings)
    has_network = settings.pop("network", True)
    network_settings: dict[str, Any] = {
        name: settings.pop(name) for name in ("recipe", "encoder", "device") if name in settings
    }
    shift = as_shift(settings.get("shift", pair.shift), context_shape=pair.context_shape)
    are_vectors = len(pair.context_shape) == 1
    if "transform" not in settings:
        # needs raw contexts
        has_custom_encoder = callable(getattr(network_settings.get("encoder"), "forward", None))
        must_standardise = are_vectors and not shift.aligns_features and not has_custom_encoder
        settings["transform"] = (
            choose_transform(LinUCB, pair, shift=shift) if must_standardise else None
        )
    transform = settings["transform"]
    feature_shape = (
        pair.context_shape if transform is None else (transform.n_features(pair.context_shape),)
    )
    if transform is not None:  # the given transform handles units
        shift = shift.without_units()
    common_settings: dict[str, Any] = {
        "context_shape": feature_shape,
        "n_arms": pair.n_arms,
        "arms": pair.arms,
        "shift": shift,
        "standardise_rewards": settings.get("standardise_rewards", pair.feedback != "one_hot"),
        "seed": settings.get("seed", 0),
        "domains": pair.domains,
    }
    catalogue = pair.catalogue if pair.arms == "disjoint" else None
    joint_settings: dict[str, Any] = (
        {} if catalogue is None else {"alpha": DEFAULT_JOINT_ALPHA, "catalogue": catalogue}
    )
    has_linear_members = are_vectors and math.prod(feature_shape) <= _MAX_LINEAR_DIM
    #: Members by name, each with its prior weight and its bonus weight.
    members: dict[str, tuple[Policy, float, float]] = {}
    network_class = _find_network_class() if has_network else None
    if network_class is not None:
        if isinstance(transform, Standardise) and "encoder" not in network_settings:
            network_settings["recipe"] = _disable_input_norm(network_settings.get("recipe"))
        network_settings |= {
            "feedback": pair.feedback,
            **({} if has_linear_members else joint_settings),
        }
        members["network"] = network_class(**common_settings, **network_settings), 1.0, 1.0
    if has_linear_members:
        n_contexts = len(pair.source) + len(pair.target)
        columns = () if pair.table is None else pair.table.columns
        has_categories = any(isinstance(column, CategoricalColumn) for column in columns)
        self_trains = pair.feedback == "one_hot" and not has_categories
        members |= _build_linear_members(
            common_settings, transform, n_contexts=n_contexts, self_trains=self_trains
        )
        if catalogue is not None:
            n_components = count_joint_components(feature_shape, catalogue)
            joint_transform = None if n_components is None else Standardise(components=n_components)
            members["joint"] = (
                LinUCB(**common_settings, transform=joint_transform, **joint_settings),
                3.0,
                2.0,
            )
    elif not members:
        reduction = Standardise(
            components=min(_MAX_COMPONENTS, len(pair.source) + len(pair.target))
        )
        members["components"] = (
            LinUCB(**common_settings, transform=reduction, **joint_settings),
            1.0,
            1.0,
        )
    return {
        **settings,
        "members": {name: member for name, (member, _, _) in members.items()},
        "prior": {name: weight for name, (_, weight, _) in members.items()},
        "bonus_weights": {name: weight for name, (_, _, weight) in members.items()},
    }


def _find_network_class() -> type[Policy] | None:
    """Return the class of the network in default mixtures, or None without torch."""
    classes = map(policies.get, policies.names())
    return next((cls for cls in classes if getattr(cls, "is_default_network", False)), None)


def _build_linear_members(
    common_settings: dict[str, Any], transform: Any, *, n_contexts: int, self_trains: bool
) -> dict[str, tuple[Policy, float, float]]:
    """Return the members other than the network for vectors, each with its prior weight and its
    bonus weight.

    Args:
        common_settings: the settings that all members share.
        transform: the mixture's transform, or None.
        n_contexts: the number of contexts of both domains, which limits the number of principal
            components.
        self_trains: True if one member learns pseudo-labels of the target.
    """
    feature_shape = common_settings["context_shape"]
    is_disjoint = common_settings["arms"] == "disjoint"
    standardise = None if isinstance(transform, Standardise) else Standardise()
    dim = feature_shape[0] if standardise is None else standardise.n_features(feature_shape)
    alpha = compute_default_alpha(dim)
    ridge = compute_default_ridge(dim)

    def build_ridge(member_transform: Any, penalty: float) -> LinUCB:
        return LinUCB(
            **common_settings,
            transform=member_transform,
            ridge=penalty,
            intercept=False,  # the mixture's transform appends a constant
            alpha=alpha,
        )

    members: dict[str, tuple[Policy, float, float]] = {
        "ridge": (build_ridge(standardise, ridge), 3.0, 2.0)
    }
    # Principal components get no piecewise features: on DIGIT these took time and did not change
    # the result.
    keeps_columns = transform is None or (
        isinstance(transform, Standardise) and transform.components is None
    )
    if feature_shape[0] <= MAX_SMALL_DIM and is_disjoint and keeps_columns:
        piecewise_ridge = build_ridge(Piecewise(), 4.0 * ridge)
        members = {
            "ridge": (build_ridge(standardise, ridge), 2.0, 2.0),
            "piecewise": (piecewise_ridge, 1.0, 0.0),
        }
    if feature_shape[0] > MAX_SMALL_DIM:
        reduction = Standardise(components=min(_MAX_COMPONENTS, n_contexts))
        large_penalty_member = build_ridge(standardise, ridge * dim / 16)
        # equal in the source, but also learns pseudo-labels of the target
        if self_trains and is_disjoint:
            large_penalty_member = SelfTraining(
                **common_settings,
                feedback="one_hot",
                transform=standardise,
                ridge=ridge * dim / 16,
                alpha=alpha,
            )
        members = {
            "ridge": (build_ridge(standardise, ridge), 0.0, 1.0),
            "components": (build_ridge(reduction, ridge), 2.0 / 3.0, 1.0),
            "shrunk": (large_penalty_member, 5.0, 0.0),
        }
    if is_disjoint:
        members["constant"] = Constant(**common_settings), 0.0, 0.0
    return members


def _disable_input_norm(recipe: Any) -> Any:
    """Return a recipe whose network does not normalise its input, because contexts are already
    standardised.

    A complete recipe is returned unchanged.
    """
    if recipe is not None and not isinstance(recipe, str | Mapping):
        return recipe
    changes: dict[str, Any] = (
        dict(recipe) if isinstance(recipe, Mapping) else {"base": recipe or "default"}
    )
    if {"weights", "encoder", "learning", "replay"} <= set(changes):
        return recipe
    encoder = dict(changes.get("encoder", {}))
    if encoder.get("name", "mlp") == "mlp":
        changes["encoder"] = {
            **encoder,
            "options": {"normalise_input": False, **encoder.get("options", {})},
        }
    return changes


@dataclass(frozen=True)
class Candidate:
    """A method with its settings, to be trained and compared with others."""

    #: Name in tables.
    name: str
    #: Name of the method, as on the command line.
    method: str
    #: Keyword arguments of the policy.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Number of principal components if the name of the method ends in "-p".
    components: int = _N_COMPONENTS
    #: True if this candidate is chosen when there are no target rewards.
    preferred: bool = False

    def __post_init__(self) -> None:
        policies.get(self.method.removesuffix(PCA_SUFFIX))  # a misspelt name is an error at once

    def build(self, pair: Any, *, seed: int, device: str = "auto") -> Policy:
        """Return the untrained policy for a pair."""
        policy_class = policies.get(self.method.removesuffix(PCA_SUFFIX))
        settings: dict[str, Any] = {"device": device, **self.settings}
        if self.method.endswith(PCA_SUFFIX):
            settings["transform"] = choose_transform(
                policy_class, pair, max_components=self.components, shift=self.settings.get("shift")
            )
        return policy_class.for_pair(pair, seed=seed, **settings)

    @property
    def uses_contexts(self) -> bool:
        """True if choices may depend on contexts."""
        return self.method not in ("constant", "random") and bool(
            self.settings.get("by_context", True)
        )


def default_candidates(
    pair: Any, *, recipe: str = "default", quick: bool = False
) -> Sequence[Candidate]:
    """Return the default candidates, the simplest first.

    They differ in their method and in the shift that they assume.

    - Vectors with full feedback (labels, or the rewards of all arms): a constant arm, LinUCB and
      ``Supervised`` under the pair's ``shift``. If the user did not state the shift, there is also
      ``Supervised`` with each domain's own statistics. Only target rewards can show which
      assumption holds. With rewards of at most five arms, each other arm is a candidate too: one arm
      is often best for nearly all contexts, and another one in the target.
    - Vectors with bandit feedback, or a stated shift of style: a constant arm, LinUCB,
      gradient-boosted trees and a mixture. If the user did not state the shift, there are also
      LinUCB and the mixture with each domain's own statistics, and DABand with alignment.
    - Vectors of 512 numbers or more: a constant arm, LinUCB and a mixture with fewer gradient
      steps. If the source has labels and the shift may be one of style, as for features of a
      pretrained network, self-training on 512 principal components replaces the mixture; it takes
      seconds. If the user did not state the shift, there is then also "linucb, common statistics",
      a LinUCB with common statistics of both domains. The mixture is also fitted on 512
      components if regressions on all numbers would be too large, for example 1,280 numbers with 21
      arms. LinUCB and ``Supervised`` are then, too, and LinUCB always for bandit feedback.
    - Images: a constant arm, LinUCB on principal components, Neural-LinUCB and DABand, on a GPU
      with five members. If the source has labels and the user did not state the shift, DABand
      with estimated frequencies of arms replaces Neural-LinUCB.
    - A catalogue of arms: a constant arm, LinUCB and a mixture, which use the arms' features.
    - A log of vectors: its best arm, and ``LogPolicy``, which chooses by context if this gains
      significantly in the log. It is fitted on 64 principal components of more than 1,024 numbers.
      With a catalogue, there are also LinUCB and the mixture. ``choose`` prefers the mixture to
      ``LogPolicy`` if some target arms have no reward in the log, and choosing by arm features
      gains significantly in the log with a fifth of the arms left out. If no target arm has a
      reward in the log, the gain need not be significant. A log of images has the candidates of
      images.

    With ``quick``, only a constant arm, a linear method and the default are returned, with the
    recipe "small".
    """
    if quick:
        all_candidates = default_candidates(pair, recipe="small")
        default = next(candidate for candidate in all_candidates if candidate.preferred)
        others = [candidate for candidate in all_candidates if candidate is not default]
        return [*others[:2], default]
    is_image = len(pair.context_shape) == _N_IMAGE_DIMENSIONS
    is_logged = hasattr(pair.source, "read_log") and (pair.feedback, pair.arms) == (
        "bandit",
        "disjoint",
    )
    feature_candidates = [
        Candidate("linucb", "linucb"),
        Candidate("mixture", "mixture", {"recipe": recipe}, preferred=not is_logged),
    ]
    if is_logged and not is_image:
        method = "log" if math.prod(pair.context_shape) <= MAX_DIMENSIONS else f"log{PCA_SUFFIX}"
        log_candidates = [
            Candidate("best arm", method, {"by_context": False}),
            Candidate("log", method, preferred=True),
        ]
        return log_candidates if pair.catalogue is None else [*log_candidates, *feature_candidates]
    if pair.catalogue is not None and not is_image:
        return [Candidate("constant", "constant"), *feature_candidates]
    candidates = [Candidate("constant", "constant")]
    if is_image:
        network_settings = {"recipe": recipe, "members": "auto"}
        alternative = Candidate("nlinucb", "nlinucb", {"recipe": recipe})
        if not pair.shift.stated and (pair.feedback, pair.arms) == ("one_hot", "disjoint"):
            alternative = Candidate(
                UNEQUAL_FREQUENCIES_NAME, "daband", {**network_settings, "shift": "style,labels"}
            )
        default = Candidate("daband", "daband", network_settings, preferred=True)
        return [*candidates, Candidate("linucb-p", "linucb-p"), alternative, default]
    dimensions = math.prod(pair.context_shape)
    is_wide = dimensions >= _MIN_WIDE_DIMENSIONS
    is_regression_small = pair.n_arms * dimensions**2 < _MAX_REGRESSION_VALUES
    # one by one, rounds of bandit feedback would take long
    keeps_columns = not is_wide or (is_regression_small and pair.full_feedback)
    linear_method = "linucb" if keeps_columns else f"linucb{PCA_SUFFIX}"
    candidates.append(Candidate("linucb", linear_method, components=_N_WIDE_COMPONENTS))
    # categories of a table may be thousands of columns, and are not features of a network
    may_need_alignment = pair.shift.aligns_features and (pair.shift.stated or pair.table is None)
    if pair.full_feedback and pair.arms == "disjoint" and not may_need_alignment:
        settings: dict[str, Any] = {"shift": "covariate"} if pair.shift.aligns_features else {}
        method = "supervised" if is_regression_small else f"supervised{PCA_SUFFIX}"
        candidates.append(
            Candidate("supervised", method, settings, _N_WIDE_COMPONENTS, preferred=True)
        )
        if not pair.shift.stated:
            settings = {"shift": "units"}
            candidates.append(
                Candidate("supervised, other units", method, settings, _N_WIDE_COMPONENTS)
            )
        if pair.feedback != "one_hot" and pair.n_arms <= _MAX_SINGLE_ARMS:
            candidates += _list_other_arms(pair)
        return candidates
    if (
        is_wide
        and pair.shift.aligns_features
        and (pair.feedback, pair.arms) == ("one_hot", "disjoint")
    ):
        candidates.append(
            Candidate(
                "self-training", "self-training-p", components=_N_WIDE_COMPONENTS, preferred=True
            )
        )
        if not pair.shift.stated:
            candidates.append(
                Candidate(
                    "linucb, common statistics",
                    linear_method,
                    {"shift": "covariate"},
                    _N_WIDE_COMPONENTS,
                )
            )
        return candidates
    if is_wide:
        settings = {"recipe": {"base": recipe, "learning": {"steps": _WIDE_STEPS}}}
        method = "mixture" if is_regression_small else f"mixture{PCA_SUFFIX}"
        return [
            *candidates,
            Candidate("mixture", method, settings, _N_WIDE_COMPONENTS, preferred=True),
        ]
    candidates += [
        Candidate("trees", "trees"),
        Candidate("mixture", "mixture", {"recipe": recipe}, preferred=True),
    ]
    if not pair.shift.stated:
        candidates += [
            Candidate("linucb, other units", "linucb", {"shift": "units"}),
            Candidate("mixture, other units", "mixture", {"recipe": recipe, "shift": "units"}),
        ]
        if "daband" in policies.names():
            candidates.append(
                Candidate("daband, other style", "daband", {"recipe": recipe, "shift": "style"})
            )
    return candidates


def _list_other_arms(pair: Any) -> list[Candidate]:
    """Return a candidate for each arm except the one with the largest mean source reward."""
    rewards = pair.source.read_rounds(np.arange(len(pair.source))).rewards
    best_arm = int(rewards.mean(axis=0).argmax())
    return [
        Candidate(f"always {name}", "constant", {"arm": arm})
        for arm, name in enumerate(pair.class_names)
        if arm != best_arm
    ]
