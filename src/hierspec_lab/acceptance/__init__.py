"""Acceptance heads [SpecDec++]: a draft ends where its model predicts a rejection."""
