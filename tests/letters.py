"""A tokenizer of a letter a token, with a chat template."""

from typing import Any


class Letters:
    """A tokenizer of a letter a token whose template is ``<u:text>`` and ``<a:text>``."""

    chat_template = "yes"
    eos_token_id = ord(">")

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool = False, **_: Any
    ) -> list[int]:
        text = "".join(f"<{one['role'][0]}:{one['content']}>\n" for one in messages)
        return [ord(letter) for letter in text + "<a:" * add_generation_prompt]
