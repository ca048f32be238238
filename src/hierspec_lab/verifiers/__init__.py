"""Verifiers of other projects, to be judged by enumeration."""
