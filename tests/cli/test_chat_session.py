"""What a conversation's commands do, what the user enters, and what never reaches a model."""

import os
import random

import pytest
from chat_cases import save_chat_model, talk
from rich.console import Console
from transformers import GenerationConfig

from hierspec import Hierarchy, HierspecError
from hierspec.cli.chat import entries
from hierspec.cli.chat_session import HELP, ChatSession, read_settings
from hierspec.config.model_defaults import chat_sampling
from hierspec.engine.pace import Pace

GREEDY = {"temperature": 0.0, "max_new_tokens": 5, "stop": []}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def models(folder):
    return Hierarchy(str(folder), drafts=[])


class Told:
    """A conversation, and what it said and asked the model."""

    def __init__(self, models, system=None, defaults=None, **settings):
        self.asked, self.session = [], models.session()
        start = self.session.start
        self.session.start = lambda *a, **k: self.asked.append((a[0], k)) or start(*a, **k)
        self.console = Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115
        self.chat = ChatSession(
            *(self.session, "m", system, read_settings({**GREEDY, **settings}, defaults)),
            *({"ignore_eos": True}, self.console, defaults),
        )

    def __call__(self, *entries):
        for entry in entries:
            assert self.chat.handle(entry)
        return self.console.export_text()


def test_none_is_the_models_own_setting(models, tmp_path):
    told = Told(models, defaults={"temperature": 0.6, "top_p": 0.9}, top_p=None)
    assert told.chat.settings["top_p"] is None
    told("/set temperature 0.1", "/set temperature none", "/set seed none")
    assert (told.chat.settings["temperature"], told.chat.settings["top_p"]) == (0.6, None)
    (tmp_path / "bare.json").write_text('{"messages": [], "settings": {"top_p": null}}')
    told(f"/load {tmp_path / 'bare.json'}")
    assert (told.chat.settings["temperature"], told.chat.settings["top_p"]) == (0.6, None)


def test_settings_change_one_by_one_and_mistakes_change_none(models):
    told = Told(models)
    assert "temperature = 0.0" in told("/set")
    assert "top_p = 0.5" in told("/set top_p 0.5", "w5 w9")
    assert told.asked[-1][1]["top_p"] == 0.5
    told("/set max_new_tokens 2", "/set stop w7 w8", "/set seed 4")
    before = told.chat.settings
    assert before["stop"] == ["w7 w8"]
    for mistake, says in (
        ("/set temprature 1", "did you mean temperature"),
        ("/set parameter", "there is no setting 'parameter'. There are temperature"),
        ("/show info", "there is no setting 'info'; the chat's first line names its model"),
        ("/set temperature -1", "temperature must be"),
        ("/set temperature warm", "takes a number"),
        ("/set max_new_tokens 0", "at least 1"),
        ("/set max_new_tokens 2.5", "at least 1"),
        ("/set seed 1.5", "seed"),
        ("/show system", "; /system TEXT sets the system message"),
        ("/set parameter num_ctx 4096", "there is no setting 'num_ctx'; the context grows"),
        ("/set system You are a pirate", "/system TEXT sets the system message. There are"),
        ("/set parameter num_predict 5", "did you mean max_new_tokens?"),
        ("/set temp 0.3", "did you mean temperature?"),
        ("/set verbose", "/stats shows the speed"),
        ("/set top_q", "did you mean top_p"),
    ):
        assert says in told(mistake), mistake
        assert told.chat.settings == before
    assert told("/set seed").splitlines() == ["seed = 4"]
    assert told("/set parameter seed 3").splitlines() == ["seed = 3"]
    told("/set stop none", "/set seed none", "/set top_p none")
    assert told.chat.settings == read_settings({**GREEDY, "max_new_tokens": 2})


def test_a_system_message_comes_first_and_goes(models):
    told = Told(models, system="w7")
    told("w5", "/system w8 w9", "w6")
    roles = [m["role"] for m in told.asked[-1][0]]
    assert roles == ["system", "user", "assistant", "user"]
    assert told.asked[-1][0][0]["content"] == "w8 w9"
    assert "w8 w9" in told("/system")
    assert "no system message" in told('/system ""')
    told("w6")
    assert told.asked[-1][0][0]["role"] == "user"


def test_a_message_is_answered_again_and_a_conversation_forgotten(models):
    told = Told(models)
    assert "no message to answer" in told("/retry")
    told("w5 w9", "w6", "/retry")
    assert told.asked[-1][0] == told.asked[-2][0]
    assert len(told.chat.messages) == 4
    assert "3 answers" in told("/stats")
    told("/reset", "w6")
    assert len(told.asked[-1][0]) == 1


def test_an_answer_whose_drafts_did_not_pay_says_so(models, monkeypatch):
    told = Told(models)
    assert "did not pay" not in told("w5")
    monkeypatch.setattr(Pace, "slowdown", 1.31)
    assert "did not pay on this text: a token took at least 1.31 times" in told("w5")


def test_a_saved_conversation_goes_on_elsewhere(models, tmp_path):
    told, file = Told(models, system="w7"), tmp_path / "chat.json"
    told("w5 w9", "/set top_k 4", f"/save {file}")
    other = Told(models)
    assert "3 messages" in other(f"/load {file}")
    assert (other.chat.messages, other.chat.settings) == (told.chat.messages, told.chat.settings)
    told("w6")
    other("w6")
    assert told.chat.messages == other.chat.messages
    for wrong in ("/load", "/load /nowhere/chat.json", "/save", "/save /proc/nowhere/x"):
        assert told(wrong).count("hierspec: error:") == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"messages": 3}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "user", "content": "a"}], "schema_version": 2}',
        '{"messages": [], "settings": {"warmth": 1}}',
        '{"messages": [], "settings": {"temperature": "hot"}}',
        '{"messages": [], "settings": {"stop": 3}}',
        '{"messages": [{"role": "user", "content": "\\ud83d"}]}',
    ],
)
def test_a_damaged_file_is_one_line_and_changes_nothing(models, tmp_path, content):
    file = tmp_path / "chat.json"
    file.write_text(content)
    told = Told(models)
    told("w5")
    before = list(told.chat.messages), told.chat.settings
    says = told(f"/load {file}")
    assert says.count("hierspec: error:") == 1
    assert (told.chat.messages, told.chat.settings) == before


def test_nothing_that_begins_with_a_slash_reaches_a_model(models):
    told, rng = Told(models), random.Random(0)
    words = ["/", "/etc/passwd", "/set", "/sett", "/retry", "/stats", "//", "/ w5", "/bye!", '""']
    words += [line.split()[0] for line in HELP.splitlines() if not line.startswith("/bye")]
    values = ["", "temperature", "0.5", "none", "w5", "\x00", "{}", "nan", "1e999", "é", "-1"]
    for _ in range(400):
        entry = rng.choice(["", " ", "\t"]) + rng.choice([w for w in words if w[0] == "/"])
        entry += "".join(f" {rng.choice(values)}" for _ in range(rng.randint(0, 3)))
        if not entry.split()[0].startswith(("/save", "/load", "/retry")):
            assert told.chat.handle(entry), entry
    assert not told.asked
    assert "did you mean /stats" in told("/stat")
    assert "that begins with / goes between triple quotes" in told("/tmp/w5")
    assert told.chat.handle('"""/etc/w5\n/w6"""')  # a line of the user's begins with quotes
    assert [m["content"] for m in told.asked[-1][0][-1:]] == ["/etc/w5\n/w6"]
    assert not told.chat.handle("/quit")
    assert not told.chat.handle("/bye")


def reader(*lines):
    left = list(lines)

    def read_line(_):
        if not left:
            raise EOFError
        line = left.pop(0)
        if line is None:
            raise KeyboardInterrupt
        return line

    return read_line


def test_an_entry_is_a_line_or_several_between_quotes():
    assert list(entries(reader("a", None, "", "b"))) == ["a", "", "b"]
    assert list(entries(reader('"""a', " b", 'c"""', "d"))) == ['"""a\n b\nc"""', "d"]
    assert list(entries(reader('"""', "a", '"""'))) == ['"""\na\n"""']
    assert list(entries(reader('"""a"""', '"""b', None, "c"))) == ['"""a"""', "c"]
    assert list(entries(reader('"""a', "b"))) == ['"""a\nb']


def test_answers_are_sampled_as_the_model_says(folder, tmp_path):
    assert chat_sampling(str(folder)) == {
        "temperature": 0.7,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
    }
    GenerationConfig(do_sample=True, temperature=0.6, top_p=0.95).save_pretrained(tmp_path)
    found = chat_sampling(str(tmp_path))
    assert (found["temperature"], found["top_p"], found["top_k"]) == (0.6, 0.95, 50)
    with pytest.raises(HierspecError, match="no setting"):
        read_settings({"warmth": 1})


def test_in_a_terminal_lines_are_edited_and_remembered(folder, tmp_path):
    """Arrow up brings the last line back, of an earlier conversation too."""
    argv = ["chat", "-m", str(folder), "-n", "3", "--temp", "0"]
    history = tmp_path / "chat" / "history"
    history.parent.mkdir()
    history.write_text("\n# an earlier conversation\n+w5 w9\n")
    keys = ["\x1b[A\r", "w4 w8\x7f9\r", "/stats\r", "\x1b[A\x1b[A\r", "/system w7\r", "\x04"]
    shown = talk(argv, tmp_path, keys)
    assert shown.count("3 tokens, cut") == 3
    assert "2 answers, 6 tokens" in shown
    assert "Traceback" not in shown
    lines = [line for line in history.read_text().splitlines() if line.startswith("+")]
    assert lines == ["+w5 w9", "+w4 w9", "+/stats", "+w4 w9", "+/system w7"]
