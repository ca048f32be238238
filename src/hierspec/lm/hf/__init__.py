"""Transformers decoders, run layer range by layer range through their own modules.

``decoder`` is the backend; ``cache`` and ``attention`` replace the library's own in their layers;
``support`` refuses models that cannot be run.
"""
