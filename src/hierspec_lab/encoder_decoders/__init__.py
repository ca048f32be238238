"""Encoder-decoder models, by the names of their kinds in configurations: the T5 family."""
