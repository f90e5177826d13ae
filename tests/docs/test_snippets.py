"""What pages show is executed: their Python in order, in a folder of its own, on small data; their
commands are parsed.

A page takes names such as ``pair`` or ``x_target`` for granted. ``given`` makes them. Large budgets
are made small by replacements, each of which must be found, so that a page cannot change without
this file."""

import re
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import typer

import daband
from daband.cli._main import app
from daband.domains._examples import read_example
from daband.trust import Candidate

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*/*.md")),
]
OTHERS = (
    "import vowpalwabbit",
    "from obp",
    "from econml",
    "from causalml",
    "GrowthBook(",
    "from routellm",
)
"""What marks the other library's side of a comparison."""
SMALLER = {
    "docs/guide/choose.md": {
        "budget=50": "budget=5",
    },
    "docs/guide/data.md": {"episodes=100": "episodes=2", "framing=224": "framing=16"},
    "docs/guide/logs.md": {"episodes=50": "episodes=8"},
    "docs/guide/report.md": {"progress=log": "progress=log, episodes=2"},
}


def blocks(page, *kinds):
    """The fenced blocks of these languages on a page, in order."""
    found = re.findall(
        r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE
    )
    return [text for kind, text in found if kind in kinds]


def snippets(page):
    return [text for text in blocks(page, "python") if not any(other in text for other in OTHERS)]


def given():
    """What pages take for granted: arrays, a log, a pair, a trained policy, a stream and what it
    pays.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(640, 6))
    x_target = rng.normal(0.3, 1.0, (600, 6))
    best = np.eye(4)[x[:, :4].argmax(axis=1)]
    arms = rng.integers(0, 4, len(x))
    pair = daband.domains.from_arrays(
        source=(x, best.argmax(axis=1)), target=x_target, target_test=(x[:60], best[:60])
    )
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=8)

    def pay(context, arm):
        if isinstance(context, dict):  # a row of a table
            return float(len(str(context)) % 3 == arm)
        return float(context[:4].argmax() == arm)

    return {
        "daband": daband,
        "np": np,
        "x": x,
        "y": best.argmax(axis=1),
        "x_target": x_target,
        "row": x_target[0],
        "contexts": x[:5],
        "reward": np.ones(5),
        "arms": arms,
        "rewards": best[np.arange(len(x)), arms],
        "propensities": np.full(len(x), 0.25),
        "pair": pair,
        "policy": policy,
        "stream": x[:20],
        "pay": pay,
        "few": [Candidate("constant", "constant"), Candidate("linucb", "linucb")],
        "new_contexts": x_target,
        "log": lambda *columns: None,
        "reward_of": lambda contexts, arms: [
            pay(one, arm) for one, arm in zip(contexts, arms, strict=True)
        ],
    }


def prepare_ab_test(names):
    """Write the tables of a test in one market and of customers in the next."""
    rng = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "age": rng.integers(20, 80, 400),
            "spent": rng.random(400),
            "channel": rng.choice(["web", "shop"], 400),
        }
    )
    table.write_csv("sweden.csv")
    offers = pl.Series(rng.choice(["coupon", "visit"], 400))
    table.with_columns(offer=offers, euros=rng.random(400), p=pl.lit(0.5)).write_csv("norway.csv")


def prepare_offers(names):
    """Write a catalogue of that test's offers."""
    pl.DataFrame(
        {"id": ["coupon", "visit"], "price": [1.0, 2.0], "kind": ["trip", "trip"]}
    ).write_csv("offers.csv")
    names["row"] = {"age": 24, "spent": 80.0, "channel": "web"}


def prepare_arms(names):
    prepare_ab_test(names)
    prepare_offers(names)
    context = ["age", "spent", "channel"]
    names["columns"] = daband.domains.Columns(
        context, ["channel"], arm="offer", reward="euros", propensity="p"
    )


def prepare_deployed_arms(names):
    """Export a policy with the catalogue that the page's request names."""
    offers = pl.DataFrame(
        {
            "id": ["coupon", "visit", "offer 3"],
            "price": [1.0, 2.0, 3.0],
            "kind": ["fund", "trip", "fund"],
        }
    )
    offers = offers.with_columns(tags=pl.Series(["green|new", "old|new", "green|travel"]))
    pair = daband.domains.from_table(
        source="norway.csv", target="sweden.csv", columns=names["columns"], arms=offers
    )
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=16)
    daband.export(policy, "sweden.daband", pair=pair, domain="target")


def prepare_data(names):
    """Files, folders, data sets and functions as the page on data names them."""
    table = pl.DataFrame(
        {"age": np.arange(40.0), "city": ["Oslo", "Rome"] * 20, "offer": ["card", "loan"] * 20}
    )
    table.write_parquet("old.parquet")
    table = table.with_columns(customer=pl.int_range(pl.len()))
    table.with_columns(euros=pl.col("age") / 10).write_csv("old.csv")
    table.drop("offer").write_csv("new.csv")
    write_images()
    tensor = torch.as_tensor(names["x"], dtype=torch.float32)
    names["torch_dataset"] = torch.utils.data.TensorDataset(tensor, torch.as_tensor(names["y"]))
    names["unlabelled_dataset"] = torch.utils.data.TensorDataset(tensor)
    names["draw"] = names["draw_target"] = lambda rng, n: rng.normal(size=(n, 6))
    names["pay"] = lambda rng, contexts, arms: (contexts[:, :5].argmax(axis=1) == arms).astype(
        float
    )


def write_images(names=None):
    """Write a folder of rendered images by class, and one of photographs."""
    image = pytest.importorskip("PIL.Image")
    for folder in ("rendered/a", "rendered/b", "photographs", "photos"):
        Path(folder).mkdir(parents=True)
        for number in range(10):
            image.fromarray(np.full((16, 16, 3), number, np.uint8)).save(f"{folder}/{number}.png")


def prepare_export(names):
    rng = np.random.default_rng(0)

    def customers(n):
        return pl.DataFrame(
            {
                "age": rng.integers(20, 80, n),
                "income": rng.normal(2e4, 5e3, n),
                "city": rng.choice(["Oslo", "Rome"], n),
            }
        )

    old = customers(400).with_columns(offer=pl.Series(rng.choice(["loan", "bond", "card"], 400)))
    columns = daband.domains.Columns(
        context=["age", "income", "city"], categorical=["city"], label="offer"
    )
    names["pair"] = daband.domains.from_table(source=old, target=customers(300), columns=columns)
    names["policy"] = daband.LinUCB.for_pair(names["pair"], seed=0)
    daband.train(
        names["policy"], source=names["pair"].source, target=names["pair"].target, episodes=4
    )
    names["row"] = {"age": 41, "income": 20_000.0, "city": "Oslo"}


def write_log(folder, contexts, arm, reward, propensity):
    rng = np.random.default_rng(0)
    Path(folder).mkdir(exist_ok=True)
    for path in Path(folder).glob("*"):
        path.unlink()
    table = {name: rng.normal(size=300) for name in contexts}
    table |= {arm: rng.integers(0, 10, 300), reward: rng.random(300), propensity: np.full(300, 0.1)}
    pl.DataFrame(table).write_parquet(f"{folder}/0.parquet")


def prepare_large_logs(names):
    write_log("logs", [f"x{number}" for number in range(32)], "arm", "reward", "propensity")


def prepare_named_columns(names):
    write_log("logs", ["age", "weight"], "action", "click", "p")
    names["policy"] = daband.LinUCB(context_shape=(2,), n_arms=10, seed=0)


def prepare_service(names):
    """A service of the policy of the hand-over's page, in a thread."""
    import socket
    import threading
    import time

    import uvicorn

    from daband.service import create_app

    prepare_export(names)
    daband.export(names["policy"], "market.daband", pair=names["pair"], domain="target")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    app = create_app("market.daband", "sqlite:///events.db")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    names["address"] = f"http://127.0.0.1:{port}"


def prepare_obp(names):
    names["feedback"] = {
        "context": names["x"],
        "action": names["arms"],
        "reward": names["rewards"],
        "pscore": names["propensities"],
        "n_actions": 4,
    }


def prepare_choose(names):
    """Write the example that the page names."""
    for file, content in read_example("ab-test").files.items():
        Path(file).write_bytes(content)


def prepare_prompts(names):
    """Write judged prompts, and prompts of another domain."""
    rng = np.random.default_rng(0)
    table = pl.DataFrame({"length": rng.integers(5, 900, 400), "language": ["en", "no"] * 200})
    table.write_csv("ours.csv")
    models = pl.Series(rng.choice(["strong", "weak"], 400))
    table.with_columns(model=models, net=rng.random(400)).write_csv("judged.csv")


PREPARE = {
    ("docs/moving/others.md", 0): prepare_choose,
    ("docs/moving/others.md", 2): prepare_prompts,
    ("docs/guide/choose.md", 0): prepare_choose,
    ("docs/guide/arms.md", 0): prepare_arms,
    ("docs/guide/arms.md", 1): prepare_deployed_arms,
    ("docs/guide/data.md", 0): prepare_data,
    ("docs/guide/export.md", 0): prepare_export,
    ("docs/guide/large-logs.md", 0): prepare_large_logs,
    ("docs/guide/large-logs.md", 1): prepare_named_columns,
    ("docs/guide/service.md", 0): prepare_service,
    ("docs/moving/obp.md", 1): prepare_obp,
}


def test_every_preparation_and_replacement_has_its_page():
    assert {page for page, _ in PREPARE} | set(SMALLER) <= set(PAGES)
    for page, number in PREPARE:
        assert number < len(snippets(page)), page


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)])
@pytest.mark.filterwarnings("ignore")
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = given()
    unused = dict(SMALLER.get(page, {}))
    for number, text in enumerate(snippets(page)):
        PREPARE.get((page, number), lambda names: None)(names)
        code = text
        for large, small in SMALLER.get(page, {}).items():
            if large in code:
                unused.pop(large, None)
            code = code.replace(large, small)
        exec(compile(code, f"{page}, block {number}", "exec"), names)
    assert not unused, f"{page} no longer has {unused}"


@pytest.mark.parametrize("page", [page for page in PAGES if "/results/" not in page])
def test_code_fits_beside_the_menu(page):
    long = [line for text in blocks(page, "python") for line in text.splitlines() if len(line) > 88]
    assert not long, long


def commands(page):
    """The command lines of a page, and of the code spans in its text, that call ``daband``."""
    text = (ROOT / page).read_text()
    lines = [
        line.removeprefix("$ ")
        for block in blocks(page, "", "sh", "bash", "console")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    spans = re.findall(r"`(daband [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line for line in [*lines, *spans] if line.startswith("daband ") and "..." not in line]


@pytest.mark.parametrize(
    "page",
    [page for page in [*PAGES, "README.md", "CONTRIBUTING.md", "CHANGELOG.md"] if commands(page)],
)
def test_the_commands_of_a_page_exist_with_their_options(page):
    commands_of_all = typer.main.get_command(app)
    for line in commands(page):
        words = iter(shlex.split(line, comments=True)[1:])
        command = commands_of_all
        for word in words:
            if word.startswith("--"):
                options = {
                    name: own for own in command.params for name in (*own.opts, *own.secondary_opts)
                }
                assert word.partition("=")[0] in options, f"{page}: {line}: there is no {word}"
                if not options[word].is_flag:
                    next(words, None)  # its value; running text may name an option alone
            elif hasattr(command, "commands"):
                assert word in command.commands, f"{page}: {line}: there is no command {word}"
                command = command.commands[word]
