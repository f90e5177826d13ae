"""Policies fitted to logs in Parquet files: the same as by ``update``, however the log is cut,
killed and continued.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import daband
from daband.domains.readers._arrays import ArrayContexts
from daband.errors import DataError, InvalidInput
from daband.training import LogWarning

pl = pytest.importorskip("polars")
PATIENCE = 240.0
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra ray"
)


def frame(rows, *, seed=0, features=4):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    arm = rng.integers(0, 3, rows)
    reward = (x[:, :3][np.arange(rows), arm] > 0).astype(np.float64)
    logged = {"arm": arm, "reward": reward, "propensity": rng.uniform(0.1, 1, rows)}
    return pl.DataFrame({**{f"x{i}": x[:, i] for i in range(features)}, **logged})


def write(folder, *frames):
    folder.mkdir(exist_ok=True)
    for number, table in enumerate(frames):
        table.write_parquet(folder / f"{number}.parquet")
    return folder


def columns(table, features=4):
    x = table.select([f"x{i}" for i in range(features)]).to_numpy()
    return x, table["arm"].to_numpy(), table["reward"].to_numpy(), table["propensity"].to_numpy()


@pytest.fixture
def log(tmp_path):
    return write(tmp_path / "log", *(frame(200 + n, seed=n) for n in range(5)))


@pytest.fixture
def whole():
    return columns(pl.concat([frame(200 + n, seed=n) for n in range(5)]))


LOG_ROLES = {"arm": "arm", "reward": "reward", "propensity": "propensity"}


def linucb(**settings):
    return daband.LinUCB(context_shape=(4,), n_arms=3, **settings)


def theta(policy):
    return policy._head.statistics.theta


def damage(path):
    """Write over the pages in the middle of a file; its footer stays."""
    content = bytearray(path.read_bytes())
    content[40:700] = os.urandom(660)
    path.write_bytes(content)


@pytest.mark.parametrize("power", [0.0, 0.25, 1.0])
def test_it_is_what_update_gives(log, whole, power, monkeypatch):
    monkeypatch.setattr(daband.LinUCB, "propensity_power", power)
    x, arm, reward, propensity = whole
    expected = linucb()
    expected.update(x, arm, reward, propensities=propensity)
    seen = []
    policy = linucb()
    assert daband.fit_log(policy, log, progress=seen.append) is policy
    np.testing.assert_allclose(theta(policy), theta(expected), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(policy.counts, expected.counts)
    assert policy.rounds_learned == len(x)
    assert [record["parts"] for record in seen] == [1, 2, 3, 4, 5]
    assert seen[-1]["rows"] == seen[-1]["rows_total"] == len(x)
    assert seen[-1]["seconds_left"] == 0
    assert all(record["rows_per_second"] > 0 for record in seen)


def test_what_was_learned_before_stays(log, whole):
    x, arm, reward, propensity = whole
    policy = linucb()
    expected = linucb()
    for own in (policy, expected):
        own.update(x[:300], arm[:300], 1 - reward[:300])
    daband.fit_log(policy, log)
    expected.update(x, arm, reward, propensities=propensity)
    np.testing.assert_allclose(theta(policy), theta(expected), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: linucb(transform=daband.Standardise()),
        lambda: linucb(transform=daband.PCA(2), standardise_rewards=False),
        lambda: daband.Constant(context_shape=(4,), n_arms=3),
        lambda: daband.LinUCB(context_shape=(2, 2), n_arms=3),
    ],
)
def test_transforms_units_and_forms(log, whole, make, tmp_path):
    x, arm, reward, propensity = whole
    policy = make()
    expected = make()
    daband.fit_log(policy, log, directory=tmp_path / "state")
    if policy.transform is not None:
        expected.transform = policy.transform
    expected.update(x.reshape(-1, *policy.context_shape), arm, reward, propensities=propensity)
    np.testing.assert_allclose(policy.reward_moments.state(), expected.reward_moments.state())
    some = x[:20].reshape(-1, *policy.context_shape)
    np.testing.assert_allclose(
        policy.decide(some).mean, expected.decide(some).mean, rtol=0, atol=1e-7
    )


class Killed(Exception):
    pass


def dying_after(parts):
    def progress(record):
        if record["parts"] == parts:
            raise Killed

    return progress


def test_killed_and_started_again_it_goes_on_with_the_next_part(log, tmp_path):
    alone = daband.fit_log(linucb(), log)
    state = tmp_path / "state"
    policy = linucb()
    with pytest.raises(Killed):
        daband.fit_log(policy, log, directory=state, progress=dying_after(3))
    assert policy.rounds_learned == 0  # an unfinished fit leaves the policy as it was
    seen = []
    daband.fit_log(policy, log, directory=state, progress=seen.append)
    assert len(seen) < 5
    np.testing.assert_array_equal(theta(policy), theta(alone))

    frame(100, seed=9).write_parquet(log / "9.parquet")  # files that come later are learned as well
    more = linucb()
    seen = []
    daband.fit_log(more, log, directory=state, progress=seen.append)
    assert [record["parts"] for record in seen] == [6]
    np.testing.assert_allclose(theta(more), theta(daband.fit_log(linucb(), log)), rtol=0, atol=1e-9)


def test_a_folder_of_another_fit_is_refused(log, tmp_path):
    state = tmp_path / "state"
    daband.fit_log(linucb(), log, directory=state)
    with pytest.raises(InvalidInput, match=r"policy\.alpha: .*1\.0, .*0\.7"):
        daband.fit_log(linucb(alpha=0.7), log, directory=state)
    frame(50, seed=3).write_parquet(log / "1.parquet")
    with pytest.raises(InvalidInput, match=r"1\.parquet:0-201 "):
        daband.fit_log(linucb(), log, directory=state)
    (state / "sums.npz").write_bytes(b"nonsense")
    with pytest.raises(daband.CheckpointError, match=r"sums\.npz"):
        daband.fit_log(linucb(), log, directory=state)


def test_a_damaged_file_is_named_and_the_others_are_not_lost(log, tmp_path):
    intact = (log / "2.parquet").read_bytes()
    damage(log / "2.parquet")
    policy = linucb()
    with pytest.raises(DataError, match=rf"2\.parquet .*{tmp_path}/state"):
        daband.fit_log(policy, log, directory=tmp_path / "state")
    assert policy.rounds_learned == 0
    (log / "2.parquet").write_bytes(intact)  # once it is repaired, the fit goes on
    mended = daband.fit_log(linucb(), log, directory=tmp_path / "state")
    np.testing.assert_array_equal(theta(mended), theta(daband.fit_log(linucb(), log)))


def test_rows_that_cannot_be_learned_are_named_with_their_file(log):
    bad = frame(30).with_columns(pl.lit(1e200).alias("reward"))
    bad.write_parquet(log / "5.parquet")
    policy = linucb()
    with pytest.raises(DataError, match=r"5\.parquet: .*'reward' .*row 0 .*1e\+100"):
        daband.fit_log(policy, log)
    assert policy.rounds_learned == 0


def test_a_policy_that_learns_by_gradients_draws_from_the_stream(log, whole, tmp_path):
    recipe = {"base": "small", "learning": {"steps": 2, "batch": 8}, "replay": {"capacity": 300}}
    arguments = {"context_shape": (4,), "n_arms": 3, "recipe": recipe, "device": "cpu"}
    target = ArrayContexts(whole[0][:150] + 1)
    options = {"target": target, "adapt_every": 100}
    policy = daband.fit_log(daband.DABand(**arguments), log, **options)
    assert policy.rounds_learned == len(whole[0])
    assert len(policy.buffers.rounds[0]) == 300
    assert policy.learner.step_number == 2 * sum(-(-len(frame(200 + n)) // 100) for n in range(5))

    started = daband.DABand(**arguments)
    with pytest.raises(Killed):
        daband.fit_log(
            started, log, **options, directory=tmp_path / "state", progress=dying_after(2)
        )
    resumed = daband.fit_log(
        daband.DABand(**arguments), log, **options, directory=tmp_path / "state"
    )
    assert resumed.rounds_learned == policy.rounds_learned
    assert resumed.learner.step_number == policy.learner.step_number

    damage(log / "2.parquet")
    partly = daband.DABand(**arguments)
    with pytest.raises(DataError, match=r"2\.parquet"):
        daband.fit_log(partly, log, **options)
    assert partly.rounds_learned == 200 + 201
    with pytest.raises(InvalidInput, match=r"engine .*'local' .*daband"):
        daband.fit_log(daband.DABand(**arguments), log, engine="ray")


def test_arguments_are_checked(log, tmp_path):
    for wrong, message in (
        ({"engine": "spark"}, "engine .*'spark'"),
        ({"adapt_every": 0}, "adapt_every .*0$"),
        ({"domain": "elsewhere"}, "domain .*'elsewhere'"),
        ({"target": np.zeros((3, 4))}, "target .*ndarray"),
    ):
        with pytest.raises(InvalidInput, match=message):
            daband.fit_log(linucb(), log, **wrong)
    with pytest.raises(InvalidInput, match=r"policy .*'linucb'"):
        daband.fit_log("linucb", log)
    with pytest.raises(DataError, match=r"none/\*\.parquet;"):
        daband.fit_log(linucb(), f"{tmp_path}/none/*.parquet")
    with pytest.raises(InvalidInput, match=r"0\.parquet .*4 .*\(7,\)"):
        daband.fit_log(daband.LinUCB(context_shape=(7,), n_arms=3), log)
    with pytest.raises(DataError, match=r"'arm', row 7 .*\(0, 1\)"):
        daband.fit_log(daband.LinUCB(context_shape=(4,), n_arms=2), log)
    misspelt = daband.domains.Columns(
        ("x0", "y1"), arm="arm", reward="reward", propensity="propensity"
    )
    with pytest.raises(DataError, match=r"0\.parquet .*'y1' "):
        daband.fit_log(linucb(), log, columns=misspelt)
    misspelt = daband.domains.Columns(("y1",), arm="arm", reward="reward", propensity="propensity")
    with pytest.raises(DataError, match=r"0\.parquet .*'y1' "):
        daband.fit_log(linucb(), log, columns=misspelt)


@pytest.mark.slow
def test_the_command_line(log, tmp_path):
    out = tmp_path / "policy.safetensors"
    command = [
        sys.executable,
        "-m",
        "daband",
        "fit-log",
        f"{log}/*.parquet",
        "--n-arms",
        "3",
        "--out",
        str(out),
    ]
    done = subprocess.run(
        [*command, "--state", str(tmp_path / "s")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1,010 learned" in done.stdout
    assert daband.load(out).rounds_learned == 1010
    done = subprocess.run(
        [*command, "--context", "x0,nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no column 'nothing'" in re.sub(r"\s+", " ", done.stderr)


@pytest.mark.slow
@needs_ray
def test_two_ray_workers_one_of_them_killed_give_the_same_coefficients(log, tmp_path):
    """The worker of the second part kills itself the first time, as if its machine were lost."""
    script = """
import json, os, signal, sys
import daband

class Deadly(daband.domains.ParquetLog):
    mark = sys.argv[2]  # here: a worker's own arguments are Ray's, e.g. --node-manager-port=...

    def batches(self, part, rows=65536):
        for batch in super().batches(part, rows):
            yield batch
            if part.path.endswith("1.parquet") and not os.path.exists(self.mark):
                open(self.mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

import ray

ray.init(address="local", num_cpus=2, log_to_driver=False)
policy = daband.LinUCB(context_shape=(4,), n_arms=3)
daband.fit_log(policy, Deadly(sys.argv[1], n_arms=3), engine="ray")
print(json.dumps(policy._head.statistics.theta.tolist()))
"""
    mark = tmp_path / "killed"
    here = tmp_path / "here"
    here.mkdir()
    command = [sys.executable, "-c", script, str(log), str(mark)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=here
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert mark.exists()
    assert not list(here.iterdir())  # nothing is left where the driver was started
    found = np.array(json.loads(done.stdout.splitlines()[-1]))
    # Not to the bit: a worker may have another number of threads for its products than this
    # process.
    np.testing.assert_allclose(found, theta(daband.fit_log(linucb(), log)), rtol=0, atol=1e-12)


def test_a_log_that_is_refused_leaves_no_thread_at_work(log):
    """Before, threads and the limit of one thread for products stayed as long as somebody held the
    exception.
    """
    damage(log / "0.parquet")
    before = threading.enumerate()
    with pytest.raises(DataError) as held:
        daband.fit_log(linucb(), log)
    assert held.tb is not None
    assert threading.enumerate() == before


@pytest.mark.slow
@needs_ray
def test_a_part_that_kills_every_worker_is_named(log, tmp_path):
    script = """
import os, signal, sys
import daband
import ray

class Deadly(daband.domains.ParquetLog):
    def batches(self, part, rows=65536):
        os.kill(os.getpid(), signal.SIGKILL)

ray.init(address="local", num_cpus=1, log_to_driver=False)
try:
    policy = daband.LinUCB(context_shape=(4,), n_arms=3)
    daband.fit_log(policy, Deadly(sys.argv[1], n_arms=3), engine="ray")
except daband.errors.WorkerDied as error:
    print(error)
"""
    command = [sys.executable, "-c", script, str(next(log.glob("*.parquet")))]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert os.path.basename(command[-1]) in done.stdout


@pytest.mark.parametrize("kind", ["linear", "neural"])
@pytest.mark.parametrize("with_state", [True, False])
def test_a_fitted_policy_that_comes_back_counts_no_round_twice(log, tmp_path, kind, with_state):
    recipe = {"base": "small", "learning": {"steps": 1, "batch": 8}}
    place = tmp_path / "policy.safetensors"
    first = (
        linucb()
        if kind == "linear"
        else daband.NeuralLinUCB(context_shape=(4,), n_arms=3, recipe=recipe)
    )
    first.save(place)
    more = {"directory": tmp_path / "state"} if with_state else {}

    def fit_in_place():
        policy = daband.load(place, device="cpu")
        if with_state or not policy.rounds_learned:
            daband.fit_log(policy, log, **more)
        else:
            with pytest.warns(LogWarning, match=r"0\.parquet .* 1,[01]10 "):
                daband.fit_log(policy, log, **more)
        policy.save(place)
        return policy

    assert [fit_in_place().rounds_learned for _ in range(3)] == [1010] * 3
    online = daband.load(place, device="cpu")  # and it may learn by itself in between
    online.update(np.zeros((5, 4)), [0] * 5, [1.0] * 5)
    online.save(place)
    frame(100, seed=9).write_parquet(log / "9.parquet")
    again = fit_in_place()
    assert again.rounds_learned == 1115
    (log / "9.parquet").rename(log / "a9.parquet")  # the same rounds under another name
    if not with_state:
        assert fit_in_place().rounds_learned == 1115
    if kind == "linear":
        anew = linucb()
        anew.update(np.zeros((5, 4)), [0] * 5, [1.0] * 5)
        daband.fit_log(anew, log)
        np.testing.assert_allclose(theta(again), theta(anew), rtol=0, atol=1e-9)


def test_a_killed_fit_of_new_files_into_a_fitted_policy_goes_on(log, tmp_path):
    state = {"directory": tmp_path / "state"}
    policy = daband.fit_log(linucb(), log, **state)
    for number in (7, 8):
        frame(100, seed=number).write_parquet(log / f"{number}.parquet")
    with pytest.raises(Killed):
        daband.fit_log(policy, log, **state, progress=dying_after(6))
    assert policy.rounds_learned == 1010
    assert daband.fit_log(policy, log, **state).rounds_learned == 1210
    # a fresh one learns all of it
    assert daband.fit_log(linucb(), log, **state).rounds_learned == 1210


def week(seed, rows=300):
    return frame(rows, seed=seed).with_columns(
        event_id=pl.lit(f"{seed}-") + pl.int_range(rows).cast(pl.String)
    )


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_learn_log_counts_every_round_of_the_target_once(tmp_path, kind):
    recipe = {"base": "small", "learning": {"steps": 1, "batch": 8}}
    policy = (
        linucb()
        if kind == "linear"
        else daband.NeuralLinUCB(context_shape=(4,), n_arms=3, recipe=recipe)
    )
    x, arm, reward, _ = columns(frame(500, seed=50))
    policy.update(x, arm, 1 - reward)
    week(1).write_parquet(tmp_path / "week1.parquet")
    assert daband.learn_log(policy, tmp_path / "week1.parquet", id="event_id").rounds_learned == 800
    with pytest.warns(LogWarning, match=r"week1\.parquet .* 300 "):
        assert (
            daband.learn_log(policy, tmp_path / "week1.parquet", id="event_id").rounds_learned
            == 800
        )
    # the same rounds in a file of another content
    late = pl.concat([week(1).with_columns(reward=1.0), week(2)])
    late.write_csv(tmp_path / "late.csv")
    policy.save(tmp_path / "p.safetensors")
    policy = daband.load(tmp_path / "p.safetensors", device="cpu")
    assert daband.learn_log(policy, tmp_path / "late.csv", id="event_id").rounds_learned == 1100
    assert policy.version == 2
    daband.export(policy, tmp_path / "p.daband", domain="target")
    assert daband.load_deployed(tmp_path / "p.daband").version == 2
    with pytest.raises(InvalidInput, match=r"^id .*'event', .*'event_id'"):
        daband.learn_log(policy, tmp_path / "week1.parquet", id="event")


def test_learn_log_takes_names_of_arms_and_columns_and_rewards_that_are_late(tmp_path):
    policy = linucb()
    policy.arm_names = ["tea", "none", "coffee"]
    policy.save(tmp_path / "p.safetensors")
    names = daband.load(tmp_path / "p.safetensors").arm_names
    assert names == ("tea", "none", "coffee")
    named = week(1).with_columns(
        pl.col("arm").replace_strict(dict(enumerate(names)), return_dtype=pl.String)
    )
    named = named.rename({"arm": "offer", "reward": "euros", "propensity": "p"})
    late = named.with_columns(euros=pl.when(pl.int_range(300) % 3 > 0).then("euros"))
    late.write_parquet(tmp_path / "late.parquet")
    columns = {"arm": "offer", "reward": "euros", "propensity": "p", "id": "event_id"}
    with pytest.warns(
        LogWarning,
        match=r"late\.parquet: 100 ",
    ):
        daband.learn_log(policy, tmp_path / "late.parquet", **columns)
    assert policy.rounds_learned == 200
    named.write_csv(tmp_path / "all.csv")
    daband.learn_log(policy, tmp_path / "all.csv", **columns)
    is_late = pl.int_range(300) % 3 == 0  # target rounds are learned in order
    pl.concat([week(1).filter(~is_late), week(1).filter(is_late)]).write_parquet(
        tmp_path / "plain.parquet"
    )
    plain = daband.learn_log(linucb(), tmp_path / "plain.parquet", id="event_id")
    np.testing.assert_allclose(theta(policy), theta(plain), atol=1e-9)
    with pytest.raises(DataError, match=r"all\.csv .*'coffee' .*policy\.arm_names"):
        daband.learn_log(linucb(), tmp_path / "all.csv", **columns)
    gaps = {1: float("nan"), 2: float("inf")}  # in a CSV file NaN is a gap, as it is for `choose`
    wrong = pl.Series("euros", [gaps.get(row, reward) for row, reward in enumerate(named["euros"])])
    named.with_columns(wrong).write_csv(tmp_path / "wrong.csv")
    with (
        pytest.warns(LogWarning, match=r"wrong\.csv: 1 "),
        pytest.raises(DataError, match=r"wrong\.csv: .*'euros' .*'inf' .*row 2") as error,
    ):
        daband.learn_log(policy, tmp_path / "wrong.csv", **columns)
    assert ".parquet" not in str(error.value)
    assert policy.add_arm() == 3
    assert policy.arm_names == ("tea", "none", "coffee", "3")


@pytest.mark.slow
def test_the_command_learn_writes_versions(tmp_path):
    run = [sys.executable, "-m", "daband"]
    place = tmp_path / "policy.safetensors"
    linucb().save(place)
    week(1).write_csv(tmp_path / "week1.csv")
    command = [*run, "learn", str(place), str(tmp_path / "week1.csv"), "--id", "event_id"]
    for expected in ("Learned 300 target rounds", "Learned 0 target rounds"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
    assert daband.load(place).rounds_learned == 300


def test_continue_on_target_takes_a_log(tmp_path):
    week(1).drop("event_id").write_parquet(tmp_path / "week1.parquet")
    log = daband.domains.ParquetLog(tmp_path / "week1.parquet", n_arms=3)
    policy = linucb()
    run = daband.continue_on_target(policy, target=log, rounds=200)
    assert (run.rounds, policy.rounds_learned) == (200, 200)


def test_a_frame_in_the_place_of_a_log_is_named_by_its_type():
    """Before: the error printed all its rows."""
    with pytest.raises(daband.InvalidInput, match=r"log .*DataFrame"):
        daband.learn_log(daband.LinUCB(context_shape=(1,), n_arms=2), pl.DataFrame({"arm": [0]}))


def test_a_column_of_weights_counts_rounds(tmp_path):
    tables = [
        frame(100, seed=n).with_columns(w=np.random.default_rng(n).uniform(0, 3, 100))
        for n in range(3)
    ]
    folder = write(tmp_path / "log", *tables)
    table = pl.concat(tables)
    x, arms, rewards, propensities = columns(table)
    expected = linucb()
    weights = table["w"].to_numpy()
    expected.update(x.astype(float), arms, rewards, weights=weights, propensities=propensities)
    summed = daband.fit_log(linucb(), folder, weights="w")
    np.testing.assert_allclose(theta(summed), theta(expected), atol=1e-9)
    numbered = write(
        tmp_path / "ids",
        *(one.with_columns(n=pl.int_range(100) + 100 * i) for i, one in enumerate(tables)),
    )
    streamed = daband.learn_log(linucb(), numbered, weights="w", id="n")
    in_target = linucb()
    in_target.update(
        x.astype(float),
        arms,
        rewards,
        weights=weights,
        propensities=propensities,
        domain="target",
    )
    np.testing.assert_allclose(theta(streamed), theta(in_target), atol=1e-9)
    opened = daband.domains.ParquetLog(
        folder,
        n_arms=3,
        columns=daband.domains.Columns(
            arm="arm", reward="reward", propensity="propensity", weights="w"
        ),
    )
    trained = linucb()
    daband.train(trained, source=opened)
    np.testing.assert_allclose(theta(trained), theta(expected), atol=1e-9)
    plain = daband.domains.ParquetLog(
        folder, n_arms=3, columns=daband.domains.Columns(opened.columns.context, **LOG_ROLES)
    )
    np.testing.assert_allclose(
        theta(daband.fit_log(linucb(), plain, weights="w")), theta(expected), atol=1e-9
    )
    with pytest.raises(daband.InvalidInput, match=r"^weights .*'v', "):
        daband.fit_log(linucb(), folder, weights="v")
    for wrong in (-1.0, None):
        bad = write(tmp_path / "bad", tables[0].with_columns(w=pl.Series([wrong] + [1.0] * 99)))
        for learn in (daband.fit_log, daband.learn_log):
            policy = linucb()
            with pytest.raises(DataError, match=r"0\.parquet.* 'w'"):
                learn(policy, bad, weights="w")
            assert policy.rounds_learned == 0
