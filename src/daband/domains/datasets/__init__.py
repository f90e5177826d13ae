"""The data sets of the library, each declared in a module and registered as pairs."""
