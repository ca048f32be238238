"""What clients send and get: pydantic models, a file an endpoint; used nowhere else."""
