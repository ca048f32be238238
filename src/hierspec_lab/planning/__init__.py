"""What only papers ask of a plan: simulations, maps and pictures of it."""
