"""Train the candidates of ``choose`` on data sets, and store what they predict in both domains.

    python benchmarks/predictions.py --sets natural_tables more_tables amazon --out predictions --jobs 15
    python benchmarks/predictions.py --sets fifth --out predictions --jobs 15

A set is a kind of ``split.KINDS``, a half or a held-out set of ``split.json``, or ``more_tables``
(17 tables with larger shifts). Each file has, for candidates C and arms K, predicted rewards on
held-out source rounds (C, N, K) and on labelled target contexts (C, L, K), and the rewards of all
arms there. ``reference_class.py`` and ``questions.py`` read them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import daband
import research_sets  # noqa: F401  registers the data sets
from daband.domains._registry import get_data_directory
from daband.policies._default_members import Candidate, default_candidates
from daband.training._candidates import choose_training_budget, train_candidates
from daband.trust._assess import SourceRounds
from daband.trust._incumbent import decide

MORE_TABLES = "more_tables"
_MAX_CONTEXTS = 2000
_MAX_IMAGES = 3000
_SIMPLE_METHODS = ("constant", "linucb", "linucb-p", "nlinucb")
"""Methods that are trained in addition to the candidates, for the page of the default."""


def list_data_sets(names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield kind and name of every data set of these sets."""
    from split import KINDS, read_split

    for name in names:
        if name == MORE_TABLES:
            for path in sorted(get_data_directory().joinpath(MORE_TABLES).glob("*.csv.gz")):
                yield MORE_TABLES, path.name.removesuffix(".csv.gz")
        else:
            for kind, kind_names in (
                {name: KINDS[name]} if name in KINDS else read_split(name)
            ).items():
                yield from ((kind, kind_name) for kind_name in kind_names)


def load_pair(kind: str, name: str) -> Any:
    """Return the pair of a data set."""
    from split import READ_ONCE

    if kind == MORE_TABLES:
        return load_more_table(name)
    if kind.startswith(("fresh", *READ_ONCE)):
        from fresh import load

        return load(kind, name)
    if kind == "synthetic":
        return daband.domains.load(
            "synthetic", rotation=float(name.rsplit("-", 1)[1]), n_contexts=4000
        )
    if kind == "markets":
        from markets import load_market

        market_kind, number = name.rsplit("-", 1)
        return load_market(market_kind, data_seed=int(number))
    return daband.domains.load(name if kind == "images" else f"{kind}/{name}")


def load_more_table(name: str) -> Any:
    """Return one of the tables with larger shifts; half of the target's rows are for the
    evaluator.
    """
    import polars as pl

    frame = pl.read_csv(
        get_data_directory() / MORE_TABLES / f"{name}.csv.gz", infer_schema_length=None
    )
    source, target = (
        frame.filter(pl.col("domain") == role).drop("domain") for role in ("source", "target")
    )
    target = target.sample(fraction=1.0, shuffle=True, seed=0)
    context = [column for column in source.columns if column != "arm"]
    categorical = [column for column in context if frame[column].dtype == pl.String]
    columns = daband.domains.Columns(context=context, categorical=categorical, label="arm")
    target_domains: dict[str, Any] = {
        "target": target[::2].drop("arm"),
        "target_test": target[1::2],
    }
    return daband.domains.from_table(source=source, **target_domains, columns=columns, name=name)


def store_predictions(kind: str, name: str, seed: int, out: Path, device: str) -> str:
    """Train on one data set with one seed, and write its file."""
    start = time.time()
    pair = load_pair(kind, name)
    candidates = list(default_candidates(pair))
    if len(pair.context_shape) == 1:  # LinUCB on pixels would take longer than all others together
        candidate_names = {candidate.name for candidate in candidates}
        candidates += [
            Candidate(method, method) for method in _SIMPLE_METHODS if method not in candidate_names
        ]
    episodes, episode_length = choose_training_budget(pair, None, 64)
    budget: dict[str, Any] = {"episodes": episodes, "episode_length": episode_length}
    policies = train_candidates(pair, candidates, seed=seed, **budget, device=device)
    n_contexts = _MAX_IMAGES if len(pair.context_shape) > 1 else _MAX_CONTEXTS
    assert pair.source_test is not None
    assert pair.target_test is not None
    source = SourceRounds.read(pair.source_test, n_contexts, seed=0)
    target = SourceRounds.read(pair.target_test, n_contexts, seed=0)
    source_means = [decide(policy, source.contexts, "source")[1] for policy in policies]
    target_means = [decide(policy, target.contexts, "target")[1] for policy in policies]
    np.savez_compressed(
        out / f"{kind}__{name}__{seed}.npz",
        candidates=np.array([candidate.name for candidate in candidates]),
        default=[candidate.preferred for candidate in candidates].index(True),
        shape=np.array(pair.context_shape),
        source_rewards=source.rewards.astype(np.float32),
        target_rewards=target.rewards.astype(np.float32),
        source_means=np.stack(source_means).astype(np.float32),
        target_means=np.stack(target_means).astype(np.float32),
    )
    return f"{kind}/{name}, seed {seed}: {time.time() - start:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        futures = [
            pool.submit(store_predictions, kind, name, seed, args.out, args.device)
            for seed in args.seeds
            for kind, name in list_data_sets(args.sets)
            if not (args.out / f"{kind}__{name}__{seed}.npz").exists()
        ]
        for future in futures:
            print(
                future.result() if future.exception() is None else f"FAILED {future.exception()!r}",
                flush=True,
            )


if __name__ == "__main__":
    main()
