"""``daband.audit`` with a real policy: the interval, who is asked, what is stored, what is
rejected.
"""

import csv
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

import daband
from daband.base._files import lock_folder
from daband.errors import DataError, FolderInUse, InvalidInput
from daband.trust import answer_audit
from daband.trust._audit import read_audit

INCUMBENT = 1


@pytest.fixture(scope="module")
def trained():
    """A policy, its target, the rewards there, and its true advantage over always arm 1."""
    pair = daband.domains.load("synthetic", n_contexts=600, rewards="labels")
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=50)
    domain = pair.target_labelled
    n = len(domain)
    contexts = domain.read(np.arange(n))
    table = domain.read_rewards(np.arange(n))[0]
    places = {context.tobytes(): row for row, context in enumerate(contexts)}
    arms = policy.decide(contexts, "target", rule="greedy").arm

    def ask(contexts, arms):
        return np.array(
            [table[places[row.tobytes()], arm] for row, arm in zip(contexts, arms, strict=True)]
        )

    value = float(table[np.arange(n), arms].mean())
    advantage = value - float(table[:, INCUMBENT].mean())
    return SimpleNamespace(
        pair=pair, policy=policy, ask=ask, n=n, value=value, advantage=advantage, table=table
    )


def audit(trained, **settings):
    settings = {"budget": 30, "ask": trained.ask, "incumbent": INCUMBENT, **settings}
    return daband.audit(trained.policy, target=trained.pair.target, **settings)


def test_the_interval_holds_the_advantage_and_the_policy_does_not_change(trained):
    before = trained.policy.rounds_decided, trained.policy.rounds_learned
    found = audit(trained, budget=100, unit="points")
    assert found.finished
    assert found.answered == found.budget == 100
    assert found.contexts == trained.n
    assert found.low <= trained.advantage <= found.high
    assert found.value_low <= trained.value <= found.value_high
    assert found.sentence.startswith("100 target rewards: +")
    assert f" points over always {trained.pair.class_names[INCUMBENT]}: deploy." in found.sentence
    assert (trained.policy.rounds_decided, trained.policy.rounds_learned) == before


def test_arms_are_the_policys_or_the_incumbents(trained):
    seen = []

    def ask(contexts, arms):
        assert contexts.shape == (1, *trained.pair.context_shape)
        own = trained.policy.decide(contexts, "target", rule="greedy").arm[0]
        assert arms[0] in (own, INCUMBENT)
        seen.append((contexts.tobytes(), int(arms[0])))
        return trained.ask(contexts, arms)

    audit(trained, ask=ask, seed=3)
    assert len(set(seen)) == len(seen) == 30


def test_arrays_are_targets_too(trained):
    contexts = trained.pair.target.read(np.arange(trained.n))
    by_array = daband.audit(
        trained.policy, target=contexts, budget=20, ask=trained.ask, incumbent=INCUMBENT
    )
    assert by_array.low <= trained.advantage <= by_array.high


def test_rewards_in_the_users_unit(trained):
    cents = audit(
        trained, ask=lambda contexts, arms: -50.0 + 200.0 * trained.ask(contexts, arms), budget=200
    )
    assert cents.low <= 200.0 * trained.advantage <= cents.high


def test_the_default_incumbent_is_the_arm_with_the_largest_prediction(trained):
    means = trained.policy.decide(
        trained.pair.target.read(np.arange(trained.n)), "target", rule="greedy"
    ).mean
    names = trained.pair.class_names
    assert (
        audit(trained, incumbent=None).incumbent == f"always {names[means.mean(axis=0).argmax()]}"
    )


def test_nothing_is_asked_if_the_incumbent_makes_the_same_choices(trained, tmp_path):
    found = audit(trained, incumbent=trained.policy, ask=pytest.fail, directory=tmp_path / "audit")
    assert (found.advantage, found.low, found.high, found.budget) == (0.0, 0.0, 0.0, 0)
    assert found.finished
    assert found.verdict == "keep the incumbent"
    assert found.sentence.startswith(
        "No reward is needed: the policy makes the same choices as the policy linucb in"
    )
    assert not (tmp_path / "audit").exists()
    json.dumps(found.as_dict(), allow_nan=False)


def test_asking_stops_once_the_advantage_is_clear(trained):
    found = audit(trained, budget=400, until_clear=True)
    assert found.answered < 400
    assert found.low > 0
    assert found.finished
    assert found.verdict == "deploy"


def test_rare_rewards_that_were_not_asked_for_are_in_the_interval():
    """One in 100 buys in the source. Before: after 100 answers without a buyer, the interval was
    [-0.0024, 0.0027].
    """
    draw = np.random.default_rng(0)
    contexts = draw.normal(size=(4000, 2))
    policy = daband.LinUCB(context_shape=(2,), n_arms=2, seed=0)
    policy.update(contexts, draw.integers(0, 2, 4000), (draw.random(4000) < 0.01) * 1.0)
    found = daband.audit(
        policy,
        target=contexts[:1000],
        budget=100,
        ask=lambda _, arms: np.zeros(len(arms)),
        incumbent=0,
    )
    assert found.low < -0.01
    assert found.high > 0.01
    assert found.value_high > 0.01


def test_a_killed_audit_asks_only_what_is_open(trained, tmp_path):
    complete = audit(trained)
    asked = []

    def dies(contexts, arms):
        if len(asked) == 12:
            raise KeyboardInterrupt
        asked.append((contexts.tobytes(), int(arms[0])))
        return trained.ask(contexts, arms)

    def once(contexts, arms):
        assert (contexts.tobytes(), int(arms[0])) not in asked
        asked.append((contexts.tobytes(), int(arms[0])))
        return trained.ask(contexts, arms)

    with pytest.raises(KeyboardInterrupt):
        audit(trained, ask=dies, directory=tmp_path / "a")
    assert len((tmp_path / "a/answers.jsonl").read_text().splitlines()) == 12
    early = read_audit(tmp_path / "a")
    assert early.answered == 12
    assert early.high - early.low > complete.high - complete.low
    with open(tmp_path / "a/answers.jsonl", "ab") as file:
        file.write(b'{"context": 3, "rew')  # the next answer, cut off in the middle
    resumed = audit(trained, ask=once, directory=tmp_path / "a")
    assert len(asked) == 30
    assert (resumed.advantage, resumed.low, resumed.high) == (
        complete.advantage,
        complete.low,
        complete.high,
    )
    assert (
        audit(trained, ask=lambda *_: pytest.fail("nothing is open"), directory=tmp_path / "a")
        == resumed
    )
    assert json.loads((tmp_path / "a/audit.json").read_text())["advantage"] == resumed.advantage


def test_a_larger_budget_continues(trained, tmp_path):
    audit(trained, budget=20, directory=tmp_path / "a")
    more = audit(trained, budget=30, directory=tmp_path / "a")
    alone = audit(trained, budget=30)
    assert (more.answered, more.low) == (30, alone.low)
    assert len((tmp_path / "a/questions.csv").read_text().splitlines()) == 31


def test_every_answer_is_on_disk_before_the_next_question(trained, tmp_path):
    def ask(contexts, arms):
        path = tmp_path / "a/answers.jsonl"
        counts.append(len(path.read_text().splitlines()) if path.exists() else 0)
        return trained.ask(contexts, arms)

    counts = []
    audit(trained, budget=5, ask=ask, directory=tmp_path / "a")
    assert counts == [0, 1, 2, 3, 4]


def fill(path, trained, **changes):
    """Answer questions.csv by the true rewards; ``changes`` overwrite columns of the first row."""
    with open(path, newline="") as file:
        questions = list(csv.DictReader(file))
    for row in questions:
        row["reward"] = repr(float(trained.table[int(row["context"]), int(row["arm"])]))
    questions[0].update(changes)
    return questions


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


def begin(trained, folder, **settings):
    return audit(trained, **{"budget": 20, "ask": None, "directory": folder, **settings})


def test_questions_out_and_answers_in(trained, tmp_path):
    started = begin(trained, tmp_path / "a")
    assert not started.finished
    assert started.sentence == "0 of 20 questions are answered."
    assert started.questions == tmp_path / "a/questions.csv"
    rows = fill(started.questions, trained)
    assert rows[0].keys() == {"id", "context", "arm", "arm_name", "reward"}
    assert rows[0]["arm_name"] == trained.pair.class_names[int(rows[0]["arm"])]
    part = answer_audit(tmp_path / "a", write(tmp_path / "part.csv", rows[:8]))
    assert (part.answered, read_audit(tmp_path / "a").answered) == (8, 8)
    lines = [f"{row['id']};{row['arm']};{float(row['reward']):.0f},0" for row in rows[8:12]]
    # as spreadsheets save it in Europe
    (tmp_path / "european.csv").write_text("\n".join(["id;arm;reward", *lines]))
    assert answer_audit(tmp_path / "a", tmp_path / "european.csv").answered == 12
    # An answer after an open question waits for it.
    assert answer_audit(tmp_path / "a", write(tmp_path / "late.csv", rows[13:14])).answered == 12
    # with the earlier answers again
    found = answer_audit(tmp_path / "a", write(tmp_path / "all.csv", rows))
    asked = audit(trained, budget=20)
    assert (found.advantage, found.low, found.high) == (asked.advantage, asked.low, asked.high)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "100000"}, r"row 0 .*id 100000 .*questions\.csv"),
        ({"id": "x"}, "'id' .*'x' .*row 0"),
        ({"reward": "inf"}, "'reward' .*'inf' .*row 0"),
        ({"reward": "good"}, "'reward' .*'good' .*row 0"),
        ({"arm": "99"}, r"row 0 .*id 0 .*arm \d, .*99$"),
        ({"context": "9999"}, r"row 0 .*id 0 .*context \d+, .*9999$"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_stored(trained, tmp_path, change, message):
    rows = fill(begin(trained, tmp_path / "a").questions, trained, **change)
    with pytest.raises(InvalidInput, match=message):
        answer_audit(tmp_path / "a", write(tmp_path / "wrong.csv", rows))
    assert read_audit(tmp_path / "a").answered == 0


def test_duplicates_and_changed_answers_are_rejected_unless_they_replace(trained, tmp_path):
    rows = fill(begin(trained, tmp_path / "a").questions, trained)
    with pytest.raises(InvalidInput, match=r"row 20 .*id 0 .*row 0 "):
        answer_audit(tmp_path / "a", write(tmp_path / "twice.csv", [*rows, rows[0]]))
    wrong = [{**rows[0], "reward": "0.123"}, *rows[1:]]
    answer_audit(tmp_path / "a", write(tmp_path / "wrong.csv", wrong))
    with pytest.raises(InvalidInput, match=r"id 0 .*0\.123 .* 1; .*replace=True \(--replace\)"):
        answer_audit(tmp_path / "a", write(tmp_path / "right.csv", rows))
    corrected = answer_audit(tmp_path / "a", tmp_path / "right.csv", replace=True)
    right = audit(trained, budget=20)
    assert (corrected.advantage, corrected.low) == (right.advantage, right.low)
    assert read_audit(tmp_path / "a") == corrected


def test_questions_about_images_name_their_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for place in ("source/a", "source/b", "target"):
        (tmp_path / place).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / place / f"{number:02d}.png")
    pair = daband.domains.from_images(
        source=tmp_path / "source", target=tmp_path / "target", framing=8
    )
    policy = daband.LinUCB.for_pair(pair, seed=0)
    started = daband.audit(
        policy, target=pair.target, budget=5, incumbent="a", directory=tmp_path / "audit"
    )
    with open(started.questions, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    for row in rows:
        assert pair.target.row_names["file"][int(row["context"])] == row["file"]
    assert read_audit(tmp_path / "audit").answered == 0


def test_one_process_works_in_a_folder(trained, tmp_path):
    begin(trained, tmp_path / "a")
    with lock_folder(tmp_path / "a", wait=False), pytest.raises(FolderInUse):
        begin(trained, tmp_path / "a")


def test_a_folder_of_other_questions_is_rejected(trained, tmp_path):
    begin(trained, tmp_path / "a")
    with pytest.raises(InvalidInput, match=r"confidence: .*0\.95, .*0\.9\)"):
        begin(trained, tmp_path / "a", confidence=0.9)
    other = daband.LinUCB.for_pair(trained.pair, seed=1)
    daband.train(
        other, source=trained.pair.source, target=trained.pair.target, episodes=1, episode_length=50
    )
    with pytest.raises(InvalidInput, match=r"policy, .*candidates .*target"):
        daband.audit(
            other,
            target=trained.pair.target,
            budget=20,
            incumbent=INCUMBENT,
            directory=tmp_path / "a",
        )
    os.makedirs(tmp_path / "empty")
    with pytest.raises(InvalidInput, match=r"/empty .*daband\.audit\("):
        read_audit(tmp_path / "empty")
    with pytest.raises(InvalidInput, match=r"/nowhere; .*daband\.audit\("):
        answer_audit(tmp_path / "nowhere", tmp_path / "answers.csv")
    (tmp_path / "a/answers.jsonl").write_text("what\n")
    with pytest.raises(DataError, match=r"answers\.jsonl, line 1, "):
        read_audit(tmp_path / "a")


def test_what_cannot_be_audited_is_rejected(trained):
    with pytest.raises(InvalidInput, match=r"policy .*str$"):
        daband.audit("p", target=trained.pair.target, budget=5, ask=trained.ask)
    with pytest.raises(InvalidInput, match=r"ask=, .*directory="):
        audit(trained, ask=None)
    with pytest.raises(InvalidInput, match=r"budget .*600, .*100000"):
        audit(trained, budget=100_000)
    with pytest.raises(InvalidInput, match=r"ask .*\(2,\)"):
        audit(trained, ask=lambda contexts, arms: [0.0, 1.0])
    with pytest.raises(InvalidInput, match=r"reward .*nan, "):
        audit(trained, ask=lambda contexts, arms: [float("nan")])
    with pytest.raises(InvalidInput, match="confidence"):
        audit(trained, confidence=1.0)
