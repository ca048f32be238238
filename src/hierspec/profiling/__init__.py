"""Measure once how often models agree and what their calls cost, for the planner to read."""
