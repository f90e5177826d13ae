"""Register the research data sets of the results pages, other than those of the paper, as pairs.

Importing this package is enough: ``daband.domains.load("amazon/books-dvd")`` then works, and so do
the commands of ``benchmarks/bench.py``.
"""

from research_sets import readers as readers
