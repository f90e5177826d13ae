"""What the term ``target_diversity`` does where arms are not evenly frequent in the target, by where its prior is from.

    python benchmarks/label_shift.py --out shift --pairs vectors --tables tables.npz --device cpu --commit HASH
    python benchmarks/label_shift.py --out shift --pairs images --commit HASH                # uses a GPU
    python benchmarks/label_shift.py --out shift --record benchmarks/records/label-shift.json

Numpy, torch and safetensors are enough; ``--tables`` is what ``benchmarks/choose.py --export-tables`` wrote. Vectors:
warfarin's pairs, and synthetic with an even and an uneven target; the network alone (no LinUCB beside it), with the
term at .1 and its gate open, else it would hardly act there. Images: DIGIT as it is, and with a target in which digit k
is 0.7 ** k times as frequent as 0.
Several processes may share a folder: each takes what nobody has begun.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from choose import EPISODE, FAMILIES, claimed, load_pair, train_seeds

import daband
from daband.domains.contract import EvaluationDomain, Pair, RewardDomain

VARIANTS: dict[str, dict[str, Any]] = {
    "no diversity": {"weights": {"target_diversity": 0.0}},
    "uniform": {"weights": {"target_diversity": 0.1}, "learning": {"prior": "uniform"}},
    "estimated": {"weights": {"target_diversity": 0.1}, "learning": {"prior": "estimated"}},
}
SYNTHETIC = {"synthetic, even": 0.0, "synthetic, uneven": 3.0}
IMAGES = ("digit", "digit, uneven")
FADING = 0.7


def problem(name: str, tables: Path | None) -> tuple[Pair, int]:
    """The pair, and its episodes."""
    if name in FAMILIES["warfarin"]:
        return load_pair(name, tables)
    if name in SYNTHETIC:
        shift = {"rotation": 40.0, "frequency": SYNTHETIC[name]}
        pair = daband.domains.load("synthetic", rewards="labels", shift=shift)
        return pair, min(100, pair.source.rounds_available // EPISODE)
    pair, episodes = load_pair("digit", None)
    return (pair if name == "digit" else uneven(pair)), episodes


def uneven(pair: Pair) -> Pair:
    """The pair with fewer target contexts of the later classes, in training and for the evaluator alike."""
    test, labelled = pair.require_target_test(), pair.require_target_labelled()
    everything = np.arange(len(labelled))
    contexts, labels = labelled.read(everything), labelled.read_rewards(everything)[0].argmax(axis=1)
    rest, of_rest = test.read(0, len(test)), test.read_expected(0, len(test)).argmax(axis=1)
    seen, kept = _thinned(labels), _thinned(of_rest)
    source = pair.source
    rows = np.arange(len(source))
    held = pair.source_test
    assert isinstance(held, EvaluationDomain)
    assert isinstance(source, RewardDomain)
    return daband.domains.from_arrays(
        source=(source.read(rows), source.read_rewards(rows)[0].argmax(axis=1)),
        source_test=(held.read(0, len(held)), held.read_expected(0, len(held)).argmax(axis=1)),
        target=contexts[seen],
        target_test=(rest[kept], of_rest[kept]),
        n_arms=pair.n_arms,
        target_passes=4,
        name="digit, uneven",
    )


def _thinned(labels: np.ndarray) -> np.ndarray:
    draw = np.random.default_rng(5)
    return np.flatnonzero(draw.random(len(labels)) < FADING**labels)


def measured(name: str, variant: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train the seeds of a variant, and evaluate them."""
    started = time.perf_counter()
    pair, episodes = problem(name, arguments.tables)
    recipe = {group: dict(values) for group, values in VARIANTS[variant].items()}
    if name not in IMAGES:
        recipe["learning"] = {**recipe.get("learning", {}), "gate_exponent": 0.0, "linear_weight": 0.0}
    seeds = range(arguments.seeds)
    policies = [daband.DABand.for_pair(pair, seed=seed, recipe=recipe, device=arguments.device) for seed in seeds]
    train_seeds(list(policies), pair, episodes, arguments.device)
    results = [daband.evaluate(policy, pair.target_test) for policy in policies]
    return [
        {
            "pair": name,
            "variant": variant,
            "seed": seed,
            "episodes": episodes,
            "target_accuracy": result.accuracy,
            "target_accuracy_macro": result.accuracy_macro,
            "arm_counts": result.arm_counts,
            "seconds": round((time.perf_counter() - started) / len(policies), 1),
            "device": arguments.device,
            "commit": arguments.commit,
        }
        for seed, result in zip(seeds, results, strict=True)
    ]


def main() -> None:
    """Train, or gather the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", default="vectors", help="vectors or images")
    parser.add_argument("--tables", type=Path, help="what benchmarks/choose.py --export-tables wrote")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--part", default="0/1", help="I/N: this process does every N-th pair and variant")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--commit", default="")
    parser.add_argument("--record", type=Path, help="gather what is in --out into this file, and train nothing")
    arguments = parser.parse_args()
    if arguments.record:
        found = [record for path in sorted(arguments.out.glob("*.json")) for record in json.loads(path.read_text())]
        lines = ",\n".join(json.dumps(record) for record in found)
        arguments.record.write_text(f"[\n{lines}\n]\n")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    names = IMAGES if arguments.pairs == "images" else (*FAMILIES["warfarin"], *SYNTHETIC)
    index, of = map(int, arguments.part.split("/"))
    started = time.perf_counter()
    for name, variant in [(name, variant) for name in names for variant in VARIANTS][index::of]:
        if time.perf_counter() - started > arguments.seconds:
            return
        stem = f"{name}--{variant}".replace("/", "-").replace(", ", "-").replace(" ", "-")
        path = arguments.out / f"{stem}.json"
        if path.exists() or not claimed(path):
            continue
        try:
            records = measured(name, variant, arguments)
        except Exception:  # the others go on
            traceback.print_exc()
            continue
        path.write_text(json.dumps(records))
        print(stem, [round(record["target_accuracy"], 3) for record in records], flush=True)


if __name__ == "__main__":
    main()
