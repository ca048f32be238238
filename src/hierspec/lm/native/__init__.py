"""Llama-shaped models on CPUs, in the project's compiled kernels.

Each weight is stored once, in the bits it came in, and a row of a result does not depend on what is
computed beside it.
"""
