"""On ``PYTHONPATH``, this makes every process believe that ``hierspec_lab`` is not installed."""

import sys

sys.modules["hierspec_lab"] = None  # type: ignore[assignment]
