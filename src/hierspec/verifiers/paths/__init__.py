"""Three ways to the same verdict: integers (greedy), floats on the host, batches on a device."""
