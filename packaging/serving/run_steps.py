"""Run the steps of the Dockerfile one by one in an empty folder, without a container engine, and
use the service.

    python packaging/serving/run_steps.py dist build/image

The folder stands for the image's root: WORKDIR, COPY, RUN, HEALTHCHECK and CMD act in it, and FROM
is a virtual environment of this Python. The service decides, takes a reward, is restarted on the
same log, and learns. The installed packages must be smaller than 250 MB. The Python that runs this
file needs all of daband, to export a policy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_MEGABYTES = 250
TOKENS = {f"DABAND_{role}_TOKEN": role.lower() for role in ("DECIDE", "REWARD", "WATCH", "ADMIN")}


def write_policy(folder: Path) -> None:
    """Train a policy on a small table, save it, and export it."""
    import numpy as np
    import polars as pl

    import daband

    rng = np.random.default_rng(0)
    table = pl.DataFrame(
        {"age": rng.integers(20, 80, 400), "city": rng.choice(["Oslo", "Rome"], 400)}
    )
    columns = daband.domains.Columns(context=("age", "city"), categorical=("city",), label="offer")
    offers = pl.when(pl.col("age") > 50).then(pl.lit("card")).otherwise(pl.lit("loan"))
    pair = daband.domains.from_table(
        source=table.with_columns(offer=offers), target=table, columns=columns
    )
    policy = daband.Mixture.for_pair(pair, seed=0, network=False)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4)
    policy.deploy("target")
    policy.save(folder / "policy.safetensors")
    daband.export(policy, folder / "market.daband", pair=pair, epsilon=0.1)


class Image:
    """The state of a build: the root folder, the working folder, the last CMD and HEALTHCHECK."""

    def __init__(self, context: Path, root: Path) -> None:
        self.context, self.root, self.folder = context, root, root
        self.command: list[str] = []
        self.health = ""
        self.volumes: list[Path] = []

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "DABAND", "VIRTUAL"))
        }
        return {**kept, **TOKENS, "PATH": f"{self.root / 'python' / 'bin'}:{os.environ['PATH']}"}

    def step(self, instruction: str, rest: str) -> None:
        print(f"{instruction} {rest}", flush=True)
        if instruction == "FROM":
            subprocess.run([sys.executable, "-m", "venv", str(self.root / "python")], check=True)
        elif instruction == "WORKDIR":
            self.folder = self.root / rest.lstrip("/")
            self.folder.mkdir(parents=True)
        elif instruction == "COPY":
            *sources, goal = shlex.split(rest)
            found = [path for source in sources for path in self.context.glob(source)]
            if not found:
                raise SystemExit(f"COPY {rest}: there is no such file")
            for path in found:
                shutil.copy(path, self.folder / goal)
        elif instruction == "RUN":
            self.run(rest)
        elif instruction == "VOLUME":
            self.volumes.append(self.root / rest.lstrip("/"))
        elif instruction == "HEALTHCHECK":
            self.health = rest.removeprefix("CMD ")
        elif instruction == "CMD":
            self.command = json.loads(rest)
        elif instruction not in ("EXPOSE", "USER"):  # these need a container
            raise SystemExit(f"{instruction} is not known here; add it to {__file__}")

    def run(self, command: str) -> None:
        subprocess.run(command, shell=True, cwd=self.folder, env=self.environment, check=True)

    def megabytes(self) -> float:
        """Return the size of the installed packages without pip, in MB."""
        (packages,) = (self.root / "python" / "lib").glob("python*/site-packages")
        own = [
            path for path in packages.iterdir() if not path.name.startswith(("pip", "setuptools"))
        ]
        files = [file for path in own for file in ([path] if path.is_file() else path.rglob("*"))]
        return sum(file.stat().st_size for file in files if file.is_file()) / 1e6

    @contextlib.contextmanager
    def service(self, *options: str) -> Iterator[int]:
        """Run CMD with further options on a free port, and wait until HEALTHCHECK succeeds."""
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        command = [
            str(self.root / "python" / "bin" / self.command[0]),
            *self.command[1:],
            "--port",
            str(port),
            *options,
        ]
        process = subprocess.Popen(command, cwd=self.folder, env=self.environment)
        try:
            for attempt in range(100):
                try:
                    self.run(
                        self.health.replace("8000", str(port))
                        + (" 2>/dev/null" if attempt < 99 else "")
                    )
                    break
                except subprocess.CalledProcessError:
                    if process.poll() is not None or attempt == 99:
                        raise SystemExit("the service does not become healthy") from None
                    time.sleep(0.2)
            yield port
        finally:
            process.terminate()
            process.wait(30)


def call(port: int, path: str, token: str, body: dict[str, Any] | None = None) -> Any:
    """Return the answer of the service to one request."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def use(image: Image) -> None:
    """Decide and reward, restart the service on its log, and learn from the log."""
    event = {"event_id": "1", "context": {"age": 30, "city": "Oslo"}}
    with image.service() as port:
        first = call(port, "/decide", "decide", event)
        call(port, "/events/1/reward", "reward", {"reward": 1.0})
    with image.service("--learn", "policy.safetensors", "--learn-every", "1") as port:
        again = call(port, "/decide", "decide", event)
        assert again["repeated"], again
        assert again["arm"] == first["arm"], (first, again)
        until = time.monotonic() + 60
        while len(call(port, "/models", "watch")["models"]) < 2:
            assert time.monotonic() < until, "no model was learned in a minute"
            time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dist", type=Path, help="the folder with the wheel of daband-serving")
    parser.add_argument("folder", type=Path, help="an empty folder")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    context, root = folder / "context", folder / "root"
    context.mkdir(parents=True)
    root.mkdir()
    (wheel,) = arguments.dist.glob("daband_serving-*.whl")
    shutil.copy(wheel, context)
    write_policy(context)
    image = Image(context, root)
    for line in Path(__file__).with_name("Dockerfile").read_text().splitlines():
        if line and not line.startswith("#"):
            instruction, _, rest = line.partition(" ")
            image.step(instruction, rest)
    assert all(volume.is_dir() for volume in image.volumes), image.volumes
    size = image.megabytes()
    print(f"installed packages: {size:.0f} MB")
    assert size < MAX_MEGABYTES, f"{size:.0f} MB are more than {MAX_MEGABYTES}"
    shutil.copy(context / "policy.safetensors", image.folder)
    use(image)
    print("the service decided, kept its log over a restart, and learned")


if __name__ == "__main__":
    main()
