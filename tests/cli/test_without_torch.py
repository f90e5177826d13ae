"""What the comments promise: a comparison of linear methods imports no torch, which takes
seconds.
"""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from daband.cli._main import main
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
print("torch is imported:", "torch" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        [
            "bench",
            "synthetic",
            "--methods",
            "linucb,linucb-p,random",
            "--seeds",
            "0",
            "--episodes",
            "2",
            "--episode-length",
            "10",
            "--out",
        ],
    ],
    ids=["help", "bench"],
)
def test_linear_methods_do_without_torch(arguments, tmp_path):
    if arguments[-1] == "--out":
        arguments = [*arguments, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "torch is imported: False" in done.stdout
