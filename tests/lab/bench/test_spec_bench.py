"""Spec-Bench: its questions, and answers as its own scripts read them."""

import json
from types import SimpleNamespace

import pytest
from fake_methods import fixed
from tiny_benches import TOKENS, bench, fake_entry, methods_of

from hierspec_lab.bench import spec_bench
from hierspec_lab.bench.chats import round_robin

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Compose.", "Rewrite."]},
    {"question_id": 82, "category": "writing", "turns": ["Describe."]},
    {"question_id": 301, "category": "translation", "turns": ["Translate."]},
]


def test_spec_bench_questions_are_taken_from_each_category_in_turn(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)) + "\n")
    read = spec_bench.read(path)
    assert [(one.id, one.prompt) for one in read] == [
        (81, "Compose."), (82, "Describe."), (301, "Translate."),
    ]  # fmt: skip
    assert [one.id for one in round_robin(read, lambda question: question.category)] == [
        81,
        301,
        82,
    ]
    path.write_text(json.dumps({"prompt": "x"}))
    assert spec_bench.read(path) is None


def test_spec_bench_round_trip(models, tmp_path):
    """Answers as ``evaluation/speed.py`` of Spec-Bench adds them up."""
    made = bench(models, [fake_entry("fake", fixed, ms=2.0)])
    made.categories = ["writing", "translation", "writing"]
    data = made.run()
    asked = [
        spec_bench.SpecBenchQuestion(number, category, "")
        for number, category in zip((81, 301, 82), made.categories, strict=True)
    ]
    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
    files = spec_bench.write(data, tmp_path / "answers.jsonl", tokenizer, asked)
    assert [file.name for file in files] == [
        "answers-plain-temperature-0.jsonl", "answers-fake-temperature-0.jsonl",
    ]  # fmt: skip
    rows = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert [(row["question_id"], row["category"]) for row in rows] == [
        (81, "writing"), (301, "translation"), (82, "writing"),
    ]  # fmt: skip
    choice = rows[0]["choices"][0]
    assert sum(choice["new_tokens"]) / sum(choice["wall_time"]) == pytest.approx(500.0)
    assert choice["turns"] == [" ".join(map(str, range(TOKENS)))]
    assert rows[0]["model_id"] == "fake"
    assert isinstance(rows[0]["tstamp"], float)
    plain = json.loads(files[0].read_text().splitlines()[0])["choices"][0]
    assert plain["accept_lengths"] == [1.0] * (TOKENS - 1)
    assert plain["decoding_steps"] == [TOKENS - 1]
    found = methods_of(data)["fake"].summary.by_category
    assert {name: part.n for name, part in found.items()} == {"writing": 2, "translation": 1}
