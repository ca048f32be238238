"""Latency without models: the engine's rounds, answered from acceptance rates and costs."""

from .acceptances import Acceptances, CoinFlips, Recorded
from .costs import ByCall, CallPrices, Cost
from .interpreter import LevelCount, Simulation, simulate

__all__ = [
    "Acceptances",
    "ByCall",
    "CallPrices",
    "CoinFlips",
    "Cost",
    "LevelCount",
    "Recorded",
    "Simulation",
    "simulate",
]
