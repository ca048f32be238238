"""Latency without models: the engine's rounds, answered from acceptance rates and costs."""

from .interpreter import LevelCount, Simulation, simulate
from .rates_and_costs import Acceptances, ByCall, CallPrices, CoinFlips, Cost

__all__ = [
    "Acceptances",
    "ByCall",
    "CallPrices",
    "CoinFlips",
    "Cost",
    "LevelCount",
    "Simulation",
    "simulate",
]
