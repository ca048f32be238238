"""A faster forward for Llama-shaped models, over the same weights.

``decoder`` is the backend, of ``layers`` that TorchScript compiles and a ``linear`` in the layout
that multiplies fastest; ``shape`` says which models it runs. ``fixed_shape`` runs the same layers
in calls that can be recorded as CUDA graphs.
"""
