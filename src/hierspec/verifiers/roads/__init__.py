"""Three roads to the same verdict: integers (greedy), the host's floats, a device's batches."""
