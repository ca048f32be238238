"""Drafters for the released model: prompts of our own, answers, stages; on a tiny stand-in."""

import dataclasses
import functools
import itertools
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chat_models import TURNS, save_chat
from fakes.engines import Talker
from fakes.tokenizers import Letters

from hierspec.cli import run
from hierspec.config.exit_heads import read
from hierspec.errors import HierspecError
from hierspec.lm.weights import SINGLE_FILE
from hierspec.utils.prompts import ConversationMessage
from hierspec.zoo import registry, trained
from hierspec_lab.training import fit, smollm2, texts
from hierspec_lab.training.conversations import Conversation
from hierspec_lab.training.eagle3 import train as eagle3
from hierspec_lab.training.eagle3.optimiser import AveragingAdamW
from hierspec_lab.training.eagle3.settings import Eagle3Settings
from hierspec_lab.training.family.export import model_card
from hierspec_lab.training.heads.data import split_conversations
from hierspec_lab.training.heads.settings import HeadsSettings
from hierspec_lab.training.packed import PackedText, PackedTexts
from hierspec_lab.training.smollm2 import answers, build, passages
from hierspec_lab.training.smollm2.passages import FunctionSource, Passages
from hierspec_lab.training.smollm2.sibling import SiblingSettings
from hierspec_lab.training.smollm2.templates import MAKERS, draw_prompt
from hierspec_lab.training.store import FeatureStore

PASSAGES = Passages(("Q " * 150, "Z " * 150), (FunctionSource("shift", "a, b", "Move it."),))


# -- prompts


def test_prompts_come_from_templates_and_passages_alone() -> None:
    """Every word is of the templates' own file, a passage's, a function's, or a number."""
    source = Path(smollm2.__path__[0], "templates.py").read_text()
    rng = random.Random(0)
    found = [draw_prompt(rng, PASSAGES) for _ in range(400)]
    assert {one.domain for one in found} == set(MAKERS)
    given = {"Q", "Z", "shift(a,", "b):", '"""Move', 'it."""'}
    strange = Counter(
        word
        for one in found
        for word in one.text.split()
        if word not in given
        and word.strip(".,:?%$`()'\"") not in source
        and not any(letter.isdigit() for letter in word)
    )
    assert not strange
    assert not [f for f in Path(smollm2.__path__[0]).iterdir() if f.suffix in (".jsonl", ".json")]


def test_the_seed_decides_prompts() -> None:
    one, two, other = (draw_prompt(random.Random(seed), PASSAGES) for seed in (1, 1, 2))
    assert one == two != other


def test_passages_are_of_the_machines_own_sources(tmp_path: Path, monkeypatch) -> None:
    text = "word " * 60
    (tmp_path / "a.py").write_text(
        f'"""{text}"""\ndef move(self, far=1):\n    """Move it far away, and say so when done."""\n'
        'def _own():\n    """Nobody should ever be asked about this function."""\n'
    )
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "b.py").write_text('def f():\n    """A function of the tests only."""')
    monkeypatch.setattr(passages, "_packages", list)
    monkeypatch.setattr(passages, "_manuals", list)
    found = passages.collect(tmp_path)
    assert [" ".join(one.split()) for one in found.prose] == [text.strip()]
    assert found.functions == (
        FunctionSource("move", "far=1", "Move it far away, and say so when done."),
    )
    with pytest.raises(ValueError, match="holds no Python sources"):
        passages.collect(tmp_path / "none")


# -- answers


PLAN = answers.AnswerSettings(conversations=20, batch=6)


def test_answers_go_on_after_an_interruption_with_the_same_ones(tmp_path: Path) -> None:
    def write(folder: Path, talker: Talker) -> PackedTexts:
        return answers.write(folder, PLAN, talker, PASSAGES, lambda stage, share: None)  # type: ignore

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    found = write(whole, Talker())
    rows = list(found.read())
    assert len(rows) == 24
    assert answers.count_domains(found)[answers.OWN] == 12
    assert {text.origin for text, _ in rows} == {"own", "template"}
    assert {text.temperature for text, _ in rows} <= set(PLAN.temperatures)
    assert all(ids[text.answer] for text, ids in rows)
    with pytest.raises(KeyboardInterrupt):
        write(cut, Talker(stop_at=6))
    for name, rest in (("batches.jsonl", b'{"texts": [{"length'), ("tokens.bin", b"cut")):
        with (cut / name).open("ab") as file:
            file.write(rest)
    write(cut, Talker())
    for name in ("batches.jsonl", "tokens.bin"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    check_that_trainings_read(whole, rows)


def check_that_trainings_read(folder: Path, rows: list[tuple[PackedText, list[int]]]) -> None:
    """Of each conversation the answer is predicted, its end included."""
    for text, (packed, ids) in zip(texts.read([folder], None, (), 99), rows, strict=True):
        assert (list(text.ids), text.domain) == (ids, packed.domain)
        assert text.predicted == ((packed.answer, packed.length),)
    found = texts.from_files([folder])
    assert [one.content for one in found] == [ids for _, ids in rows]
    settings = HeadsSettings(exits=(1,), held_out=90, tokens=10**6)
    train, held_out, _ = split_conversations(found, None, settings, 99)
    assert sum(len(p.positions) for p in (*train, *held_out)) == 3 * len(rows)
    known = {tuple(p.ids.tolist()[: int(p.positions[0]) + 1]) for p in train}
    assert not known & {tuple(p.ids.tolist()[: int(p.positions[0]) + 1]) for p in held_out}


def question_and_answer(question: str, answer: str) -> list[ConversationMessage]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_held_out_prompts_stay_so_when_a_file_grows() -> None:
    said = [
        Conversation(messages=question_and_answer(f"q{i}", "yes"), domain="abc"[i % 3])
        for i in range(120)
    ]
    settings = HeadsSettings(exits=(1,), held_out=90, tokens=10**6)
    few, many = (split_conversations(said[:n], Letters(), settings, 99)[:2] for n in (60, 120))
    digests = [[{piece.digest() for piece in part} for part in both] for both in (few, many)]
    assert digests[0][0] < digests[1][0]
    assert digests[0][1] < digests[1][1]
    assert not digests[1][0] & digests[1][1]
    assert {piece.domain for piece in many[1]} == {"a", "b", "c"}
    capped = dataclasses.replace(settings, held_out=3)
    assert Counter(
        p.domain for p in split_conversations(said, Letters(), capped, 99)[1]
    ) == Counter("abc")
    short = dataclasses.replace(settings, tokens=300)
    train, held_out, further = split_conversations(said, Letters(), short, 99)
    assert sum(len(piece.ids) for piece in (*train, *held_out)) in range(300, 320)
    assert {p.digest() for p in (*train, *further)} == digests[1][0]


# -- the command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the shipped family's tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    return Path(save_chat(folder, TURNS, max_position_embeddings=1024))


@pytest.fixture
def plan(model: Path, monkeypatch) -> build.DraftersSettings:
    monkeypatch.setattr(build, "collect", lambda: PASSAGES)
    heads = HeadsSettings(exits=(1,), kind="mlp", vocabulary=64, inner=8, steps=2, held_out=20)
    return build.DraftersSettings(
        model=str(model),
        answers=answers.AnswerSettings(
            conversations=24, batch=8, max_new_tokens=6, own_tokens=4, seed=25
        ),
        heads=dataclasses.replace(heads, tokens=100_000, rows=1, width=16),
        eagle3=Eagle3Settings(
            feature_layers=(1, 2, 3), draft_vocab=64, intermediate=16, depth=2, steps=2, batch=64
        ),
        sibling=SiblingSettings(size=(1, 16, 2, 16), vocabulary=64, minutes=0.01, batch=256),
    )


def test_every_stage_is_done_once_and_the_card_says_how_well(tmp_path, plan, monkeypatch) -> None:
    whole = build.train(tmp_path, plan)
    heads = tmp_path / "smollm2-heads" / "exit_heads.safetensors"
    assert read(heads).info.vocabulary_size == 64
    assert json.loads((tmp_path / "report.json").read_text()) == whole
    card = (tmp_path / "MODEL_CARD.md").read_text()
    assert f"{whole['answers']['conversations']} conversations" in card
    assert "| 1 | " in card
    assert "scoring 64 of 4,096 tokens" in card
    assert json.loads((tmp_path / "smollm2-eagle3" / "hierspec.json").read_text())["steps"] == 2
    figures = {"acceptance": [0.7, 0.6], "agreement": [0.8, 0.5]}
    figures |= {"tokens_per_call": 2.1, "greedy_tokens_per_call": 2.5}
    eagle3 = {"tokens": 1000, "steps": 20, "seconds": 7200, "figures": {"chat": figures}}
    more = model_card("smollm2", {**whole, "eagle3": eagle3})
    assert "| chat | 0.700 / 0.800 | 0.600 / 0.500 | 2.10 / 2.50 |" in more
    assert "1 layers of width 16" in card
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.suffix == ".safetensors"}
    monkeypatch.setattr(build.heads_training, "train", None)
    monkeypatch.setattr(build.eagle3_training, "train", None)
    monkeypatch.setattr(build.sibling_training, "train", None)
    monkeypatch.setattr(build.answers, "write", None)
    assert build.train(tmp_path, plan) == whole
    assert before == {p: p.stat().st_mtime_ns for p in before}
    own = dataclasses.replace
    for other, says in (
        (own(plan, dtype="float64"), "--dtype was auto, is float64"),
        (own(plan, sibling=own(plan.sibling, minutes=0.02)), "--minutes was 0.01, is 0.02"),
        (own(plan, sibling=own(plan.sibling, batch=128)), "the sibling's size or steps"),
        (own(plan, heads=own(plan.heads, epochs=3)), "--epochs was 2, is 3"),
        (
            own(plan, heads=own(plan.heads, epochs=3), eagle3=own(plan.eagle3, epochs=3)),
            "--epochs was 2, is 3",
        ),
        (own(plan, eagle3=own(plan.eagle3, steps=3)), "the network's size or steps"),
        (own(plan, answers=own(plan.answers, own_tokens=5)), "how answers are written"),
    ):
        with pytest.raises(ValueError, match=rf"other settings \({says}\): .*another --output"):
            build.train(tmp_path, other)


def test_more_conversations_and_stages_to_come_are_no_other_training(tmp_path, plan, monkeypatch):
    def stop(*args: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    own = dataclasses.replace
    with monkeypatch.context() as patch:
        patch.setattr(build.heads_training, "train", stop)
        with pytest.raises(KeyboardInterrupt):
            build.train(tmp_path, plan)
    longer = own(plan, eagle3=own(plan.eagle3, steps=3))  # which had not begun
    longer = own(longer, answers=own(plan.answers, conversations=32))
    whole = build.train(tmp_path, longer)
    assert whole["eagle3"]["steps"] == 3
    assert whole["answers"]["conversations"] >= 32
    with pytest.raises(ValueError, match="the network's size or steps"):
        build.train(tmp_path, plan)


class Killed(BaseException):
    """Nothing in the package catches it."""


def test_a_network_whose_training_was_killed_is_that_of_one_that_was_not(
    tmp_path, plan, monkeypatch
) -> None:
    """While its target answers, while states are stored, and between checkpoints."""
    small = functools.partial(answers.AnswerSettings, batch=8, max_new_tokens=6, own_tokens=4)
    monkeypatch.setattr(answers, "AnswerSettings", small)
    monkeypatch.setattr(eagle3, "collect", lambda: PASSAGES)
    settings = dataclasses.replace(plan.eagle3, conversations=24, steps=30, seed=25)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    eagle3.train(plan.model, settings, whole, [])

    def kill_in_call(number: int, owner: type, name: str) -> None:
        calls, method = itertools.count(1), getattr(owner, name)

        def call(*args: Any) -> Any:
            if (count := next(calls)) == number:
                raise Killed
            # The first steps leave checkpoints, the others are lost.
            patch.setattr(fit, "SAVE_SECONDS", -1.0 if count < number // 2 else math.inf)
            return method(*args)

        patch.setattr(owner, name, call)

    for number, owner, name in (
        (2, PackedTexts, "append"),
        (1, FeatureStore, "_features"),
        (12, AveragingAdamW, "step"),
    ):
        with monkeypatch.context() as patch:
            kill_in_call(number, owner, name)
            with pytest.raises(Killed):
                eagle3.train(plan.model, settings, killed, [])
    eagle3.train(plan.model, settings, killed, [])
    one, other = (json.loads((f / "hierspec.json").read_text()) for f in (whole, killed))
    assert one["measured"] == other["measured"]
    assert (whole / SINGLE_FILE).read_bytes() == (killed / SINGLE_FILE).read_bytes()


def test_answers_of_which_none_is_held_out_are_refused_before_training(
    tmp_path, plan, monkeypatch
) -> None:
    monkeypatch.setattr(build.texts, "_HELD_OUT_EVERY", 1 << 60)
    monkeypatch.setattr(build.heads_training, "train", None)
    with pytest.raises(ValueError, match=r"none is held out .* give more --conversations"):
        build.train(tmp_path, plan)


def test_the_command_trains_drafters(tmp_path, plan, monkeypatch, capsys) -> None:
    seen = {}
    monkeypatch.setattr(build, "train", lambda out, plan, report: seen.update(out=out, plan=plan))
    argv = ["zoo", "train", "smollm2", "-o", str(tmp_path), "--conversations", "9", "--seed", "3"]
    assert run([*argv, "--epochs", "2"]) in (0, None)
    assert seen["out"] == tmp_path
    assert (seen["plan"].answers.conversations, seen["plan"].answers.seed) == (9, 3)
    assert (seen["plan"].heads.epochs, seen["plan"].heads.exits) == (2, (5, 10, 15, 20))
    assert "MODEL_CARD.md" in capsys.readouterr().err


def test_heads_that_do_not_ship_say_how_to_train_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(registry, "DATA", tmp_path)
    with pytest.raises(ValueError, match="train it with `hierspec zoo train smollm2`") as caught:
        trained.locate("zoo:smollm2-heads")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="there are: zoo:smollm2-eagle3, zoo:smollm2-heads"):
        trained.locate("zoo:heads")
    (tmp_path / "smollm2-heads").mkdir()
    assert trained.locate("zoo:smollm2-heads") == tmp_path / "smollm2-heads"


@pytest.mark.parametrize(
    ("stage", "folder", "report"),
    [
        (build.train_heads, "smollm2-heads", "exit_heads.json"),
        (build.train_eagle3, "smollm2-eagle3", "hierspec.json"),
    ],
)
def test_a_damaged_report_of_a_finished_stage_is_named(tmp_path, stage, folder, report):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "exit_heads.safetensors").touch()
    (tmp_path / folder / report).write_text("[")
    with pytest.raises(HierspecError, match=rf"{report}: not valid JSON.*: delete its folder"):
        stage(build.DraftersSettings(), tmp_path, lambda stage, share: None)
