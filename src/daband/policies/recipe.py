"""Recipes: every setting of a neural policy in frozen groups, and the named ones.

``paper`` is Algorithm 1 as printed. ``default`` is what works, ``default-rpd`` the same with R, P and D all on, so that
leaving one out says something. ``small`` is the default for a CPU and a few minutes: a narrower network, fewer steps,
shorter ramps. ``nlinucb``, ``small-nlinucb`` and ``paper-nlinucb`` are these with the source regret alone. How the
defaults were found, and what was looked at for that, stands in ``docs/results/recipe-research.md``.

A recipe can also be said as a change of a named one, as JSON and TOML can hold it:
``{"base": "paper", "weights": {"adversarial": 5}, "learning": {"learning_rate": 1e-3}}``.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from daband.encoders import LatentSettings
from daband.encoders.disturbance import Disturbance
from daband.errors import InvalidInput
from daband.objectives import Weight

__all__ = [
    "EncoderSettings",
    "Learning",
    "Memory",
    "Recipe",
    "family_of",
    "recipe_for",
    "recipe_from",
    "recipe_names",
    "resolve_recipe",
]


@dataclass(frozen=True)
class EncoderSettings:
    """Which network, its own options, and the dense layers behind it."""

    name: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    latent: LatentSettings = field(default_factory=LatentSettings)
    initialisation: str = "framework"
    """"framework": as PyTorch does; "gaussian": normal weights of variance 2 / inputs and no bias (Neural-LinUCB)."""

    def __post_init__(self) -> None:
        if self.initialisation not in ("framework", "gaussian"):
            raise InvalidInput(f"initialisation must be 'framework' or 'gaussian', got {self.initialisation!r}")


@dataclass(frozen=True)
class Learning:
    """The gradient steps of an episode."""

    learning_rate: float = 1e-3
    steps: int = 64
    """Steps that ``adapt()`` takes when it is not told how many."""
    batch: int = 64
    """Source rounds of a step, and as many target contexts."""
    averaging: float = 0.99
    """How slowly the averaged encoder follows; it acts, and teaches. 0 acts with the encoder itself."""
    disturbance: Disturbance = field(default_factory=Disturbance)
    scale: float = 10.0
    """What predicted rewards are multiplied with to become logits."""
    earned: float = 0.0
    """Terms on the target, and R, count ``rate ** earned``, with rate the recent mean reward: they must be earned on
    the source first, or they prevent the learning they depend on."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InvalidInput(f"learning_rate must be positive, got {self.learning_rate}")
        if self.steps < 0 or self.batch < 1:
            raise InvalidInput(f"steps must be >= 0 and batch >= 1, got {self.steps} and {self.batch}")
        if not 0 <= self.averaging < 1:
            raise InvalidInput(f"averaging must lie in [0, 1), got {self.averaging}")
        if not (self.scale > 0 and self.earned >= 0):
            raise InvalidInput(f"scale must be positive and earned >= 0, got {self.scale} and {self.earned}")


@dataclass(frozen=True)
class Memory:
    """What is remembered of past rounds, and what for."""

    replay: str = "all"
    """"all": steps draw from every stored round; "last": from the latest ``batch`` rounds, as Algorithm 1 does."""
    capacity: int = 200_000
    """Stored rounds, and stored target contexts; beyond it a uniform sample of all is kept, or with ``replay`` "last"
    the latest."""
    place: str = "auto"
    """Where stored contexts lie: on the "device", on the "host" (each step's are sent ahead), or "auto": on the device
    unless they would fill it."""
    refit: bool = True
    """Whether the head is fitted anew, with the present encoder, on a schedule; else old features stay in A and b."""
    refit_after: int = 256
    """Rounds between refits, at the least."""
    refit_growth: float = 0.05
    """And at least this share of the rounds so far, which keeps the total cost linear in rounds."""
    unit_theta: bool = False
    """Whether losses see each head's coefficients at unit norm."""

    def __post_init__(self) -> None:
        if self.replay not in ("all", "last"):
            raise InvalidInput(f"replay must be 'all' or 'last', got {self.replay!r}")
        if self.place not in ("auto", "device", "host"):
            raise InvalidInput(f"place must be 'auto', 'device' or 'host', got {self.place!r}")
        if self.capacity < 1 or self.refit_after < 1 or not self.refit_growth >= 0:
            raise InvalidInput("capacity and refit_after must be >= 1, refit_growth >= 0")


@dataclass(frozen=True)
class Recipe:
    """Everything that makes a neural policy what it is, but for its sizes, its seed and its exploration."""

    weights: dict[str, Weight]
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    learning: Learning = field(default_factory=Learning)
    memory: Memory = field(default_factory=Memory)
    alpha: float = 1.0
    """How much of the width is added, unless the policy is told otherwise."""

    def settings(self) -> dict[str, Any]:
        """As JSON can hold it; ``recipe_from`` makes it anew."""
        return asdict(self)

    def with_weights(self, **weights: Weight | float) -> Recipe:
        """The same with other weights of some terms; 0 removes a term."""
        new = {
            name: weight if isinstance(weight, Weight) else Weight(float(weight)) for name, weight in weights.items()
        }
        return replace(self, weights={**self.weights, **new})

    def source_alone(self) -> Recipe:
        """The same with the source regret alone: Neural-LinUCB."""
        return replace(self, weights={name: w for name, w in self.weights.items() if name.startswith("source_")})

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """The same with some settings changed; they are named and grouped as in ``settings()``.

        A weight may be a number, which keeps the term's schedule, or a table with some of ``Weight``'s fields. A
        weight of 0 removes the term. An unknown name is an error that suggests the nearest.
        """
        settings = self.settings()
        changes = dict(changes)
        weights = changes.pop("weights", {})
        if not isinstance(weights, Mapping):
            raise InvalidInput(f"a recipe's weights must be a table of terms, got {weights!r}")
        for name, change in weights.items():
            before = settings["weights"].get(name, asdict(Weight()))
            new = change if isinstance(change, Mapping) else {"value": change}
            settings["weights"][name] = _overlaid(before, new, f"weights.{name}")
        return recipe_from(_overlaid(settings, changes, ""))


def resolve_recipe(recipe: str | Recipe | Mapping[str, Any], *, context_shape: tuple[int, ...]) -> Recipe:
    """The recipe that is meant: by name, as a ``Recipe``, as what ``settings()`` gave, or as a change of a named one.

    A mapping with ``base`` is the recipe of that name with everything else in the mapping changed (``changed``).
    """
    if isinstance(recipe, str):
        recipe = recipe_for(recipe, context_shape=context_shape)
    elif isinstance(recipe, Mapping):
        changes = dict(recipe)
        base = changes.pop("base", None)
        if base is None:
            return recipe_from(recipe)
        recipe = recipe_for(str(base), context_shape=context_shape).changed(changes)
    elif not isinstance(recipe, Recipe):
        raise InvalidInput(f"a recipe is a name, a Recipe or a mapping, got {recipe!r}")
    try:
        return recipe_from(json.loads(json.dumps(recipe.settings())))  # what is saved is what is used
    except TypeError as error:
        raise InvalidInput(
            f"a recipe holds names and numbers only, as its file does ({error}); for a network of your own, register a "
            "function that returns daband.encoders.pretrained.BroughtFeatures, and name it"
        ) from None


def _overlaid(before: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``before`` with ``changes`` on it, group by group; a network's own options may be new, all else must be there."""
    after = dict(before)
    for name, value in changes.items():
        path = f"{where}.{name}" if where else name
        if name not in before and where != "encoder.options":
            near = difflib.get_close_matches(name, before, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
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
        raise InvalidInput("a recipe needs weights; to change a named one, say which: base = 'default', for one")
    try:
        encoder, learning = dict(settings.get("encoder", {})), dict(settings.get("learning", {}))
        if "latent" in encoder:
            encoder["latent"] = LatentSettings(**encoder["latent"])
        if "options" in encoder:  # JSON knows lists only, networks take tuples
            options = encoder["options"].items()
            encoder["options"] = {k: tuple(v) if isinstance(v, list) else v for k, v in options}
        if "disturbance" in learning:
            learning["disturbance"] = Disturbance(**learning["disturbance"])
        return Recipe(
            weights={name: Weight(**weight) for name, weight in settings["weights"].items()},
            encoder=EncoderSettings(**encoder),
            learning=Learning(**learning),
            memory=Memory(**settings.get("memory", {})),
            alpha=settings.get("alpha", Recipe.alpha),
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"not a recipe: {error}") from None


def family_of(context_shape: tuple[int, ...]) -> str:
    """Which default applies: "image" for (channels, height, width) of at least 16 pixels a side, else "vector"."""
    is_image = len(context_shape) == 3 and context_shape[0] in (1, 3, 4) and min(context_shape[1:]) >= 16
    return "image" if is_image else "vector"


def recipe_names() -> list[str]:
    """The names that ``recipe_for`` knows."""
    return ["default", "default-rpd", "nlinucb", "paper", "paper-nlinucb", "small", "small-nlinucb"]


def recipe_for(name: str, *, context_shape: tuple[int, ...]) -> Recipe:
    """The named recipe for contexts of this shape: one per encoder family and none per data set."""
    image = family_of(context_shape) == "image"
    if name in ("paper", "paper-nlinucb"):
        return _paper(image) if name == "paper" else _paper(image).source_alone()
    if name in ("small", "small-nlinucb"):
        small = _small_image() if image else _small_vector()
        return small if name == "small" else small.source_alone()
    default = _default_image() if image else _default_vector()
    if name == "default":
        return default
    if name == "nlinucb":
        return default.source_alone()
    if name == "default-rpd":
        return default.with_weights(regression_error=0.5, predicted_reward=0.03)
    raise InvalidInput(f"unknown recipe {name!r} (known: {', '.join(recipe_names())})")


def _default_image() -> Recipe:
    return Recipe(
        weights={
            "source_cross_entropy": Weight(1.0),
            "adversarial": Weight(1.0, shape="sigmoid", steps=6000),
            "target_entropy": Weight(0.1),
            "target_diversity": Weight(0.1),
            "pseudo_labels": Weight(0.5, shape="step", start=6000),
        },
        encoder=EncoderSettings(name="conv"),
        learning=Learning(disturbance=Disturbance(shift=2, contrast=0.4), earned=8.0),
    )


def _default_vector() -> Recipe:
    # Alignment that is earned steeply, statistics included: where rewards are noisy the source is never solved, and
    # a difference between the domains may then be just what a choice should depend on.
    return Recipe(
        weights={"source_cross_entropy": Weight(1.0), "adversarial": Weight(0.3, shape="sigmoid", steps=1500)},
        encoder=EncoderSettings(name="mlp", options={"statistics": "earned"}),
        learning=Learning(steps=32, earned=8.0),
    )


def _small_image() -> Recipe:
    default = _default_image()
    ramp, teach = 500, 700  # steps; there are some 1,600 in the demo, against 19,200 in the paper's budget
    return replace(
        default.with_weights(
            adversarial=Weight(1.0, shape="sigmoid", steps=ramp),
            pseudo_labels=Weight(0.5, shape="step", start=teach),
        ),
        encoder=EncoderSettings(name="conv", options={"channels": (16, 24)}, latent=LatentSettings(hidden=64)),
        learning=replace(default.learning, learning_rate=2e-3, steps=16, batch=32, averaging=0.98, earned=4.0),
    )


def _small_vector() -> Recipe:
    default = _default_vector()
    return replace(default, learning=replace(default.learning, steps=16, batch=32, averaging=0.98))


def _paper(image: bool) -> Recipe:
    """Algorithm 1 as printed: the last H rounds, stale A and b, unit-norm theta, weights 1, 2, 1, lambda."""
    return Recipe(
        weights={
            "source_squared": Weight(1.0),
            "regression_error": Weight(2.0),
            "predicted_reward": Weight(1.0),
            "adversarial": Weight(1.0),
        },
        encoder=EncoderSettings(
            name="conv" if image else "mlp",
            options={"channels": (32, 48), "normalise": False}
            if image
            else {"widths": (256,), "normalise_input": False, "normalise_hidden": False},
            latent=LatentSettings(dimension=64, hidden=128, tap="latent"),
            initialisation="gaussian",
        ),
        learning=Learning(learning_rate=1e-5, averaging=0.0),
        memory=Memory(replay="last", refit=False, unit_theta=True),
        alpha=0.05,
    )
