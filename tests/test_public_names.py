# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What users import and call keeps its name and its arguments; something new is added here."""

import inspect

import pytest

import csan_hf
from csan_hf import (
    CsanConfig,
    CsanForSequenceClassification,
    CsanForTokenClassification,
    TranslationPipeline,
)

SOURCE = "input_ids attention_mask"
TARGET = "decoder_input_ids decoder_attention_mask encoder_outputs cache inputs_embeds decoder_inputs_embeds"
ENCODER = f"self {SOURCE} inputs_embeds labels kwargs"
FAMILIES = ("Csan", "PervasiveAttention", "RnnSearch", "ConvS2S")
MODELS = [getattr(csan_hf, f"{family}Model") for family in FAMILIES]
TRANSLATORS = [getattr(csan_hf, f"{family}ForConditionalGeneration") for family in FAMILIES]
SIGNATURES = {
    csan_hf.local_attention: "query key value window head_area head_boundary bias key_padding_mask causal scale "
    "dropout_p backend",
    CsanConfig.base: "overrides",
    CsanConfig.big: "overrides",
    CsanConfig.preset: "name fields",
    CsanConfig.preset_fields: "name fields",
    CsanConfig.specifications: "self part",
    CsanConfig.layer_locality: "self part index",
    CsanConfig.attention_site: "self part index",
    CsanConfig.local_layers: "self part",
    CsanConfig.localities: "self",
    CsanForSequenceClassification.forward: ENCODER,
    CsanForTokenClassification.forward: ENCODER,
    TranslationPipeline.__call__: "self inputs kwargs",
    csan_hf.PervasiveAttentionModel.synchronize_batch_norm: "self process_group",
    csan_hf.PervasiveAttentionModel.refresh_batch_statistics: "self batches",
    csan_hf.PervasiveAttentionModel.num_parameters_with_masked_taps: "self",
    **{model.forward: f"self {SOURCE} {TARGET} use_cache kwargs" for model in MODELS},
    **{model.forward: f"self {SOURCE} {TARGET} labels use_cache kwargs" for model in TRANSLATORS},
    **{model.prepare_decoder_input_ids_from_labels: "self labels" for model in TRANSLATORS},
    **{model.resize_decoder_token_embeddings: "self new_num_tokens" for model in TRANSLATORS},
}


def test_public_names():
    assert sorted(csan_hf.__all__) == [
        "ConvS2SConfig",
        "ConvS2SForConditionalGeneration",
        "ConvS2SModel",
        "CsanConfig",
        "CsanForConditionalGeneration",
        "CsanForSequenceClassification",
        "CsanForTokenClassification",
        "CsanModel",
        "EnsembleForConditionalGeneration",
        "PervasiveAttentionConfig",
        "PervasiveAttentionForConditionalGeneration",
        "PervasiveAttentionModel",
        "RnnSearchConfig",
        "RnnSearchForConditionalGeneration",
        "RnnSearchModel",
        "TranslationPipeline",
        "__version__",
        "convert_marian",
        "local_attention",
        "translation_pipeline",
    ]


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_arguments(function):
    assert list(inspect.signature(function).parameters) == SIGNATURES[function].split()
