"""Verification rules: which drafted tokens are kept, and what follows them [MATH §1]."""
