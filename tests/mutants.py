"""Mutation run over the lines that matter most: each is changed in a copy of the sources, and its
tests must fail.

    python tests/mutants.py            # all of them
    python tests/mutants.py gate seed  # those whose name has one of these words

A mutant that lives is a line that no test holds. The exit status is the number of those.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Mutant:
    """One changed line: ``before`` must stand exactly once in ``path``; ``tests`` are those that
    must notice.
    """

    name: str
    path: str
    before: str
    after: str
    tests: str


GATE = "tests/neural/learning/test_skill_gate.py"
RECIPES = "tests/policies/test_recipe_changes.py"
MUTANTS = (
    Mutant(
        "gate is always open",
        "neural/learning/_learner.py",
        "self.gate_factor = self.skill_gate.compute_skill(deviation) **"
        " self.recipe.learning.gate_exponent",
        "self.gate_factor = 1.0",
        GATE,
    ),
    Mutant(
        "gate ignores the exponent",
        "neural/learning/_learner.py",
        "self.skill_gate.compute_skill(deviation) ** self.recipe.learning.gate_exponent",
        "self.skill_gate.compute_skill(deviation)",
        GATE,
    ),
    Mutant(
        "default's exponent is 0",
        "neural/_recipes.py",
        "gate_exponent=8.0",
        "gate_exponent=0.0",
        RECIPES,
    ),
    Mutant(
        "skill ignores the constant",
        "neural/learning/_skill_gate.py",
        "sum_rewards / n_matched - constant_value",
        "sum_rewards / n_matched",
        GATE,
    ),
    Mutant(
        "initial weights ignore the seed",
        "neural/learning/_learner.py",
        "torch.manual_seed(seed)",
        "torch.manual_seed(0)",
        GATE,
    ),
    Mutant(
        "discriminator ignores the seed",
        "neural/learning/_learner.py",
        "torch.manual_seed(seed + 1)",
        "torch.manual_seed(1)",
        GATE,
    ),
    Mutant(
        "default aligns with weight 1",
        "neural/_recipes.py",
        "Weight(0.3, ramp=_RAMP_FRACTION),",
        "Weight(1.0, ramp=_RAMP_FRACTION),",
        RECIPES,
    ),
    Mutant(
        "ramp of another length",
        "neural/_recipes.py",
        "_RAMP_FRACTION = 0.3125",
        "_RAMP_FRACTION = 0.25",
        RECIPES,
    ),
    Mutant(
        "paper's pixels are raw",
        "neural/_recipes.py",
        '"pixels": "symmetric"',
        '"pixels": "unit"',
        RECIPES,
    ),
    Mutant(
        "P's second reading is the first",
        "neural/objectives/_target_predictions.py",
        "return (batch.target_predictions.detach() + batch.target_bonuses).argmax(dim=1)",
        "return batch.arms",
        "tests/neural/objectives/test_terms.py",
    ),
    Mutant(
        "the encoder descends the discriminator's loss",
        "neural/objectives/_adversarial.py",
        "return -strength * gradients[0], None",
        "return strength * gradients[0], None",
        "tests/neural/objectives/test_adversarial.py",
    ),
    Mutant(
        "the target is normalised by the source's statistics",
        "neural/encoders/_domain_norm.py",
        'self.training and (domain == 0 or self.statistics == "own")',
        "self.training and domain == 0",
        "tests/neural/encoders/test_domain_norm.py",
    ),
    Mutant(
        "terms of the target stay where nothing is aligned",
        "neural/_recipes.py",
        "    if not shift.aligns_features:\n",
        "    if False:\n",
        RECIPES,
    ),
    Mutant(
        "every domain is standardised by the first",
        "linear/_standardise.py",
        "return self._steps[min(domain, len(self._steps) - 1)]",
        "return self._steps[0]",
        "tests/linear/test_standardise.py",
    ),
)


def dies(mutant: Mutant, directory: Path) -> bool:
    """Whether the mutant's tests fail on a copy of the sources in ``directory``."""
    sources = directory / "src"
    shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
    file = sources / "daband" / mutant.path
    text = file.read_text()
    if text.count(mutant.before) != 1:
        raise SystemExit(
            f"{mutant.path} has {text.count(mutant.before)} times the line of {mutant.name!r}: mend"
            " the list"
        )
    file.write_text(text.replace(mutant.before, mutant.after))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.tests]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(
            f"{mutant.name}: the tests did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.returncode == 1


def main() -> None:
    words = sys.argv[1:]
    wanted = [
        mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)
    ]
    alive = 0
    for mutant in wanted:
        with tempfile.TemporaryDirectory() as directory:
            dead = dies(mutant, Path(directory))
        alive += not dead
        print(f"{'dies ' if dead else 'LIVES'}  {mutant.name}  ({mutant.path})", flush=True)
    print(f"{len(wanted) - alive} of {len(wanted)} die")
    raise SystemExit(alive)


if __name__ == "__main__":
    main()
