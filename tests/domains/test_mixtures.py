"""Several sources and targets: read as one, each row with its domain, and one of each as it always
was.
"""

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import Columns, from_arrays, from_table, restrict_pair
from daband.errors import InvalidInput
from daband.features._domain_names import DomainNames


def rounds(n=80, shift=0.0, seed=0, arms=3):
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 1.0, (n, 4)), rng.integers(0, arms, n)


@pytest.fixture
def pair():
    sources = {"de": rounds(80, 0.0, 0), "fr": rounds(40, 1.0, 1)}
    targets = {"pl": rounds(60, 2.0, 2), "cz": rounds(30, 3.0, 3)}
    return from_arrays(
        sources=sources,
        targets={name: x for name, (x, _) in targets.items()},
        target_test=targets,
        target_labelled=targets,
    )


def test_one_of_each_by_name_equals_one_of_each_to_the_bit():
    (x, y), (x_t, _) = rounds(200), rounds(100, 1.0, 1)
    found = []
    for given in (
        {"source": (x, y), "target": x_t},
        {"sources": {"de": (x, y)}, "targets": {"pl": x_t}},
    ):
        pair = from_arrays(**given)
        policy = daband.DABand.for_pair(pair, seed=1, recipe="small", device="cpu")
        run = daband.train(
            policy, source=pair.source, target=pair.target, episodes=3, episode_length=32
        )
        found.append((run.arm, policy.decide(x_t, "target").mean))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


class TestMixture:
    def test_rows_come_with_their_domain(self, pair):
        assert pair.domains.names == ("de", "fr", "pl", "cz")
        assert len(pair.source) == 72 + 36
        assert len(pair.source_test) == 12
        whole = pair.source.rounds(0, 50, seed=4)
        pieces = pair.source.read_by_domain(0, 50, seed=4)
        assert [name for name, _ in pieces] == ["de", "fr"]
        assert sum(len(part) for _, part in pieces) == 50
        joined = np.concatenate([part.contexts for _, part in pieces])
        np.testing.assert_array_equal(np.sort(joined, axis=0), np.sort(whole.contexts, axis=0))
        for name, part in pieces:
            own = pair.source.by_name[name].read(np.arange(len(pair.source.by_name[name])))
            assert all((own == row).all(axis=1).any() for row in part.contexts)

    def test_rounds_have_a_column_of_domains(self, pair):
        indices = np.array([100, 3, 71, 72])
        rounds_of_both = pair.source.read_rounds(indices)
        assert rounds_of_both.domains.tolist() == ["fr", "de", "de", "fr"]
        in_germany = pair.source.by_name["de"].read(np.array([3, 71]))
        np.testing.assert_array_equal(rounds_of_both.contexts[1:3], in_germany)

    def test_an_evaluation_is_read_across_its_parts(self, pair):
        test = pair.target_test
        assert len(test) == 90
        every = np.concatenate([part.read(0, len(part)) for part in test.by_name.values()])
        for start, stop in ((0, 90), (50, 70), (60, 90), (0, 1), (89, 90)):
            np.testing.assert_array_equal(test.read(start, stop), every[start:stop])
            assert len(test.read_expected(start, stop)) == stop - start

    def test_nothing_of_the_target_pays(self, pair):
        assert not hasattr(pair.target, "read_rewards")
        assert not any(hasattr(part, "read_rewards") for part in pair.target.by_name.values())

    def test_a_pair_can_be_restricted(self, pair):
        one = restrict_pair(pair, sources=["fr"], targets=["cz"])
        assert one.domains.names == ("fr", "cz")
        assert len(one.source) == 36
        assert len(one.target) == 30
        assert "from de, fr to pl, cz" in repr(pair)
        with pytest.raises(InvalidInput, match=r"'us' .*sources \(de, fr\)"):
            restrict_pair(pair, sources=["us"])

    def test_arms_of_every_source_count(self):
        sources = {"a": ([[0.0]] * 20, [0, 1] * 10), "b": ([[1.0]] * 20, [2, 3] * 10)}
        pair = from_arrays(sources=sources, target=[[0.0]] * 9)
        assert pair.n_arms == 4

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (
                {"source": rounds(), "sources": {"a": rounds()}, "target": rounds()[0]},
                "source, .*sources ",
            ),
            ({"sources": {}, "target": rounds()[0]}, "sources .*{}"),
            ({"sources": {"a": rounds()}}, "target, .*targets "),
            ({"source": rounds()}, "source=.*target="),
            (
                {
                    "sources": {"a": rounds(), "b": ([[0.0]] * 20, [0, 1] * 10)},
                    "target": rounds()[0],
                },
                r"contexts .*\(4,\), .*\(1,\)",
            ),
            (
                {
                    "source": rounds(),
                    "targets": {"a": rounds()[0], "b": rounds()[0]},
                    "target_test": rounds(),
                },
                "target_test .*mapping .* a, b$",
            ),
            (
                {
                    "source": rounds(),
                    "targets": {"a": rounds()[0], "b": rounds()[0]},
                    "target_test": {"a": rounds()},
                },
                "target_test .* a, b, .* a$",
            ),
            (
                {"source": rounds(), "targets": {"a": rounds()[0]}, "target_test": {"A": rounds()}},
                "target_test .* a, .* A$",
            ),
            (
                {
                    "sources": {"a": rounds(), "b": rounds()},
                    "target": rounds()[0],
                    "source_test": {"b": rounds()},
                },
                "source_test .* a, b, .* b$",
            ),
            (
                {"sources": {"a": rounds()}, "target": rounds()[0], "source_test": {"b": rounds()}},
                "source_test .* a, .* b$",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(self, given, message):
        with pytest.raises(InvalidInput, match=message):
            from_arrays(**given)


class TestPolicies:
    @pytest.mark.parametrize("kind", ["linucb", "constant", "random", "nlinucb", "daband"])
    def test_every_policy_acts_in_every_target(self, pair, kind, tmp_path):
        made = daband.policies.policies.get(kind)
        settings = {"recipe": "small", "device": "cpu"} if made.learns_by_gradients else {}
        policy = made.for_pair(pair, seed=0, **settings)
        daband.train(policy, source=pair.source, target=pair.target, episodes=3, episode_length=32)
        value = daband.evaluate(policy, pair.target_test)
        assert value.contexts == 90
        policy.deploy("cz")
        assert policy.select(rounds(5)[0]).arm.shape == (5,)
        assert policy.select(rounds(5)[0], "pl").arm.shape == (5,)
        policy.save(tmp_path / "p.safetensors")
        again = daband.load(tmp_path / "p.safetensors")
        assert again.domains == pair.domains
        x = pair.target_test.read(0, 90)
        np.testing.assert_array_equal(again.decide(x, "pl").mean, policy.decide(x, "pl").mean)

    def test_which_target_must_be_said(self, pair):
        policy = daband.LinUCB.for_pair(pair, seed=0)
        with pytest.raises(InvalidInput, match=r"domain .*2 .*\(pl, cz\)"):
            policy.deploy("target")
        with pytest.raises(InvalidInput, match=r"domain .*\(pl, cz\), .*'de'"):
            policy.observe_target(rounds(3)[0], "de")

    def test_a_run_of_several_sources_resumes(self, pair, tmp_path):
        def trained(directory, progress=None):
            policy = daband.LinUCB.for_pair(pair, seed=0, transform=None)
            run = daband.train(
                policy,
                source=pair.source,
                target=pair.target,
                episodes=6,
                episode_length=16,
                directory=directory,
                save_every=0,
                progress=progress,
            )
            return run.arm, policy.decide(rounds(9)[0], "pl").mean

        whole = trained(None)
        with pytest.raises(ZeroDivisionError):
            trained(tmp_path / "run", progress=lambda record: 1 / (3 - record["episode"]))
        for one, other in zip(whole, trained(tmp_path / "run"), strict=True):
            np.testing.assert_array_equal(one, other)


class TestReaders:
    def frame(self):
        rng = np.random.default_rng(0)
        n = 400
        country = rng.choice(["de", "fr", "pl", "cz"], n)
        age = rng.uniform(20, 70, n)
        town = rng.choice(["small", "large"], n)
        offer = np.where(age > 45, "card", np.where(town == "large", "loan", "none"))
        columns = {"country": country, "age": age, "town": town, "offer": offer}
        return pl.DataFrame({**columns, "arm": rng.choice(["card", "loan", "none"], n)})

    def test_a_column_names_the_domain_of_a_row(self):
        columns = Columns(context=("age", "town"), categorical=("town",), label="offer")
        pair = from_table(
            source=self.frame(), domain="country", targets=["pl", "cz"], columns=columns
        )
        assert pair.domains == DomainNames(("de", "fr"), ("pl", "cz"))
        assert pair.class_names == ("card", "loan", "none")
        assert pair.table is not None
        assert (
            len(pair.source) + len(pair.source_test)
            == self.frame()["country"].is_in(["de", "fr"]).sum()
        )
        policy = daband.LinUCB.for_pair(pair, seed=0)
        daband.train(policy, source=pair.source, target=pair.target)
        assert daband.evaluate(policy, pair.target_test).value > 0.7
        row = pair.table.contexts({"age": 41, "town": "large"})
        assert policy.select(row, "cz").arm.shape == (1,)

    def test_targets_of_which_one_has_labels_are_not_split(self):
        """Before: the half of the labelled target that was held out was in neither part."""
        frame = self.frame().with_columns(offer=pl.when(pl.col("country") != "cz").then("offer"))
        columns = Columns(context=("age", "town"), categorical=("town",), label="offer")
        with pytest.warns(UserWarning, match="116 .*221 .*offer.*target_test="):
            pair = from_table(source=frame, domain="country", targets=["pl", "cz"], columns=columns)
        assert pair.target_test is None
        assert len(pair.target) == frame["country"].is_in(["pl", "cz"]).sum()

    def test_a_log_may_have_the_column_too(self):
        frame = self.frame()
        frame = frame.with_columns(
            reward=(frame["arm"] == frame["offer"]).cast(pl.Float64), p=pl.lit(1 / 3)
        )
        log = Columns(
            context=("age", "town"),
            categorical=("town",),
            arm="arm",
            reward="reward",
            propensity="p",
            label="offer",
        )
        pair = from_table(source=frame, domain="country", targets=["pl"], columns=log)
        assert pair.domains.sources == ("cz", "de", "fr")
        policy = daband.LinUCB.for_pair(pair, seed=0)
        daband.train(policy, source=pair.source, target=pair.target, episodes=3)
        assert policy.rounds_learned == 192

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"domain": "country"}, "domain .*targets "),
            ({"targets": ["pl"]}, "domain .*targets "),
            ({"domain": "country", "targets": "pl"}, "domain .*list .*targets "),
            ({"domain": "country", "targets": ["us"]}, "'us', .*'country'"),
            (
                {"domain": "country", "targets": ["pl", "cz", "de", "fr"]},
                "'country' .*target.*source",
            ),
            ({"domain": "town", "targets": ["small"]}, r"columns\.context .*'town'"),
            ({}, "target.*domain= .*targets="),
        ],
    )
    def test_what_splits_nothing_is_refused(self, given, message):
        columns = Columns(context=("age", "town"), categorical=("town",), label="offer")
        with pytest.raises(InvalidInput, match=message):
            from_table(source=self.frame(), columns=columns, **given)

    def test_folders_by_name(self, tmp_path):
        from PIL import Image

        for domain, shade in {"day": 0, "night": 40, "rain": 80}.items():
            for number in range(40):
                folder = tmp_path / domain / ["stop", "go"][number % 2]
                folder.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (9, 9), (shade + number, 0, 0)).save(folder / f"{number}.png")
        pair = daband.domains.from_images(
            sources={"day": tmp_path / "day", "night": tmp_path / "night"},
            targets={"rain": tmp_path / "rain"},
            framing=8,
        )
        assert pair.domains.names == ("day", "night", "rain")
        assert [name for name, _ in pair.source.read_by_domain(0, 16, seed=0)] == ["day", "night"]
        assert len(pair.target_test) == 20


class TestReadersOfSeveral:
    """Logs, datasets and functions by name; one of each by name is one of each."""

    def test_logs(self):
        rng = np.random.default_rng(0)

        def log(seed):
            contexts, labels = rounds(120, 0.0, seed)
            arms = rng.integers(0, 3, 120)
            return contexts, arms, (arms == labels).astype(float), np.full(120, 1 / 3)

        targets = {"pl": rounds(40)[0], "cz": rounds(30)[0]}
        tests = {"pl": rounds(40), "cz": rounds(30)}
        pair = daband.domains.from_log(
            sources={"de": log(0), "fr": log(1)}, targets=targets, target_test=tests, n_arms=3
        )
        assert pair.domains.names == ("de", "fr", "pl", "cz")
        assert isinstance(pair.source, daband.domains.LoggedDomain)
        assert len(pair.source) == 240
        assert len(pair.target_test) == 70
        with pytest.raises(InvalidInput, match=r"from_log .*source=.*target="):
            daband.domains.from_log(source=log(0), n_arms=3)


def test_training_reads_what_a_domain_of_the_users_gives_as_rounds_and_batch():
    """A subclass that overrides them alone was passed by: training saw other rows than check_pair
    and evaluation.
    """
    pair = daband.domains.load("synthetic", tiny=True)

    class Moved(type(pair.source)):
        def rounds(self, start, stop, *, seed):
            rounds = super().rounds(start, stop, seed=seed)
            return type(rounds)(rounds.contexts + 7.0, rounds.rewards, rounds.expected)

    class MovedContexts(type(pair.target)):
        def batch(self, start, stop, *, seed):
            return super().batch(start, stop, seed=seed) + 7.0

    source = pair.source
    target = pair.target
    plain = source.rounds(0, 4, seed=0).contexts
    contexts = target.batch(0, 4, seed=0)
    source.__class__ = Moved
    target.__class__ = MovedContexts
    assert np.array_equal(source.read_by_domain(0, 4, seed=0)[0][1].contexts, plain + 7.0)
    assert np.array_equal(target.read_by_domain(0, 4, seed=0)[0][1], contexts + 7.0)
