"""A faster forward for Llama-shaped models in torch's operations, over the same weights.

``decoder`` is the backend, of ``layers``; ``shape`` defines which models it runs and ``loader``
reads them. ``fixed_shape`` runs the same layers in calls that can be recorded as CUDA graphs. On
CPUs the compiled kernels of ``native`` run these models instead, where there is a C compiler.
"""
