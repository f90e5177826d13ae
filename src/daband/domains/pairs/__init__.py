"""The pairs of domains that come with the library: one source and target per file, found by registration."""
