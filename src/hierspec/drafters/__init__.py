"""Everything that proposes: language models, several drafts at once, look-ups."""
