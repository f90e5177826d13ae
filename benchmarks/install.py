"""Measure the size of every installation, and the time of its first import.

    make dist
    python benchmarks/install.py --wheels dist --json benchmarks/records/install.json

Each requirement is installed into its own virtual environment. The size is that of all packages
except pip. Times are CPU seconds of the fastest of ten processes, minus the time of a process that
imports nothing.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import commit, machine

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
INSTALLS = {
    "daband-serving": "from daband import load_deployed",
    "daband-serving[serve]": "import daband.service._app",
    "daband": "from daband import choose",
    "daband[serve]": "import daband.service._app",
    "daband[bench]": "from daband.bench import bench",
    "daband[deep]": "from daband import DABand",
}
"""The first import of a user, by requirement."""
N_PROCESSES = 10


def measure_seconds(python: Path, code: str) -> float:
    """Return the smallest CPU time of a process that runs the code."""
    times = []
    for _ in range(N_PROCESSES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([str(python), "-c", code], check=True, cwd=python.parent)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(times)


def measure_megabytes(packages: Path) -> float:
    """Return the size of all packages without pip, in MB."""
    package_paths = [
        path for path in packages.iterdir() if not path.name.startswith(("pip", "setuptools"))
    ]
    files = [
        file for path in package_paths for file in ([path] if path.is_file() else path.rglob("*"))
    ]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def measure(requirement: str, first: str, wheels: Path) -> dict[str, float | str]:
    """Install a requirement, and return its size and import times.

    ``first`` is the code of the first import.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS)]
        subprocess.run([*install, "--find-links", str(wheels.resolve()), requirement], check=True)
        (packages,) = Path(folder).glob("lib/python*/site-packages")
        size = measure_megabytes(packages)
        times = {}
        for name, code in {
            "import_daband": "import daband",
            "first": first,
            "import_numpy": "import numpy",
        }.items():
            # writes the compiled files
            subprocess.run([str(python), "-c", code], check=True, cwd=folder)
            times[name] = round(
                max(0.0, measure_seconds(python, code) - measure_seconds(python, "pass")), 3
            )
        return {"requirement": requirement, "code": first, "megabytes": round(size, 1), **times}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=Path, default=Path("dist"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for requirement, first in INSTALLS.items():
        rows.append(measure(requirement, first, arguments.wheels))
        print(rows[-1], flush=True)
    record = {"rows": rows, "machine": machine(), "commit": commit()}
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
