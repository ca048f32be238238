"""N-gram counts of a corpus, with back-off: :mod:`hierspec.drafters.ngram_table`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hierspec.config.fields import ModelName
from hierspec.config.levels import Capabilities, LevelConfig, TargetInfo
from hierspec.config.methods import register_level
from hierspec.config.vocabulary import validate_table
from hierspec.utils.schema import PositiveInteger, checked_dataclass
from hierspec.zoo import registry


@register_level
@checked_dataclass
class NgramTableConfig(LevelConfig):
    """N-gram counts of a corpus, with back-off."""

    capabilities = Capabilities(reads_tokenizer=True, planned=True, cost=0, acceptance=(0.35, 0.40))
    short_forms = ("ngram:TABLE",)

    method: Literal["ngram_table"] = "ngram_table"
    table: ModelName = "zoo:ngram"
    max_order: PositiveInteger | None = None

    def make(self, target: TargetInfo) -> Any:
        from hierspec.drafters.ngram_table import NgramModel

        table = NgramModel.load(registry.table_path(self.table), max_order=self.max_order)
        validate_table(
            self.table,
            table.vocab_size,
            table.vocabulary,
            target.name,
            target.tokenizer,
            target.vocab_size,
        )
        return table

    @property
    def files(self) -> str:
        return self.table

    def weight_bytes(self, model: Any) -> int:
        return registry.table_path(self.table).stat().st_size

    @classmethod
    def from_short(cls, draft: str) -> Mapping[str, Any] | None:
        kind, colon, table = draft.partition(":")
        if kind == "ngram_table" or (kind == "ngram" and colon):
            return {"table": table} if table else {}
        return None
