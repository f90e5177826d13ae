"""What the study of `daband.assess` trains: pairs with their settings, and committees of several methods on each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

AMAZON = ("books", "dvd", "elec", "kitchen")
OFFICE = ("amazon", "caltech10", "dslr", "webcam")
DIGITS = ("mnist", "usps", "semeion")


@dataclass(frozen=True)
class Problem:
    """A pair as the study uses it."""

    label: str
    pair: str
    options: dict[str, Any] = field(default_factory=dict)
    episodes: int | None = None
    """None: every round that the source has."""


@dataclass(frozen=True)
class Variant:
    """A method with settings."""

    label: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    components: int | None = None


def problems() -> dict[str, list[Problem]]:
    """Every problem of the study, by family."""
    few = {"source_test": 0.2}
    found: dict[str, list[Problem]] = {
        "amazon": [
            Problem(f"amazon/{a}-{b}", f"amazon/{a}-{b}", {"passes": 3, **few})
            for a in AMAZON
            for b in AMAZON
            if a != b
        ],
        "office_caltech": [
            Problem(f"office_caltech/{a}-{b}", f"office_caltech/{a}-{b}", {"passes": 5, **few})
            for a in OFFICE
            for b in OFFICE
            if a != b
        ],
        "warfarin": [
            Problem(f"warfarin/{a}-{b}", f"warfarin/{a}-{b}", {"passes": 3, **few})
            for a in ("white", "asian", "black")
            for b in ("white", "asian", "black")
            if a != b
        ],
    }
    dials: dict[str, dict[str, Any]] = {
        "none": {"view": {"rotation": 0.0, "translation": 0.0, "frequency": 0.0}},
        "rotation-30": {"view": {"rotation": 30.0, "frequency": 0.0}},
        "rotation-60": {"view": {"rotation": 60.0}},
        "rotation-90": {"view": {"rotation": 90.0, "frequency": 0.0}},
        "rotation-75": {"view": {"rotation": 75.0, "frequency": 0.0}},
        "frequency-3": {"view": {"rotation": 20.0, "frequency": 3.0}},
        "labels-rotation-45": {"rewards": "labels", "view": {"rotation": 45.0, "frequency": 1.0}},
        "labels-rotation-75": {"rewards": "labels", "view": {"rotation": 75.0, "frequency": 0.0}},
        "labels-frequency-4": {"rewards": "labels", "view": {"rotation": 30.0, "frequency": 4.0}},
        "quadratic-45": {"rewards": "quadratic", "view": {"rotation": 45.0}},
    }
    found["synthetic"] = [
        Problem(f"synthetic/{name}", "synthetic", {"n_contexts": 5000, **dial}, episodes=75)
        for name, dial in dials.items()
    ]
    found["handwritten"] = [
        Problem(
            f"handwritten/{a}-{b}",
            f"handwritten/{a}-{b}",
            {"passes": 8 if a == "semeion" else 2, "target_passes": 16, **few},
            episodes=150,
        )
        for a in DIGITS
        for b in DIGITS
        if a != b
    ]
    found["digit"] = [
        Problem(f"digit/{form}", "digit", {"form": form}, episodes=200) for form in ("embedded", "built", "released")
    ]
    found["signs"] = [Problem("signs", "signs", {"passes": 5})]
    return found


GROUPS = {
    "vectors": ("synthetic", "amazon", "office_caltech", "warfarin"),
    "images": ("handwritten", "digit", "signs"),
}


def variants(image: bool, base: str) -> list[Variant]:
    """Every committee of a problem."""
    strong = {
        "base": base,
        "weights": {"adversarial": 3.0, "target_entropy": 0.3, "target_diversity": 0.1},
        "learning": {"gate_exponent": 0.0},
    }
    collapse = {"base": base, "weights": {"predicted_reward_own_choice": 3.0}, "learning": {"gate_exponent": 0.0}}
    neural = [
        Variant("daband", "daband", {"recipe": base}),
        Variant("daband-collapsed", "daband", {"recipe": collapse}),
        Variant("nlinucb", "nlinucb", {"recipe": base}),
    ]
    if not image:  # where rewards are noisy the default recipe hardly aligns; this one does, for better or worse
        neural.append(Variant("daband-strong", "daband", {"recipe": strong}))
    linear = [Variant("linucb-p", "linucb", {"alpha": 0.05}, components=64 if image else 16)]
    if not image:
        linear.append(Variant("linucb", "linucb", {"alpha": 0.05}))
    return [*neural, *linear]
