"""transformers' logits processors, called for one row of a padded batch at a time.

``generate`` calls them with padded ids [B, L] and scores [B, V]; some count the padding as length,
some keep a value for every row. A draft asks for one row, after tokens that may be rejected.
So each row gets processors of its own that see what they would have seen there, and those that
remember earlier calls are refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from hierspec.errors import HierspecError

RowFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (ids [1, L], scores [1, V])
_MODULE = "transformers.generation.logits_process"
# Functions of a row's own ids and scores: one row is all they need.
_ROW_BY_ROW = {
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "InfNanRemoveLogitsProcessor",
    "LogitNormalization",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "MinPLogitsWarper",
    "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "SequenceBiasLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
    "TemperatureLogitsWarper",
    "TopHLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "TypicalLogitsWarper",
    "WatermarkLogitsProcessor",
}
# Functions too, but of a row's index in the batch as well.
_BY_ROW_INDEX = {
    "EncoderNoRepeatNGramLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
}


@dataclass(frozen=True, slots=True, eq=False)
class RowProcessor:
    """A processor that sees a single row as it would in ``generate``'s padded batch.

    Attributes:
        pads: padding ids before the row's text, [1, P].
        copies: how many equal rows to call it with; 1 where the row's index does not matter.
        row: index of the row whose scores are taken.
    """

    processor: RowFunction
    pads: torch.Tensor
    copies: int = 1
    row: int = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ids = torch.cat([self.pads.to(input_ids.device), input_ids], dim=1)
        if self.copies == 1:
            return self.processor(ids, scores)
        repeated = self.processor(ids.repeat(self.copies, 1), scores.repeat(self.copies, 1))
        return repeated[self.row : self.row + 1]

    def __repr__(self) -> str:
        return repr(self.processor)


def _own_name(processor: RowFunction) -> str:
    """Return the name of a processor's class where it is one of transformers; else nothing."""
    kind = type(processor.processor if isinstance(processor, RowProcessor) else processor)
    return kind.__name__ if kind.__module__ == _MODULE else ""


def is_temperature(processor: RowFunction) -> bool:
    """Return whether a processor is the one by which transformers applies a temperature."""
    return _own_name(processor) == "TemperatureLogitsWarper"


def takes_any_text(processor: RowFunction) -> bool:
    """Return whether a processor is known to fail after no text."""
    return _own_name(processor) in _ROW_BY_ROW


def validate_processors(processors: Sequence[Any]) -> None:
    """Refuse, by name, those of transformers that depend on more than a row's ids and scores."""
    for processor in processors:
        if isinstance(processor, list):  # transformers' own, which applies one after another
            validate_processors(cast("list[Any]", processor))
            continue
        name = _own_name(processor)
        if name and name not in _ROW_BY_ROW | _BY_ROW_INDEX:
            is_watermark = name == "SynthIDTextWatermarkLogitsProcessor"
            option = "watermarking_config" if is_watermark else "it"
            raise HierspecError(
                f"hierspec cannot run {name} on drafts, since it is not a function of a "
                f"row's ids and scores alone: leave {option} out"
            )


def row_processors(
    processors: Sequence[Any], row: int, num_rows: int, pads: torch.Tensor
) -> tuple[RowFunction, ...]:
    """Return processors for row ``row`` of ``num_rows``, whose text comes after ``pads`` [P]."""
    return tuple(_row_processor(processor, row, num_rows, pads[None]) for processor in processors)


def _row_processor(processor: Any, row: int, num_rows: int, pads: torch.Tensor) -> RowFunction:
    name = _own_name(processor)
    if num_rows == 1 or name in _ROW_BY_ROW:
        return RowProcessor(processor, pads) if pads.shape[1] else processor
    if name == "RepetitionPenaltyLogitsProcessor":
        # Its padding is ignored anyway, so the one value of this row may be cut out.
        ignored = processor.prompt_ignore_length
        if isinstance(ignored, torch.Tensor):
            processor = copy.copy(processor)
            processor.prompt_ignore_length = ignored[row : row + 1]
        return RowProcessor(processor, pads)
    if name == "PrefixConstrainedLogitsProcessor":
        # A grammar must be asked about this row's text under its prompt's index.
        allowed, prompt = processor._prefix_allowed_tokens_fn, row // processor._num_beams
        processor = copy.copy(processor)
        processor._num_beams = 1
        processor._prefix_allowed_tokens_fn = lambda _, ids: allowed(prompt, ids)
        return RowProcessor(processor, pads)
    return RowProcessor(processor, pads, num_rows, row)
