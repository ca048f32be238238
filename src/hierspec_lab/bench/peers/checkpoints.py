"""A bench's models as other engines take them: as transformers models, and as directories.

Weights and device are those of our own plain decoding, and so is the dtype, except that what runs
in torch is faster in float32 on a CPU without arithmetic in it. Each model exists once per process.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierspec.errors import first_line
from hierspec.lm.backend import backend_of
from hierspec.lm.dtypes import default_dtype
from hierspec.lm.load import quiet_transformers
from hierspec_lab.bench.methods.base import Unavailable

if TYPE_CHECKING:  # torch is imported by whoever runs something
    from hierspec_lab.bench.methods.ours import BenchModels


@lru_cache(maxsize=1)
def exported(models: BenchModels) -> ExportedModels:
    """Return the exported copies of these models, kept until another bench asks for its own."""
    return ExportedModels(models)


class ExportedModels:
    """Models by name (the target's or a draft's), made on first use.

    Attributes:
        dtype: torch dtype of the target's weights in our own decoding; drafts get it too.
        torch_dtype: the one in which torch is fastest with these weights, unless the user chose.
        device: torch device of our own decoding.
    """

    def __init__(self, models: BenchModels) -> None:
        backend = backend_of(models.plain.root.model)
        assert backend is not None  # other engines have no tables either
        self.dtype, self.device = backend.weight_dtype, backend.device
        self.target = models.target.model
        self._requested_dtype = models.target.dtype
        chosen = self._requested_dtype != "auto"
        self.torch_dtype = self.dtype if chosen else default_dtype(self.dtype, self.device)
        self._hf: dict[str, Any] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._directories: dict[str, Path] = {}

    @property
    def gguf_dtype(self) -> Any:
        """The dtype of a GGUF file: the checkpoint's own, unless the user chose one."""
        from hierspec.lm.weights import from_directory, stored_dtype
        from hierspec.zoo import registry

        if self._requested_dtype != "auto":
            return self.dtype
        if registry.can_resolve(self.target):
            return stored_dtype(registry.resolve(self.target))
        if Path(self.target).is_dir():
            return stored_dtype(from_directory(self.target))
        return self.dtype

    def hf(self, name: str) -> Any:
        """Load the transformers model, in evaluation mode and without an end-of-text token.

        Raises:
            Unavailable: transformers cannot load it.
        """
        if name not in self._hf:
            try:
                with quiet_transformers():
                    self._hf[name] = _load(name, self.torch_dtype, self.device)
            except (OSError, ValueError, RuntimeError) as error:
                problem = first_line(error)
                raise Unavailable(f"{name} cannot be loaded by transformers: {problem}") from error
            reset_generation(self._hf[name])
        return self._hf[name]

    def directory(self, name: str) -> Path:
        """Write the model by ``save_pretrained``, in ``torch_dtype``; return its directory.

        It is kept until the process ends, and has no tokenizer: prompts are token ids.
        """
        from .partial_head import PartialHead

        if name not in self._directories:
            folder = self.scratch() / f"model{len(self._directories)}"
            model = self.hf(name)
            if isinstance(getattr(model, "lm_head", None), PartialHead):
                raise Unavailable(f"{name} scores a part of its tokens, which no directory says")
            with quiet_transformers():
                model.save_pretrained(folder)
            self._directories[name] = folder
        return self._directories[name]

    def scratch(self) -> Path:
        """Return a folder that is deleted when the process ends."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="hierspec-", ignore_cleanup_errors=True
            )
        return Path(self._folder.name)


def reset_generation(model: Any, **own: Any) -> None:
    """Give the model a generation config of nothing but ``own``.

    What ships with a checkpoint (an end of text, a top-k, a penalty) must not reach a bench, and a
    call may change it: the ``heuristic`` schedule keeps its draft length in it.
    """
    from transformers import GenerationConfig

    start = model.config.decoder_start_token_id if model.config.is_encoder_decoder else None
    model.generation_config = GenerationConfig(
        eos_token_id=None, pad_token_id=0, decoder_start_token_id=start, **own
    )


def _load(name: str, dtype: Any, device: Any) -> Any:
    from hierspec.zoo import registry

    if registry.can_resolve(name):
        from hierspec.lm.weights import SCORED, build_hf_model

        source = registry.resolve(name, device=str(device))
        if SCORED not in source.names():
            return build_hf_model(source, dtype, device)
        from .partial_head import build_with_partial_head

        return build_with_partial_head(source, dtype, device)
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    seq2seq = AutoConfig.from_pretrained(name, trust_remote_code=False).is_encoder_decoder
    kind = AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM
    options = {"dtype": dtype, "use_safetensors": True, "trust_remote_code": False}
    return kind.from_pretrained(name, **options).eval().to(device)
