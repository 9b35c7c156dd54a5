# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Export to CTranslate2 of what it can express: full attention, with Shaw's relative positions or
without.

The import raises `ImportError` where CTranslate2 is missing (`pip install ctranslate2`).
"""

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from csan_hf.data import TokenizerPair
from csan_hf.hub.locality_reach import layer_groups
from csan_hf.models.csan_attention import CsanAttention
from csan_hf.models.distances import RelativePositions, RelativePositionTables
from csan_hf_runtime.text_files import new_directory

try:
    from ctranslate2.converters.transformers import BartLoader
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation
except ImportError as error:
    raise ImportError("The export needs ctranslate2: pip install ctranslate2") from error

_NEVER = -1.0e9  # bias of a token that is never to be chosen


def export_ctranslate2(
    model: PreTrainedModel,
    directory: str | os.PathLike,
    *,
    tokenizers: TokenizerPair,
    quantization: str = "float32",
) -> Path:
    """Writes a CSAN for `ctranslate2.Translator`, which in float32 scores translations as the model
    does.

    So greedy search finds the same tokens; beam search ends, and counts lengths, by CTranslate2's
    own rules. Sentences are given as tokens with that of the end
    (`tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)`). What the generation config's
    `bad_words_ids` forbids gets a bias by which it is never chosen; its other settings, such as
    beams, the longest output and a first token that names the language, are arguments of
    `translate_batch`.

    Args:
        model: A `CsanForConditionalGeneration`, unwrapped. Locality is off, or relative positions,
            with tables that the heads have in common, are in every layer of encoder and decoder in
            place of sinusoids, all alike.
        directory: A new or empty directory.
        tokenizers: The `TokenizerPair`, whose vocabularies are written beside the weights.
        quantization: Of weights: `"float32"`, `"int8"`, `"float16"` or another of CTranslate2's.

    Returns:
        `directory` as a `Path`.

    Raises:
        ValueError: The model has a method that CTranslate2 cannot express, or the directory is not
            empty.
    """
    directory = Path(directory)
    with new_directory(directory) as staging:
        spec = _specification(model, tokenizers)
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(staging))
        tokenizers.save_pretrained(staging)
    return directory


def _relative_positions(model: Any) -> bool:
    """Whether all layers have relative positions; raises ValueError for what CTranslate2 cannot
    express.
    """
    config = model.config
    if config.model_type != "csan" or not hasattr(model, "model"):
        kind = type(model).__name__
        raise ValueError(
            f"CTranslate2 has no {kind}, only checkpoints of CSAN: see `csan-hf export-onnx`."
        )
    relative_positions: set[RelativePositions | None] = set()
    for part, locality, layers in layer_groups(config):
        methods: tuple[Any, ...] = locality.methods if locality is not None else ()
        for method in methods:
            is_relative = isinstance(method, RelativePositions)
            if part == "cross" or not is_relative or method.per_head:
                heads = " of each head" if is_relative else ""
                raise ValueError(
                    f"CTranslate2 has no `{method.key}`{heads} ({part} layer {layers[0]}): see "
                    "`csan-hf export-onnx`."
                )
        if part != "cross":
            relative_positions.add(methods[0] if methods else None)
    is_absolute = relative_positions == {None}
    if not is_absolute and (len(relative_positions) > 1 or config.sinusoids is not None):
        raise ValueError(
            "CTranslate2 has relative positions in all layers of encoder and decoder alike and "
            "without sinusoids, or none: see `csan-hf export-onnx`."
        )
    if is_absolute and config.sinusoids is None:
        raise ValueError(
            "CTranslate2 has no Transformer without positions: see `csan-hf export-onnx`."
        )
    return not is_absolute


def _specification(model: Any, tokenizers: TokenizerPair) -> Any:
    has_relative_positions = _relative_positions(model)
    model = deepcopy(model).float()  # CTranslate2 quantises in place
    config = model.config
    activations = {
        "relu": "RELU",
        "gelu": "GELU",
        "gelu_new": "GELUTanh",
        "swish": "SWISH",
        "silu": "SWISH",
    }
    if config.activation_function not in activations:
        raise ValueError(
            f"CTranslate2 has no `activation_function` {config.activation_function!r}."
        )
    if config.encoder_attention_heads != config.decoder_attention_heads:
        raise ValueError("CTranslate2 has as many heads in the decoder as in the encoder.")
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.encoder_attention_heads,
        pre_norm=config.normalize_before,
        activation=Activation[activations[config.activation_function]],
        layernorm_embedding=config.sinusoids == "bart",
        with_relative_position=has_relative_positions,
    )
    loader = _CsanLoader()
    loader.set_encoder(spec.encoder, model.model.encoder)
    loader.set_decoder(spec.decoder, model.model.decoder)
    bias = model.final_logits_bias[0].detach().float().clone()
    for words in model.generation_config.bad_words_ids or ():
        bias[words] = _NEVER  # of one token each: `translate_batch` has `suppress_sequences`
    spec.decoder.projection.weight = model.lm_head.weight
    spec.decoder.projection.bias = bias
    source = _tokens(tokenizers.source, config.vocab_size)
    target = _tokens(tokenizers.target, config.decoder_vocab_size)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.decoder_start_token = target[config.decoder_start_token_id]
    spec.config.eos_token = target[config.eos_token_id]
    spec.config.bos_token = spec.config.decoder_start_token
    spec.config.unk_token = tokenizers.target.unk_token or spec.config.eos_token
    return spec


def _tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    """The vocabulary in its order; entries that the tokenizer lacks are called `<unused N>`."""
    names = {number: token for token, number in tokenizer.get_vocab().items()}
    return [names.get(number, f"<unused {number}>") for number in range(size)]


class _CsanLoader(BartLoader):
    """CTranslate2's own reader of BART, whose layers have the names of CSAN's."""

    def set_common_layers(self, spec: Any, stack: Any) -> None:
        """Sets what stands before and after the layers of an encoder or decoder."""
        is_encoder = isinstance(spec.embeddings, list)
        self.set_embeddings(
            spec.embeddings[0] if is_encoder else spec.embeddings, stack.embed_tokens
        )
        spec.scale_embeddings = stack.embed_tokens.embed_scale
        if stack.config.sinusoids is not None:
            positions = stack.embed_positions
            table = positions.weight
            if positions.kind != "bart":
                table = positions.create_weight(positions.num_positions)  # in full precision
            spec.position_encodings.encodings = table
        if stack.config.sinusoids == "bart":
            self.set_layer_norm(spec.layernorm_embedding, stack.layernorm_embedding)
        if stack.config.normalize_before:
            self.set_layer_norm(spec.layer_norm, stack.layer_norm)

    def set_attention(self, spec: Any, attention: CsanAttention, *, self_attention: bool) -> None:
        """Sets an attention and its tables of relative positions."""
        super().set_attention(spec, attention, self_attention)
        for tables in attention.children():
            if isinstance(tables, RelativePositionTables):
                spec.relative_position_keys = tables.keys
                spec.relative_position_values = tables.values
