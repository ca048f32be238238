"""OpenAI's batch files: a request a line in, an answer a line out, each exactly once."""
