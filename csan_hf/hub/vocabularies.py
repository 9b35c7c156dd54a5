# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tokenizers as files of the library `tokenizers`, for programs without transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, processors
from transformers import M2M100Tokenizer, MarianTokenizer, PreTrainedConfig
from transformers.convert_slow_tokenizer import SentencePieceExtractor

from csan_hf.data.tokenization import TokenizerPair, Tokenizers, sentencepiece_tokenizer
from csan_hf.models.translation import TARGET_TOKENIZER_SUBFOLDER


def save_vocabularies(tokenizers: Tokenizers, directory: Path, config: PreTrainedConfig) -> None:
    """Saves a tokenizer or `TokenizerPair` as transformers does, and a `tokenizer.json` of those
    that are Python in transformers: Marian's, with another of the target language in
    `target_tokenizer`, and M2M100's.

    These files give the tokens and texts of transformers. Pieces that the vocabulary lacks have
    numbers from the config's `vocab_size` (of the target `decoder_vocab_size`) on and stand for the
    unknown token. A tag such as `>>fra<<` is a token anywhere in a text, not only ahead of it. The
    token of a language `de` is called so or `__de__`; sources are framed for `src_lang` of
    `tokenizer_config.json`.
    """
    tokenizers.save_pretrained(directory)
    source: Any = tokenizers.source if isinstance(tokenizers, TokenizerPair) else tokenizers
    kind = type(source)
    if issubclass(kind, M2M100Tokenizer):
        ids = source.encoder | source.added_tokens_encoder | source.lang_token_to_id
        model = directory / source.vocab_files_names["spm_file"]
        _save_backend(source, model, ids, size=config.vocab_size, directory=directory)
    elif issubclass(kind, MarianTokenizer):
        ids = source.get_src_vocab()
        model = directory / "source.spm"
        _save_backend(source, model, ids, size=config.vocab_size, directory=directory)
        if source.separate_vocabs:
            ids = source.target_encoder | source.added_tokens_encoder
        model = directory / "target.spm"
        folder = directory / TARGET_TOKENIZER_SUBFOLDER
        folder.mkdir()
        _save_backend(source, model, ids, size=config.decoder_vocab_size, directory=folder)


def _save_backend(
    slow: Any, model: Path, ids: Mapping[str, int], *, size: int, directory: Path
) -> None:
    """Saves the tokenizer of a model of SentencePiece with the numbers, special tokens and frame of
    transformers' `slow` one.
    """
    size = max(size, *(number + 1 for number in ids.values()))
    backend = sentencepiece_tokenizer(SentencePieceExtractor(str(model)), ids, size)
    languages = [token for token in ids if token.startswith(">>") and token.endswith("<<")]
    backend.add_tokens([AddedToken(token, normalized=False) for token in languages])
    for token in slow.added_tokens_decoder.values():
        backend.add_tokens([token])
    names = slow.convert_ids_to_tokens(slow.build_inputs_with_special_tokens([]))
    end = names.index(slow.eos_token)
    backend.decoder = decoders.Sequence(
        [backend.decoder, decoders.Replace(Regex(r"\A +| +\z"), "")]
    )
    frame = [*names[:end], "$A", *names[end:]]
    backend.post_processor = processors.TemplateProcessing(
        frame, special_tokens=[(name, ids[name]) for name in names]
    )
    backend.save(str(directory / "tokenizer.json"))
