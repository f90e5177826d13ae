"""Define the settings of a neural policy as frozen dataclasses that JSON and TOML can represent.

A ``Recipe`` has all settings, in groups: the ``Weight`` of each term, ``EncoderSettings``,
``LearningSettings`` and ``ReplaySettings``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from daband.base._arguments import check_one_of
from daband.errors import InvalidInput, did_you_mean
from daband.linear._exploration import Exploration
from daband.neural.encoders._augmentation import Augmentation
from daband.neural.encoders._encoder import DenseSettings

#: The value of ``EncoderSettings.name`` for a custom module.
CUSTOM = "custom"
#: The terms that learn source rewards. Neural-LinUCB has only these.
SOURCE_REGRET_TERMS = ("source_regret", "source_cross_entropy")


@dataclass(frozen=True)
class Weight:
    """The weight of a term, with its schedule over the gradient steps of a run.

    Before ``start`` the weight is 0. Then it grows over ``ramp`` steps to ``value`` by the schedule
    of domain-adversarial training: at a fraction p of the ramp it is ``value * (2 / (1 + exp(-10
    p)) - 1)``. With a ``ramp`` of 0 it has its full value at once. A ``start`` or ``ramp`` below 1
    is a fraction of the run, so that a short run ends with the same weights as a long run; from 1
    on it is a number of steps.

    A ``value`` of 0 removes the term: it is not computed, and draws no random number.
    """

    #: The final weight.
    value: float = 0.0
    #: The step or the fraction of the run at which the weight starts to grow.
    start: float = 0
    #: The number of steps or the fraction of the run over which the weight grows.
    ramp: float = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise InvalidInput(f"value of a weight must be a finite number >= 0, got {self.value}")
        if self.start < 0 or self.ramp < 0:
            raise InvalidInput(
                f"start and ramp of a weight must be >= 0, got {self.start} and {self.ramp}"
            )

    def __bool__(self) -> bool:
        return self.value > 0


@dataclass(frozen=True)
class EncoderSettings:
    """The settings of an encoder: the network, its options, and the dense layers after it."""

    #: The registered name of the network; "auto" is "conv" for images and "mlp" for other contexts.
    name: str = "auto"
    #: The keyword arguments of the network.
    options: dict[str, Any] = field(default_factory=dict)
    #: The dense layers after the network.
    dense: DenseSettings = field(default_factory=DenseSettings)
    #: "framework" initialises weights as PyTorch does. "gaussian" draws them from a normal
    #: distribution with variance 2 / inputs and sets biases to 0, as in the Neural-LinUCB paper.
    initialisation: str = "framework"

    def __post_init__(self) -> None:
        check_one_of("initialisation", self.initialisation, ("framework", "gaussian"))


@dataclass(frozen=True)
class LearningSettings:
    """The settings of the gradient steps."""

    #: The learning rate of Adam.
    learning_rate: float = 1e-3
    #: The default number of gradient steps of ``adapt``.
    steps: int = 64
    #: The minimum number of steps of a run. If ``steps`` per episode give fewer, each episode takes
    #: more, at most 32.
    min_run_steps: int = 0
    #: The number of source rounds per step, and of target contexts per step. With several domains,
    #: it is the number of each domain.
    batch: int = 64
    #: The decay of the exponential moving average (EMA) of the encoder. This average, the EMA
    #: encoder, decides and gives pseudo-labels. With 0 there is no average, and the encoder itself
    #: does both.
    ema_decay: float = 0.99
    #: The augmentation of images.
    augmentation: Augmentation = field(default_factory=Augmentation)
    #: Logits are predicted rewards times ``scale``.
    scale: float = 10.0
    #: The weights of target terms and of "regression_error" are multiplied by ``skill **
    #: gate_exponent`` (``_skill_gate.py``). At full weight from the start, these terms would
    #: prevent the learning that they depend on.
    gate_exponent: float = 0.0
    #: Pseudo-labels are corrected if the predicted frequency of an arm in the target is more than
    #: this factor above or below that in the source, and "target_diversity" is positive if it is
    #: that far from ``1 / n_arms``. With 1 any difference counts. With 0 pseudo-labels are not
    #: corrected, and for "target_diversity" any difference counts. The same holds before the first
    #: step with pseudo-labels.
    max_frequency_ratio: float = 0.0
    #: The number of gradient steps of a run, of which the schedules of weights are fractions.
    #: ``plan`` replaces it.
    run_steps: int = 19_200

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InvalidInput(f"learning_rate must be positive, got {self.learning_rate}")
        if min(self.steps, self.min_run_steps) < 0 or self.batch < 1 or self.run_steps < 1:
            raise InvalidInput(
                f"steps and min_run_steps must be >= 0, batch and run_steps >= 1, got {self.steps},"
                f" {self.min_run_steps}, {self.batch} and {self.run_steps}"
            )
        if not 0 <= self.ema_decay < 1:
            raise InvalidInput(f"ema_decay must be in [0, 1), got {self.ema_decay}")
        if self.max_frequency_ratio and not self.max_frequency_ratio >= 1:
            raise InvalidInput(
                f"max_frequency_ratio must be 0 or at least 1, got {self.max_frequency_ratio}"
            )
        if not (self.scale > 0 and self.gate_exponent >= 0):
            raise InvalidInput(
                f"scale must be positive and gate_exponent >= 0, got {self.scale} and"
                f" {self.gate_exponent}"
            )


@dataclass(frozen=True)
class ReplaySettings:
    """The settings of the replay buffers from which steps draw their batches."""

    #: "all": every step draws from all stored rounds. "last": it uses the latest ``batch`` rounds,
    #: as in Algorithm 1.
    sampling: str = "all"
    #: The maximum number of stored rounds of a domain, and of stored contexts of a target. If there
    #: are more, a uniform sample is stored, or the latest ones if ``sampling`` is "last".
    capacity: int = 200_000
    #: True if losses use the head's coefficients for each arm scaled to unit norm, as in the paper.
    unit_theta: bool = False

    def __post_init__(self) -> None:
        check_one_of("sampling", self.sampling, ("all", "last"))
        if self.capacity < 1:
            raise InvalidInput(f"capacity must be >= 1, got {self.capacity}")


@dataclass(frozen=True)
class Recipe:
    """All settings of a neural policy except its sizes and its seed.

    >>> recipe = daband.recipe_for("small", context_shape=(8,))
    >>> recipe.changed({"weights": {"data_divergence": 0.5}}).weights["data_divergence"].value
    0.5
    """

    #: The weight of each term of the objective, by name.
    weights: dict[str, Weight]
    #: The settings of the encoder.
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    #: The settings of the gradient steps.
    learning: LearningSettings = field(default_factory=LearningSettings)
    #: The settings of the replay buffers.
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    #: The default factor of the confidence bonus.
    alpha: float = 1.0
    #: The default rule of exploration.
    explore: str = Exploration.rule

    def settings(self) -> dict[str, Any]:
        """Return the recipe as a mapping of JSON types, from which ``parse_recipe`` builds it
        again.
        """
        return asdict(self)

    def with_weights(self, **weights: Weight | float) -> Recipe:
        """Return a copy with other weights of the named terms; a weight of 0 removes a term."""
        new_weights = {
            name: weight if isinstance(weight, Weight) else Weight(float(weight))
            for name, weight in weights.items()
        }
        return replace(self, weights={**self.weights, **new_weights})

    def source_only(self) -> Recipe:
        """Return a copy with the terms ``SOURCE_REGRET_TERMS`` only: the recipe of Neural-LinUCB."""
        return replace(
            self,
            weights={
                name: self.weights[name] for name in SOURCE_REGRET_TERMS if name in self.weights
            },
        )

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """Return a copy with changed settings.

        Args:
            changes: new values, with the names and groups of ``settings()``. A weight may be a
                number, which keeps the term's schedule, or a mapping with some fields of
                ``Weight``. A weight of 0 removes the term. Another ``encoder.name`` starts without
                the options of the previous network.

        An unknown name raises an error that suggests the nearest name.
        """
        settings = self.settings()
        changes = dict(changes)
        network_name = (
            changes["encoder"].get("name") if isinstance(changes.get("encoder"), Mapping) else None
        )
        if network_name not in (None, settings["encoder"]["name"]):
            settings["encoder"]["options"] = {}
        new_weights = changes.pop("weights", {})
        if not isinstance(new_weights, Mapping):
            raise InvalidInput(
                f"weights of a recipe must be a mapping from terms to weights, got {new_weights!r}"
            )
        for name, new_weight in new_weights.items():
            old_fields = settings["weights"].get(name, asdict(Weight()))
            new_fields = new_weight if isinstance(new_weight, Mapping) else {"value": new_weight}
            settings["weights"][name] = _merge_changes(old_fields, new_fields, f"weights.{name}")
        return parse_recipe(_merge_changes(settings, changes, ""))


def _merge_changes(
    settings: Mapping[str, Any], changes: Mapping[str, Any], group: str
) -> dict[str, Any]:
    """Return a copy of ``settings`` with ``changes``.

    ``group`` is the dotted name of these settings, for errors.

    Only the group "encoder.options" may get new names.
    """
    merged_settings = dict(settings)
    for name, value in changes.items():
        full_name = f"{group}.{name}" if group else name
        if name not in settings and group != "encoder.options":
            hint = did_you_mean(name, settings)
            if group == "encoder" and not hint:
                hint = (
                    f"; a network's own settings go into encoder.options ('encoder.options.{name}')"
                )
            raise InvalidInput(
                f"a recipe has no setting {full_name!r}{hint} (known here: {', '.join(settings)})"
            )
        if isinstance(settings.get(name), Mapping):
            if not isinstance(value, Mapping):
                raise InvalidInput(
                    f"{full_name!r} of a recipe must be a mapping of settings, got {value!r}"
                )
            merged_settings[name] = _merge_changes(settings[name], value, full_name)
            continue
        if isinstance(settings.get(name), int | float) and not isinstance(value, int | float):
            raise InvalidInput(f"{full_name!r} of a recipe must be a number, got {value!r}")
        merged_settings[name] = value
    return merged_settings


def parse_recipe(settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe with these settings, the result of ``Recipe.settings``.

    An unknown name raises an error.
    """
    for name in settings:
        if name not in {recipe_field.name for recipe_field in fields(Recipe)}:
            raise InvalidInput(f"a recipe has no setting {name!r}")
    if "weights" not in settings:
        raise InvalidInput("weights must be given in a recipe, one mapping per term")
    try:
        encoder_fields = dict(settings.get("encoder", {}))
        learning_fields = dict(settings.get("learning", {}))
        if "dense" in encoder_fields:
            encoder_fields["dense"] = DenseSettings(**encoder_fields["dense"])
        options = encoder_fields.get("options", {})  # JSON has only lists, but networks take tuples
        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in options.items()
        }
        encoder_fields["options"] = options
        if "augmentation" in learning_fields:
            learning_fields["augmentation"] = Augmentation(**learning_fields["augmentation"])
        return Recipe(
            weights={name: Weight(**weight) for name, weight in settings["weights"].items()},
            encoder=EncoderSettings(**encoder_fields),
            learning=LearningSettings(**learning_fields),
            replay=ReplaySettings(**settings.get("replay", {})),
            alpha=settings.get("alpha", Recipe.alpha),
            explore=settings.get("explore", Recipe.explore),
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"recipe is not valid: {error}") from None
