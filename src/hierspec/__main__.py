"""``python -m hierspec``: the command line, where its script is not on the path."""

from hierspec.cli import main

main()
