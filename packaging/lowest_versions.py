"""Print the lowest versions of daband's direct dependencies, as requirements for pip.

They are those of all extras in pyproject.toml but "peers". torch is left to constraints.txt.
"""

import tomllib
from pathlib import Path


def list_lowest_versions() -> list[str]:
    """Return a requirement such as "numpy==1.26" for each direct dependency."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    needs = set(project["dependencies"])
    needs.update(*(extras[name] for name in extras if name != "peers"))
    return sorted(
        need.replace(">=", "==") for need in needs if not need.startswith(("daband", "torch"))
    )


if __name__ == "__main__":
    print("\n".join(list_lowest_versions()))
