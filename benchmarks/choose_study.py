"""The rule of `daband.choose` on what `benchmarks/choose.py` wrote: which candidate it takes, and how good that one is.

    python benchmarks/choose_study.py --scores scores --record benchmarks/records/choose.json

Seed s of a candidate and the seed after it are its two members, as ``choose`` trains them. The target's rewards are
read after the choice, to judge it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband.trust.choice_rule import RULE, Ballot, chosen

ORDER = (
    "constant",
    "linucb-p, 16 components",
    "linucb-p",
    "linucb, ridge 10",
    "linucb",
    "nlinucb",
    "daband",
    "daband, network alone",
    "daband, more alignment",
)
LINUCB = ("linucb, ridge 10", "linucb")
NEEDED = ("constant", "linucb-p, 16 components", "linucb-p", "nlinucb", "daband")
"""A pair without one of these is left out; LinUCB on all pixels of an image takes hours, and a record says where it is
missing."""
BASELINES = ("random", "nlinucb-p")
"""Methods that ``choose`` does not try; the table of methods has them."""


@dataclass(frozen=True)
class Trained:
    """A candidate on a pair: its seeds' choices, and how good they are in the target."""

    about: dict[str, Any]
    source_arm: np.ndarray
    reward: np.ndarray
    target_arm: np.ndarray
    accuracy: np.ndarray
    value: np.ndarray

    def ballot(self, seed: int, members: int = 2) -> Ballot:
        """As ``choose`` sees it, with this seed's policy first."""
        rows = [(seed + member) % len(self.source_arm) for member in range(members)]
        neural = self.about["method"] in ("nlinucb", "daband")
        return Ballot(
            self.source_arm[rows],
            self.reward[rows],
            self.target_arm[rows],
            uses_contexts=self.about["method"] not in ("constant", "random"),
            seed_matters=neural,
        )


def read(folder: Path, names: Sequence[str] = ORDER) -> dict[str, dict[str, Trained]]:
    """What is in the folder, by pair and candidate, the simplest candidate first."""
    found: dict[str, dict[str, Trained]] = {}
    for path in sorted(folder.glob("*--*.npz")):
        with np.load(path) as packed:
            about = json.loads(str(packed["about"]))
            expected, test = packed["source_expected"], packed["test_expected"]
            low, high = about["reward_range"]
            source, target = packed["source_arm"].astype(int), packed["test_arm"].astype(int)
            rows, of_test = np.arange(len(expected)), np.arange(len(test))
            reward = np.stack([(expected[rows, arms] - low) / (high - low) for arms in source])
            value = np.array([test[of_test, arms].mean() for arms in target])
            found.setdefault(about["pair"], {})[about["candidate"]] = Trained(
                about, source, reward, packed["target_arm"].astype(int), np.array(about["accuracy"]), value
            )
    return {pair: {name: own[name] for name in names if name in own} for pair, own in sorted(found.items())}


def study(
    pairs: dict[str, dict[str, Trained]], baselines: dict[str, dict[str, Trained]] | None = None
) -> list[dict[str, Any]]:
    """A record per pair and seed: every candidate's accuracy and estimate, and which one was chosen.

    ``baselines`` are methods that are no candidates: a record has their accuracies as well.
    """
    records = []
    for pair, candidates in pairs.items():
        names = list(candidates)
        first = candidates[names[0]].about
        others = (baselines or {}).get(pair, {})
        everyone = {**candidates, **others}
        for place, seed in enumerate(first["seeds"]):
            taken, estimated = chosen([candidates[name].ballot(place) for name in names])
            records.append(
                {
                    "pair": pair,
                    "seed": seed,
                    "rule": RULE,
                    "chosen": names[taken],
                    "target_accuracy": {n: round(float(candidates[n].accuracy[place]), 5) for n in names},
                    "estimated": {n: round(float(e), 5) for n, e in zip(names, estimated, strict=True)},
                    "held_out_source": {n: round(float(candidates[n].reward[place].mean()), 5) for n in names},
                    "baselines": {n: round(float(one.accuracy[place]), 5) for n, one in others.items()},
                    "source_regret": {
                        n: one.about["source_regret"][place]
                        for n, one in everyone.items()
                        if "source_regret" in one.about
                    },
                    "missing": [n for n in LINUCB if n not in candidates],
                    "data": first.get("data", pair),
                    "episodes": first["episodes"],
                    "rounds": first["episodes"] * first["episode_length"],
                    "device": {n: one.about["device"] for n, one in everyone.items()},
                    "commit": ", ".join(sorted({one.about["commit"] for one in everyone.values()})),
                }
            )
    return records


def summary(records: Sequence[dict[str, Any]]) -> str:
    """A line per pair."""
    lines = []
    for pair in dict.fromkeys(record["pair"] for record in records):
        own = [record for record in records if record["pair"] == pair]
        got = np.array([record["target_accuracy"][record["chosen"]] for record in own])
        means = {name: np.mean([r["target_accuracy"][name] for r in own]) for name in own[0]["target_accuracy"]}
        best = max(means, key=lambda name: means[name])
        lines.append(f"{pair:32} {got.mean():.3f} best {means[best]:.3f} {best:28} {[r['chosen'] for r in own]}")
    return "\n".join(lines)


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    pairs = read(arguments.scores)
    for pair in [pair for pair, own in pairs.items() if not set(NEEDED) <= own.keys()]:
        print(f"{pair} is left out: {len(pairs.pop(pair))} candidates are trained")
    records = study(pairs, read(arguments.scores, BASELINES))
    print(summary(records))
    if arguments.record:
        lines = ",\n".join(json.dumps(record) for record in records)
        arguments.record.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
