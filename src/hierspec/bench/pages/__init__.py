"""Parts of the page of a bench; :mod:`hierspec.bench.page` puts them together."""
