# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Tiny random models of every family, batches and tokenizers for them."""

from collections.abc import Iterable, Sequence

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from csan_hf import (
    ConvS2SConfig,
    ConvS2SForConditionalGeneration,
    CsanConfig,
    CsanForConditionalGeneration,
    PervasiveAttentionConfig,
    PervasiveAttentionForConditionalGeneration,
    RnnSearchConfig,
    RnnSearchForConditionalGeneration,
)

PAD, EOS = 0, 1  # PAD starts the decoder, too

LAYERS = 2
HEADS = 4
VOCABULARY = 50
ALL = list(range(LAYERS))
STRATEGIES = ("fixed", "layer", "query", "head")

# "Off" is spelt out: the config's own defaults are the paper's 3 x 11 area in the encoder.
PLAIN = {"local_window": None, "head_area": 1, "localness_window": None, "localness_layers": []}
ENCODER = {**PLAIN, "localness_layers": ALL}
DECODER = {**PLAIN, "decoder_localness_layers": ALL}
CROSS = {**PLAIN, "cross_localness_layers": ALL}
EVERYWHERE = {
    **PLAIN,
    "localness_layers": ALL,
    "decoder_localness_layers": ALL,
    "cross_localness_layers": ALL,
}


LOCALITIES = {
    "plain": PLAIN,
    "encoder window": {**ENCODER, "local_window": 5},
    "encoder area": {**ENCODER, "local_window": 5, "head_area": 3},
    "encoder circular area": {
        **ENCODER,
        "local_window": 3,
        "head_area": 3,
        "head_boundary": "circular",
    },
    "decoder window": {**DECODER, "local_window": 5},
    "decoder window of one": {**DECODER, "local_window": 1},
    "decoder window in the upper layer": {
        **DECODER,
        "local_window": 5,
        "decoder_localness_layers": [LAYERS - 1],
    },
    "decoder heads": {**DECODER, "head_area": 7},
    "decoder area": {**DECODER, "local_window": 7, "head_area": 3},
    "decoder circular area": {
        **DECODER,
        "local_window": 5,
        "head_area": 3,
        "head_boundary": "circular",
    },
}
RELATIVE = [{"window": 5, "relative_positions": 2}] * LAYERS
LOCALITIES["no positions"] = {**PLAIN, "sinusoids": None}
LOCALITIES["relative positions alone"] = {
    **PLAIN,
    "sinusoids": None,
    "encoder_locality": RELATIVE,
    "decoder_locality": RELATIVE,
}
for strategy in STRATEGIES:
    gaussian = {"localness_window": strategy, "localness_window_size": 4}
    LOCALITIES[f"cross {strategy}"] = {**CROSS, **gaussian}
    LOCALITIES[f"everything, {strategy}"] = {
        **EVERYWHERE,
        **gaussian,
        "local_window": 5,
        "head_area": 3,
    }

# One layer, where a test is slow for each
PLAIN_LAYER = {**PLAIN, "encoder_layers": 1, "decoder_layers": 1}
ONE_LAYER = {
    **LOCALITIES["everything, query"],
    "encoder_layers": 1,
    "decoder_layers": 1,
    "localness_layers": [0],
    "decoder_localness_layers": [0],
    "cross_localness_layers": [0],
}

# What a self-attention may see and add, in the encoder and in the decoder
SPECIFICATIONS = {
    "relative positions": {"relative_positions": 2},
    "relative positions of each head": {
        "relative_positions": {"max_distance": 2, "per_head": True}
    },
    "window and relative positions": {"window": 3, "relative_positions": 3},
    "area and relative positions": {"window": 5, "head_area": 3, "relative_positions": 2},
    "gaussian and relative positions": {"gaussian": "query", "relative_positions": 2},
    "all of them": {"window": 5, "head_area": 3, "gaussian": "query", "relative_positions": 1},
    "neighbor": {"neighbor": True},
    "neighbor in an area": {"neighbor": True, "window": 5, "head_area": 3},
    "local hard": {"local_hard": 3.0},
    "biases of distances": {"relative_bias": {"buckets": 6, "max_distance": 5}},
    "biases of distances in an area": {
        "relative_bias": {"buckets": 4, "max_distance": 3},
        "window": 5,
        "head_area": 3,
    },
    "local hard, cut off": {"local_hard": {"width": 1.5, "cut_off": True}, "relative_positions": 2},
}

SOURCE_VOCABULARY, TARGET_VOCABULARY = 13, 11
AGGREGATIONS = ("max", "average", "attention", "max_attention", "gated_max")
RESIDUAL = {"block": "residual", "ffn_dim": 7}
# Widths that differ on the two sides, and odd channel counts: f0 / 2 = 5, C = 11, f_L = 5.
SIZES = {
    "vocab_size": SOURCE_VOCABULARY,
    "decoder_vocab_size": TARGET_VOCABULARY,
    "source_embed_dim": 4,
    "target_embed_dim": 6,
    "num_layers": 2,
    "growth_rate": 3,
    "dropout": 0.0,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "decoder_start_token_id": PAD,
}
SHARED = {
    "share_encoder_decoder_embeddings": True,
    "vocab_size": TARGET_VOCABULARY,
    "decoder_vocab_size": None,
    "source_embed_dim": 4,
    "target_embed_dim": 4,
}


every_mode = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS)
every_implementation = pytest.mark.parametrize("implementation", ["eager", "sdpa", "blocked"])


def transformer_sizes(width: int, *, layers: int, heads: int, ffn: int) -> dict[str, int]:
    """Fields of a Transformer whose encoder and decoder have the same sizes."""
    sizes = {"d_model": width}
    for name, size in (("layers", layers), ("attention_heads", heads), ("ffn_dim", ffn)):
        sizes |= {f"encoder_{name}": size, f"decoder_{name}": size}
    return sizes


TOKENS = {
    "vocab_size": VOCABULARY,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "decoder_start_token_id": PAD,
    "dropout": 0.0,
}
CSAN_SIZES = {
    **transformer_sizes(32, layers=LAYERS, heads=HEADS, ffn=48),
    **TOKENS,
    "max_position_embeddings": 128,
}
RECURRENT_SIZES = {**TOKENS, "source_embed_dim": 16, "target_embed_dim": 16, "hidden_size": 16}
CONVOLUTIONAL_SIZES = {
    **TOKENS,
    "embed_dim": 16,
    "hidden_size": 16,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128,
}


def csan(
    seed: int = 0, attn_implementation: str | None = None, **options
) -> CsanForConditionalGeneration:
    """A model in eval mode whose weights are large enough for outputs that differ."""
    config = CsanConfig(**{**CSAN_SIZES, **options})
    if attn_implementation is not None:
        config._attn_implementation = attn_implementation
    model = CsanForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name or "norm" in name:
                continue
            gain = (
                1.0
                if any(part in name for part in ("query_proj", "center_proj", "window_proj"))
                else 1.3
            )
            std = gain / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.1
            if name.endswith("head_window"):
                std = 2.0  # windows of 6 to 44 tokens
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def grid(seed: int = 0, **options) -> PervasiveAttentionForConditionalGeneration:
    """A model in eval mode; no norm is the identity, and no running statistic is its initial value."""
    model = PervasiveAttentionForConditionalGeneration(
        PervasiveAttentionConfig(**{**SIZES, **options})
    )
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.3 * normal(parameter))
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * normal(parameter))
            elif "embed" in name or "shared" in name:
                parameter.copy_(normal(parameter))
            else:
                parameter.copy_(normal(parameter) / parameter[0].numel() ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.3 * normal(buffer))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return model.eval()


def recurrent(seed: int = 0, **options) -> RnnSearchForConditionalGeneration:
    """A model in eval mode whose weights are large enough for outputs that differ."""
    model = RnnSearchForConditionalGeneration(RnnSearchConfig(**{**RECURRENT_SIZES, **options}))
    return _drawn(model, seed)


def convolutional(seed: int = 0, **options) -> ConvS2SForConditionalGeneration:
    """A model in eval mode whose weights are large enough for outputs that differ."""
    model = ConvS2SForConditionalGeneration(ConvS2SConfig(**{**CONVOLUTIONAL_SIZES, **options}))
    return _drawn(model, seed)


def marian(seed: int = 0, **options) -> MarianMTModel:
    """A model of transformers, in eval mode, whose translations end where it says."""
    torch.manual_seed(seed)
    config = MarianConfig(**{**CSAN_SIZES, "forced_eos_token_id": None, **options})
    return MarianMTModel(config).eval()


@torch.no_grad()
def _drawn(model, seed: int):
    """The model with large weights and embeddings."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        std = 2.0 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 0.3
        if "embed" in name or "shared" in name:
            std = 0.7
        numbers = torch.randn(parameter.shape, generator=generator)
        # The magnitudes of weight normalisation, beside directions of any length
        parameter.copy_(1.0 + 0.2 * numbers if name.endswith("original0") else std * numbers)
    return model.eval()


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """The gradients that there are, by parameter."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def statistics(model: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of the running means and variances of a model's batch norms."""
    return {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name}


def mask_of(lengths: tuple[int, ...], width: int | None = None) -> Tensor:
    """[B, width], 1 for the first `length` places of every sentence."""
    return (torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]).long()


def padded_sources(
    lengths: tuple[int, ...], width: int | None = None, seed: int = 0, words: int = 10
) -> dict:
    """Random source sentences of given lengths (their </s> included), padded on the right to
    `width`.
    """
    input_ids = _random_rows(lengths, width, seed, words)
    _end(input_ids, lengths)
    return {"input_ids": input_ids, "attention_mask": mask_of(lengths, width)}


def _random_rows(
    lengths: tuple[int, ...], width: int | None, seed: int, words: int, filler: int = PAD
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((len(lengths), width or max(lengths)), filler)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(2, words, (length,), generator=generator)
    return ids


def _end(ids: Tensor, lengths: tuple[int, ...]) -> None:
    """Makes </s> the last token of every row."""
    ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = EOS


def padded_targets(lengths: tuple[int, ...], width: int | None = None, seed: int = 1) -> dict:
    """Random decoder inputs of given lengths, the start token first, padded on the right to
    `width`.
    """
    ids = _random_rows(lengths, width, seed, TARGET_VOCABULARY)
    ids[:, 0] = PAD
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask_of(lengths, width)}


def padded_batch(
    sources: tuple[int, ...], targets: tuple[int, ...], **widths: int | None
) -> dict[str, Tensor]:
    """A whole batch; source_width and target_width ask for more padding than the longest sentence
    needs.
    """
    return {
        **padded_sources(sources, widths.get("source_width")),
        **padded_targets(targets, widths.get("target_width")),
    }


def padded_on_the_left(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same sentences with their padding before them."""
    moved = {}
    for name, rows in batch.items():
        mask = batch[name.replace("input_ids", "attention_mask")]
        moved[name] = rows.gather(1, mask.argsort(dim=1, stable=True))
    return moved


def recompute_activations(model, kwargs: dict | None = None, **options) -> None:
    """By the library's method, which has another name before transformers 5.23."""
    enable = model.gradient_checkpointing_enable
    getattr(model, "activation_checkpointing_enable", enable)(kwargs, **options)


def decode_in_steps(
    model, sources: dict, targets: dict, chunks: list[int], cache=None, start: int = 0, **options
) -> tuple[Tensor, list]:
    """Logits [B, T, V] of target rows from `start` on, a chunk of given size at a time, and the
    outputs of all steps.

    The decoder's mask, if targets have one, is that of all rows so far."""
    encoder_outputs = model.get_encoder()(**sources)
    mask = targets.get("decoder_attention_mask")
    steps = []
    for chunk in chunks:
        end = start + chunk
        outputs = model(
            encoder_outputs=encoder_outputs,
            attention_mask=sources["attention_mask"],
            decoder_input_ids=targets["decoder_input_ids"][:, start:end],
            decoder_attention_mask=None if mask is None else mask[:, :end],
            cache=cache,
            use_cache=True,
            **options,
        )
        steps.append(outputs)
        cache = outputs.cache
        start = end
    return torch.cat([step.logits for step in steps], dim=1), steps


def labels_of(lengths: tuple[int, ...], seed: int = 2) -> Tensor:
    """Random labels of given lengths, </s> last, padded with -100."""
    labels = _random_rows(lengths, None, seed, TARGET_VOCABULARY, filler=-100)
    _end(labels, lengths)
    return labels


def tokenizer(
    words: Iterable[str], special: Sequence[str] = ("<pad>", "</s>", "<unk>"), **options
) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, numbered in order after `special`, which ends a text with </s>."""
    vocabulary = {word: number for number, word in enumerate((*special, *words))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])]
    )
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names, **options)


SENTENCES = [
    "two",
    "one hundred and twenty-seven thousand",
    "",
    "the third of May",
    "   ",
    "nine",
    "a much longer sentence with nineteen hundred and eighty-four words in it",
    "two",
]
"""Of which one is empty, one blank, and one there twice."""
