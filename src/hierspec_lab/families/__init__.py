"""Models to study hierarchies on: the code family, and costs that are synthetic.

They are found by the entry points of the group ``hierspec.models``.
"""
