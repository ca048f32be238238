"""Sampling: from a request's options and raw scores to distributions and tokens.

``parameters`` has a request's :class:`~.parameters.SamplingParams`; ``scores`` makes distributions
of the rows of a batch, after the ``penalties`` and logits ``processors`` of each; ``sampler`` does
temperature, truncation and the draw.
"""
