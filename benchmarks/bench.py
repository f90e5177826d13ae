"""Run a command of daband with the data sets of ``research_sets``.

python benchmarks/bench.py bench amazon/books-dvd --episodes 90
python benchmarks/bench.py data check amazon/books-dvd
"""

import research_sets  # noqa: F401  registers the data sets
from daband.cli._main import main

if __name__ == "__main__":
    main()
