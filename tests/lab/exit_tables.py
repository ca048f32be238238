"""Adaptive exits over tables."""

from __future__ import annotations

from fakes.tables import AsTable

from hierspec_lab.methods.adaptive_exit.declining import DecliningExit
from hierspec_lab.methods.adaptive_exit.model import AdaptiveExit


class TabularExit(AsTable, AdaptiveExit):
    """Exits chosen by confidence, over tables."""


class DecliningTabularExit(AsTable, DecliningExit):
    """Exits of which none may be sure, over tables."""
