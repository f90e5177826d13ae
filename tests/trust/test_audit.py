"""``daband.audit`` with a real policy: who is asked, what is kept, what is refused."""

import csv
import json
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest

import daband
from daband._files import locked
from daband.errors import DataError, FolderInUse, InvalidInput
from daband.trust._audit import answer_audit, read_answers, read_audit


@pytest.fixture(scope="module")
def trained():
    """A policy, its target, what pays there, and the mean over all contexts."""
    pair = daband.domains.load("synthetic", n_contexts=600, rewards="labels")
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=50)
    domain = pair.target_labelled
    n = len(domain)
    contexts, table = domain.read(np.arange(n)), domain.read_rewards(np.arange(n))[0]
    places = {context.tobytes(): row for row, context in enumerate(contexts)}
    arms = policy.decide(contexts, "target", rule="ucb").arm

    def ask(contexts, arms):
        return np.array([table[places[row.tobytes()], arm] for row, arm in zip(contexts, arms, strict=True)])

    value = float(table[np.arange(n), arms].mean())
    return SimpleNamespace(pair=pair, policy=policy, ask=ask, n=n, value=value, table=table, arms=arms)


def test_the_interval_holds_the_value_and_the_policy_is_as_it_was(trained):
    before = trained.policy.rounds_decided, trained.policy.rounds_learned
    found = daband.audit(trained.policy, target=trained.pair.target, budget=100, ask=trained.ask)
    assert found.finished
    assert found.answered == found.budget == 100
    assert found.contexts == trained.n
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low <= trained.value <= found.high
    assert (trained.policy.rounds_decided, trained.policy.rounds_learned) == before


def test_arms_asked_for_are_the_policys_own(trained):
    seen = []

    def ask(contexts, arms):
        assert contexts.shape == (1, *trained.pair.context_shape)
        seen.append((contexts[0].tobytes(), int(arms[0])))
        return trained.ask(contexts, arms)

    daband.audit(trained.policy, target=trained.pair.target, budget=30, ask=ask, seed=3)
    contexts = trained.pair.target.read(np.arange(trained.n))
    chosen = {context.tobytes(): int(arm) for context, arm in zip(contexts, trained.arms, strict=True)}
    assert len({context for context, _ in seen}) == 30
    assert all(chosen[context] == arm for context, arm in seen)


def test_every_context_asked_leaves_little_to_guess(trained):
    found = daband.audit(trained.policy, target=trained.pair.target, budget=trained.n, ask=trained.ask)
    assert found.value == pytest.approx(trained.value)


def test_arrays_and_evaluation_domains_are_targets_too(trained):
    contexts = trained.pair.target.read(np.arange(trained.n))
    by_array = daband.audit(trained.policy, target=contexts, budget=20, ask=trained.ask)
    by_domain = daband.audit(trained.policy, target=trained.pair.target, budget=20, ask=trained.ask)
    assert by_array == by_domain
    test = trained.pair.target_test
    expected = test.read_expected(0, len(test))
    places = {context.tobytes(): row for row, context in enumerate(test.read(0, len(test)))}
    found = daband.audit(
        trained.policy, target=test, budget=20, ask=lambda c, a: [expected[places[c[0].tobytes()], a[0]]]
    )
    assert found.finished


def test_rewards_in_the_users_unit():
    """Cents from -50 to 150: the same audit as of rewards from 0 to 1, in cents."""
    generator = np.random.default_rng(0)
    x, target = generator.normal(size=(300, 4)), generator.normal(size=(200, 4))
    paid = np.clip(0.5 + 0.3 * x[:, :3], 0, 1)
    found = {}
    for low, span in ((0.0, 1.0), (-50.0, 200.0)):
        pair = daband.domains.from_arrays(source=(x, low + span * paid), target=target, source_test=None)
        policy = daband.LinUCB.for_pair(pair, seed=0)
        daband.train(policy, source=pair.source, target=pair.target, episodes=3, episode_length=64)

        def ask(contexts, arms, low=low, span=span):
            return low + span * np.clip(0.5 + 0.3 * contexts[[0], arms], 0, 1)

        found[span] = daband.audit(policy, target=pair.target, budget=40, ask=ask)
    unit, cents = found[1.0], found[200.0]
    for name in ("value", "low", "high", "predicted"):
        assert getattr(cents, name) == pytest.approx(-50 + 200 * getattr(unit, name), abs=0.5)


def test_an_assessment_guides_the_draw_but_cannot_break_it(trained):
    target, n = trained.pair.target, trained.n
    good = trained.table[np.arange(n), trained.arms]
    moved = daband.audit(
        trained.policy, target=target, budget=60, ask=trained.ask, assessment=SimpleNamespace(value=0.9)
    )
    assert moved.predicted == pytest.approx(0.9, abs=1e-6)
    for assessment in (good, 1.0 - good, SimpleNamespace(predicted=np.zeros(n))):
        found = daband.audit(trained.policy, target=target, budget=60, ask=trained.ask, assessment=assessment)
        assert found.low <= trained.value <= found.high
    with pytest.raises(InvalidInput, match=f"each of {n} contexts"):
        daband.audit(trained.policy, target=target, budget=60, ask=trained.ask, assessment=np.zeros(3))


def test_a_killed_audit_asks_only_what_is_open(trained, tmp_path):
    whole = daband.audit(trained.policy, target=trained.pair.target, budget=30, ask=trained.ask)
    asked = []

    def dies(contexts, arms):
        if len(asked) == 12:
            raise KeyboardInterrupt
        asked.append(contexts.tobytes())
        return trained.ask(contexts, arms)

    def once(contexts, arms):
        assert contexts.tobytes() not in asked
        asked.append(contexts.tobytes())
        return trained.ask(contexts, arms)

    def call(ask):
        return daband.audit(trained.policy, target=trained.pair.target, budget=30, ask=ask, directory=tmp_path / "a")

    with pytest.raises(KeyboardInterrupt):
        call(dies)
    assert len((tmp_path / "a/answers.jsonl").read_text().splitlines()) == 12
    assert math.isnan(read_audit(tmp_path / "a").value)  # a part of a fixed budget is no basis for an interval
    with open(tmp_path / "a/answers.jsonl", "ab") as file:
        file.write(b'{"id": 3, "rew')  # the next answer, cut off in the middle
    resumed = call(once)
    assert len(asked) == 30
    assert (resumed.value, resumed.low, resumed.high) == (whole.value, whole.low, whole.high)
    assert call(lambda *_: pytest.fail("nothing is open")) == resumed
    assert json.loads((tmp_path / "a/audit.json").read_text())["value"] == resumed.value


def test_every_answer_is_on_disk_before_the_next_question(trained, tmp_path):
    def ask(contexts, arms):
        path = tmp_path / "a/answers.jsonl"
        counts.append(len(path.read_text().splitlines()) if path.exists() else 0)
        return trained.ask(contexts, arms)

    counts = []
    daband.audit(trained.policy, target=trained.pair.target, budget=5, ask=ask, directory=tmp_path / "a")
    assert counts == [0, 1, 2, 3, 4]


def test_stopping_early_takes_a_sequence(trained):
    target = trained.pair.target
    with pytest.raises(InvalidInput, match="anytime=True"):
        daband.audit(trained.policy, target=target, budget=50, ask=trained.ask, stop=lambda audit: True)
    widths = []

    def narrow(audit):
        widths.append(audit.high - audit.low)
        assert audit.answered == len(widths)
        return audit.high - audit.low < 0.6

    found = daband.audit(trained.policy, target=target, budget=150, ask=trained.ask, anytime=True, stop=narrow)
    assert widths == sorted(widths, reverse=True)
    assert found.answered == len(widths) < 150
    assert found.high - found.low < 0.6
    assert found.low <= trained.value <= found.high


def fill(path, trained, rows=None, **changes):
    """Answer questions.csv by what is true; ``changes`` overwrite columns of the first row."""
    with open(path, newline="") as file:
        questions = list(csv.DictReader(file))
    for row in questions:
        row["reward"] = repr(float(trained.table[int(row["id"]), int(row["arm"])]))
    questions[0].update(changes)
    return questions if rows is None else questions[:rows]


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


def begin(trained, folder, **settings):
    settings = {"budget": 20, "arm_names": trained.pair.class_names, **settings}
    return daband.audit(trained.policy, target=trained.pair.target, directory=folder, **settings)


def test_questions_out_and_answers_in(trained, tmp_path):
    begun = begin(trained, tmp_path / "a")
    assert not begun.finished
    assert begun.questions == tmp_path / "a/questions.csv"
    rows = fill(begun.questions, trained)
    assert rows[0].keys() == {"id", "arm", "arm_name", "reward"}
    assert rows[0]["arm_name"] == trained.pair.class_names[int(rows[0]["arm"])]
    with pytest.raises(InvalidInput, match="12 of 20 questions have no reward yet"):
        answer_audit(tmp_path / "a", write(tmp_path / "part.csv", rows[:8]))
    assert read_audit(tmp_path / "a").answered == 8
    lines = [f"{row['id']};{row['arm']};{float(row['reward']):.0f},0" for row in rows[8:12]]
    (tmp_path / "european.csv").write_text("\n".join(["id;arm;reward", *lines]))  # as spreadsheets save it in Europe
    with pytest.raises(InvalidInput, match="8 of 20 questions have no reward yet"):
        answer_audit(tmp_path / "a", tmp_path / "european.csv")
    found = answer_audit(tmp_path / "a", write(tmp_path / "all.csv", rows))  # those of before are in it again
    asked = daband.audit(trained.policy, target=trained.pair.target, budget=20, ask=trained.ask)
    assert (found.value, found.low, found.high) == (asked.value, asked.low, asked.high)


@pytest.mark.parametrize(("text", "reward"), [("3.854,17", 3854.17), ("0,5", 0.5), ("12", 12.0), ("1.200", None)])
def test_amounts_of_a_european_spreadsheet(text, reward, tmp_path):
    (tmp_path / "answers.csv").write_text(f"id;arm;reward\n0;1;{text}\n")
    if reward is None:  # 1.2 or 1200
        with pytest.raises(InvalidInput, match=r"the reward '1\.200' of id 0 is no number"):
            read_answers(tmp_path / "answers.csv", {0: 1})
    else:
        assert read_answers(tmp_path / "answers.csv", {0: 1}) == {0: reward}


def test_a_sequence_takes_answers_in_parts(trained, tmp_path):
    begun = begin(trained, tmp_path / "a", anytime=True)
    rows = fill(begun.questions, trained)
    found = answer_audit(tmp_path / "a", write(tmp_path / "part.csv", rows[:8]))
    assert found.finished
    assert found.answered == 8
    # An answer ahead of an open question waits for it.
    assert answer_audit(tmp_path / "a", write(tmp_path / "late.csv", rows[9:10])).value == found.value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "100000"}, "id 100000 was not asked"),
        ({"id": "x"}, "id must be a whole number, got 'x'"),
        ({"reward": "nan"}, "the reward of id .* is nan"),
        ({"reward": "inf"}, "the reward of id .* is inf"),
        ({"reward": "good"}, "'good' of id .* is no number"),
        ({"reward": "7"}, r"id \d+: reward 7 is outside the policy's reward_range"),
        ({"arm": "99"}, "the reward of arm . was asked"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_taken(trained, tmp_path, change, message):
    rows = fill(begin(trained, tmp_path / "a").questions, trained, **change)
    with pytest.raises(InvalidInput, match=message):
        answer_audit(tmp_path / "a", write(tmp_path / "wrong.csv", rows))
    assert read_audit(tmp_path / "a").answered == 0


def test_duplicates_and_changed_minds_are_refused(trained, tmp_path):
    rows = fill(begin(trained, tmp_path / "a").questions, trained)
    with pytest.raises(InvalidInput, match=r"line 22: id .* is answered in line 2 already"):
        answer_audit(tmp_path / "a", write(tmp_path / "twice.csv", [*rows, rows[0]]))
    answer_audit(tmp_path / "a", write(tmp_path / "right.csv", rows))
    other = {**rows[0], "reward": "0.123"}
    with pytest.raises(InvalidInput, match=r"was answered with .* before, and now with 0\.123"):
        answer_audit(tmp_path / "a", write(tmp_path / "other.csv", [other]))


def test_a_mistake_in_the_answers_can_be_mended(trained, tmp_path):
    rows = fill(begin(trained, tmp_path / "a").questions, trained)
    wrong = [{**rows[0], "reward": str(1.0 - float(rows[0]["reward"]))}, *rows[1:]]
    answer_audit(tmp_path / "a", write(tmp_path / "wrong.csv", wrong))
    with pytest.raises(InvalidInput, match=r"replace=True .--replace. takes the second"):
        answer_audit(tmp_path / "a", write(tmp_path / "right.csv", rows))
    mended = answer_audit(tmp_path / "a", tmp_path / "right.csv", replace=True)
    right = daband.audit(trained.policy, target=trained.pair.target, budget=20, ask=trained.ask)
    assert (mended.value, mended.low, mended.high) == (right.value, right.low, right.high)
    assert read_audit(tmp_path / "a") == mended


def test_lines_are_counted_as_an_editor_does(trained, tmp_path):
    rows = fill(begin(trained, tmp_path / "a").questions, trained)
    lines = write(tmp_path / "b.csv", rows).read_text().splitlines()
    lines[3:3] = ["", ""]  # blank lines in the middle
    lines[6] = lines[6].rpartition(",")[0] + ",much"
    (tmp_path / "b.csv").write_text("\n".join(lines))
    with pytest.raises(InvalidInput, match=r"line 7: the reward 'much'"):
        answer_audit(tmp_path / "a", tmp_path / "b.csv")


def test_who_only_reads_does_not_touch_a_line_that_is_being_written(trained, tmp_path):
    rows = fill(begin(trained, tmp_path / "a").questions, trained)
    with pytest.raises(InvalidInput):
        answer_audit(tmp_path / "a", write(tmp_path / "part.csv", rows[:3]))
    path = tmp_path / "a/answers.jsonl"
    path.write_bytes(path.read_bytes() + b'{"id": 1')
    before = path.read_bytes()
    assert read_audit(tmp_path / "a").answered == 3
    assert path.read_bytes() == before


def test_questions_about_images_name_their_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for place in ("source/a", "source/b", "target"):
        (tmp_path / place).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / place / f"{number:02d}.png")
    folders = {"source": tmp_path / "source", "target": tmp_path / "target"}
    pair = daband.domains.from_images(**folders, framing=8)
    begun = daband.audit(
        daband.LinUCB.for_pair(pair, seed=0), target=pair.target, budget=5, directory=tmp_path / "audit"
    )
    with open(begun.questions, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    for row in rows:  # positions are not the order of names
        pixels = np.asarray(image.open(row["file"])).transpose(2, 0, 1)
        assert np.array_equal(pair.target.read(np.array([int(row["id"])]))[0], pixels)


def test_files_that_are_no_answers(trained, tmp_path):
    begin(trained, tmp_path / "a")
    with pytest.raises(InvalidInput, match="there is no file"):
        answer_audit(tmp_path / "a", tmp_path / "gone.csv")
    (tmp_path / "b.csv").write_text("id,paid\n1,2\n")
    with pytest.raises(InvalidInput, match=r"no column 'reward' .its columns: id, paid"):
        answer_audit(tmp_path / "a", tmp_path / "b.csv")
    (tmp_path / "c.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not CSV in UTF-8"):
        answer_audit(tmp_path / "a", tmp_path / "c.csv")
    with pytest.raises(InvalidInput, match="there is no folder"):
        answer_audit(tmp_path / "nowhere", tmp_path / "b.csv")
    os.mkdir(tmp_path / "empty")
    with pytest.raises(InvalidInput, match="holds no audit"):
        answer_audit(tmp_path / "empty", tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("reward", "message"), [(math.nan, "is nan"), (2.0, "outside"), ([0.0, 1.0], "one reward"), ("much", "must hold")]
)
def test_a_wrong_answer_of_ask_loses_nothing(trained, tmp_path, reward, message):
    count = []

    def ask(contexts, arms):
        count.append(1)
        return reward if len(count) == 4 else trained.ask(contexts, arms)

    with pytest.raises(InvalidInput, match=message):
        begin(trained, tmp_path / "a", ask=ask)
    assert read_audit(tmp_path / "a").answered == 3


def test_without_a_folder_nothing_is_said_to_be_kept(trained):
    with pytest.raises(InvalidInput, match=r"which is no number$"):
        daband.audit(trained.policy, target=trained.pair.target, budget=5, ask=lambda *_: math.nan)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 10**6}, "the target has .* contexts"),
        ({"budget": 0}, "budget"),
        ({"budget": 2.5}, "budget"),
        ({"ask": None}, "ask=, or a directory="),
        ({"ask": 3}, "ask must be a function"),
        ({"confidence": 1.0}, "confidence"),
        ({"rule": "best"}, "rule"),
        ({"seed": -1}, "seed"),
        ({"arm_names": ["one"]}, "arm_names"),
        ({"target": np.zeros(3)}, r"contexts \(N"),
        ({"anytime": 1}, "anytime"),
        ({"anytime": True, "stop": 3}, "stop must be a function"),
    ],
)
def test_bad_arguments_are_named(trained, settings, message):
    arguments = {"target": trained.pair.target, "budget": 10, "ask": trained.ask, **settings}
    with pytest.raises(InvalidInput, match=message):
        daband.audit(trained.policy, **arguments)


def test_a_folder_belongs_to_one_audit(trained, tmp_path):
    begin(trained, tmp_path / "a")
    with pytest.raises(InvalidInput, match="with other settings \\(budget: there 20, here 21\\)"):
        begin(trained, tmp_path / "a", budget=21)
    with pytest.raises(InvalidInput, match="seed"):
        begin(trained, tmp_path / "a", seed=1)
    other = daband.Constant.for_pair(trained.pair, seed=0)
    with pytest.raises(InvalidInput, match="another policy or target"):
        daband.audit(other, target=trained.pair.target, budget=20, directory=tmp_path / "a")
    with locked(tmp_path / "a", wait=False), pytest.raises(FolderInUse):
        begin(trained, tmp_path / "a")
    (tmp_path / "a/plan.json").write_text("{}")
    with pytest.raises((DataError, InvalidInput), match=r"damaged|begun with"):
        begin(trained, tmp_path / "a")
    with pytest.raises(DataError, match="damaged"):
        read_audit(tmp_path / "a")


def test_a_range_that_nobody_knows_is_at_least_what_was_seen():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 3))
    policy = daband.LinUCB(context_shape=(3,), n_arms=2)
    policy.update(x, generator.integers(2, size=200), 10 * generator.random(200))
    with pytest.warns(UserWarning, match=r"ask: reward 40 is far outside the range .* that the policy saw"):
        found = daband.audit(policy, target=x, budget=50, ask=lambda contexts, _: 40.0 * (contexts[:, 0] > 0))
    assert found.low < 20 < found.high <= 40
