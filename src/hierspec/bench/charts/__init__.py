"""The pictures of a bench, a module per kind; :mod:`hierspec.bench.pictures` draws them all."""
