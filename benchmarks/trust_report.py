"""What ``assess`` promises and what ``choose`` finds, on one half of the data sets, by the library as it is.

    python benchmarks/trust_report.py --half development --export pairs     # arrays: needs polars, scipy
    python benchmarks/trust_report.py --pairs pairs --out runs --jobs 15    # numpy and torch are enough
    python benchmarks/trust_report.py --runs runs --half development --record benchmarks/records/trust-development.json

``--half shared --ways`` (without a value: nothing is assessed) is for all data sets except those from packages.
For each data set and seed: every candidate of ``choose`` and the simple methods are trained with the library's
defaults, and their true values in the target are looked up afterwards. Each method that looks at contexts is assessed
twice: alone or with a second seed ("seeds": what a user has who trained one method twice), and with all candidates
("kinds": what ``choose`` does). Then rewards are bought, 0 to 200, as ``choose`` does and evenly, ten draws each.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

BUDGETS = (0, 10, 25, 50, 100, 200)
DRAWS = 10
SEEDS = (0, 1, 2)
TWICE = ("linucb", "linucb-p", "daband")
"""Methods of which a second seed is trained, for what ``assess`` says of two seeds."""
SIMPLE = ("constant", "linucb", "linucb-p", "nlinucb")
WAYS = ("seeds", "kinds")
NAMED = "named"
"""Markets in another currency whose ``shift`` the user states."""
_MOST_IMAGES, _MOST_TESTED = 3000, 1500
_WIDE = 500


def data_sets(half: str) -> Iterator[tuple[str, str]]:
    """Kind and name of every data set of a half; "shared" is both halves but for what is of packages."""
    from split import recorded

    halves = ("development", "report") if half == "shared" else (half,)
    for kind, names in [own for one in halves for own in recorded(one).items()]:
        for name in names:
            if half != "shared" or not kind.startswith("fresh_"):
                yield kind, name
            if half == "shared" and kind == "markets" and name.startswith("units"):
                yield NAMED, name


def load_pair(kind: str, name: str) -> Any:
    """The pair of a data set."""
    from split import READ_ONCE

    import daband

    if kind in ("markets", NAMED):
        what, number = name.rsplit("-", 1)
        pair = daband.domains.load("market", kind=what, data_seed=int(number))
        return replace_shift(pair) if kind == "markets" else _named(pair)
    if kind == "synthetic":
        degrees = float(name.rsplit("-", 1)[1])
        return daband.domains.load("synthetic", view={"rotation": degrees}, n_contexts=4000)
    if kind.startswith(("fresh", *READ_ONCE)):
        from fresh import load

        return load(kind, name)
    return daband.domains.load(name if kind == "images" else f"{kind}/{name}")


def replace_shift(pair: Any) -> Any:
    """The pair as a user has it who states nothing: a market's kind is what nobody knows."""
    from daband._shift import default_shift

    return replace(pair, shift=default_shift(pair.context_shape))


def _named(pair: Any) -> Any:
    """The pair as a user has it who knows that amounts are in another currency."""
    from daband._shift import as_shift
    from daband.domains.datasets._market import AMOUNTS

    names = {"context_shape": pair.context_shape, "feature_names": pair.feature_names}
    return replace(pair, shift=as_shift("units", units=AMOUNTS, **names))


def export(half: str, folder: Path, kinds: Sequence[str] = ()) -> None:
    """Write every pair as arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, name in data_sets(half):
        if kinds and kind not in kinds:
            continue
        pair = load_pair(kind, name)
        np.savez_compressed(folder / f"{kind}__{name}.npz", **_arrays(pair))
        print(kind, name, flush=True)


def _arrays(pair: Any) -> dict[str, Any]:
    from daband.domains._contract import LoggedDomain

    draw = np.random.default_rng(0)

    def some(n: int, most: int) -> Any:
        return np.sort(draw.permutation(n)[:most]) if len(pair.context_shape) > 1 else np.arange(n)

    rows = some(len(pair.source), _MOST_IMAGES)
    x = pair.source.read(rows)
    found: dict[str, Any] = {"feedback": pair.feedback, "name": pair.name}
    if pair.shift.units is not None:
        found["units"] = np.array(pair.shift.units)
    if isinstance(pair.source, LoggedDomain):
        arms, rewards, propensities = pair.source.read_log(rows)
        held = pair.source_test.rounds(0, len(pair.source_test), seed=0)
        found |= {"arms": arms, "rewards": rewards, "propensities": propensities}
        found |= {"xv": held.contexts, "v_arms": held.arms, "v_rewards": held.rewards, "v_prop": held.propensities}
    else:
        found["rewards"] = pair.source.read_rewards(rows)[0]
        n = len(pair.source_test)
        found |= {"xv": pair.source_test.read(0, n), "rv": pair.source_test.read_expected(0, n)}
    n = min(len(pair.target_test), _MOST_TESTED)
    found |= {"xs": x, "xt": pair.target.read(some(len(pair.target), _MOST_IMAGES))}
    found |= {"xe": pair.target_test.read(0, n), "re": pair.target_test.read_expected(0, n)}
    for key in ("xs", "xv", "xt", "xe"):
        if found[key].dtype.kind == "f" and found[key].shape[-1] > 300:
            found[key] = found[key].astype(np.float16)
    found["n_arms"] = pair.n_arms
    return found


def pair_of(path: Path) -> Any:
    """The pair that ``export`` wrote."""
    import daband

    data = np.load(path)
    x = {
        key: data[key].astype(np.float32) if data[key].dtype == np.float16 else data[key]
        for key in ("xs", "xv", "xt", "xe")
    }
    common: dict[str, Any] = {
        "target": x["xt"], "target_test": (x["xe"], data["re"]),
        "n_arms": int(data["n_arms"]), "name": str(data["name"]),
    }  # fmt: skip
    if "arms" in data:
        pair = daband.domains.from_log(
            source=(x["xs"], data["arms"], data["rewards"], data["propensities"]),
            source_test=(x["xv"], data["v_arms"], data["v_rewards"], data["v_prop"]),
            **common,
        )
    else:
        hot = str(data["feedback"]) == "one_hot"
        source = data["rewards"].argmax(axis=1) if hot else data["rewards"]
        held = data["rv"].argmax(axis=1) if hot else data["rv"]
        if hot:
            common["target_test"] = (x["xe"], data["re"].argmax(axis=1))
        pair = daband.domains.from_arrays(source=(x["xs"], source), source_test=(x["xv"], held), **common)
    return replace(pair, shift=daband.Shift.of("units", units=data["units"])) if "units" in data else pair


def candidates_of(pair: Any) -> tuple[list[Any], list[Any]]:
    """The candidates of ``choose``, and the simple methods beside them."""
    from daband.trust._choose import Candidate, default_candidates

    options = list(default_candidates(pair))
    if find_spec("sklearn") is None:  # said on the page: the record lists the candidates
        options = [option for option in options if option.method != "trees"]
    if len(pair.context_shape) > 1:  # LinUCB on pixels would take longer than all others together
        return options, []
    names = {option.name for option in options}
    return options, [Candidate(method, method) for method in SIMPLE if method not in names]


def trained_as(pair: Any) -> list[int]:
    """The place of the candidate that is trained for each: Neural-LinUCB and a DABand that aligns nothing are one."""
    first: dict[str, int] = {}
    places = []
    for place, candidate in enumerate(one for part in candidates_of(pair) for one in part):
        policy = candidate.build(pair, seed=0, device="cpu")
        self_trains = getattr(policy, "self_trains", False)  # on many features DABand alone learns from its own choices
        said = {
            "shift": [policy.shift.kinds, policy.shift.units],
            "self_trains": self_trains,
        }  # stated, or by the shape
        settings = json.dumps({**policy.settings(), **said}, sort_keys=True, default=repr)
        places.append(first.setdefault(settings if policy.learns_by_gradients else candidate.name, place))
    return places


def train(path: Path, seeds: Sequence[int], place: int, out: Path, episodes: int | None, device: str) -> None:
    """Train the candidate at one place; a second seed of some, for what ``assess`` says of two seeds."""
    from daband.training._train_candidates import train_candidates
    from daband.trust._choose import training_budget

    start = time.time()
    pair = pair_of(path)
    candidate = [one for part in candidates_of(pair) for one in part][place]
    shown, episodes, length = training_budget(pair, episodes, 64)
    (policies,) = train_candidates(
        shown, [candidate], seeds=list(seeds), episodes=episodes, episode_length=length, device=device
    )
    for seed, policy in zip(seeds, policies, strict=True):
        policy.save(out / f"{path.stem}__{seed}__{place}.safetensors")
        (out / f"{path.stem}__{seed}__{place}.seconds").write_text(f"{(time.time() - start) / len(seeds)}")


def judge(path: Path, seed: int, second: int, out: Path, ways: Sequence[str]) -> dict[str, Any]:
    """Evaluate, assess and choose on one data set with the policies of one seed; a second seed is for ``assess``."""
    import daband
    from daband.domains.readers._arrays import ArrayContexts
    from daband.evaluation._policy_scores import scores_of
    from daband.trust._assess import assess_each
    from daband.trust._estimate import ADAPTED, ALONE, MISSED

    start = time.time()
    pair = pair_of(path)
    options, extra = candidates_of(pair)
    both = [*options, *extra]
    trained = {
        (one, place): out / f"{path.stem}__{one}__{place}.safetensors"
        for one in (seed, second)
        for place in range(len(both))
    }
    device = "auto" if len(pair.context_shape) > 1 else "cpu"
    loaded: dict[Any, Any] = {key: daband.load(file, device=device) for key, file in trained.items() if file.exists()}
    as_trained = trained_as(pair)
    firsts = [loaded[seed, place] for place in as_trained]
    low, high = firsts[0].reward_moments.observed
    span = high - low
    truth = [(daband.evaluate(policy, pair.target_test, rule="greedy").value - low) / span for policy in firsts]
    test = pair.target_test
    table = (test.read_expected(0, len(test)) - low) / span
    record: dict[str, Any] = {
        "data": path.stem.split("__")[0], "name": path.stem.split("__")[1], "seed": seed, "n_source": len(pair.source),
        "n_arms": pair.n_arms, "recipe_hash": _recipe_hash(both, firsts),
        "constant": float(table.mean(axis=0).max()), "best": float(table.max(axis=1).mean()),
        "values": {option.name: float(value) for option, value in zip(both, truth, strict=True)},
        "train_seconds": {
            option.name: float((out / f"{path.stem}__{seed}__{place}.seconds").read_text())
            for place, option in zip(as_trained, both, strict=True)
        },
    }  # fmt: skip
    record["constants"] = [ALONE, MISSED, ADAPTED]
    asked = {"source": pair.source_test, "target": pair.target, "rule": "greedy", "shift": pair.shift}
    uses = [place for place, option in enumerate(both) if option.uses_contexts]
    distinct = _distinct([firsts[place] for place in uses], pair) if "kinds" in ways else []
    by_kinds = (
        dict(zip(distinct, assess_each([firsts[uses[i]] for i in distinct], **asked), strict=True)) if distinct else {}
    )
    record["assessed"] = []
    for index, place in enumerate(uses if ways else ()):
        seeds = [firsts[place]]
        if both[place].name in TWICE and (second, as_trained[place]) in loaded:
            seeds.append(loaded[second, as_trained[place]])
        seeds = [seeds[i] for i in _distinct(seeds, pair)]
        alone = daband.assess(seeds, **asked) if "seeds" in ways else None
        for how, found in (("seeds", alone), ("kinds", by_kinds.get(index))):
            if found is None:  # as one before
                continue
            unit = {key: (getattr(found, key) - low) / span for key in ("value", "low", "required", "source_value")}
            unit |= {
                "source_error": found.source_error / span,
                "least": (min(found.explanations.values()) - low) / span,
            }
            record["assessed"].append(
                {
                    "method": both[place].name,
                    "how": how,
                    "true": float(truth[place]),
                    **unit,
                    "verdict": found.verdict,
                    "rewards": found.audit_rewards,
                    "disagreement": found.disagreement,
                    "outside": found.outside_support,
                    "rounds": found.source_rounds,
                    "readings": len(found.explanations),
                    "adapted": firsts[place].adapts_to_target,
                }
            )
    # Buying rewards among the candidates of choose: the target's labelled half plays the person who is asked.
    kept = _distinct(firsts[: len(options)], pair)
    policies = [firsts[i] for i in kept]
    target = ArrayContexts(test.read(0, len(test)))
    scores, _, _ = scores_of(
        policies, source=pair.source_test, target=target, contexts=len(test), rule="greedy", seed=seed
    )
    order = target.order(0, len(test), seed=seed)
    place = next(i for i, at in enumerate(kept) if options[at].preferred)  # what choose takes without rewards
    record["chosen"] = options[kept[place]].name
    record["bought"] = _buy(scores, table[order], place, one_hot=pair.feedback == "one_hot")
    record["seconds"] = time.time() - start
    unfinished = out / f"{path.stem}__{seed}.part"
    unfinished.write_text(json.dumps(record))
    unfinished.rename(out / f"{path.stem}__{seed}.json")  # a call that is ended leaves no half of a record
    return record


def _recipe_hash(candidates: Sequence[Any], policies: Sequence[Any]) -> str:
    """That of the default."""
    return str(next(p.recipe.fingerprint() for c, p in zip(candidates, policies, strict=True) if c.name == "daband"))


def _distinct(policies: Sequence[Any], pair: Any) -> list[int]:
    """The places of policies that do not predict the same as one before."""
    contexts = pair.target.read(np.arange(min(256, len(pair.target))))
    kept: dict[bytes, int] = {}
    for place, policy in enumerate(policies):
        means = [policy.decide(contexts, d, rule="greedy", round_offset=0).mean for d in ("source", "target")]
        kept.setdefault(np.stack(means).tobytes(), place)
    return sorted(kept.values())


def _buy(scores: Any, table: Any, place: int, *, one_hot: bool) -> dict[str, Any]:
    """How far below the best candidate the choice is after so many rewards: as ``choose`` asks, and drawn evenly.

    Evenly with the candidates' predictions as control variates ("even"), and without ("plain").
    """
    from daband.trust._candidate_selection import Proposals, Selection

    arms = scores.target_arm
    proposals = Proposals(arms, scores.target_mean)
    predicted = proposals.predicted
    rows = np.arange(arms.shape[1])
    truth = np.array([table[rows, own].mean() for own in arms])
    found: dict[str, Any] = {name: {} for name in ("asked", "even", "plain")}
    found |= {name: [] for name in ("stopped", "best_kept", "covered", "width", "error")}
    for how in ("asked", "even", "plain"):
        found[how] = {str(budget): [] for budget in BUDGETS}
    for draw in range(DRAWS):
        selection = Selection(proposals, one_hot=one_hot, seed=draw)
        for spent in range(max(BUDGETS) + 1):
            if spent in BUDGETS:
                chosen = selection.choice(place) if selection.asked else place
                found["asked"][str(spent)].append(float(truth.max() - truth[chosen]))
            if not selection.finished and (questions := selection.draw()):
                selection.answer(float(np.clip(table[questions[0]], 0.0, 1.0)))
        found["stopped"].append(selection.asked)
        found["best_kept"].append(bool(selection.remaining[truth.argmax()]))
        limits = selection.interval(selection.leader)
        found["covered"].append(bool(limits.low - 1e-9 <= truth[selection.leader] <= limits.high + 1e-9))
        found["width"].append(limits.high - limits.low)
        found["error"].append(abs(limits.value - float(truth[selection.leader])))
        for how, guess in (("even", predicted), ("plain", np.zeros_like(predicted))):
            found[how] = _evenly(found[how], arms, guess, table, truth, place, draw)
    return found


def _evenly(
    found: dict[str, list[float]],
    arms: Any,
    predicted: Any,
    table: Any,
    truth: Any,
    place: int,
    draw: int,
) -> dict[str, list[float]]:
    """The baseline: contexts drawn evenly, one of the proposed arms each, the best mean by inverse propensity."""
    generator = np.random.default_rng(draw)
    n = arms.shape[1]
    total = np.zeros(len(arms))
    base = np.array([predicted[np.arange(n), own].mean() for own in arms])
    for spent in range(max(BUDGETS) + 1):
        if str(spent) in found:
            leader = int((base + total / spent).argmax()) if spent else place
            found[str(spent)].append(float(truth.max() - truth[leader]))
        context = generator.integers(n)
        proposed = np.unique(arms[:, context])
        arm = generator.choice(proposed)
        residual = table[context, arm] - predicted[context, arm]
        total += np.where(arms[:, context] == arm, residual * len(proposed), 0.0)
    return found


def _attempt(what: str, *arguments: Any) -> str:
    """Train or judge, and say how long it took or what went wrong."""
    start = time.time()
    try:
        (train if what == "train" else judge)(*arguments)
        return f"{time.time() - start:.0f} s"
    except Exception:
        return f"FAILED {traceback.format_exc()}"


def _plan(path: Path) -> tuple[bool, bool, dict[int, bool]]:
    """Whether contexts are images, whether they are wide; by place of each candidate to train whether it is slow."""
    pair = pair_of(path)
    image, wide = len(pair.context_shape) > 1, int(np.prod(pair.context_shape)) > _WIDE
    candidates = [one for part in candidates_of(pair) for one in part]
    slow = [image or "style" in one.name or (wide and one.method in ("daband", "nlinucb")) for one in candidates]
    return image, wide, {place: slow[place] for place in sorted(set(trained_as(pair)))}


def run(
    paths: Sequence[Path],
    seeds: Sequence[int],
    out: Path,
    *,
    jobs: int,
    gpu_jobs: int,
    ways: Sequence[str],
    seconds: float,
    episodes: Any,
) -> None:
    """Train every candidate in a job of its own, seed after seed, data set after data set; judge as soon as one can.

    ``gpu_jobs`` processes train slow ones on the GPU, all seeds as one stack. What an earlier call left in ``out`` is
    not done again.
    """
    until = time.time() + seconds
    training: list[tuple[tuple[Any, ...], bool, tuple[Any, ...]]] = []
    untrained = {(path, seed): 0 for path in paths for seed in seeds}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        plans = list(pool.map(_plan, paths))
    for path, (image, wide, places) in zip(paths, plans, strict=True):
        for place, slow in places.items():
            stacked = image or (slow and gpu_jobs > 0)
            for number, group in enumerate([tuple(seeds)] if stacked else [(seed,) for seed in seeds]):
                if all((out / f"{path.stem}__{seed}__{place}.seconds").exists() for seed in group):
                    continue
                job = ("train", path, group, place, out, episodes, "auto" if stacked else "cpu")
                training.append(((image, number, not wide, path.stem, not slow), slow and gpu_jobs > 0, job))
                for seed in group:
                    untrained[path, seed] += 1
    training.sort(key=lambda one: one[0])
    second = dict(zip(seeds, [*seeds[1:], *seeds], strict=False)) if "seeds" in ways else {seed: seed for seed in seeds}
    unjudged = {key for key in untrained if not (out / f"{key[0].stem}__{key[1]}.json").exists()}
    queues = [[job for _, gpu, job in training if gpu == want] for want in (False, True)]
    running: dict[Any, tuple[bool, tuple[Any, ...]]] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        while True:
            late = time.time() > until
            if late:
                print(f"{sum(job[0] == 'train' for queue in queues for job in queue)} trainings left out", flush=True)
                queues = [[job for job in queues[0] if job[0] == "judge"], []]
                until = float("inf")
            for path, seed in sorted(unjudged):  # in the end with one seed, where that is all
                if not untrained[path, seed] and (late or not untrained[path, second[seed]]):
                    unjudged.remove((path, seed))
                    queues[0].insert(0, ("judge", path, seed, second[seed], out, ways))
            while any(queues) and len(running) < jobs:
                few = sum(gpu for gpu, _ in running.values()) < gpu_jobs
                gpu = bool(queues[1]) and (few or not queues[0])
                job = queues[gpu].pop(0)
                running[pool.submit(_attempt, *job)] = gpu, job
            if not running:
                return
            for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                _, (what, path, which, *more) = running.pop(future)
                print(what, path.stem, which, more[0], future.result(), flush=True)
                if what == "train" and "FAILED" not in future.result():
                    for seed in which:
                        untrained[path, seed] -= 1


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Errors, coverage and verdicts by kind of data and way of assessing; and what rewards buy."""
    found: dict[str, Any] = {"assess": [], "rewards": [], "default": []}
    kinds = sorted({record["data"] for record in records})
    for how in sorted({one["how"] for record in records for one in record["assessed"]}, reverse=True):
        for kind in [*kinds, "all"]:
            own = [
                {**one, "constant": record["constant"]}
                for record in records
                for one in record["assessed"]
                if one["how"] == how and kind in (record["data"], "all")
            ]
            good = [one for one in own if one["true"] > 0.85]
            handed = [one for one in own if one["verdict"] == "hand over"]
            found["assess"].append(
                {
                    "how": how,
                    "data": kind,
                    "policies": len(own),
                    "error": _mean(abs(one["value"] - one["true"]) for one in own),
                    "covered": _mean(one["true"] >= one["low"] - 1e-9 for one in own),
                    "source": _mean(abs(one["source_value"] - one["true"]) for one in own),
                    "handed_over": len(handed),
                    "handed_over_below_constant": sum(one["true"] < one["constant"] for one in handed),
                    "good": len(good),
                    "good_handed_over": sum(one["verdict"] == "hand over" for one in good),
                    "asked": sum(one["verdict"] == "ask" for one in own),
                    "width": _mean(one["value"] - one["low"] for one in own),
                }
            )
    for kind in [*kinds, "all"]:
        own = [record for record in records if kind in (record["data"], "all")]
        for budget in BUDGETS:
            row: dict[str, Any] = {"data": kind, "rewards": budget}
            for how in ("asked", "even", "plain"):
                lost = [value for record in own for value in record["bought"].get(how, {}).get(str(budget), ())]
                row[f"{how}_within"], row[f"{how}_lost"] = _mean(value <= 0.03 for value in lost), _mean(lost)
            found["rewards"].append(row)
        simple = [max(r["values"][m] for m in SIMPLE if m in r["values"]) for r in own]
        gap = [r["values"]["daband"] - best for r, best in zip(own, simple, strict=True)]
        taken = [r["values"][r["chosen"]] - best for r, best in zip(own, simple, strict=True)]
        found["default"].append(
            {
                "data": kind,
                "runs": len(own),
                "daband": _mean(gap),
                "within_02": _mean(g >= -0.02 for g in gap),
                "within_04": _mean(g >= -0.04 for g in gap),
                "worst": min(gap),
                "chosen": _mean(taken),
                "chosen_within_04": _mean(g >= -0.04 for g in taken),
                "chosen_worst": min(taken),
                "best_kept": _mean(k for r in own for k in r["bought"]["best_kept"]),
                "covered": _mean(k for r in own for k in r["bought"]["covered"]),
                "width": _mean(k for r in own for k in r["bought"]["width"]),
                "error": _mean(k for r in own for k in r["bought"].get("error", ())),
                "stopped": _mean(k for r in own for k in r["bought"]["stopped"]),
            }
        )
    return found


def _mean(values: Any) -> float:
    listed = [float(value) for value in values]
    return round(float(np.mean(listed)), 4) if listed else float("nan")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(own) for key, own in value.items()}
    return [_rounded(own) for own in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--half", choices=["development", "report", "shared", "third", "fourth", "fifth"], default="development"
    )
    parser.add_argument("--export", type=Path)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--gpu-jobs", type=int, default=0, help="of the jobs, for what takes long on a CPU")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), help="of assessing")
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing after so many")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--kinds", nargs="*", default=[], help="these kinds of data alone")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--machine", default="")
    parser.add_argument("--note", default="", help="what the page says of the record")
    given = parser.parse_args()
    if given.export:
        export(given.half, given.export, given.kinds)
    if given.pairs:
        given.out.mkdir(parents=True, exist_ok=True)
        paths = [
            p for p in sorted(given.pairs.glob("*.npz")) if not given.kinds or p.stem.split("__")[0] in given.kinds
        ]
        limits = {"jobs": given.jobs, "gpu_jobs": given.gpu_jobs, "seconds": given.seconds}
        run(paths, given.seeds, given.out, ways=given.ways, episodes=given.episodes, **limits)
    if given.runs:
        records = [_rounded(json.loads(path.read_text())) for path in sorted(given.runs.glob("*.json"))]
        result = {
            "half": given.half, "commit": given.commit, "machine": given.machine, "note": given.note,
            **summary([run for run in records if run["data"] != NAMED]), "runs": records,
        }  # fmt: skip
        given.record.write_text(json.dumps(result, indent=None, separators=(",", ":")) + "\n")
        for row in result["assess"] + result["default"]:
            print(row)


if __name__ == "__main__":
    main()
