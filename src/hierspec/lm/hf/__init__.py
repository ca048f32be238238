"""Transformers decoders, run layer range by layer range through their own modules.

``decoder`` is the backend; ``cache`` and ``attention`` are what its layers are given in place of
the library's own; ``support`` says which models can be driven.
"""
