"""EAGLE-3: a one-layer draft network that reads a target's hidden states [Li et al. 2025].

``config`` says what a network is and how its checkpoint describes it, ``network`` is the network as
it is trained, ``checkpoint`` reads and writes the published layout.
"""
