# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation with ONNX Runtime by transformers' `generate`, of what `csan_hf.hub.onnx` exported.

Shapes: B sentences, K beams of each, J source positions, I target positions, V target vocabulary, d
width."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from ..models.seq2seq_model import known_keywords, takes_past_key_values
from .search import search_by_default

ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"
PAST, PRESENT = "past_key_values.", "present."


def check_installed() -> None:
    """Raises ImportError if a package of the extra `onnx` is missing."""
    packages = ("onnx", "onnxscript", "onnxruntime")
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise ImportError(f"ONNX needs {', '.join(missing)}: pip install csan_hf[onnx]")


class _OnnxEncoder(nn.Module):
    """The encoder's graph, as `generate` calls it."""

    main_input_name = "input_ids"

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        **not_returned: Any,  # attentions and hidden states, which are not in the graph
    ) -> BaseModelOutput:
        """[B, J] -> `last_hidden_state` [B, J, d]; without a mask every token counts."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        (states,) = self.session.run(
            None, {"input_ids": input_ids.numpy(), "attention_mask": mask.long().numpy()}
        )
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states))


class _OnnxCache(Cache):
    """The tensors that the decoder's graph gave after `length` positions; none before the first."""

    is_compileable = False

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.length = 0
        self.tensors: dict[str, np.ndarray] = {}

    def start(self, session: Any, rows: int, sentences: int) -> None:
        """Fill in the tensors that the graph takes ahead of the first token."""
        for tensor in session.get_inputs():
            if tensor.name.startswith(PAST):
                sizes = [0 if isinstance(axis, str) else axis for axis in tensor.shape[1:]]
                count = sentences if ".encoder." in tensor.name else rows
                self.tensors[tensor.name] = np.zeros([count, *sizes], np.float32)

    def get_seq_length(self, *args: Any) -> int:
        """Target positions that are kept."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let beams go on from others of their sentence, with the source's tensors in common."""
        self.keep_rows(beam_idx, None)

    def keep_rows(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Go on with some rows, in this order, of some sentences; None = of all."""
        for name, tensor in self.tensors.items():
            kept = sentences if ".encoder." in name else rows
            if kept is not None:
                self.tensors[name] = tensor[kept.numpy()]


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

    def __init__(self, config: Any, encoder: Any, decoder: Any) -> None:
        super().__init__(config)
        self.encoder = _OnnxEncoder(encoder)
        self._decoder = decoder
        self._outputs = [output.name for output in decoder.get_outputs()]

    @classmethod
    def from_directory(cls, directory: str | os.PathLike, **options: Any) -> OnnxTranslationModel:
        """Loads what `export_onnx` wrote.

        Args:
            directory: The directory.
            **options: See `onnxruntime.InferenceSession`; without `sess_options`, with as many
                threads as torch.

        Raises:
            OSError: The directory or a file is missing or damaged.
            ImportError: See `export_onnx`.
        """
        check_installed()
        from onnxruntime import InferenceSession, SessionOptions

        if "sess_options" not in options:
            options["sess_options"] = SessionOptions()
            options["sess_options"].intra_op_num_threads = torch.get_num_threads()
        options.setdefault("disabled_optimizers", ["SkipLayerNormFusion"])  # slower than its parts
        # The graphs need no code
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        files = [Path(directory, name) for name in (ENCODER, DECODER)]
        if missing := [file.name for file in files if not file.is_file()]:
            raise FileNotFoundError(
                f"{directory} lacks {' and '.join(missing)}: export the model again."
            )
        try:
            encoder, decoder = (InferenceSession(file, **options) for file in files)
        except Exception as error:  # of a class for each fault
            raise OSError(
                f"{directory} cannot be read ({error}): export the model again."
            ) from error
        model = cls(config, encoder, decoder)
        model.generation_config = GenerationConfig.from_pretrained(directory)
        model.name_or_path = str(directory)
        return model.eval()

    from_pretrained = from_directory  # type: ignore[assignment]

    device = property(lambda self: torch.device("cpu"))
    dtype = property(lambda self: torch.float32)

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """The encoder, for `generate`."""
        return self.encoder

    def _prepare_cache_for_generation(self, config: Any, model_kwargs: dict, *args: Any) -> None:  # type: ignore[override]
        model_kwargs.setdefault("cache", _OnnxCache())

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
        if not isinstance(cache, _OnnxCache | None):
            raise ValueError(
                f"ONNX graphs keep tensors of their own, which {type(cache).__name__} cannot "
                "hold: leave `cache` unset."
            )
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        states = encoder_outputs[0].numpy()
        tokens = decoder_input_ids.numpy()
        mask = np.ones(states.shape[:2], np.int64)
        if attention_mask is not None:
            mask = attention_mask.long().numpy()
        cache = _OnnxCache() if cache is None else cache
        if cache.length == 0:
            cache.start(self._decoder, len(tokens), len(states))
        source = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
        logits = [
            self._step(tokens[:, place : place + 1], source, cache)
            for place in range(tokens.shape[1])
        ]
        return Seq2SeqLMOutput(logits=torch.cat(logits, dim=1), cache=cache)

    def _step(self, tokens: np.ndarray, source: dict[str, Any], cache: _OnnxCache) -> Tensor:
        names = [name for name in self._outputs if cache.length == 0 or ".encoder." not in name]
        logits, *present = self._decoder.run(
            names, {"input_ids": tokens, **source, **cache.tensors}
        )
        for name, tensor in zip(names[1:], present, strict=True):
            cache.tensors[name.replace(PRESENT, PAST)] = tensor
        cache.length += 1
        return torch.from_numpy(logits)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """See transformers; greedy and beam search by `search`."""
        return super().generate(*args, **search_by_default(kwargs))

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, cache: _OnnxCache | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Returns the decoder's inputs of a step: the tokens that are not yet in the cache."""
        new = input_ids if cache is None else input_ids[:, cache.get_seq_length() :]
        kwargs.pop("next_sequence_length", None)  # what it says is known from the cache
        kwargs.pop("is_first_iteration", None)
        return {"decoder_input_ids": new, "cache": cache, **kwargs}
