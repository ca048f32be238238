"""Rules of the papers that others do better, and one of ours: registered as anybody's are.

They are found by the entry points of the group ``hierspec.verifiers``.
"""
