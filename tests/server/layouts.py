"""Tokenizers and chat templates laid out as those of the models that people use, made tiny.

What differs is which marks are one token, added or special; how tokens become text; what begins
and ends a text; and what a template does with tools, or refuses.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "One, two and three <b>words</b> about the weather in Paris, Rome and Oslo.\n\n",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n<tool_call>\n',
    '{"name": "get_weather", "parameters": {"city": "Paris"}} "tool_name": "tool_call_id": "0"',
    "Use <tool_call> or <think> tags. [TOOL_CALLS] [ARGS] ```json\n function assistant user system",
] * 3
ROLES = "{% for m in messages %}"
END = "{% endfor %}"
REFUSE_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
)
LISTING = "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
EACH_CALL = "{% for c in m.tool_calls %}{% set f = c.function %}"


@dataclass(frozen=True)
class Layout:
    """One family's way.

    Attributes:
        special: special tokens; ``added``: added ones that texts show.
        eos: ends an answer; ``bos``: begins a prompt, if the tokenizer adds it.
        pieces: tokens are pieces of text with bytes to fall back on, not bytes.
        call: how a call is written around its arguments; ``between``: two of them; ``around``: all.
        native: the template lists tools itself.
    """

    template: str
    special: tuple[str, ...]
    eos: str
    added: tuple[str, ...] = ()
    bos: str | None = None
    pieces: bool = False
    call: str = '<tool_call>\n{"name": "get_weather", "arguments": @}\n</tool_call>'
    between: str | None = "\n"
    around: tuple[str, str] = ("", "")
    native: bool = False

    def calls(self, *cities: str) -> str:
        """What the model writes to call for the weather of cities."""
        written = [json.dumps({"city": city}, ensure_ascii=False) for city in cities]
        texts = [self.call.replace("@", arguments) for arguments in written]
        return self.around[0] + (self.between or "").join(texts) + self.around[1]


def _turns(begin: str, end: str, tools: str = "", answer: str = "assistant") -> str:
    """A template of turns that begin with their role."""
    return (
        tools
        + ROLES
        + begin.replace("ROLE", "{{ m.role }}")
        + "{{ m.content }}"
        + end
        + END
        + "{% if add_generation_prompt %}"
        + begin.replace("ROLE", answer)
        + "{% endif %}"
    )


def _native(begin: str, end: str, calls: str, answer: str = "assistant", head: str = "") -> str:
    """A template that lists tools and writes calls."""
    return (
        head
        + LISTING
        + ROLES
        + begin.replace("ROLE", "{{ m.role }}")
        + "{{ m.content or '' }}{% if m.tool_calls %}"
        + calls
        + "{% endif %}"
        + end
        + END
        + "{% if add_generation_prompt %}"
        + begin.replace("ROLE", answer)
        + "{% endif %}"
    )


_CHATML = ("<|im_start|>ROLE\n", "<|im_end|>\n")
_TAGGED_CALLS = (
    EACH_CALL + '\n<tool_call>\n{"name": "{{ f.name }}", "arguments": '
    "{{ f.arguments | tojson }}}\n</tool_call>{% endfor %}"
)
_LIST_CALLS = (
    "BEGIN[" + EACH_CALL + '{{ ", " if not loop.first }}'
    '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}{% endfor %}]FINISH'
)
_LIST_CALL = '{"name": "get_weather", "arguments": @}'
_INST = (
    ROLES + ALTERNATE + "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% elif m.role == "
    "'assistant' %} {{ m.content }}</s>{% else %}{{ raise_exception('unknown role') }}{% endif %}"
    + END
)
_INST_SYSTEM = (
    "{% if messages[0].role == 'system' %}<<SYS>>{{ messages[0].content }}<</SYS>>"
    "{% set messages = messages[1:] %}{% endif %}" + _INST
)
_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SP = ("<unk>", "<s>", "</s>")
_SEEK = (
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
)  # fmt: skip
_SEEK_CALL = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n@\n```<｜tool▁call▁end｜>"
_SEEK_TEMPLATE = (
    LISTING + ROLES + "{% if m.tool_calls %}<｜Assistant｜>"
    "<｜tool▁calls▁begin｜>" + EACH_CALL + "{{ '\n' if not loop.first }}"
    + _SEEK_CALL.replace("NAME", "{{ f.name }}").replace("@", "{{ '' + f.arguments }}")
    + "{% endfor %}<｜tool▁calls▁end｜>{% elif m.role == 'assistant' %}<｜Assistant｜>"
    "{{ m.content }}{% elif m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% else %}{{ m.content }}{% endif %}"
    + END + "{% if add_generation_prompt %}<｜Assistant｜>THINK{% endif %}"
)  # fmt: skip
_MISTRAL_TOOLS = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}" + ROLES
    + "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine characters') }}"
    "{% endif %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% elif m.tool_calls %}"
    "CALLS</s>{% else %}{{ m.content }}</s>{% endif %}" + END
)  # fmt: skip
_HEADER = ("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>")
_HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_TURN = ("<|START_OF_TURN|>ROLE:", "<|END_OF_TURN|>")

LAYOUTS = {
    "chatml": Layout(_turns(*_CHATML), _IM, "<|im_end|>"),
    "llama-2": Layout(_INST_SYSTEM, _SP, "</s>", bos="<s>", pieces=True),
    "llama-3": Layout(_turns(*_HEADER), _HEADERS, "<|eot_id|>", bos="<|begin_of_text|>"),
    "llama-3.1": Layout(
        _native(
            *_HEADER,
            "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
            + EACH_CALL
            + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% endfor %}',
        ),
        (*_HEADERS, "<|python_tag|>"),
        "<|eot_id|>",
        bos="<|begin_of_text|>",
        call='{"name": "get_weather", "parameters": @}',
        between=None,
        native=True,
    ),
    "mistral-v1": Layout(REFUSE_SYSTEM + _INST, _SP, "</s>", bos="<s>", pieces=True),
    "mistral-v3": Layout(
        _MISTRAL_TOOLS.replace("CALLS", _LIST_CALLS)
        .replace("BEGIN", "[TOOL_CALLS] ")
        .replace("FINISH", ""),
        (*_SP, "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        "</s>",
        bos="<s>",
        pieces=True,
        call=_LIST_CALL,
        between=", ",
        around=("[TOOL_CALLS][", "]"),
        native=True,
    ),
    "mistral-tekken": Layout(
        _MISTRAL_TOOLS.replace(
            "CALLS",
            EACH_CALL + "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}{% endfor %}",
        ),
        (*_SP, "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]"),
        "</s>",
        bos="<s>",
        call="[TOOL_CALLS]get_weather[ARGS]@",
        between="",
        native=True,
    ),
    "gemma": Layout(
        REFUSE_SYSTEM + ROLES + ALTERNATE + "<start_of_turn>{{ 'model' if m.role == 'assistant' "
        "else m.role }}\n{{ m.content | trim }}<end_of_turn>\n" + END
        + "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
        "<end_of_turn>",
        bos="<bos>",
        pieces=True,
    ),
    "qwen2.5": Layout(
        _native(*_CHATML, _TAGGED_CALLS),
        _IM,
        "<|im_end|>",
        added=("<tool_call>", "</tool_call>"),
        native=True,
    ),
    "qwen3": Layout(
        _native(*_CHATML, _TAGGED_CALLS),
        _IM,
        "<|im_end|>",
        added=("<tool_call>", "</tool_call>", "<tool_response>", "<think>", "</think>"),
        native=True,
    ),
    "qwen3-coder": Layout(
        _native(
            *_CHATML,
            EACH_CALL + "<tool_call>\n<function={{ f.name }}>{% for k, v in f.arguments | items %}"
            "<parameter={{ k }}>\n{{ v }}\n</parameter>{% endfor %}</function>\n</tool_call>"
            "{% endfor %}",
        ),
        _IM,
        "<|im_end|>",
        added=("<tool_call>", "</tool_call>"),
    ),
    "hermes": Layout(
        _native(*_CHATML, _TAGGED_CALLS),
        (*_IM, "<tool_call>", "</tool_call>", "<think>", "</think>"),
        "<|im_end|>",
        native=True,
    ),
    "smollm2": Layout(
        _native(
            *_CHATML, _LIST_CALLS.replace("BEGIN", "<tool_call>").replace("FINISH", "</tool_call>")
        ),
        _IM,
        "<|im_end|>",
        call=_LIST_CALL,
        between=", ",
        around=("<tool_call>[", "]</tool_call>"),
        native=True,
    ),
    "phi-3": Layout(
        _turns("<|ROLE|>\n", "<|end|>\n"),
        (*_SP, "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
        "<|end|>",
        pieces=True,
    ),
    "phi-4": Layout(
        _turns("<|ROLE|>", "<|end|>", "{% if tools %}<|tool|>{{ tools | tojson }}{% endif %}"),
        ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|tool|>",
         "<|tool_call|>", "<|/tool_call|>"),
        "<|end|>",
        call=_LIST_CALL,
        between=", ",
        around=("<|tool_call|>[", "]<|/tool_call|>"),
        native=True,
    ),
    "deepseek": Layout(
        _SEEK_TEMPLATE.replace("THINK", ""),
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
         *_SEEK),
        "<｜end▁of▁sentence｜>",
        bos="<｜begin▁of▁sentence｜>",
        call=_SEEK_CALL.replace("NAME", "get_weather"),
        around=_SEEK[:2],
        native=True,
    ),
    "deepseek-r1": Layout(
        _SEEK_TEMPLATE.replace("THINK", "<think>\n"),
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        "<｜end▁of▁sentence｜>",
        added=("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", *_SEEK),
        bos="<｜begin▁of▁sentence｜>",
        call=_SEEK_CALL.replace("NAME", "get_weather"),
        around=_SEEK[:2],
        native=True,
    ),
    "zephyr": Layout(_turns("<|ROLE|>\n", "</s>\n"), _SP, "</s>", pieces=True),
    "vicuna": Layout(
        REFUSE_SYSTEM + ROLES + ALTERNATE + "{{ m.role | upper }}: {{ m.content }}{{ '</s>' if "
        "m.role == 'assistant' else ' ' }}" + END + "{% if add_generation_prompt %}ASSISTANT:"
        "{% endif %}",
        _SP,
        "</s>",
        bos="<s>",
        pieces=True,
    ),
    "command-r": Layout(
        _native(
            *_TURN,
            "<|START_ACTION|>[" + EACH_CALL + '{{ ", " if not loop.first }}{"tool_call_id": '
            '"{{ loop.index0 }}", "tool_name": "{{ f.name }}", "parameters": '
            "{{ f.arguments | tojson }}}{% endfor %}]<|END_ACTION|>",
        ),
        ("<PAD>", "<|START_OF_TURN|>", "<|END_OF_TURN|>", "<|START_ACTION|>", "<|END_ACTION|>"),
        "<|END_OF_TURN|>",
        call='{"tool_call_id": "0", "tool_name": "get_weather", "parameters": @}',
        between=", ",
        around=("<|START_ACTION|>[", "]<|END_ACTION|>"),
        native=True,
    ),
    "granite": Layout(
        _native(
            "<|start_of_role|>ROLE<|end_of_role|>",
            "<|end_of_text|>\n",
            _LIST_CALLS.replace("BEGIN", "<|tool_call|>").replace("FINISH", ""),
        ),
        ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"),
        "<|end_of_text|>",
        call=_LIST_CALL,
        between=", ",
        around=("<|tool_call|>[", "]"),
        native=True,
    ),
    "olmo": Layout(
        "<|endoftext|>" + _turns("<|ROLE|>\n", "\n"),
        ("<|endoftext|>", "<|padding|>"),
        "<|endoftext|>",
    ),
    "falcon": Layout(_turns("ROLE: ", "\n\n"), ("<|endoftext|>",), "<|endoftext|>"),
    "stablelm": Layout(
        _turns("<|ROLE|>\n", "<|endoftext|>\n"), ("<|endoftext|>", "<|user|>"), "<|endoftext|>"
    ),
    "harmony": Layout(
        LISTING + ROLES + "<|start|>{{ m.role }}{% if m.tool_calls %}" + EACH_CALL
        + " to=functions.{{ f.name }}<|channel|>commentary json<|message|>"
        "{{ f.arguments | tojson }}<|call|>{% endfor %}"
        "{% else %}<|message|>{{ m.content }}<|end|>{% endif %}" + END
        + "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        ("<|endoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>",
         "<|return|>"),
        "<|return|>",
    ),
}  # fmt: skip


@functools.cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a layout, trained on a few lines."""
    layout = LAYOUTS[name]
    tokenizer = _pieces() if layout.pieces else _bytes()
    tokenizer.add_special_tokens(list(layout.special))
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one in layout.added])
    if layout.bos is not None:
        place = tokenizer.token_to_id(layout.bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{layout.bos} $A", special_tokens=[(layout.bos, place)]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=layout.eos, bos_token=layout.bos
    )
    fast.chat_template = layout.template
    return fast


def _bytes() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, show_progress=False),
    )
    return tokenizer


def _pieces() -> Tokenizer:
    """As SentencePiece's: ``▁`` for a space, one before the text, bytes for what is unknown."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizer
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=160, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    first = [*_SP, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    vocab = {piece: i for i, piece in enumerate([*first, *pieces])}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def script_ids(name: str, text: str) -> list[int]:
    """The tokens in which a layout's model writes a text, and what ends it."""
    tokenizer: Any = tokenizer_of(name)
    # Not as the beginning of a text, before which some tokenizers put a blank.
    ids = tokenizer("\1" + text, add_special_tokens=False)["input_ids"]
    before = tokenizer("\1", add_special_tokens=False)["input_ids"]
    assert ids[: len(before)] == before
    return [*ids[len(before) :], tokenizer.eos_token_id]
