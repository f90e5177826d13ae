"""The pages of docs/results, each from its record; ``results_pages.py`` writes and checks them."""
