"""Stand-ins for whole components, a file a kind of component."""
