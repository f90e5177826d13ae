"""Every setting of a policy that learns by gradients, in frozen groups that JSON and TOML can hold."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from daband._arguments import one_of
from daband._shift import Shift
from daband.errors import InvalidInput
from daband.neural.encoders._augmentation import Augmentation
from daband.neural.encoders._encoder import LatentSettings
from daband.neural.objectives._objective import Weight

CUSTOM = "custom"
"""The name of a network that is a module of the user's own."""


@dataclass(frozen=True)
class EncoderSettings:
    """Which network, its own options, and the dense layers behind it."""

    name: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    latent: LatentSettings = field(default_factory=LatentSettings)
    initialisation: str = "framework"
    """"framework": as PyTorch does; "gaussian": normal weights of variance 2 / inputs and no bias (Neural-LinUCB)."""

    def __post_init__(self) -> None:
        one_of("initialisation", self.initialisation, ("framework", "gaussian"))


@dataclass(frozen=True)
class LearningSettings:
    """The gradient steps of an episode."""

    learning_rate: float = 1e-3
    steps: int = 64
    """Steps that ``adapt()`` takes when it is not told how many."""
    batch: int = 64
    """Source rounds of a step, and as many target contexts."""
    ema_decay: float = 0.99
    """The decay of the EMA encoder, which acts and teaches; with 0 the encoder itself does."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    scale: float = 10.0
    """The factor between predicted rewards and logits."""
    gate_exponent: float = 0.0
    """The weights of the target's terms and of R are multiplied with a gate, ``skill ** gate_exponent``, where skill is
    how much of what can be gained over the best constant arm the policy gains (``_skill_gate.py``): at full weight
    from the start they prevent the learning they depend on."""
    run_steps: int = 19_200
    """The gradient steps of a run, of which schedules are shares, unless ``plan`` says how many there will be."""
    prior: str = "uniform"
    """How often arms are expected to be the best ones in the target, for the term ``target_diversity``: "uniform", or
    "estimated" from the policy's predictions there and the rewards in the source (label shift, by EM)."""
    linear_weight: float = 0.0
    """Above 0, ridge regressions and a constant predict beside the network; shares follow from how well each predicted
    rounds before they were learned (``linear/expert_shares.py``), whatever the number here. With 0 it acts alone."""
    target_statistics: bool = True
    """Whether batch norms learn the target's statistics also where no term of the objective needs target contexts, as
    in Neural-LinUCB; without it such a policy normalises the target by the source's."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InvalidInput(f"learning_rate must be positive, got {self.learning_rate}")
        if self.steps < 0 or self.batch < 1 or self.run_steps < 1:
            raise InvalidInput(
                f"steps must be >= 0, batch and run_steps >= 1, got {self.steps}, {self.batch} and {self.run_steps}"
            )
        if not 0 <= self.ema_decay < 1:
            raise InvalidInput(f"ema_decay must lie in [0, 1), got {self.ema_decay}")
        one_of("prior", self.prior, ("uniform", "estimated"))
        if not 0 <= self.linear_weight < 1:
            raise InvalidInput(f"linear_weight must lie in [0, 1), got {self.linear_weight}")
        if not (self.scale > 0 and self.gate_exponent >= 0):
            raise InvalidInput(
                f"scale must be positive and gate_exponent >= 0, got {self.scale} and {self.gate_exponent}"
            )


@dataclass(frozen=True)
class ReplaySettings:
    """The replay buffers, and when the head is refitted to them."""

    sampling: str = "all"
    """"all": steps draw from every stored round; "last": from the latest ``batch`` rounds, as Algorithm 1 does."""
    capacity: int = 200_000
    """Stored rounds, and stored target contexts; beyond it a uniform sample of all is kept, or with ``sampling``
    "last" the latest."""
    place: str = "auto"
    """Where stored contexts lie: on the "device", on the "host" (those of the coming steps are sent), or "auto": on the
    device unless they would take more than a quarter of it."""
    refit: bool = True
    """Whether the head is fitted anew, with the present encoder, on a schedule; else old features stay in A and b."""
    refit_after: int = 256
    """Rounds between refits, at the least."""
    refit_growth: float = 0.05
    """And at least this share of the rounds so far, which keeps the total cost linear in rounds."""
    unit_theta: bool = False
    """Whether losses see each head's coefficients at unit norm."""

    def __post_init__(self) -> None:
        one_of("sampling", self.sampling, ("all", "last"))
        one_of("place", self.place, ("auto", "device", "host"))
        if self.capacity < 1 or self.refit_after < 1 or not self.refit_growth >= 0:
            raise InvalidInput("capacity and refit_after must be >= 1, refit_growth >= 0")


@dataclass(frozen=True)
class Recipe:
    """Everything that makes a neural policy what it is, but for its sizes, its seed and its exploration.

    >>> recipe = daband.recipe_for("small", context_shape=(8,))
    >>> recipe.changed({"weights": {"adversarial": 0.5}}).weights["adversarial"].value
    0.5
    """

    weights: dict[str, Weight]
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    alpha: float = 1.0
    """How much of the width is added, unless the policy is told otherwise."""

    def settings(self) -> dict[str, Any]:
        """As JSON can hold it; ``recipe_from`` makes it anew."""
        return asdict(self)

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits of a hash of ``settings()``: equal for equal recipes, as records of runs keep it.

        A term of weight 0 counts as one that is not there, which is what training makes of it.
        """
        settings = self.settings()
        settings["weights"] = {name: weight for name, weight in settings["weights"].items() if weight["value"] != 0}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def with_weights(self, **weights: Weight | float) -> Recipe:
        """The same with other weights of some terms; 0 removes a term."""
        new = {
            name: weight if isinstance(weight, Weight) else Weight(float(weight)) for name, weight in weights.items()
        }
        return replace(self, weights={**self.weights, **new})

    def source_alone(self) -> Recipe:
        """The same with the source's terms alone: Neural-LinUCB."""
        return replace(self, weights={name: w for name, w in self.weights.items() if name.startswith("source_")})

    def for_shift(self, shift: Shift, *, context_shape: tuple[int, ...], keep: Collection[str] = ()) -> Recipe:
        """The same under this assumption of what may differ between the domains.

        The target's terms stay where its style differs; where only the arms' frequencies do, the term that goes by
        those; and the terms in ``keep``. Networks of daband's own normalise by each domain's statistics where the style
        differs, else by the source's, but for columns of other units.
        """
        kept = {*keep, "target_diversity"} if shift.moves_labels else {*keep}
        weights = {name: w for name, w in self.weights.items() if name.startswith("source_") or name in kept}
        options = dict(self.encoder.options)
        if self.encoder.name in ("mlp", "conv", "auto") and not shift.aligns:
            options["statistics"] = "source"
            own = shift.own_statistics(math.prod(context_shape))
            if self.encoder.name == "mlp" and any(own):
                options["own_columns"] = tuple(place for place, differs in enumerate(own) if differs)
        prior = "estimated" if shift.moves_labels else self.learning.prior
        return replace(
            self,
            weights=self.weights if shift.aligns else weights,
            encoder=replace(self.encoder, options=options),
            learning=replace(self.learning, prior=prior),
        )

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """The same with some settings changed; they are named and grouped as in ``settings()``.

        A weight may be a number, which keeps the term's schedule, or a table with some of ``Weight``'s fields. A
        weight of 0 removes the term. Another network begins without the options of the one before. An unknown name is
        an error that suggests the nearest.
        """
        settings = self.settings()
        changes = dict(changes)
        network = changes["encoder"].get("name") if isinstance(changes.get("encoder"), Mapping) else None
        if network not in (None, settings["encoder"]["name"]):
            settings["encoder"]["options"] = {}  # those of another network mean nothing to this one
        weights = changes.pop("weights", {})
        if not isinstance(weights, Mapping):
            raise InvalidInput(f"a recipe's weights must be a table of terms, got {weights!r}")
        for name, change in weights.items():
            before = settings["weights"].get(name, asdict(Weight()))
            new = change if isinstance(change, Mapping) else {"value": change}
            settings["weights"][name] = _overlaid(before, new, f"weights.{name}")
        return recipe_from(_overlaid(settings, changes, ""))


def _overlaid(before: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``before`` with ``changes`` on it, group by group; a network's own options may be new, all else must be there."""
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
    """A recipe from what ``Recipe.settings`` returned; an unknown name is an error."""
    for name in settings:
        if name not in {known.name for known in fields(Recipe)}:
            raise InvalidInput(f"a recipe has no setting {name!r}")
    if "weights" not in settings:
        raise InvalidInput("a recipe needs weights, one table per term")
    try:
        encoder, learning = dict(settings.get("encoder", {})), dict(settings.get("learning", {}))
        if "latent" in encoder:
            encoder["latent"] = LatentSettings(**encoder["latent"])
        if "options" in encoder:  # JSON knows lists only, networks take tuples
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
