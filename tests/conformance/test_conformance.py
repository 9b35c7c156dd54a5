# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Every public model class under the library's own mixins, and Marian beside them, on tiny
configurations.
"""

import contextlib
import inspect
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
import tiny
import torch
from conformance.library_tests import LibraryTests, UnavailableError
from transformers import (
    Cache,
    EncoderDecoderCache,
    MarianConfig,
    MarianModel,
    MarianMTModel,
    PreTrainedConfig,
)
from transformers.cache_utils import DynamicSlidingWindowLayer

from csan_hf import (
    ConvS2SConfig,
    ConvS2SForConditionalGeneration,
    ConvS2SModel,
    CsanConfig,
    CsanForConditionalGeneration,
    CsanForSequenceClassification,
    CsanForTokenClassification,
    CsanModel,
    PervasiveAttentionConfig,
    PervasiveAttentionForConditionalGeneration,
    PervasiveAttentionModel,
    RnnSearchConfig,
    RnnSearchForConditionalGeneration,
    RnnSearchModel,
)

try:
    library = LibraryTests()
except UnavailableError as error:
    pytest.skip(f"the library's tests are not available: {error}", allow_module_level=True)


# The sizes and tokens of Marian's own tester
BATCH, LENGTH, WORDS, WIDTH, LAYERS, HEADS, FFN = 13, 7, 99, 16, 2, 4, 4
START, PAD, EOS, BOS = 3, 1, 2, 0
TOKENS = {
    "vocab_size": WORDS,
    "dropout": 0.1,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": BOS,
    "decoder_start_token_id": START,
}
TRANSFORMER = {
    **tiny.transformer_sizes(WIDTH, layers=LAYERS, heads=HEADS, ffn=FFN),
    "attention_dropout": 0.1,
    "max_position_embeddings": 100,
    **TOKENS,
}
GRID = {
    "source_embed_dim": WIDTH,
    "target_embed_dim": WIDTH,
    "share_encoder_decoder_embeddings": True,
    "num_layers": LAYERS,
    "growth_rate": 4,
    "kernel_size": 3,
    **TOKENS,
}
RECURRENT = {
    "source_embed_dim": WIDTH,
    "target_embed_dim": WIDTH,
    "hidden_size": WIDTH,
    "share_encoder_decoder_embeddings": True,
    **TOKENS,
}
CONVOLUTIONAL = {
    "embed_dim": WIDTH,
    "hidden_size": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "max_position_embeddings": 100,
    **TOKENS,
}

CSAN_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": tiny.PLAIN,
    "1D": {**tiny.PLAIN, "local_window": 3, "localness_layers": [0]},
    "2D": {**tiny.ENCODER, "local_window": 5, "head_area": 3},
    "Gaussian": {**tiny.ENCODER, "localness_window": "layer"},
    "everything": {
        **tiny.EVERYWHERE,
        "local_window": 5,
        "head_area": 3,
        "localness_window": "query",
    },
}


class ModelTester:
    """What the library calls a model tester: a configuration and inputs for it."""

    is_training = True
    batch_size = BATCH
    seq_length = LENGTH
    encoder_seq_length = LENGTH
    decoder_seq_length = LENGTH
    vocab_size = WORDS
    hidden_size = WIDTH
    num_attention_heads = HEADS

    def __init__(
        self,
        parent: unittest.TestCase,
        config_class: type[PreTrainedConfig],
        options: dict,
        is_encoder_decoder: bool,
    ) -> None:
        self.parent = parent
        self.config_class, self.options, self.is_encoder_decoder = (
            config_class,
            options,
            is_encoder_decoder,
        )
        self.num_hidden_layers = self.get_config().num_hidden_layers

    def get_config(self) -> PreTrainedConfig:
        return self.config_class(**self.options)

    def prepare_config_and_inputs_for_common(
        self,
    ) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        """A configuration and a batch, the last source token of every sentence </s>."""
        source = torch.randint(START, WORDS, (BATCH, LENGTH))
        source[:, -1] = EOS
        inputs = {"input_ids": source, "attention_mask": source.ne(PAD)}
        if self.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.randint(0, WORDS, (BATCH, LENGTH))
            inputs["decoder_attention_mask"] = source.ne(PAD)
        return self.get_config(), inputs


class _WindowedCache:
    """Tells the library's check of the cache that a windowed decoder layer keeps m positions."""

    def _check_past_key_values_for_generate(
        self: Any, batch_size: int, past_key_values: Cache, seq_length: int | None, config: Any
    ) -> None:
        layers = getattr(past_key_values, "layers", ())
        if seq_length is not None and any(
            isinstance(layer, DynamicSlidingWindowLayer) for layer in layers
        ):
            seq_length = min(seq_length, max(config.local_window // 2, 1))
        super()._check_past_key_values_for_generate(batch_size, past_key_values, seq_length, config)


class _RowCache:
    """Fills in the library's hook for the cache: Pervasive Attention keeps k // 2 rows a layer."""

    def _check_past_key_values_for_generate(
        self, batch_size: int, past_key_values: EncoderDecoderCache, seq_length: int, config: Any
    ) -> None:
        cache = past_key_values.self_attention_cache
        assert len(past_key_values.cross_attention_cache) == 0
        assert len(cache) == config.num_layers
        assert cache.get_seq_length() == seq_length
        channels = config.bottleneck_factor * config.growth_rate
        for layer in cache.layers:
            assert layer.keys.shape == (batch_size, 1, config.kernel_size // 2, LENGTH * channels)


@contextlib.contextmanager
def _named(self: unittest.TestCase, message: str = "", **parameters: Any) -> Iterator[None]:
    """In the place of `subTest`: the first failure ends the test. Thousands of reports cost more
    than the checks.
    """
    try:
        yield
    except Exception:
        print(f"in {message} {parameters}")
        raise


_FAMILY_SIZES = {
    MarianConfig: TRANSFORMER,
    CsanConfig: TRANSFORMER,
    PervasiveAttentionConfig: GRID,
    RnnSearchConfig: RECURRENT,
    ConvS2SConfig: CONVOLUTIONAL,
}
_CACHES = {CsanConfig: (_WindowedCache,), PervasiveAttentionConfig: (_RowCache,)}
_WITHOUT_HEADS = ["hidden_size", "num_hidden_layers"]
_COMMON_PROPERTIES = dict.fromkeys(
    (PervasiveAttentionConfig, RnnSearchConfig, ConvS2SConfig), _WITHOUT_HEADS
)


def add(model_class: type, name: str = "", options: dict[str, Any] | None = None) -> None:
    """Adds a test case: the library's tests of one model class in the configuration `name`, of
    fields `options`.
    """
    config_class = model_class.config_class
    # A head on the encoder alone takes no decoder inputs
    is_encoder_decoder = "decoder_input_ids" in inspect.signature(model_class.forward).parameters
    sizes = {
        **_FAMILY_SIZES[config_class],
        "is_encoder_decoder": is_encoder_decoder,
        **(options or {}),
    }
    mixins: tuple[type, ...] = (library.ModelTesterMixin,)
    if model_class.can_generate():
        mixins = (*_CACHES.get(config_class, ()), *mixins, library.GenerationTesterMixin)

    def set_up(self: Any) -> None:
        self.model_tester = ModelTester(self, config_class, sizes, is_encoder_decoder)
        properties = _COMMON_PROPERTIES.get(config_class)
        self.config_tester = library.ConfigTester(
            self, config_class=config_class, common_properties=properties
        )

    def test_config(self: Any) -> None:
        self.config_tester.run_common_tests()

    members = {
        "subTest": _named,
        "all_model_classes": (model_class,),
        "is_encoder_decoder": is_encoder_decoder,
        "has_attentions": config_class in (MarianConfig, CsanConfig),  # self-attention, that is
        "setUp": set_up,
        "test_config": test_config,
    }
    if (
        config_class is PervasiveAttentionConfig
        and model_class.can_generate()
        and library.has_generation
    ):
        # Its cache is one of evaluation: with gradients enabled, as the test leaves them, `forward`
        # returns none
        name_of_test = "test_generate_continue_from_past_key_values"
        members[name_of_test] = torch.no_grad()(
            getattr(library.GenerationTesterMixin, name_of_test)
        )
    case = "_".join(filter(None, (model_class.__name__, name)))
    globals()[case] = type(case, (*mixins, unittest.TestCase), members)


for marian in (MarianModel, MarianMTModel):
    add(marian)
GENERATING = ("plain", "2D", "everything") if library.has_generation else ("everything",)
for model_class, names in {  # each configuration once, and generation where it differs
    CsanForConditionalGeneration: GENERATING,
    CsanModel: ("plain", "Gaussian"),
    CsanForSequenceClassification: ("1D",),
    CsanForTokenClassification: ("2D",),
}.items():
    for name in names:
        add(model_class, name, CSAN_CONFIGURATIONS[name])
for model_class in (PervasiveAttentionModel, PervasiveAttentionForConditionalGeneration):
    add(model_class)
for model_class in (
    RnnSearchModel,
    RnnSearchForConditionalGeneration,
    ConvS2SModel,
    ConvS2SForConditionalGeneration,
):
    add(model_class)
