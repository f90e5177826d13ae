"""Research data sets and generated data as pairs.

Importing a module of this package registers its pairs.
"""
