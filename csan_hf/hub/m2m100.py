# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""M2M100 and NLLB checkpoints as CSANs: the same pre-norm Transformer with other sinusoids."""

import os
from typing import Any

from transformers import M2M100Config, M2M100ForConditionalGeneration

from ..models import CsanConfig, CsanForConditionalGeneration
from .conversion import check_attention_is_kept, check_overrides, load_source, shared_fields, transfer


def convert_m2m100(
    name_or_path_or_model: str | os.PathLike | M2M100ForConditionalGeneration,
    *,
    local_window: int | None = None,
    head_area: int = 1,
    **config_overrides: Any,
) -> CsanForConditionalGeneration:
    """Makes a CSAN of an M2M100 or NLLB model, weight for weight, ready for fine-tuning.

    With the defaults it computes what that model computes. With locality the same parameters compute something else,
    so it needs fine-tuning. The model's own tokenizer and the languages of the pipeline stay usable.

    ```python
    model = convert_m2m100("facebook/nllb-200-distilled-600M", local_window=11, head_area=3)
    ```

    Args:
        name_or_path_or_model: An M2M100 model, or the directory or Hub name of one.
        local_window: Window M of the local layers in tokens, both edges included; `None` is unrestricted.
        head_area: Heads N that a local layer attends to jointly; 1 is each head by itself.
        **config_overrides: Other fields of `CsanConfig`: `localness_layers`, `encoder_locality`, `dropout`, ...

    Returns:
        The CSAN in evaluation mode, with the data type, device and generation config of the model. Its weights are
        copies.

    Raises:
        ValueError: The checkpoint is of another family, is incomplete, or holds weights that CSAN cannot represent;
            the message names them. Also where an override names no field of `CsanConfig`.
    """
    check_overrides(config_overrides)
    source = load_source(name_or_path_or_model, M2M100ForConditionalGeneration, "an M2M100")
    config = convert_config(source.config, local_window=local_window, head_area=head_area, **config_overrides)
    check_attention_is_kept(config)
    model: Any = CsanForConditionalGeneration(config)
    weights = {**source.state_dict(), "final_logits_bias": model.final_logits_bias}  # which M2M100 does not have
    return transfer(source, model, weights, "CSAN cannot represent this M2M100 model.")


def convert_config(
    m2m100: M2M100Config, *, local_window: int | None = None, head_area: int = 1, **config_overrides: Any
) -> CsanConfig:
    """Returns the config that `convert_m2m100` gives the CSAN.

    Args:
        m2m100: The config of the M2M100 model.
        local_window: See `convert_m2m100`.
        head_area: See `convert_m2m100`.
        **config_overrides: See `convert_m2m100`.

    Raises:
        ValueError: An override names no field of `CsanConfig`, or is out of range.
    """
    check_overrides(config_overrides)
    fields = shared_fields(m2m100, CsanConfig)
    fields |= {"normalize_before": True, "sinusoids": "m2m_100", "share_encoder_decoder_embeddings": True}
    return CsanConfig(**{**fields, "local_window": local_window, "head_area": head_area, **config_overrides})
