"""Pairs of tabular models, and certificates of P4's rules on them."""

from __future__ import annotations

import torch

from hierspec.config.nodes import build_nodes, make_rule
from hierspec.config.numbered import NumberedConfig
from hierspec.exact.certificate import Certificate, certify_tree
from hierspec.lm.tabular import TabularModel

VOCAB = 3  # with two tokens some wrong residuals vanish and look right [MATH §1]


def random_pair(kind: str, seed: int) -> tuple[TabularModel, TabularModel]:
    """Draw draft and target of a family (:data:`hierspec.lm.tabular.KINDS`), of order 1."""
    generator = torch.Generator().manual_seed(seed)
    return (
        TabularModel.random(VOCAB, 1, generator, kind),
        TabularModel.random(VOCAB, 1, generator, kind),
    )


def greedy_model(model: TabularModel) -> TabularModel:
    """Return the model that always picks this one's likeliest token: its rows are one-hot."""
    table = {}
    for key, probs in model.table().items():
        best = max(range(len(probs)), key=probs.__getitem__)
        table[key] = [float(token == best) for token in range(len(probs))]
    return TabularModel(model.vocab_size, model.order, table)


def certificate(rule: str, draft: TabularModel, target: TabularModel, length: int) -> Certificate:
    """Compute the certificate of one draft of ``length`` tokens a round, verified by ``rule``."""
    level = NumberedConfig(model=0, num_speculative_tokens=length)
    root = build_nodes(
        [level], lambda level, key: (draft if level else target, key), make_rule(rule)
    )
    return certify_tree(root, target.vocab_size)
