# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation with ONNX Runtime by transformers' `generate`, of what `csan_hf.hub.onnx` exported.

Shapes: B sentences, K beams of each, J source positions, I target positions, V target vocabulary, d
width."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from csan_hf_runtime.extras import needs_extra
from csan_hf_runtime.graphs import DecoderCache, Graphs

from ..models.seq2seq_model import CACHE, known_keywords, passed_cache, takes_past_key_values


def check_installed() -> None:
    """Raises ImportError if a package of the extra `onnx` is missing."""
    with needs_extra("onnx"):
        for name in ("onnx", "onnxscript", "onnxruntime"):
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(name=name)


class _OnnxEncoder(nn.Module):
    """The encoder's graph, as `generate` calls it."""

    main_input_name = "input_ids"

    def __init__(self, graphs: Graphs) -> None:
        super().__init__()
        self._graphs = graphs

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        **not_returned: Any,  # attentions and hidden states, which are not in the graph
    ) -> BaseModelOutput:
        """[B, J] -> `last_hidden_state` [B, J, d]; without a mask every token counts."""
        ids = input_ids.numpy()
        states = self._graphs.encode(ids, _source_mask(attention_mask, ids))
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states))


class _OnnxCache(DecoderCache, Cache):
    """The decoder's cache, as `generate` calls it."""

    is_compileable = False

    def __init__(self) -> None:
        Cache.__init__(self, layers=[])
        DecoderCache.__init__(self)

    def get_seq_length(self, *args: Any) -> int:
        """Target positions that are kept."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let beams go on from others of their sentence, with the source's tensors in common."""
        self.keep_rows(beam_idx.numpy(), None)


class OnnxTranslationModel(PreTrainedModel, GenerationMixin):
    """A model that `export_onnx` wrote, on ONNX Runtime: greedy and beam search, sampling, the
    pipeline.

    ```python
    model = OnnxTranslationModel.from_directory("onnx")
    tokenizer = AutoTokenizer.from_pretrained("onnx")
    translation_pipeline(model, tokenizer=tokenizer, device="cpu")("Guten Morgen.")
    ```
    """

    main_input_name = "input_ids"
    base_model_prefix = ""
    _supports_sdpa = True
    _is_stateful = False
    gives_attention = False

    def __init__(self, config: Any, graphs: Graphs) -> None:
        super().__init__(config)
        self.encoder = _OnnxEncoder(graphs)
        self._graphs = graphs

    @classmethod
    def from_directory(cls, directory: str | os.PathLike) -> OnnxTranslationModel:
        """Loads what `export_onnx` wrote, with as many threads as torch has.

        Raises:
            OSError: The directory or a file is missing or damaged.
            ImportError: See `export_onnx`.
        """
        check_installed()
        # The graphs need no code
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        graphs = Graphs.from_directory(directory, threads=torch.get_num_threads())
        model = cls(config, graphs)
        model.generation_config = GenerationConfig.from_pretrained(directory)
        model.name_or_path = str(directory)
        return model.eval()

    from_pretrained = from_directory  # type: ignore[assignment]

    device = property(lambda self: torch.device("cpu"))
    dtype = property(lambda self: torch.float32)

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """The encoder, for `generate`."""
        return self.encoder

    def make_cache(self, num_beams: int) -> _OnnxCache:
        """An empty cache."""
        return _OnnxCache()

    def _prepare_cache_for_generation(self, config: Any, model_kwargs: dict, *args: Any) -> None:  # type: ignore[override]
        if passed_cache(model_kwargs) is None:
            model_kwargs[CACHE] = _OnnxCache()

    @can_return_tuple
    @takes_past_key_values
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Any = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits [B · K, I, V] for `decoder_input_ids` [B · K, I] and sources [B, J], or the
        encoder's outputs.

        The graphs need a cache, so there is one whatever `use_cache` says. Raises `ValueError` for
        another model's.
        """
        known_keywords(kwargs)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        cache = _checked_cache(cache)
        states = encoder_outputs[0].numpy()
        mask = _source_mask(attention_mask, states)
        logits = [
            self._graphs.step(tokens, states, mask, cache) for tokens in decoder_input_ids.numpy().T
        ]
        return Seq2SeqLMOutput(None, torch.from_numpy(np.stack(logits, axis=1)), cache)

    @takes_past_key_values
    def prepare_inputs_for_generation(
        self, input_ids: Tensor, cache: _OnnxCache | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Returns the decoder's inputs of a step: the tokens that are not yet in the cache."""
        new = input_ids if cache is None else input_ids[:, cache.get_seq_length() :]
        kwargs.pop("next_sequence_length", None)  # what it says is known from the cache
        kwargs.pop("is_first_iteration", None)
        return {"decoder_input_ids": new, "cache": cache, **kwargs}


def _checked_cache(cache: Cache | None) -> _OnnxCache:
    """The cache, or a new one."""
    if cache is None:
        return _OnnxCache()
    if not isinstance(cache, _OnnxCache):
        raise ValueError(
            f"ONNX graphs keep tensors of their own, which {type(cache).__name__} cannot hold: "
            "leave `cache` unset."
        )
    return cache


def _source_mask(mask: Tensor | None, source: np.ndarray) -> np.ndarray:
    """The mask [B, J] of tokens [B, J] or states [B, J, d]; without one every token counts."""
    return np.ones(source.shape[:2], np.int64) if mask is None else mask.long().numpy()
