# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Export to ONNX by transformers' exporter, and translation with ONNX Runtime by transformers' `generate`."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

ENCODER, DECODER = "encoder", "decoder"
_BATCH_AND_LENGTH = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}


def export_onnx(
    model: PreTrainedModel, directory: str | os.PathLike, *, precision: str = "float32", tokenizers: Any = None
) -> Path:
    """Writes a sequence-to-sequence model as two ONNX graphs, for any batch size and length within its positions.

    `encoder/model.onnx` gives the states of the sources, `decoder/model.onnx` the logits for these and a target
    prefix. `OnnxTranslationModel` runs them. Everything is written beside `directory` and then moved.

    Args:
        model: A model of csan_hf (float32), unwrapped.
        directory: A new or empty directory.
        precision: `"float32"`, or `"int8"`: weights of 8 bits, activations quantised at run time.
        tokenizers: The tokenizer or `TokenizerPair` to save beside the graphs; None = none.

    Returns:
        `directory` as a `Path`.

    Raises:
        ValueError: The model is not in float32, or the directory is not empty.
        ImportError: Onnx, onnxscript or onnxruntime is missing (`pip install csan_hf[onnx]`).
    """
    _check_installed()
    directory = Path(directory)
    if model.dtype != torch.float32:
        raise ValueError(f"The model's data type must be float32, got {model.dtype}: call model.float().")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} is not empty; ONNX graphs need a new directory.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as temporary:
        staging = Path(temporary, "onnx")
        for name, (part, inputs) in _parts(model.eval()).items():
            _export(part, inputs, precision).save_pretrained(staging / name)
        model.config.save_pretrained(staging)
        model.generation_config.save_pretrained(staging)
        if tokenizers is not None:
            tokenizers.save_pretrained(staging)
        if directory.exists():
            directory.rmdir()
        os.rename(staging, directory)
    return directory


def _check_installed() -> None:
    packages = ("onnx", "onnxscript", "onnxruntime")
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise ImportError(f"ONNX needs {', '.join(missing)}: pip install csan_hf[onnx]")


def _parts(model: PreTrainedModel) -> dict[str, tuple[PreTrainedModel, dict[str, Any]]]:
    """The modules to export, with inputs to trace them with."""
    ids = torch.full((2, 5), int(model.config.pad_token_id or 0), device=model.device)
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    encoder: Any = model.get_encoder()
    with torch.no_grad():
        states = encoder(**source).last_hidden_state
    target = {"attention_mask": source["attention_mask"], "decoder_input_ids": ids[:, :4], "use_cache": False}
    return {ENCODER: (encoder, source), DECODER: (model, {"encoder_outputs": (states,), **target})}


def _export(part: PreTrainedModel, inputs: dict[str, Any], precision: str) -> Any:
    from transformers.exporters import OnnxConfig, OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer
    from transformers.exporters.exporter_onnx import OnnxExporter

    shapes: dict[str, Any] = {name: _BATCH_AND_LENGTH for name in inputs if name != "use_cache"}
    if "encoder_outputs" in inputs:
        shapes["encoder_outputs"] = (_BATCH_AND_LENGTH,)
    dynamic = OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig(per_channel=True))
    quantizer = {"float32": None, "int8": dynamic}[precision]
    config = OnnxConfig(dynamic=True, dynamic_shapes=shapes, quantizer=quantizer)
    return OnnxExporter().export(part, inputs, config=config)


class _OnnxEncoder(nn.Module):
    """The encoder's graph, as `generate` calls it."""

    main_input_name = "input_ids"

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.graph = graph

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutput:
        """[B, J] -> `last_hidden_state` [B, J, d]; without a mask every token counts."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        states = self.graph(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return BaseModelOutput(last_hidden_state=torch.as_tensor(states))


class OnnxTranslationModel(PreTrainedModel, GenerationMixin):
    """A model that `export_onnx` wrote, on ONNX Runtime: greedy and beam search, sampling, the pipeline.

    ```python
    model = OnnxTranslationModel.from_directory("onnx")
    translation_pipeline(model, tokenizer=AutoTokenizer.from_pretrained("onnx"), device="cpu")("Guten Morgen.")
    ```

    The decoder's graph has no cache: each step computes the whole prefix, which suits sentences.
    """

    main_input_name = "input_ids"
    base_model_prefix = ""
    _supports_sdpa = True
    _is_stateful = False

    def __init__(self, config: Any, encoder: Any, decoder: Any) -> None:
        super().__init__(config)
        self.encoder, self._decoder_graph = _OnnxEncoder(encoder), decoder

    @classmethod
    def from_directory(cls, directory: str | os.PathLike, **runner_options: Any) -> OnnxTranslationModel:
        """Loads what `export_onnx` wrote.

        Args:
            directory: The directory.
            **runner_options: See transformers' `ExportedModel.from_pretrained`: `providers`, `session_options`.

        Raises:
            OSError: The directory or a file is missing.
            ImportError: See `export_onnx`.
        """
        _check_installed()
        from transformers.exporters.base import ExportedModel

        directory = Path(directory)
        config = AutoConfig.from_pretrained(directory)
        graphs = [ExportedModel.from_pretrained(directory / name, **runner_options) for name in (ENCODER, DECODER)]
        model = cls(config, *graphs)
        model.generation_config = GenerationConfig.from_pretrained(directory)
        model.generation_config.use_cache = False
        model.name_or_path = str(directory)
        return model.eval()

    from_pretrained = from_directory  # type: ignore[assignment]

    device = property(lambda self: torch.device("cpu"))
    dtype = property(lambda self: torch.float32)

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """The encoder, for `generate`."""
        return self.encoder

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits [B, I, V] for `decoder_input_ids` [B, I] and sources [B, J] or what the encoder made of them."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        if attention_mask is None:
            attention_mask = torch.ones(encoder_outputs[0].shape[:2], dtype=torch.long)
        encoded = {"encoder_outputs": (encoder_outputs[0],), "attention_mask": attention_mask}
        outputs = self._decoder_graph(**encoded, decoder_input_ids=decoder_input_ids)
        return Seq2SeqLMOutput(logits=torch.as_tensor(outputs.logits))

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:  # type: ignore
        """Returns the decoder's inputs of a step: the whole prefix, as there is no cache."""
        return {
            "decoder_input_ids": input_ids,
            **{name: kwargs.get(name) for name in ("attention_mask", "encoder_outputs")},
        }
