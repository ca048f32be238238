"""How often is a short answer right, by rule? P4 Tables A.2 and A.3, computed on a released model.

Questions of our own are put to SmolLM2 in its chat template, and the first words of an answer with
them. It is right if it goes on as it should, and then with no further letter or digit. Its chance
is computed, not sampled: target and draft are cut to their ``--top-k`` likeliest tokens at every
place, so that all drafts of ``--length`` tokens can be scored, as one tree, and the exact
interpreter follows rounds of each rule from every beginning of the answer. After a text each of its
candidates is one symbol of a small vocabulary, which no rule can tell from the token. Drafted texts
that the target gives probability 0 end there: no rule keeps them, and what would come after them
decides nothing.

    python benchmarks/accuracy.py
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import common
import numpy as np
import torch

from hierspec import Hierarchy
from hierspec.config.nodes import build_nodes, make_rule
from hierspec.config.numbered import NumberedConfig
from hierspec.core.context import Context
from hierspec.core.nodes import initial_states
from hierspec.exact.interpreter import UNLIMITED, ExactInterpreter
from hierspec.lm.base import Query
from hierspec.lm.trees import Branches, Tree
from hierspec.utils.prompts import apply_chat

NAME = "p4-accuracy"
RULES = ("tokenwise", "block", "uncapped")
Symbols = tuple[int, ...]  # a text, by the number of each token among the candidates at its place


class Question(NamedTuple):
    """What the user says, how the assistant begins, and how it must go on."""

    kind: str
    user: str
    lead: str
    answer: str


def questions() -> list[Question]:
    """Return all questions, kind by kind."""

    def about(kind: str, user: str, lead: str, answers: str) -> list[Question]:
        return [
            Question(kind, user.format(given), lead.format(given), f" is {answer}")
            for given, answer in (pair.split(":") for pair in answers.split(", "))
        ]

    pairs = list(itertools.combinations(range(2, 10), 2))
    sums = ((a, b) for a, b in pairs if a + b > 9)
    products = ((a, b) for a, b in pairs if a * b > 9)
    return [
        *(Question("sum", f"What is {a} + {b}?", f"{a} + {b} =", f" {a + b}") for a, b in sums),
        *(
            Question("product", f"What is {a} x {b}?", f"{a} x {b} =", f" {a * b}")
            for a, b in products
        ),
        *(
            Question("count", f"Count on from {n}.", f"{n}, {n + 1}, {n + 2}", f", {n + 3}")
            for n in range(11, 91, 4)
        ),
        *about(
            "capital",
            "What is the capital of {}?",
            "The capital of {}",
            "Canada:Ottawa, Japan:Tokyo, Egypt:Cairo, Poland:Warsaw, Norway:Oslo, Greece:Athens, "
            "Portugal:Lisbon, Hungary:Budapest, Kenya:Nairobi, Cuba:Havana, Finland:Helsinki, "
            "Sweden:Stockholm, Denmark:Copenhagen, Ireland:Dublin, Austria:Vienna, Peru:Lima, "
            "Thailand:Bangkok, Turkey:Ankara, Iran:Tehran, Iraq:Baghdad, Chile:Santiago, "
            "France:Paris, Italy:Rome, Spain:Madrid",
        ),
        *about(
            "opposite",
            "What is the opposite of {}?",
            "The opposite of {}",
            "hot:cold, big:small, up:down, day:night, happy:sad, fast:slow, early:late, rich:poor, "
            "open:closed, wet:dry, light:dark, young:old, strong:weak, hard:soft, full:empty, "
            "near:far",
        ),
        *about(
            "month",
            "Which month comes after {}?",
            "The month after {}",
            "January:February, February:March, March:April, April:May, May:June, June:July, "
            "July:August, August:September, September:October, October:November, "
            "November:December",
        ),
    ]


def judge(text: str, ended: bool, answer: str) -> bool | None:
    """Return whether a text begins with the answer; ``None``: its next tokens decide."""
    if text.startswith(answer):
        return True if ended else None if text == answer else not text[len(answer)].isalnum()
    return None if answer.startswith(text) and not ended else False


class Candidates(NamedTuple):
    """Tokens that may follow a text, and the scores of those that each model chooses among.

    Attributes:
        ids: of the tokens, ascending.
        target, draft: scores, −∞ of tokens that are not among a model's likeliest [len(ids)].
    """

    ids: list[int]
    target: np.ndarray
    draft: np.ndarray


class Texts:
    """The beginnings of answers to a question, and what may be drafted after each."""

    def __init__(self, hierarchy: Hierarchy, question: Question, length: int, top_k: int) -> None:
        self.tokenizer, self.answer = hierarchy.tokenizer, question.answer
        self.length, self.top_k = length, top_k
        self.ids: dict[Symbols, tuple[int, ...]] = {(): ()}
        self.candidates: dict[Symbols, Candidates] = {}
        lead = self.tokenizer(question.lead, add_special_tokens=False)["input_ids"]
        prompt = [*apply_chat(self.tokenizer, question.user), *lead]
        root: Any = hierarchy.root
        models = root.model, root.below.model
        slots = [model.open() for model in models]
        branches = Branches(0)
        nodes: dict[Symbols, int] = {(): -1}
        depth: list[tuple[Symbols, int]] = [
            ((), length)
        ]  # texts of this depth, and how many tokens a draft may add to them
        while depth:
            for text, _ in depth:
                if text:
                    parent = nodes[text[:-1]]
                    nodes[text] = branches.store_child(parent, self.ids[text][-1])
            tree = Tree(tuple(branches.tokens), tuple(node.parent for node in branches.nodes))
            scores = [
                model.score([Query(slot, Context(prompt), len(prompt), tree=tree or None)])
                for model, slot in zip(models, slots, strict=True)
            ]
            next_depth: list[tuple[Symbols, int]] = []
            for text, left in depth:
                own = self.candidates[text] = self._candidates(
                    *(rows[1 + nodes[text]] for rows in scores)
                )
                for symbol, token in enumerate(own.ids):
                    child = (*text, symbol)
                    self.ids[child] = (*self.ids[text], token)
                    if own.target[symbol] == -np.inf:
                        continue
                    if self.judge(child) is None:
                        next_depth.append((child, length))
                    elif left and own.draft[symbol] > -np.inf:
                        next_depth.append((child, left - 1))
            depth = next_depth
        self.rows = 1 + len(branches)
        for model, slot in zip(models, slots, strict=True):
            model.close(slot)

    def judge(self, text: Symbols) -> bool | None:
        ids = self.ids[text]
        ended = bool(ids) and ids[-1] == self.tokenizer.eos_token_id
        return judge(self.tokenizer.decode(ids[: len(ids) - ended]), ended, self.answer)

    def _candidates(self, target: torch.Tensor, draft: torch.Tensor) -> Candidates:
        best = [row.topk(self.top_k) for row in (target, draft)]
        ids = sorted({token for top in best for token in top.indices.tolist()})
        found = np.full((2, len(ids)), -np.inf)
        for row, top in zip(found, best, strict=True):
            row[[ids.index(token) for token in top.indices.tolist()]] = top.values.double()
        return Candidates(ids, *found)

    def tables(self, temperature: float) -> tuple[Table, Table]:
        """Return target and draft at a temperature, over symbols."""
        tables = Table(2 * self.top_k), Table(2 * self.top_k)
        for text, own in self.candidates.items():
            for table, scores in zip(tables, (own.target, own.draft), strict=True):
                weights = np.exp((scores - scores.max()) / temperature)
                table.rows[text] = np.pad(
                    weights / weights.sum(), (0, table.vocab_size - len(weights))
                )
        return tables


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A model of symbols; after texts that were not scored, it goes on with symbol 0."""

    vocab_size: int
    rows: dict[Symbols, np.ndarray] = field(default_factory=dict)
    order: int = 64  # more than any text here has

    def distribution(self, context: Sequence[int]) -> np.ndarray:
        row = self.rows.get(tuple(context))
        return np.eye(1, self.vocab_size)[0] if row is None else row


def chance(texts: Texts, target: Table, draft: Table, rule: str | None) -> float:
    """Return the chance that the answer is right by a rule; ``None``: of the target alone."""
    level = NumberedConfig(model=0, num_speculative_tokens=texts.length)
    root = build_nodes(
        [level], lambda level, key: (draft if level else target, key), make_rule(rule or "block")
    )
    interpreter, states = ExactInterpreter(root, target.vocab_size), initial_states(root)

    def steps(text: Symbols) -> list[tuple[float, Symbols]]:
        if rule is None:
            return [(float(p), (i,)) for i, p in enumerate(target.distribution(text)) if p]
        outcomes = interpreter.round(text, UNLIMITED, states)
        return [(o.probability, o.value[0].emitted.tokens) for o in outcomes]

    right = 0.0
    waiting: dict[Symbols, float] = {(): 1.0}
    while waiting:
        text = min(waiting, key=len)
        mass = waiting.pop(text)
        for probability, tokens in steps(text):
            verdict, longer = None, text
            for symbol in tokens:
                longer = (*longer, symbol)
                if (verdict := texts.judge(longer)) is not None:
                    break
            if verdict is None:
                waiting[longer] = waiting.get(longer, 0.0) + mass * probability
            right += mass * probability * bool(verdict)
    return right


def bootstrap(values: np.ndarray, samples: int = 10_000) -> list[float]:
    """Return a mean and its 95 % bootstrap interval."""
    chosen = np.random.default_rng(0).integers(len(values), size=(samples, len(values)))
    means = values[chosen].mean(1)
    return [float(x) for x in (values.mean(), *np.percentile(means, [2.5, 97.5]))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--draft", default="zoo:smollm2-sibling")
    parser.add_argument("--length", type=int, default=3)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.7])
    parser.add_argument("--every", type=int, default=1, help="only every n-th question")
    args = parser.parse_args()
    level = {"method": "draft_model", "model": args.draft, "num_speculative_tokens": args.length}
    hierarchy = Hierarchy.from_config({"target": {"model": args.target}, "levels": [level]})
    rows: list[dict[str, Any]] = []
    for question in questions()[:: args.every]:
        texts = Texts(hierarchy, question, args.length, args.top_k)
        row: dict[str, Any] = {**question._asdict(), "rows": texts.rows, "right": {}}
        for temperature in args.temperatures:
            tables = texts.tables(temperature)
            row["right"][f"{temperature:g}"] = {
                rule or "target": chance(texts, *tables, rule) for rule in (None, *RULES)
            }
        rows.append(row)
        print(row, flush=True)
    summary = {}
    for temperature in rows[0]["right"]:
        of_rule = {
            rule: [row["right"][temperature][rule] for row in rows] for rule in ("target", *RULES)
        }
        block = of_rule["block"]
        summary[temperature] = {
            "right": {rule: float(np.mean(found)) for rule, found in of_rule.items()},
            "largest_error": {
                rule: float(np.abs(np.subtract(of_rule[rule], of_rule["target"])).max())
                for rule in RULES
            },
            "block_less_uncapped": bootstrap(np.subtract(block, of_rule["uncapped"])),
        }
        print(temperature, summary[temperature])
    settings = {key: value for key, value in vars(args).items() if key != "every"}
    result = {"environment": common.environment(), "settings": settings, "summary": summary}
    if args.every == 1:
        common.write(NAME, {**result, "questions": rows})


if __name__ == "__main__":
    main()
