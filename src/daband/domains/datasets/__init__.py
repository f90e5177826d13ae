"""The data sets that come with the library: each is a declaration that uses one builder, and is registered."""
