"""Drafting methods of other papers, with which the product's are compared: a folder is a method.

They are registered as anybody's are, and found by the entry points of the group
``hierspec.methods``. ``__init__`` of a folder is the level of a hierarchy file, which is read
without torch; what drafts is beside it.
"""
