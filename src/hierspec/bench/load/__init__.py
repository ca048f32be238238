"""Load on a server that speaks OpenAI's API: prompts, requests, and what a client sees of them."""
