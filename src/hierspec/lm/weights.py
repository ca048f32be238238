"""Sources of a model's weights: a directory of safetensors, or tensors computed on demand.

A loader asks for one tensor at a time, so it can build a model layer by layer (packing, fusing or
converting each) without ever having two copies of it in memory. A checkpoint reads the tensor from
disk; the zoo's large model computes it from a smaller one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from safetensors import SafetensorError, safe_open

from hierspec.errors import HierspecError, reason_of
from hierspec.utils.documents import read_json
from hierspec.utils.files import expand_user
from hierspec.utils.records import Record

from .hub import local_files_only
from .llama_config import of_transformers, read_llama_config

if TYPE_CHECKING:
    import torch

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FETCH = ": fetch or write it again"
SCORED = "lm_head.scored"  # [v] token ids of a head's rows, ascending; missing where it has all


@runtime_checkable
class WeightSource(Protocol):
    """A causal language model as a configuration and named tensors.

    Attributes:
        config: a transformers ``PretrainedConfig``, or what stands in for one
            (:mod:`hierspec.lm.llama_config`).
        tokenizer_path: folder that ``AutoTokenizer.from_pretrained`` takes, or ``None``.

    One whose tensors are those of files, and always the same, may say which: ``weight_files``.
    """

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> Any: ...
    @property
    def tokenizer_path(self) -> Path | None: ...

    def names(self) -> list[str]:
        """Return Hugging Face's parameter names, without a tied ``lm_head.weight``.

        With ``lm_head.scored`` where the head has rows for a part of the vocabulary alone.
        """
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """Return one parameter in the source's own dtype, on the CPU or where it is made.

        Where the head is tied, ``lm_head.weight`` is the embedding.

        Raises:
            KeyError: there is no such parameter.
        """
        ...


class Stored(NamedTuple):
    """A matrix as its file has it.

    Attributes:
        form: GGUF's name of its type: ``Q4_K``, ``BF16``, …
        width: numbers of a row.
        rows: uint8 [out, bytes of a row].
    """

    form: str
    width: int
    rows: torch.Tensor


@runtime_checkable
class StoredSource(WeightSource, Protocol):
    """A source whose matrices may be in few bits, and can be had so."""

    def stored(self, name: str) -> Stored | None:
        """Return a matrix in its own bits; ``None`` for what is none, or not there.

        Raises:
            HierspecError: the file is damaged there.
        """
        ...


@dataclass(frozen=True)
class Checkpoint:
    """Weights in a directory, ``model.safetensors`` or shards with an index."""

    path: Path
    name: str
    config: Any
    files: dict[str, Path]
    tokenizer_path: Path | None
    is_head_shared: bool = False  # the embedding is stored under the name of the head

    @property
    def weight_files(self) -> list[Path]:
        return sorted(set(self.files.values()))

    def names(self) -> list[str]:
        return sorted(self.files)

    def tensor(self, name: str) -> torch.Tensor:
        if name == HEAD and name not in self.files and self.config.tie_word_embeddings:
            name = EMBEDDING
        stored = HEAD if name == EMBEDDING and self.is_head_shared else name
        if name not in self.files:
            raise KeyError(f"{self.name} has no parameter {name!r}")
        file = self.files[name]
        try:
            # Opened anew each time: what is read of an open file stays in memory.
            return _open(file).get_tensor(stored)
        except SafetensorError as error:
            raise _damaged(file, error) from None


def holds_model(path: Path) -> bool:
    """Return whether a folder has a configuration and weights, whatever their format."""
    names = (SINGLE_FILE, INDEX_FILE, "pytorch_model.bin", "pytorch_model.bin.index.json")
    return (path / "config.json").is_file() and any((path / name).is_file() for name in names)


def from_directory(path: str | Path, tokenizer_path: Path | None = None) -> Checkpoint:
    """Open a Hugging Face model directory with safetensors; weights are only listed, not read.

    Raises:
        HierspecError: a file is missing or damaged; the message says which and what to do.
    """
    path = Path(path)
    has_adapter = (path / "adapter_config.json").is_file()
    if has_adapter and not holds_model(path):
        raise HierspecError(
            f"{path} holds an adapter (LoRA), not a model: merge it into its base with peft's "
            "merge_and_unload, and give the folder that save_pretrained writes then"
        )
    if not (path / "config.json").is_file():
        raise HierspecError(f"{path} holds no config.json: give the folder of a saved model")
    weights = any((path / f"adapter_model.{form}").is_file() for form in ("safetensors", "bin"))
    if weights and has_adapter:
        raise HierspecError(
            f"{path} holds a model and an adapter for it: merge them with peft's merge_and_unload, "
            "or move one of them into a folder of its own"
        )
    config = read_config(path)
    if tokenizer_path is None and (path / "tokenizer.json").is_file():
        tokenizer_path = path
    files = locate(path)
    is_shared = HEAD in files and EMBEDDING not in files
    if is_shared := is_shared and getattr(config, "tie_word_embeddings", False):
        files[EMBEDDING] = files.pop(HEAD)
    return Checkpoint(path, path.name, config, files, tokenizer_path, is_shared)


def read_config(path: Path) -> Any:
    """Return the configuration in a folder: transformers', or one that stands in for it.

    Raises:
        HierspecError: transformers cannot use it.
    """
    if (config := read_llama_config(path)) is not None:
        return config
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and its validators raise errors of many kinds
        raise HierspecError(f"{path / 'config.json'} cannot be used: {reason_of(error)}") from error


def stored_dtype(source: WeightSource) -> torch.dtype:
    """Return a checkpoint's data type as transformers' ``dtype="auto"`` finds it: that of its
    configuration, else that of its first floating-point weight."""
    import torch

    configured = getattr(source.config, "dtype", None)
    if isinstance(configured, torch.dtype):
        return configured
    tensors = map(source.tensor, source.names())
    return next((weight.dtype for weight in tensors if weight.is_floating_point()), torch.float32)


def build_hf_model(
    source: WeightSource, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Any:
    """Build the transformers model with these weights, in evaluation mode.

    Args:
        dtype: of its weights; ``None``: float32.

    Raises:
        HierspecError: the weights do not fit the configuration, or score a part of the vocabulary.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    if SCORED in source.names():
        raise HierspecError(
            f"{source.name} scores a part of its vocabulary, which transformers' own layers do "
            "not: leave backend out, or use lean"
        )
    with torch.random.fork_rng(devices=[]), no_init_weights():
        config = of_transformers(source.config)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype or torch.float32)
    model.tie_weights()
    model = model.to(device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = source.tensor(name)
            validate_shape(source.name, name, tensor.shape, parameter.shape)
            parameter.copy_(tensor)
    return model.eval()


def validate_shape(model: str, name: str, shape: Sequence[int], expected: Sequence[int]) -> None:
    """Refuse a parameter whose shape is not the one that the model's configuration asks for."""
    if tuple(shape) != tuple(expected):
        raise HierspecError(
            f"{model}: {name} has shape {tuple(shape)}, but its config.json asks for "
            f"{tuple(expected)}: config and weights are of different models"
        )


# Names of what old checkpoints store though it follows from the configuration, or is no weight.
_NO_WEIGHT = re.compile(r"rotary_emb\.inv_freq$|\.(attn|attention)\.(masked_)?bias$|\.[kv]_scale$")


def validate_unused(model: str, names: Iterable[str]) -> None:
    """Refuse a checkpoint with weights of a model's own parts that the model does not use."""
    if unused := sorted(name for name in names if not _NO_WEIGHT.search(name)):
        raise HierspecError(
            f"{model} holds {unused[0]}, which a model with its config.json does not have: config "
            "and weights are of different models"
        )


def from_pretrained(auto_class: Any, ref: str, dtype: torch.dtype | str, name: str) -> Any:
    """Load a model by one of transformers' automatic classes, if the checkpoint has its weights.

    Transformers would initialise missing ones at random, and leave out those that it does not know.

    Args:
        name: for messages.

    Raises:
        HierspecError: a parameter is missing, left over, or of another shape than the configuration
            asks for. Transformers raises others.
    """
    from torch import nn

    model, info = auto_class.from_pretrained(
        ref,
        dtype=dtype,
        local_files_only=local_files_only(ref),
        use_safetensors=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,  # they are refused below, in one line
        output_loading_info=True,
    )
    mismatched: list[tuple[str, Any, Any]] = sorted(info.get("mismatched_keys") or ())
    for key, stored, expected in mismatched:
        validate_shape(name, key, stored, expected)
    if missing := sorted(info.get("missing_keys") or ()):
        raise HierspecError(f"{name} lacks a weight that its config.json requires: {missing[0]}")
    modules = dict(model.named_modules())
    lists = tuple(f"{path}." for path, m in modules.items() if isinstance(m, nn.ModuleList))
    unknown: list[str] = list(info.get("unexpected_keys") or ())
    # Other parts, such as one that reads pictures, are none of this model's business.
    own = [key for key in unknown if key.startswith(lists) or key.rpartition(".")[0] in modules]
    validate_unused(name, own)
    return model


def validate_reference(ref: str) -> None:
    """Refuse a name that looks like a path to no directory; other names may be hub ids."""
    looks_like_path = ref.startswith((".", "/", "~")) or ref.count("/") > 1
    if not ref or (looks_like_path and not expand_user(ref).exists()):
        raise HierspecError(
            f"no directory {ref!r}: give the folder of a saved model, a hub id, or FILE.gguf"
        )
    if expand_user(ref).is_file() and _starts_like_gguf(expand_user(ref)):
        raise HierspecError(
            f"{ref} is a GGUF file under another name: give a link to it that ends in .gguf"
        )
    if looks_like_path and not expand_user(ref).is_dir():
        raise HierspecError(f"{ref} is a file: give the folder of a saved model, or FILE.gguf")


def _starts_like_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


class _Index(Record):
    weight_map: dict[str, str]  # parameter → file


def locate(path: Path) -> dict[str, Path]:
    """Return the file of each parameter in a folder: all of one, or as an index says.

    Raises:
        HierspecError: a file is missing or damaged, or not of safetensors.
    """
    index = path / INDEX_FILE  # of shards that one file has replaced, where both are there
    if (path / SINGLE_FILE).is_file() or not index.is_file():
        _validate_format(path)
        with _open(path / SINGLE_FILE) as file:
            return dict.fromkeys(file.keys(), path / SINGLE_FILE)
    weight_map = read_json(_Index, index, "the weights' index", _FETCH).weight_map
    files = {name: path / file for name, file in weight_map.items()}
    for file in sorted(set(files.values())):
        with _open(file) as shard:
            stored = set(shard.keys())
        if missing := sorted(n for n, f in files.items() if f == file and n not in stored):
            raise _damaged(file, f"it lacks {missing[0]!r}, which {INDEX_FILE} says it holds")
    return files


def _validate_format(path: Path) -> None:
    """Refuse weights in formats that may hold programs, by the name of the file."""
    if (path / SINGLE_FILE).is_file():
        return
    pickles = (f for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for f in path.glob(pattern))
    if pickle := next(pickles, None):
        raise HierspecError(
            f"{pickle} is not a safetensors file, and only those are read: load the model with "
            "transformers once and save_pretrained it into another folder, which writes safetensors"
        )


def _open(file: Path) -> Any:
    if not file.is_file():
        raise HierspecError(
            f"{file} is missing: give the folder of a model saved with save_pretrained, or fetch "
            "the file again"
        )
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from None


def _damaged(file: Path, reason: object) -> HierspecError:
    return HierspecError(f"{file} is damaged ({reason}){_FETCH}")
