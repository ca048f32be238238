"""Plans that are compared and not run, and the profiles for them; simulations, maps, pictures."""
