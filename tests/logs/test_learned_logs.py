"""A policy that has learned a log chooses the arms that were lucky there: the same rounds flatter
it.
"""

import copy

import numpy as np
import polars as pl
import pytest

import daband
from daband.errors import InvalidInput

N = 400
D = 30
K = 4
COEFFICIENTS = np.random.default_rng(5).normal(size=(D, K)) * 0.01


def rounds(seed, n=None):
    rng = np.random.default_rng(seed)
    n = n or N
    contexts = rng.normal(size=(n, D))
    arms = rng.integers(0, K, n)
    rewards = (contexts @ COEFFICIENTS)[np.arange(n), arms] + rng.normal(0.5, 0.08, n)
    return contexts, arms, rewards, np.full(n, 1 / K)


def write(path, seed=0):
    contexts, arms, rewards, chances = rounds(seed)
    columns = {f"x{i}": contexts[:, i] for i in range(D)}
    pl.DataFrame({**columns, "arm": arms, "reward": rewards, "propensity": chances}).write_parquet(
        path
    )
    return path


def blank(alpha=0.0):
    return daband.LinUCB(
        context_shape=(D,), n_arms=K, alpha=alpha, seed=0, transform=daband.Standardise()
    )


def truth_of(policy):
    contexts = np.random.default_rng(99).normal(size=(20_000, D))
    arms = policy.decide(contexts, rule="greedy").arm
    return float((contexts @ COEFFICIENTS)[np.arange(len(arms)), arms].mean()) + 0.5


@pytest.mark.parametrize("learn", [daband.fit_log, daband.learn_log])
def test_they_are_refused(tmp_path, learn):
    file = write(tmp_path / "week1.parquet")
    policy = learn(blank(), file)
    with pytest.raises(InvalidInput, match=r"policy .*learned .*log: "):
        daband.evaluate_log(policy, file)
    (tmp_path / "more").mkdir()
    both = [
        file.rename(tmp_path / "more" / "0.parquet"),
        write(tmp_path / "more" / "1.parquet", seed=1),
    ]
    with pytest.raises(InvalidInput, match=r"policy .*400 .*800 "):
        daband.evaluate_log(policy, both)
    assert daband.evaluate_log(policy, both[1:]).rounds == N


def test_the_estimate_would_be_too_high(tmp_path):
    policy = daband.learn_log(blank(), write(tmp_path / "week1.parquet"))
    flattered = daband.evaluate_log(policy, rounds(0))  # rounds in memory have no digest
    assert flattered.low > truth_of(policy)


def test_an_exported_file_is_evaluated_with_its_own_exploration(tmp_path):
    file, later = (write(tmp_path / f"{seed}.parquet", seed) for seed in (0, 1))
    policy = daband.fit_log(blank(alpha=3.0), file)
    daband.export(policy, tmp_path / "market.daband", epsilon=0.4)
    deployed = daband.load_deployed(tmp_path / "market.daband")
    with pytest.raises(InvalidInput):
        daband.evaluate_log(deployed, file)

    def exported(contexts):
        best = policy.decide(contexts, rule="greedy").arm
        return 0.6 * np.eye(K)[best] + 0.1

    found = daband.evaluate_log(deployed, later)
    assert found.value == pytest.approx(daband.evaluate_log(exported, rounds(1)).value, abs=1e-9)
    assert (
        found.effective_sample_size > 1.2 * daband.evaluate_log(policy, later).effective_sample_size
    )
    with pytest.raises(InvalidInput, match=r"log .*\(3,\), .*\(30,\)"):
        daband.evaluate_log(deployed, (np.zeros((20, 3)), [0] * 20, [0.0] * 20, [0.25] * 20))
    with pytest.raises(InvalidInput, match=r"^rule "):
        daband.evaluate_log(deployed, later, rule="ucb")


def test_a_file_of_a_pair_is_recognised_after_training(tmp_path):
    """Before: only ``fit_log``, ``learn_log`` and the command line recorded the files that a policy
    learned.
    """
    file = write(tmp_path / "week1.parquet")
    later = write(tmp_path / "week2.parquet", seed=1)
    roles = {"arm": "arm", "reward": "reward", "propensity": "propensity"}
    columns = daband.domains.Columns([f"x{i}" for i in range(D)], **roles)
    table = daband.domains.from_table(source=file, target=later, columns=columns, source_test=0.1)
    for pair in (
        table,
        daband.domains.from_log(source=file, target=rounds(1)[0], n_arms=K, source_test=None),
    ):
        policy = daband.LinUCB.for_pair(pair, seed=0)
        daband.train(policy, source=pair.source)
        policy.save(tmp_path / "p.safetensors")
        policy = daband.load(tmp_path / "p.safetensors")
        with pytest.raises(InvalidInput, match=r"policy .*learned .*log: "):
            daband.evaluate_log(policy, file, columns=columns)
        assert daband.evaluate_log(policy, later, columns=columns).rounds == N
    assert daband.evaluate_log(policy, table.source_test).rounds == len(table.source_test)
    chosen = daband.choose(table).policy
    with pytest.raises(InvalidInput, match=r"policy .*learned .*log: "):
        daband.evaluate_log(chosen, file, columns=columns)
    assert daband.evaluate_log(chosen, table.source_test).rounds == len(table.source_test)


def test_a_part_of_the_learned_rounds_is_not_assessed(tmp_path):
    """All learned rounds are cross-fitted; a part of them would give a value that is too high."""
    file = write(tmp_path / "week1.parquet")
    pair = daband.domains.from_log(source=file, target=rounds(1)[0], n_arms=K)
    policy = daband.LogPolicy.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    assessment = daband.assess(policy, source=pair.source, target=pair.target)
    assert assessment.source_rounds == len(pair.source)
    later = daband.domains.from_log(
        source=write(tmp_path / "week2.parquet", seed=1), target=rounds(1)[0], n_arms=K
    )
    held_out = daband.assess(policy, source=later.source, target=pair.target)
    assert held_out.kind == "tables"
    daband.learn_log(policy, tmp_path / "week2.parquet")
    with pytest.raises(InvalidInput, match=r"source .*learned .*source_test"):
        daband.assess(policy, source=pair.source, target=pair.target)


def test_rounds_learned_one_by_one_are_recognised_by_their_ids(tmp_path):
    """Before: only files that ``learn_log`` had read were recognised."""
    contexts, arms, rewards, chances = rounds(0)
    names = [f"event {n}" for n in range(N)]
    columns = {f"x{i}": contexts[:, i] for i in range(D)}
    logged = {"arm": arms, "reward": rewards, "propensity": chances, "event": names}
    pl.DataFrame({**columns, **logged}).write_csv(tmp_path / "log.csv")
    before = blank()
    before.prepare(contexts)
    policy = copy.deepcopy(before)
    policy.update(contexts[:300], arms[:300], rewards[:300], ids=names[:300])
    policy.save(tmp_path / "p.safetensors")
    policy = daband.load(tmp_path / "p.safetensors")
    for log, ids in ((tmp_path / "log.csv", "event"), (rounds(0), names)):
        with pytest.raises(InvalidInput, match=r"policy .*300 .*400 "):
            daband.evaluate_log(policy, log, id=ids)
        assert daband.evaluate_log(before, log, id=ids).rounds == N
    with pytest.raises(InvalidInput, match=r"^id .*'evnt', .*'event'"):
        daband.evaluate_log(policy, tmp_path / "log.csv", id="evnt")


def test_rounds_whose_reward_has_not_come_are_left_out_with_a_warning(tmp_path):
    """Before: an error from Python, and a warning on the command line."""
    frame = pl.read_parquet(write(tmp_path / "week1.parquet"))
    late = frame.with_columns(reward=pl.when(pl.int_range(N) % 4 > 0).then("reward"))
    late.write_csv(tmp_path / "late.csv")
    frame.filter(pl.int_range(N) % 4 > 0).write_parquet(tmp_path / "rest.parquet")
    policy = blank()
    policy.prepare(rounds(0)[0])
    found = daband.evaluate_log(policy, tmp_path / "late.csv")
    assert found.rounds == 300
    assert "late.csv: 100 rounds have no reward and are left out" in found.warnings[0]
    assert found.value == pytest.approx(
        daband.evaluate_log(policy, tmp_path / "rest.parquet").value, rel=1e-9
    )
