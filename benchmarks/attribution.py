"""What each ingredient of DABand's default is worth, beside fair baselines, ceilings and the paper's own recipe.

    python benchmarks/attribution.py --out records/            # every study on DIGIT at the paper's budget
    python benchmarks/attribution.py --out records/ --pair signs --studies ablation
    python benchmarks/attribution.py --out records/ --studies 'leave-one-out;baselines'
    python benchmarks/attribution.py --out records/ --studies 'paper ablation;paper lambda;paper readings'
    python benchmarks/attribution.py --out records/ --today    # what pages call today's, most important first
    python benchmarks/attribution.py --out records/ --record benchmarks/records/attribution.json

Several processes may be started with one ``--out``: each takes the next study that nobody has begun, and a folder
that holds finished ones is continued. Numpy, torch and safetensors are enough. Seeds of one variant are trained
stacked. ``--commit`` names the commit where there is no git directory. ``--scores`` also writes what each policy
predicts for held-out source contexts and for target contexts. Every record carries the hash of the recipe that ran.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from study_queue import finished, load_study, study_parser, work_through

import daband
from daband.domains._contract import EvaluationDomain, Pair, RewardDomain
from daband.domains.readers._arrays import from_arrays
from daband.domains.readers._logs import from_log
from daband.evaluation._model_selection import SourceHistory, criteria
from daband.policies._pair_defaults import default_transform
from daband.policies._policy import Policy
from daband.training._loop import train_stacked
from daband.training._trainer import Run, TrainSettings, source_phase

FIVE, THREE = tuple(range(5)), tuple(range(3))
EPISODE = 64
CONTINUED_ROUNDS = 1920
COMPONENTS = 64
NO_TARGET_TERMS = {"adversarial": 0.0, "target_entropy": 0.0, "target_diversity": 0.0, "pseudo_labels": 0.0}
LETTERS = {"R": {"regression_error": 0.5}, "P": {"predicted_reward": 1.0}}
PAPERS_LETTERS = {"R": "regression_error", "P": "predicted_reward", "D": "adversarial"}
COMBINATIONS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
LAMBDAS = (5.0, 10.0, 15.0, 20.0)


@dataclass(frozen=True)
class Variant:
    """A policy's settings, what it learns from, and how many seeds of it are trained."""

    name: str
    recipe: dict[str, Any] = field(default_factory=dict)
    method: str = "daband"
    seeds: tuple[int, ...] = FIVE
    feedback: str | None = None
    """What rewards tell; the pair's own unless given."""
    pair: str = ""
    """"imbalanced": classes 0 to 4 of the target four times as frequent as the others."""
    labels: str = ""
    """"source": every source label is revealed; "target": the same, and the source is the target."""
    continued: bool = False
    """Whether training continues on target rewards afterwards."""
    bound: bool = False
    """Whether the record has the observable terms of the regret bound."""
    criteria: bool = False
    """Whether the record has what the criteria of model selection say."""


def without(*ingredients: str) -> dict[str, Any]:
    """The default recipe without some ingredients."""
    options: dict[str, dict[str, Any]] = {
        "discriminator": {"weights": {"adversarial": 0.0}},
        "pseudo-labels": {"weights": {"pseudo_labels": 0.0}},
        "entropy and diversity": {"weights": {"target_entropy": 0.0, "target_diversity": 0.0}},
        "statistics per domain": {"encoder": {"options": {"statistics": "source"}}},
        "batch norm": {"encoder": {"options": {"normalise": False}}},
        "augmentation": {"learning": {"augmentation": {"shift": 0, "contrast": 0.0}}},
        "EMA": {"learning": {"ema_decay": 0.0}},
        "gate": {"learning": {"gate_exponent": 0.0}},
        "replay": {"replay": {"sampling": "last"}},
        "refit": {"replay": {"refit": False}},
    }
    changes: dict[str, Any] = {}
    for ingredient in ingredients:
        _merge(changes, options[ingredient])
    return changes


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value


INGREDIENTS = (
    "discriminator", "pseudo-labels", "entropy and diversity", "statistics per domain", "augmentation", "EMA", "gate",
    "replay", "refit",
)  # fmt: skip


def studies() -> dict[str, list[Variant]]:
    """By study, its variants; the first study is the most important."""
    leave_one_out = [Variant("default", continued=True)]
    leave_one_out += [Variant(f"no {one}", without(one)) for one in (*INGREDIENTS, "batch norm")]
    leave_one_out.append(
        Variant("discriminator alone of the target's terms", without("pseudo-labels", "entropy and diversity"))
    )
    add_one_in = [Variant("none", without(*INGREDIENTS), seeds=THREE)]
    for one in INGREDIENTS:
        if one != "gate":  # which has nothing to act on alone
            rest = [other for other in INGREDIENTS if other != one]
            add_one_in.append(Variant(f"{one} alone", without(*rest), seeds=THREE))
    gated = [other for other in INGREDIENTS if other not in ("discriminator", "gate")]
    add_one_in.append(Variant("discriminator and gate alone", without(*gated), seeds=THREE))
    for letter, weights in LETTERS.items():
        recipe = without(*INGREDIENTS)
        recipe["weights"] = {**recipe["weights"], **weights}
        add_one_in.append(Variant(f"{letter} alone", recipe, seeds=THREE))
    source = {"learning": {"target_statistics": False}}
    baselines = [
        Variant("statistics of the target", method="nlinucb", continued=True, bound=True),
        Variant("statistics of the source", source, method="nlinucb"),
        Variant("no batch norm", without("batch norm"), method="nlinucb"),
        Variant("statistics of the target, bandit feedback", method="nlinucb", feedback="bandit"),
        Variant("bandit feedback", feedback="bandit"),
        Variant("principal components", method="nlinucb-p", bound=True),
    ]
    estimated = {"learning": {"prior": "estimated"}}
    no_diversity = {"weights": {"target_diversity": 0.0}}
    label_shift = [
        Variant("default", pair="imbalanced"),
        Variant("no diversity", no_diversity, pair="imbalanced"),
        Variant("no entropy and diversity", without("entropy and diversity"), pair="imbalanced"),
        Variant("prior of the arms estimated", estimated, pair="imbalanced"),
        Variant("no target terms", method="nlinucb", pair="imbalanced"),
    ]
    ceilings = [
        Variant("every source label", labels="source", seeds=THREE),
        Variant("target labels", {"weights": NO_TARGET_TERMS}, labels="target", seeds=THREE),
    ]
    weights_of_p = [
        Variant(f"P at {value:g}", {"base": "default-rpd", "weights": {"predicted_reward": value}}, seeds=THREE)
        for value in (0.03, 0.1, 0.3, 3.0)
    ]
    return {
        "leave-one-out": leave_one_out,
        "baselines": baselines,
        # D alone is the default, and none is Neural-LinUCB: on DIGIT the studies above have them.
        "ablation": [Variant(letters, _ablated(letters)) for letters in COMBINATIONS if letters not in ("none", "D")],
        "ablation ends": [Variant(letters, _ablated(letters)) for letters in ("none", "D")],
        "paper ablation": [Variant(letters, _ablated_paper(letters), criteria=True) for letters in COMBINATIONS],
        "paper ablation, P on the policy's own choice": [
            Variant(letters, _ablated_paper(letters, own_choice=True)) for letters in COMBINATIONS if "P" in letters
        ],
        "paper lambda": [
            Variant(f"{value:g}", {"base": "paper", "weights": {"adversarial": value}}, criteria=True)
            for value in LAMBDAS
        ],
        "paper readings": paper_readings(),
        "add-one-in": add_one_in,
        "ceilings": ceilings,
        "label shift": label_shift,
        # The same on the pair as it is: what an estimated prior costs where arms are evenly frequent.
        "prior": [Variant("default", bound=True), Variant("prior of the arms estimated", estimated)],
        "weight of P": weights_of_p,
        # R, P and D were chosen together where D had weight 1; the default has D at .3 since.
        "default-rpd": [
            Variant("D at 1", {"base": "default-rpd", "weights": {"adversarial": 1.0}}, seeds=THREE),
            Variant("P at 0.3", {"base": "default-rpd", "weights": {"predicted_reward": 0.3}}, seeds=THREE),
        ],
        "cost": [Variant("default, a single run", seeds=(0,)), Variant("default, five seeds stacked")],
    }


def paper_readings() -> list[Variant]:
    """What the paper leaves open, one change of its recipe at a time."""
    network = {"options": {"pixels": "imagenet"}}
    changes: dict[str, dict[str, Any]] = {
        "pixels by ImageNet": {"encoder": network},
        "pixels by ImageNet, none": {"encoder": network, **_ablated_paper("none")},
        "pixels in [0, 1]": {"encoder": {"options": {"pixels": "unit"}}},
        "theta as it is": {"replay": {"unit_theta": False}},
        "wide features aligned": {"encoder": {"latent": {"alignment": "features"}}},
        "L_RS over the pulled arm": {},
        "replay of all rounds": {"replay": {"sampling": "all"}},
        "head refitted": {"replay": {"refit": True}},
        "replay and refit": {"replay": {"sampling": "all", "refit": True}},
        "learning rate 1e-4": {"learning": {"learning_rate": 1e-4}},
        "P at a tenth": {"weights": {"predicted_reward": 0.1}},
    }
    return [
        Variant(
            name,
            {"base": "paper", **change},
            seeds=THREE,
            feedback="bandit" if name == "L_RS over the pulled arm" else None,
        )
        for name, change in changes.items()
    ]


def today() -> list[tuple[str, Variant]]:
    """What pages and the README call today's, the most important first; ten minutes of one large GPU."""
    every = studies()

    def some(study: str, *names: str, seeds: tuple[int, ...] = FIVE) -> list[tuple[str, Variant]]:
        by_name = {variant.name: variant for variant in every[study]}
        return [(study, replace(by_name[name], seeds=seeds[: len(by_name[name].seeds)])) for name in names]

    left_out = [variant.name for variant in every["leave-one-out"] if variant.name != "default"]
    own_choice = "paper ablation, P on the policy's own choice"
    return [
        *some("cost", "default, a single run"), *some("leave-one-out", "default"), *some("paper ablation", "RPD"),
        *some(own_choice, "RPD"), *some("ablation", "RPD", seeds=THREE),
        *some("default-rpd", *(variant.name for variant in every["default-rpd"])),
        *some("label shift", "default", "prior of the arms estimated", "no diversity", seeds=THREE),
        *some("prior", "prior of the arms estimated", seeds=THREE), *some("leave-one-out", *left_out),
        *some("label shift", "no entropy and diversity", "no target terms"),
        *some("ceilings", "every source label", "target labels"),
        *some("baselines", *(variant.name for variant in every["baselines"])), *some("paper ablation", "none"),
        *some(own_choice, "P", "PD", "RP", seeds=THREE),
        *some("paper ablation", "P", "D", "R", "RD", "PD", "RP", seeds=THREE),
    ]  # fmt: skip


def _ablated(letters: str) -> dict[str, Any]:
    weights = {} if "D" in letters else dict(NO_TARGET_TERMS)
    for letter, on in LETTERS.items():
        if letter in letters:
            weights |= on
    return {"weights": weights}


def _ablated_paper(letters: str, *, own_choice: bool = False) -> dict[str, Any]:
    """The paper's recipe with some terms; P on the source round's arm, or on the arm that the policy would choose."""
    weights = {term: 0.0 for letter, term in PAPERS_LETTERS.items() if letter not in letters}
    if own_choice:
        weights |= {"predicted_reward": 0.0, "predicted_reward_target_choice": 1.0}
    return {"base": "paper", "weights": weights}


def imbalanced(pair: Pair) -> Pair:
    """The pair with a target that shows classes 0 to 4 four times as often as the others, in training and test."""

    def kept(contexts: np.ndarray, labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        draws = np.random.default_rng(seed).random(len(labels))
        places = np.flatnonzero((labels <= 4) | (draws < 0.25))
        return contexts[places], labels[places]

    test = pair.require_target_test()
    judged = test.read(0, len(test)), test.read_expected(0, len(test)).argmax(axis=1)
    assert isinstance(pair.source, RewardDomain)
    made = from_arrays(
        source=_labelled(pair.source),
        source_test=None,
        target=kept(*_labelled(pair.require_target_labelled()), 20260801)[0],
        target_test=kept(*judged, 20260802),
        n_arms=pair.n_arms,
        target_passes=2,
    )
    return replace(made, about=replace(pair.about, summary=f"{pair.about.summary}, imbalanced"))


def _labelled(domain: RewardDomain) -> tuple[np.ndarray, np.ndarray]:
    """All contexts of a domain, and the arm that pays best in each."""
    every = np.arange(len(domain))
    rewards, _ = domain.read_rewards(every)
    return domain.read(every), rewards.argmax(axis=1)


def with_labels(pair: Pair, labels: str) -> Pair:
    """The pair with a source that reveals every label: a log of the best arm; or with the target as the source."""
    domain = pair.source if labels == "source" else pair.require_target_labelled()
    assert isinstance(domain, RewardDomain)
    contexts, best = _labelled(domain)
    made = from_log(
        source=(contexts, best, np.ones(len(best)), np.ones(len(best))),
        source_test=None,
        target=contexts[:1],
        n_arms=pair.n_arms,
        feedback="one_hot",
    )
    return replace(made, target=pair.target, target_test=pair.target_test, about=pair.about)


def run_variant(
    study: str, variant: Variant, pair: Pair, *, episodes: int, scores: Path | None
) -> list[dict[str, Any]]:
    """Train a variant's seeds stacked, and judge each of them."""
    if variant.pair:
        pair = imbalanced(pair)
    if variant.labels:
        pair = with_labels(pair, variant.labels)
    kind = daband.DABand if variant.method == "daband" else daband.NeuralLinUCB
    more: dict[str, Any] = {} if variant.feedback is None else {"feedback": variant.feedback}
    if variant.method.endswith("-p"):
        more["transform"] = default_transform(kind, pair, components=COMPONENTS)
    made = [kind.for_pair(pair, recipe=variant.recipe, seed=seed, **more) for seed in variant.seeds]
    started = time.perf_counter()
    runs = train_stacked(
        [source_phase(policy, pair.source, pair.target, TrainSettings(episodes=episodes)) for policy in made]
    )
    seconds = (time.perf_counter() - started) / len(made)
    records = []
    for seed, policy, run in zip(variant.seeds, made, runs, strict=True):
        if isinstance(run, Exception):
            raise run
        found = daband.evaluate(policy, pair.require_target_test())
        record = {
            "study": study, "variant": variant.name, "method": variant.method, "seed": seed, "recipe": variant.recipe,
            "recipe_hash": policy.recipe.fingerprint(), "feedback": variant.feedback or pair.feedback,
            "target_accuracy": found.accuracy, "target_accuracy_macro": found.accuracy_macro,
            "source_regret": run.total_regret if not variant.labels else None, "rounds": run.rounds,
            "target_contexts": len(pair.require_target_test()), "seconds": round(seconds, 2), "stacked": len(made),
            "pair": pair.about.summary or pair.name,
        }  # fmt: skip
        if variant.criteria:
            history = SourceHistory(run.reward, seed)
            record["criteria"] = criteria(policy, source=pair.source, target=pair.target, history=history)
        if variant.continued:
            record["continued_regret"] = continued(policy, pair)
        if variant.bound:
            record["bound"] = bound_terms(run)
        records.append(record)
    if scores is not None and not variant.pair and not variant.labels:
        write_scores(scores, made, pair, f"{study} {variant.method} {variant.name}")
    return records


def bound_terms(run: Run) -> dict[str, list[float]]:
    """The bound's observable terms, summed over rounds, at some twenty episodes and at the last one."""
    known = [episode for episode in run.episodes if "bound_rounds" in episode]
    some = known[:: -max(1, len(known) // 20)][::-1]
    names = [name for name in known[-1] if name.startswith("bound_") and name != "bound_informative"]
    complete = [name for name in names if all(one.get(name) is not None for one in some)]
    return {name.removeprefix("bound_"): [round(one[name], 4) for one in some] for name in complete}


def continued(policy: Policy, pair: Pair) -> dict[str, float]:
    """Regret of continued training on target contexts that the policy has seen, and on fresh ones."""
    test = pair.require_target_test()
    n = min(CONTINUED_ROUNDS, len(test))
    fresh = from_arrays(
        source=(test.read(0, n), test.read_expected(0, n).argmax(axis=1)),
        source_test=None,
        target=test.read(0, 1),
        n_arms=pair.n_arms,
    ).source
    assert isinstance(fresh, RewardDomain)
    found = {}
    for name, domain in (("seen contexts", pair.require_target_labelled()), ("fresh contexts", fresh)):
        run = daband.continue_on_target(copy.deepcopy(policy), target=domain, rounds=min(CONTINUED_ROUNDS, len(domain)))
        found[name] = float(run.total_regret)
    return found


def write_scores(folder: Path, made: Sequence[Policy], pair: Pair, name: str) -> None:
    """What each policy predicts for held-out source contexts and for target contexts, with the labels of both."""
    held, test = pair.source_test, pair.require_target_test()
    assert isinstance(held, EvaluationDomain)
    n_source, n_target = min(2000, len(held)), min(3000, len(test))
    source, target = held.read(0, n_source), test.read(0, n_target)
    np.savez_compressed(
        folder / (f"{pair.name} {name}".replace(" ", "_").replace(",", "") + ".npz"),
        variant=np.array([name] * len(made)),
        seed=np.array([policy.seed for policy in made]),
        source_mean=np.stack([p.select(source, domain="source").mean for p in made]).astype(np.float16),
        target_mean=np.stack([p.select(target, domain="target").mean for p in made]).astype(np.float16),
        source_label=held.read_expected(0, n_source).argmax(axis=1),
        target_label=test.read_expected(0, n_target).argmax(axis=1),
    )


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--studies", default=";".join(studies()), help="by semicolons")
    parser.add_argument("--today", action="store_true", help="in place of --studies: what pages call today's")
    parser.add_argument("--only", default="", help="variants of these studies, by semicolons; all by default")
    parser.add_argument("--most", type=int, default=0, help="no more than so many variants, the first ones")
    parser.add_argument("--scores", type=Path, help="a folder for predictions")
    given = parser.parse_args()
    if given.record is not None:
        order = [(study, variant.name) for study, some in studies().items() for variant in some]
        records = finished(given.out)
        records.sort(key=lambda one: (one["pair"], order.index((one["study"], one["variant"])), one["seed"]))
        given.record.write_text(json.dumps(records, indent=1) + "\n")
        return
    pair, episodes = load_study(given, episode_length=EPISODE)
    if given.scores is not None:
        given.scores.mkdir(parents=True, exist_ok=True)
    asked = today() if given.today else [(name, one) for name in given.studies.split(";") for one in studies()[name]]
    units = []
    for study, variant in asked[: given.most or None]:
        if given.only and variant.name not in given.only.split(";"):
            continue
        name = f"{pair.name} {study} {variant.method} {variant.name}"
        units.append((name, partial(run_variant, study, variant, pair, episodes=episodes, scores=given.scores)))
    work_through(units, out=given.out, commit=given.commit, seconds=given.seconds)


if __name__ == "__main__":
    main()
