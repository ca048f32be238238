"""Verification rules: which drafted tokens are accepted, and what follows them [MATH §1]."""
