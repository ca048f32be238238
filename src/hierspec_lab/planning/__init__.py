"""Plans that are compared and not run: thorough profiles, limits and bounds, simulations, pictures."""
