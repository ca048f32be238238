"""The joint law of first tokens, as tests import it; its home is ``hierspec.bench.joint_law``."""

from hierspec.bench.joint_law import ChiSquare, chi_square, joint_law, sample

__all__ = ["ChiSquare", "chi_square", "joint_law", "sample"]
