# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The class of a source tokenizer that a target tokenizer lies beside."""

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast


class SourceTokenizer(PreTrainedTokenizerFast):
    """Refuses `text_target=`, of which it would make ids of the source vocabulary.

    `tokenizer_config.json` names it; where csan_hf is not imported, transformers takes its
    `PreTrainedTokenizerFast` instead, which refuses nothing."""

    def _switch_to_target_mode(self) -> None:
        raise ValueError(
            "text_target: the target has a vocabulary of its own, and this tokenizer is that of "
            f"the source. AutoTokenizer.from_pretrained({self.name_or_path!r}, "
            "subfolder='target_tokenizer') makes labels: tokenizer(texts)['input_ids']."
        )


class _SourceTokenizerConfig(PreTrainedConfig):
    """A model of none: with a family's config all of its tokenizers would be registered."""


AutoTokenizer.register(_SourceTokenizerConfig, SourceTokenizer, exist_ok=True)
