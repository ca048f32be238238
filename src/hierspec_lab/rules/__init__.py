"""Rules of the papers that others do better: registered as anybody's are, a file each.

They are found by the entry points of the group ``hierspec.verifiers``.
"""
