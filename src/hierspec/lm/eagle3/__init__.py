"""EAGLE-3: a one-layer draft network that reads a target's hidden states [Li et al. 2025].

``config`` has a network's sizes and reads them, ``checkpoint`` its weights in the published layout;
``model`` drafts with ``layer``.
"""
