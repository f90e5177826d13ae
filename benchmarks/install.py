"""Measure the size of every installation, and the time of its first import.

make dist
python benchmarks/install.py --wheels dist --json benchmarks/records/install.json

Each line is installed into its own virtual environment. The size is that of its packages without pip. The time is the
smallest of ten processes, minus that of a process that imports nothing. The second time is that of ``import numpy``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import commit, machine

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
INSTALLS = {
    "daband-serving": "daband",
    "daband-serving[serve]": "daband.service._app",
    "daband": "daband",
    "daband[gymnasium]": "daband",
    "daband[serve]": "daband.service._app",
    "daband[bench]": "daband",
    "daband[deep]": "daband.neural",
}
"""By requirement, the module that its users import first."""
PROCESSES = 10


def seconds(python: Path, code: str) -> float:
    """Return the smallest time of a process that runs the code."""
    times = []
    for _ in range(PROCESSES):
        start = time.perf_counter()
        subprocess.run([str(python), "-c", code], check=True, cwd=python.parent)
        times.append(time.perf_counter() - start)
    return min(times)


def megabytes(packages: Path) -> float:
    """Return the size of all packages without pip, in MB."""
    own = [path for path in packages.iterdir() if not path.name.startswith(("pip", "setuptools"))]
    files = [file for path in own for file in ([path] if path.is_file() else path.rglob("*"))]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def measure(requirement: str, module: str, wheels: Path) -> dict[str, float | str]:
    """Return the row of one installation."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS)]
        subprocess.run([*install, "--find-links", str(wheels.resolve()), requirement], check=True)
        (packages,) = Path(folder).glob("lib/python*/site-packages")
        size = megabytes(packages)
        for code in (f"import {module}", "import numpy"):
            subprocess.run([str(python), "-c", code], check=True, cwd=folder)  # writes the compiled files
        empty = seconds(python, "pass")
        return {
            "requirement": requirement,
            "module": module,
            "megabytes": round(size, 1),
            "import_seconds": round(seconds(python, f"import {module}") - empty, 3),
            "numpy_seconds": round(seconds(python, "import numpy") - empty, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=Path("dist"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for requirement, module in INSTALLS.items():
        rows.append(measure(requirement, module, arguments.wheels))
        print(rows[-1], flush=True)
    record = {"rows": rows, "machine": machine(), "commit": commit()}
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
