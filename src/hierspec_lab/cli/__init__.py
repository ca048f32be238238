"""The commands of this package, which the command line finds by their entry points."""
