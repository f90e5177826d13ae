"""What `daband.assess` costs beside scoring the contexts, for a committee of three.

    python benchmarks/assess_cost.py --out benchmarks/records/assess-cost.json --commit HASH --machine "2-core CPU"

The time to score is that of every member on the source and target contexts that the assessment rests on
(`daband.evaluation.scores.scores_of`). Both are the fastest of several runs, on one thread, in seconds of the
processor, so that a machine that others use too measures the same. Policies are trained briefly: how good they are
changes nothing about the time. The study's page, docs/results/trust.md, shows the record.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import daband
from daband.evaluation.scores import scores_of
from daband.policies import Policy

CASES: tuple[tuple[str, str, dict[str, Any], type[Policy], dict[str, Any]], ...] = (
    ("synthetic, 16 numbers, 5 arms", "synthetic", {}, daband.LinUCB, {}),
    ("warfarin, 94 numbers, 3 arms", "warfarin/white-asian", {"source_test": 0.2}, daband.LinUCB, {}),
    ("amazon, 400 numbers, 2 arms", "amazon/books-dvd", {"source_test": 0.2}, daband.LinUCB, {}),
    ("synthetic, 16 numbers, 5 arms", "synthetic", {}, daband.DABand, {"recipe": "small"}),
    ("handwritten, 1x28x28, 10 arms", "handwritten/usps-mnist", {}, daband.DABand, {"recipe": "small"}),
)
CONTEXTS = 2000


def fastest(call: Callable[[], object], repeats: int) -> float:
    """Processor seconds of the fastest of so many calls, after one that is not counted."""
    call()
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return min(seconds)


def measured(case: tuple[str, str, dict[str, Any], type[Policy], dict[str, Any]], repeats: int) -> dict[str, Any]:
    """A row of the record."""
    label, name, options, kind, settings = case
    pair = daband.domains.load(name, **options)
    committee = [kind.for_pair(pair, seed=seed, **settings) for seed in range(3)]
    for policy in committee:
        daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)
    held, target = pair.source_test, pair.target
    assert held is not None
    score = fastest(lambda: scores_of(committee, source=held, target=target, contexts=CONTEXTS), repeats)
    assess = fastest(lambda: daband.assess(committee, source=held, target=target, contexts=CONTEXTS), repeats)
    return {
        "case": label,
        "policy": kind.__name__,
        "contexts": min(len(held), CONTEXTS) + min(len(target), CONTEXTS),
        "score_ms": round(1e3 * score, 2),
        "assess_ms": round(1e3 * assess, 2),
        "ratio": round(assess / score, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="", help="a part of the names of cases")
    parser.add_argument("--commit", default="")
    parser.add_argument("--machine", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        if arguments.only in case[0]:
            rows.append(measured(case, arguments.repeats))
            print(rows[-1], flush=True)
    if arguments.out:
        command = "python benchmarks/assess_cost.py"
        record = {"command": command, "commit": arguments.commit, "machine": arguments.machine, "rows": rows}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
