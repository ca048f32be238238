"""The drafting methods of this package: a file is a method, and has its name.

:mod:`hierspec.config.methods` imports a file when its method is first named. Nothing here imports
torch before a model is made.
"""
