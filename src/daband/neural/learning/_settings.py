"""The settings of a policy that learns by gradients, in frozen groups that JSON and TOML can hold."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from daband._arguments import one_of
from daband.errors import InvalidInput
from daband.neural.encoders._augmentation import Augmentation
from daband.neural.encoders._encoder import LatentSettings
from daband.neural.objectives._objective import Weight

#: The name of a custom module as the network.
CUSTOM = "custom"


@dataclass(frozen=True)
class EncoderSettings:
    """The network, its options, and the dense layers after it."""

    name: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    latent: LatentSettings = field(default_factory=LatentSettings)
    #: "framework": as PyTorch does; "gaussian": normal weights of variance 2 / inputs, and no bias (Neural-LinUCB).
    initialisation: str = "framework"

    def __post_init__(self) -> None:
        one_of("initialisation", self.initialisation, ("framework", "gaussian"))


@dataclass(frozen=True)
class LearningSettings:
    """The gradient steps of an episode."""

    learning_rate: float = 1e-3
    #: The number of steps of ``adapt()``, unless it is given.
    steps: int = 64
    #: The minimum number of steps of a planned run: short runs take more steps per episode, at most 32.
    min_run_steps: int = 0
    #: Source rounds of a step, and the same number of target contexts.
    batch: int = 64
    #: The decay of the EMA encoder, which acts and teaches. With 0 there is none, and the encoder itself acts.
    ema_decay: float = 0.99
    augmentation: Augmentation = field(default_factory=Augmentation)
    #: The factor between predicted rewards and logits.
    scale: float = 10.0
    #: Weights of the target terms and of R are multiplied with ``skill ** gate_exponent`` (``_skill_gate.py``). At full
    #: weight from the start these terms prevent the learning that they depend on.
    gate_exponent: float = 0.0
    #: The gradient steps of a run, unless ``plan`` announces them; schedules are fractions of it.
    run_steps: int = 19_200

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InvalidInput(f"learning_rate must be positive, got {self.learning_rate}")
        if min(self.steps, self.min_run_steps) < 0 or self.batch < 1 or self.run_steps < 1:
            raise InvalidInput(
                f"steps and min_run_steps must be >= 0, batch and run_steps >= 1, got {self.steps}, "
                f"{self.min_run_steps}, {self.batch} and {self.run_steps}"
            )
        if not 0 <= self.ema_decay < 1:
            raise InvalidInput(f"ema_decay must lie in [0, 1), got {self.ema_decay}")
        if not (self.scale > 0 and self.gate_exponent >= 0):
            raise InvalidInput(
                f"scale must be positive and gate_exponent >= 0, got {self.scale} and {self.gate_exponent}"
            )


@dataclass(frozen=True)
class ReplaySettings:
    """The replay buffers that steps draw from."""

    #: "all": steps draw from every stored round; "last": from the latest ``batch`` rounds, as in Algorithm 1.
    sampling: str = "all"
    #: The maximum number of stored rounds, and of stored target contexts. Above it a uniform sample is kept, or with
    #: ``sampling`` "last" the latest.
    capacity: int = 200_000
    #: True if losses use the coefficients of each head scaled to unit norm.
    unit_theta: bool = False

    def __post_init__(self) -> None:
        one_of("sampling", self.sampling, ("all", "last"))
        if self.capacity < 1:
            raise InvalidInput(f"capacity must be >= 1, got {self.capacity}")


@dataclass(frozen=True)
class Recipe:
    """All settings of a neural policy except its sizes, its seed and its exploration.

    >>> recipe = daband.recipe_for("small", context_shape=(8,))
    >>> recipe.changed({"weights": {"adversarial": 0.5}}).weights["adversarial"].value
    0.5
    """

    weights: dict[str, Weight]
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    #: The factor of the confidence bonus, unless the policy is given one.
    alpha: float = 1.0

    def settings(self) -> dict[str, Any]:
        """Return the recipe as JSON can hold it; ``recipe_from`` reads it."""
        return asdict(self)

    def fingerprint(self) -> str:
        """Return twelve hexadecimal digits of a hash of ``settings()``, which records of runs keep.

        A term of weight 0 counts as absent.
        """
        settings = self.settings()
        settings["weights"] = {name: weight for name, weight in settings["weights"].items() if weight["value"] != 0}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def with_weights(self, **weights: Weight | float) -> Recipe:
        """Return the recipe with other weights of some terms; 0 removes a term."""
        new = {
            name: weight if isinstance(weight, Weight) else Weight(float(weight)) for name, weight in weights.items()
        }
        return replace(self, weights={**self.weights, **new})

    def source_only(self) -> Recipe:
        """Return the recipe with the source terms only: Neural-LinUCB."""
        return replace(self, weights={name: w for name, w in self.weights.items() if name.startswith("source_")})

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """Return the recipe with some settings changed; they are named and grouped as in ``settings()``.

        A weight may be a number, which keeps the term's schedule, or a table with some of ``Weight``'s fields. A
        weight of 0 removes the term. A new network starts without the options of the previous one. An unknown name is
        an error that suggests the nearest name.
        """
        settings = self.settings()
        changes = dict(changes)
        network = changes["encoder"].get("name") if isinstance(changes.get("encoder"), Mapping) else None
        if network not in (None, settings["encoder"]["name"]):
            settings["encoder"]["options"] = {}
        weights = changes.pop("weights", {})
        if not isinstance(weights, Mapping):
            raise InvalidInput(f"a recipe's weights must be a table of terms, got {weights!r}")
        for name, change in weights.items():
            before = settings["weights"].get(name, asdict(Weight()))
            new = change if isinstance(change, Mapping) else {"value": change}
            settings["weights"][name] = _overlaid(before, new, f"weights.{name}")
        return recipe_from(_overlaid(settings, changes, ""))


def _overlaid(before: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return ``before`` with ``changes``, group by group; only options of a network may be new."""
    after = dict(before)
    for name, value in changes.items():
        path = f"{where}.{name}" if where else name
        if name not in before and where != "encoder.options":
            near = difflib.get_close_matches(name, before, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if where == "encoder" and not near:
                hint = f"; a network's own settings go into encoder.options ('encoder.options.{name}')"
            raise InvalidInput(f"a recipe has no setting {path!r}{hint} (known here: {', '.join(before)})")
        if isinstance(before.get(name), Mapping):
            if not isinstance(value, Mapping):
                raise InvalidInput(f"a recipe's {path!r} is a group of settings, got {value!r}")
            after[name] = _overlaid(before[name], value, path)
            continue
        if isinstance(before.get(name), int | float) and not isinstance(value, int | float):
            raise InvalidInput(f"a recipe's {path!r} is a number, got {value!r}")
        after[name] = value
    return after


def recipe_from(settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe of ``Recipe.settings``; an unknown name is an error."""
    for name in settings:
        if name not in {known.name for known in fields(Recipe)}:
            raise InvalidInput(f"a recipe has no setting {name!r}")
    if "weights" not in settings:
        raise InvalidInput("a recipe needs weights, one table per term")
    try:
        encoder, learning = dict(settings.get("encoder", {})), dict(settings.get("learning", {}))
        if "latent" in encoder:
            encoder["latent"] = LatentSettings(**encoder["latent"])
        if "options" in encoder:  # JSON has only lists, networks take tuples
            options = encoder["options"].items()
            encoder["options"] = {k: tuple(v) if isinstance(v, list) else v for k, v in options}
        if "augmentation" in learning:
            learning["augmentation"] = Augmentation(**learning["augmentation"])
        return Recipe(
            weights={name: Weight(**weight) for name, weight in settings["weights"].items()},
            encoder=EncoderSettings(**encoder),
            learning=LearningSettings(**learning),
            replay=ReplaySettings(**settings.get("replay", {})),
            alpha=settings.get("alpha", Recipe.alpha),
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"not a recipe: {error}") from None
