"""The data sets that come with the library: each a declaration over one builder, found by registration."""
