# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Export to ONNX with a cache; `csan_hf_runtime.graph_engine` translates with it.

Files, inputs and outputs are named as optimum's are. Its merged decoder has a branch without cache
for the first step; here the first step takes a cache of length 0.

Shapes: B sentences, K beams of each, J source positions, V target vocabulary, d width.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from csan_hf.families import FAMILIES
from csan_hf_runtime.export_files import FILES, digests_of_files
from csan_hf_runtime.extras import needs_extra
from csan_hf_runtime.graphs import (
    ALIGNMENT,
    DECODER,
    ENCODER,
    PAST,
    PRESENT,
    SOURCE,
    WEIGHTS,
    GraphDecoder,
    Graphs,
)
from csan_hf_runtime.text_files import new_directory, write_json

from .onnx_precision import EXACT, PRECISIONS
from .onnx_steps import MODULES, Encoder, Source, Step, Tensors
from .vocabularies import save_vocabularies


def export_onnx(
    model: PreTrainedModel,
    directory: str | os.PathLike,
    *,
    precision: str = "float32",
    with_attention: bool = False,
    tokenizers: Any = None,
) -> Path:
    """Writes a sequence-to-sequence model as ONNX graphs, for any batch size and length within its
    positions.

    `encoder_model.onnx` gives `last_hidden_state` [B, J, d] of `input_ids` and `attention_mask` [B,
    J]; `decoder_model_merged.onnx` gives `logits` [B · K, 1, V] and the cache `present.*` of
    `input_ids` [B · K, 1], K consecutive rows of one source, `encoder_attention_mask`,
    `encoder_hidden_states` and `past_key_values.*`, the cache after the token before; ahead of the
    first token its free axes have length 0. Keys and values of the source,
    `past_key_values.*.encoder.*`, are what `source_model.onnx` gives of `encoder_hidden_states`
    (and of `input_ids`, where lines count).
    `csan_hf_runtime.translator.TextTranslator.from_directory` translates with the graphs, without
    torch. Everything is written beside `directory` and then moved.

    Args:
        model: A model of csan_hf (float32), unwrapped.
        directory: A new or empty directory.
        precision: `"float32"`; `"float16"`: weights are kept in float16 and computed with in
            float32; or `"int8"`: products have weights of 7 bits and activations quantised at
            run time, each row with a scale of its own; embeddings and the encoder's LSTM are stored
            in 8 bits and computed with in float32. Convolutions' weights are float32 in int8, the
            steps of moving Gaussians in all.
        with_attention: Whether the decoder gives `alignment` [B · K, 1, J], too: how strongly the
            next token is related to each source token, by the last layer that attends to these, the
            mean of its heads. Of a Pervasive Attention that pools otherwise than by attention, it
            is about the likeliest next token.
        tokenizers: The tokenizer or `TokenizerPair` to save beside the graphs; None = none.

    Returns:
        `directory` as a `Path`.

    Raises:
        ValueError: The model is an ensemble or an export, or not in float32, or the directory is
            not empty; or the graphs do not run, or compute something else than the model: each
            export is tried once with two beams of two sentences.
        ImportError: Onnx, onnxscript or onnxruntime is missing (`pip install '.[onnx]'`).
    """
    with needs_extra("onnx"):
        for name in ("onnx", "onnxscript", "onnxruntime"):
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(name=name)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be {', '.join(PRECISIONS)}, got {precision!r}.")
    convert, largest_error = PRECISIONS[precision]
    directory = Path(directory)
    if not hasattr(model, "model") or model.config.model_type not in FAMILIES:
        raise ValueError(
            f"{type(model).__name__} cannot be exported, only single checkpoints of "
            f"{', '.join(FAMILIES)}, to a directory each."
        )
    if model.dtype != torch.float32:
        raise ValueError(
            f"The model's data type must be float32, got {model.dtype}: call model.float()."
        )
    with new_directory(directory) as staging:
        config = model.config.to_diff_dict()
        for code in ("auto_map", "custom_pipelines"):  # which graphs do not have
            config.pop(code, None)
        write_json(staging / "config.json", config)
        model.generation_config.save_pretrained(staging)
        if tokenizers is not None:
            save_vocabularies(tokenizers, staging, model.config)
        traced = deepcopy(model).eval()
        inputs, expected = _trial(traced)
        _trace(traced, staging, with_attention)
        for graph in staging.glob("*.onnx"):
            convert(graph)
        name = f"{model.name_or_path or type(model).__name__} as ONNX graphs in {precision}"
        try:
            error = _error(staging, inputs, expected)
        except Exception as failure:  # of a class for each fault
            raise ValueError(f"{name} does not run: {failure}") from failure
        if not error <= largest_error:  # nor is it "not a number"
            raise ValueError(
                f"{name} computes something else: its logits differ from torch's by {error:.0%}."
            )
    return directory


@torch.no_grad()
def _trial(model: PreTrainedModel) -> tuple[Tensors, Tensor]:
    """Two tokens of two beams of two sentences: the graphs' inputs, and the model's logits."""
    generator = torch.Generator().manual_seed(1)
    sources = torch.randint(model.config.vocab_size, (2, 7), generator=generator)
    mask = torch.ones_like(sources)
    mask[1, 4:] = 0
    targets = torch.randint(model.config.decoder_vocab_size, (4, 2), generator=generator)
    expected = model(
        input_ids=sources.repeat_interleave(2, dim=0),
        attention_mask=mask.repeat_interleave(2, dim=0),
        decoder_input_ids=targets,
    ).logits
    inputs = {"input_ids": sources, "attention_mask": mask, "decoder_input_ids": targets}
    return inputs, expected


def _error(directory: Path, inputs: Tensors, expected: Tensor) -> float:
    """How far the graphs' logits are from the expected ones, as a share of how these vary; those of
    forbidden tokens (of lines) must be the same.
    """
    logits = graph_logits(directory, **inputs)
    is_forbidden = expected.isinf()
    if not torch.equal(logits.isinf(), is_forbidden):
        return torch.inf
    mean = expected.masked_fill(is_forbidden, torch.nan).nanmean(dim=-1, keepdim=True)
    errors = (logits - expected).masked_fill(is_forbidden, 0.0)
    deviations = (expected - mean).masked_fill(is_forbidden, 0.0)
    return (errors.norm() / deviations.norm()).item()


def graph_logits(
    directory: Path, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor
) -> Tensor:
    """Logits [B · K, I, V] of graphs after target tokens [B · K, I] of sources [B, J]."""
    graphs = Graphs.from_directory(directory)
    mask = attention_mask.numpy()
    decoder = GraphDecoder(graphs, graphs.encode(input_ids.numpy(), mask))
    targets = decoder_input_ids.numpy()
    logits = [decoder.step(targets[:, : length + 1]) for length in range(targets.shape[1])]
    return torch.from_numpy(np.stack(logits, axis=1))


@torch.no_grad()
def _trace(model: PreTrainedModel, directory: Path, with_attention: bool) -> None:
    """Writes the graphs."""
    weights = hashlib.sha256()
    for tensor in model.state_dict().values():
        weights.update(tensor.numpy().tobytes())
    metadata = {WEIGHTS: weights.hexdigest(), FILES: digests_of_files(directory)}
    if model._supports_sdpa:
        model.set_attn_implementation("sdpa")  # blocks are made for one length
    for part in _parts_of(model, with_attention):
        with warnings.catch_warnings(action="ignore"):  # of names of axes, and of torch's own code
            graph = part.export()
        for node in graph.model.graph:
            scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")
            if any(module in scopes for module in model._keep_in_fp32_modules_strict or ()):
                node.name = f"{EXACT}{node.name}"
            node.metadata_props.clear()  # stack traces, longer than small weights
        graph.model.metadata_props.update(metadata)
        graph.save(directory / part.file)


class _Part(NamedTuple):
    """A module that takes a dictionary and becomes a graph.

    Attributes:
        file: Name of the graph's file.
        module: The module.
        inputs: Tensors to trace it with.
        axes: Names of the free axes of each input.
        outputs: Names of the outputs.
    """

    file: str
    module: nn.Module
    inputs: Tensors
    axes: dict[str, dict[int, str]]
    outputs: list[str]

    def export(self) -> Any:
        """The `torch.onnx.ONNXProgram`."""
        attention = torch.ops.aten.scaled_dot_product_attention.default
        graph: Any = torch.onnx.export(
            self.module,
            kwargs={"inputs": self.inputs},
            dynamic_shapes={"inputs": self.axes},
            dynamo=True,
            verbose=False,
            input_names=list(self.inputs),
            output_names=self.outputs,
            custom_translation_table={attention: _attention},
        )
        for output in graph.model.graph.outputs:
            if output.name.startswith(PRESENT):  # of a window, which a sentence fills first
                output.shape[2] = f"{output.name} positions"
        return graph


def _parts_of(model: PreTrainedModel, with_attention: bool) -> Iterator[_Part]:
    """The encoder, the decoder and, for decoders that need it, the projections of the source."""
    make_encoder, make_step = MODULES.get(model.config.model_type, (Encoder, Step))
    encoder = make_encoder(model.get_encoder())
    step = make_step(model, with_attention)
    sentences = 2
    source_tokens = 6
    ids = torch.ones(sentences, source_tokens, dtype=torch.long)
    source_axes = {0: "batch_size", 1: "encoder_sequence_length"}
    source = {"input_ids": ids, "attention_mask": ids.clone()}
    states = encoder(source)
    axes = dict.fromkeys(source, source_axes)
    yield _Part(ENCODER, encoder, source, axes, outputs=["last_hidden_state"])
    inputs = {"encoder_hidden_states": states}
    if getattr(model.config, "line_method", None) is not None:
        inputs["input_ids"] = ids
    of_source = {PAST + name: tensor for name, tensor in step.project(inputs).items()}
    if of_source:
        axes = dict.fromkeys(inputs, source_axes)
        yield _Part(SOURCE, Source(step), inputs, axes, outputs=list(of_source))
    rows = 3 * sentences  # another number of beams than is usual, so that it is free
    inputs = {
        "input_ids": torch.ones(rows, 1, dtype=torch.long),
        "encoder_attention_mask": ids.clone(),
        "encoder_hidden_states": states,
    }
    axes = {**dict.fromkeys(inputs, source_axes), "input_ids": {0: "rows"}}
    for name, sizes in step.states.items():
        inputs[PAST + name] = torch.zeros(rows, *sizes)
        axes[PAST + name] = {0: "rows", 2: f"past {name}"}
    inputs |= of_source
    projected_axes = {0: "batch_size", 2: "encoder_sequence_length"}
    axes |= dict.fromkeys(of_source, projected_axes)
    outputs = ["logits", *(PRESENT + name for name in step.states)]
    if with_attention:
        outputs.append(ALIGNMENT)
    yield _Part(DECODER, step, inputs, axes, outputs)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    """See torch's, by products that ONNX Runtime fuses with the transposition."""
    from onnxscript import ir, opset18

    energies = opset18.MatMul(opset18.Mul(query, scale), opset18.Transpose(key, perm=[0, 1, 3, 2]))
    if attn_mask is not None and attn_mask.dtype == ir.DataType.BOOL:
        energies = opset18.Where(attn_mask, energies, torch.finfo(torch.float32).min)
    elif attn_mask is not None:
        energies = opset18.Add(energies, attn_mask)
    return opset18.MatMul(opset18.Softmax(energies, axis=-1), value)
