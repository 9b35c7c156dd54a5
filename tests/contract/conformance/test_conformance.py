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
from contract.conformance.library_tests import LibraryTests, UnavailableError
from transformers import (
    MarianConfig,
    MarianModel,
    MarianMTModel,
    PreTrainedConfig,
)

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
BATCH = 13
LENGTH = 7
WORDS = 99
WIDTH = 16
LAYERS = 2
HEADS = 4
FFN = 4
START = 3
PAD = 1
EOS = 2
BOS = 0
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
ONE_VOCABULARY = {"share_encoder_decoder_embeddings": True, **TOKENS}
RECURRENT = {**tiny.RECURRENT_SIZES, **ONE_VOCABULARY}
CONVOLUTIONAL = {**tiny.CONVOLUTIONAL_SIZES, **ONE_VOCABULARY}


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
        self, parent: unittest.TestCase, config_class: type[PreTrainedConfig], options: dict
    ) -> None:
        self.parent = parent
        self.config_class = config_class
        self.options = options
        self.is_encoder_decoder = options["is_encoder_decoder"]
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

    has_heads = config_class in (MarianConfig, CsanConfig)

    def set_up(self: Any) -> None:
        self.model_tester = ModelTester(self, config_class, sizes)
        properties = None if has_heads else ["hidden_size", "num_hidden_layers"]
        self.config_tester = library.ConfigTester(
            self, config_class=config_class, common_properties=properties
        )

    def test_config(self: Any) -> None:
        self.config_tester.run_common_tests()

    members = {
        "subTest": _named,
        "all_model_classes": (model_class,),
        "is_encoder_decoder": is_encoder_decoder,
        "has_attentions": has_heads,  # self-attention, that is
        "setUp": set_up,
        "test_config": test_config,
    }
    case = "_".join(filter(None, (model_class.__name__, name)))
    globals()[case] = type(case, (library.ModelTesterMixin, unittest.TestCase), members)


for model_class, name in [
    (CsanForConditionalGeneration, "everything, query"),
    (CsanModel, "plain"),
    (CsanModel, "cross layer"),
    (CsanForSequenceClassification, "encoder window"),
    (CsanForTokenClassification, "encoder area"),
]:
    add(model_class, name, tiny.LOCALITIES[name])
for model_class in (
    MarianModel,
    MarianMTModel,
    PervasiveAttentionModel,
    PervasiveAttentionForConditionalGeneration,
    RnnSearchModel,
    RnnSearchForConditionalGeneration,
    ConvS2SModel,
    ConvS2SForConditionalGeneration,
):
    add(model_class)
