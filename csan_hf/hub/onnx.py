# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Export to ONNX with a cache; `csan_hf.pipelines.onnx_model` translates with it.

Files, inputs and outputs are named as optimum's are. Its merged decoder has a branch without cache
for the first step; here a cache of length 0, which its runners feed there too, makes that
unnecessary.

Shapes: B sentences, K beams of each, J source positions, V target vocabulary, d width.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from csan_hf.families import FAMILIES
from csan_hf.pipelines.onnx_model import DECODER, ENCODER, PAST, PRESENT, check_installed
from csan_hf.text_files import new_directory


def export_onnx(
    model: PreTrainedModel,
    directory: str | os.PathLike,
    *,
    precision: str = "float32",
    tokenizers: Any = None,
) -> Path:
    """Writes a sequence-to-sequence model as two ONNX graphs, for any batch size and length within
    its positions.

    `encoder_model.onnx` gives `last_hidden_state` [B, J, d] of `input_ids` and `attention_mask` [B,
    J]; `decoder_model_merged.onnx` gives `logits` [B · K, 1, V] and the cache `present.*` of
    `input_ids` [B · K, 1], K consecutive rows of one source, `encoder_attention_mask`,
    `encoder_hidden_states` and `past_key_values.*`, the cache after the token before; ahead of the
    first token its free axes have length 0. `OnnxTranslationModel` runs them;
    `scripts/translate_onnx.py` does so without torch. Everything is written beside `directory` and
    then moved. No other thread may run models meanwhile: functions of torch and of the model's
    module are replaced for the trace.

    Args:
        model: A model of csan_hf (float32), unwrapped.
        directory: A new or empty directory.
        precision: `"float32"`; `"float16"`, with inputs and outputs in float32; or `"int8"`:
            weights of 7 bits in bytes, activations quantised at run time.
        tokenizers: The tokenizer or `TokenizerPair` to save beside the graphs; None = none.

    Returns:
        `directory` as a `Path`.

    Raises:
        ValueError: The model is an ensemble or an export, or not in float32, or the directory is
            not empty.
        ImportError: Onnx, onnxscript or onnxruntime is missing (`pip install csan_hf[onnx]`).
    """
    check_installed()
    converters: dict[str, Any] = {"float32": None, "float16": _to_float16, "int8": _to_int8}
    directory, convert = Path(directory), converters[precision]
    if not hasattr(model, "model") or model.config.model_type not in FAMILIES:
        name, known = type(model).__name__, ", ".join(FAMILIES)
        raise ValueError(
            f"{name} cannot be exported, only single checkpoints of {known}, to a directory each."
        )
    if model.dtype != torch.float32:
        raise ValueError(
            f"The model's data type must be float32, got {model.dtype}: call model.float()."
        )
    with new_directory(directory) as staging:
        model.config.save_pretrained(staging)
        model.generation_config.save_pretrained(staging)
        _trace(model.eval(), staging)
        for name in (ENCODER, DECODER) if convert is not None else ():
            convert(staging / name)
        if tokenizers is not None:
            tokenizers.save_pretrained(staging)
    return directory


def _to_int8(path: Path) -> None:
    import onnx
    from onnxruntime.quantization import quant_pre_process, quantize_dynamic

    quant_pre_process(path, path, skip_symbolic_shape=True)
    graph = (model := onnx.load(path)).graph
    del graph.value_info[:]  # shapes of weights that the quantiser transposes
    # Convolutions are slower in integers than in float32
    convolutions = [node.name for node in graph.node if node.op_type == "Conv"]
    # 7 bits: sums of products of 8 bits overflow on CPUs without VNNI
    quantize_dynamic(
        model, path, per_channel=True, reduce_range=True, nodes_to_exclude=convolutions
    )


def _to_float16(path: Path) -> None:
    import onnx
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    kept = [
        *DEFAULT_OP_BLOCK_LIST,
        "Transpose",
    ]  # beside an LSTM, ONNX Runtime crashes with those in float16
    onnx.save(
        convert_float_to_float16(onnx.load(path), keep_io_types=True, op_block_list=kept), path
    )


@torch.no_grad()
def _trace(model: Any, directory: Path) -> None:
    """Writes both graphs."""
    step, encoder = _Step(model).eval(), model.get_encoder()
    ids, mask = torch.ones(2, 2, 6, dtype=torch.long)
    both = {0: "batch_size", 1: "encoder_sequence_length"}
    source = {"input_ids": (ids, both), "attention_mask": (mask, both)}
    beams = 3  # traced with another number than is usual, so that it is free
    target = {
        "input_ids": (ids[:, :1].repeat(beams, 1), {0: "rows"}),
        "encoder_attention_mask": (mask, both),
    }
    target["encoder_hidden_states"] = encoder(ids, mask).last_hidden_state, both
    for name, shape in step.states.items():
        is_source = ".encoder." in name
        rows = {0: "batch_size" if is_source else "rows", 2: f"past {name}"}
        target[PAST + name] = torch.zeros(2 if is_source else 2 * beams, *shape), rows
    module: Any = sys.modules[type(model).__module__]
    made: Any = {
        "create_causal_mask": lambda **inputs: None,
        "run_lstm": _run_lstm,
    }  # one query sees the whole cache
    made |= {"create_bidirectional_mask": _padding_mask, "check_as_many": lambda *counts: None}
    with ExitStack() as replaced:
        replaced.enter_context(
            warnings.catch_warnings(action="ignore")
        )  # of names of axes, and of torch's own code
        replaced.enter_context(mock.patch.multiple(module, create=True, **made))
        replaced.enter_context(mock.patch.object(F, "scaled_dot_product_attention", _attention))
        # Blocks are made for one length
        replaced.enter_context(
            mock.patch.object(model.config, "_attn_implementation_internal", "sdpa")
        )
        for layer in model.model.decoder.layers if step.folds else ():
            attend = partial(_attend_in_sentences, layer.encoder_attn.forward)
            replaced.enter_context(mock.patch.object(layer.encoder_attn, "forward", attend))
        _export(encoder, source, ["last_hidden_state"], directory / ENCODER)
        _export(
            step, target, ["logits", *(PRESENT + name for name in step.states)], directory / DECODER
        )


def _padding_mask(attention_mask: Tensor, **inputs: Any) -> Tensor:
    """[B, J] as attention takes it, whatever the number of queries."""
    return attention_mask[:, None, None].bool()


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, **options: Any
) -> Tensor:
    """See torch's, by products that ONNX Runtime fuses with the transposition."""
    energies = query * options["scale"] @ key.transpose(2, 3)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        energies = energies.masked_fill(~attn_mask, torch.finfo(energies.dtype).min)
    elif attn_mask is not None:
        energies = energies + attn_mask
    return energies.softmax(dim=-1) @ value


def _attend_in_sentences(attend: Any, states: Tensor, **inputs: Any) -> Any:
    """Cross-attention with the beams [B · K, 1, d] of a sentence as its queries [B, K, d]: keys are
    not repeated.
    """
    sentences, (rows, _, width) = inputs["key_value_states"].shape[0], states.shape
    shape = torch.cat([torch.full((1,), sentences), torch.tensor([-1, width])])
    queries = _reshape(states, shape, (sentences, rows // sentences, width))
    output, weights = attend(queries, **inputs)
    return _reshape(output, torch.tensor([-1, 1, width]), states.shape), weights


def _reshape(states: Tensor, shape: Tensor, found: Any) -> Tensor:
    """ONNX's own, as torch would have to prove that the number of beams is whole."""
    reshaped: Tensor = torch.onnx.ops.symbolic(
        "Reshape", (states, shape), dtype=states.dtype, shape=found
    )
    return reshaped


def _export(
    module: nn.Module, inputs: Mapping[str, tuple[Tensor, Any]], outputs: list[str], path: Path
) -> None:
    """Saves the graph of a module, of tensors with the names of their free axes."""
    tensors, axes = ({name: pair[part] for name, pair in inputs.items()} for part in (0, 1))
    if isinstance(module, _Step):
        tensors, axes = {"inputs": tensors}, {"inputs": axes}
    names: Any = {"input_names": list(inputs), "output_names": outputs}
    program: Any = torch.onnx.export(
        module, kwargs=tensors, dynamic_shapes=axes, dynamo=True, verbose=False, **names
    )
    for node in program.model.graph:
        node.metadata_props.clear()  # stack traces, longer than small weights
    for kept in program.model.graph.outputs[1:]:
        kept.shape[2] = f"{kept.name} positions"  # of a window, which a sentence fills first
    program.save(path)


def _run_lstm(lstm: nn.LSTM, inputs: Tensor, mask: Tensor) -> Tensor:
    """See `modeling_rnnsearch.run_lstm`: the encoder's as one operation of ONNX, whose gates are i,
    o, f and g.
    """
    length = mask.shape[1]
    real_first = (torch.arange(length) + (~mask).long() * length).argsort(dim=1).unsqueeze(-1)
    pairs = (
        torch.stack(pair).unflatten(1, (4, -1)) for pair in zip(*lstm.all_weights, strict=True)
    )
    weights, recurrent, *biases = (pair[:, [0, 3, 1, 2]].flatten(1, 2) for pair in pairs)
    ordered = inputs.gather(1, real_first.expand_as(inputs)).transpose(0, 1)
    operands = ordered, weights, recurrent, torch.cat(biases, dim=1), mask.sum(dim=1).int()
    options: Any = {"hidden_size": lstm.hidden_size, "direction": "bidirectional"}
    shape = length, 2, mask.shape[0], lstm.hidden_size
    states = torch.onnx.ops.symbolic("LSTM", operands, options, dtype=inputs.dtype, shape=shape)
    states = states.permute(2, 0, 1, 3).flatten(2)
    return torch.zeros_like(states).scatter(1, real_first.expand_as(states), states)


class _Step(nn.Module):
    """One step of a decoder that takes and returns the cache.

    Attributes:
        states: Rows, a length and width of every tensor [B, rows, positions, width] of the cache,
            by name. To trace with, lengths must be neither 0 nor 1, and those of all positions
            above those of a window.
        counter: A tensor of all positions, of no width where no layer keeps all.
        folds: Whether cross-attention takes the beams of a sentence together; otherwise the source
            is repeated.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.decoder, self.kind = model, model.model.decoder, model.config.model_type
        layers = self.decoder.layers if self.kind == "csan" else [None]
        self.folds = all(
            layer is not None and layer.encoder_attn.locality is None for layer in layers
        )
        ids = torch.ones(1, 1, dtype=torch.long)
        cache, source = model.make_cache(1), model.get_encoder()(ids, ids).last_hidden_state
        model(decoder_input_ids=ids, encoder_outputs=(source,), attention_mask=ids, cache=cache)
        if self.kind == "rnnsearch":
            self._keep_keys(cache, source)
        layers = cache.self_attention_cache.layers
        full = [f"{index}.decoder" for index, layer in enumerate(layers) if not layer.is_sliding]
        self.counter = f"{[*full, f'{len(layers)}.decoder'][0]}.key"
        depth = model.config.num_layers if self.kind == "pervasive_attention" else 1
        states = {self.counter: (1, 5, 0)}
        for name, tensor in _tensors(cache).items():
            if width := tensor.shape[3] // depth:
                states[name] = (
                    tensor.shape[1] * depth,
                    5 if name.rpartition(".")[0] in full else 2,
                    width,
                )
        self.states = {
            name: states[name]
            for name in sorted(states, key=lambda name: (int(name.split(".")[0]), name))
        }

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """[B · K, 1, V] and the cache."""
        mask, source = inputs["encoder_attention_mask"], inputs["encoder_hidden_states"]
        past = {name: inputs[PAST + name] for name in self.states}
        cache, rows = self._cache(past, source), inputs["input_ids"].shape[0]
        of_source = {
            name: tensor for name, tensor in _tensors(cache).items() if ".encoder." in name
        }
        if not self.folds:
            sentence = torch.arange(rows) // (rows // mask.shape[0])
            mask, source = mask[sentence], source[sentence]
            for layer in cache.cross_attention_cache.layers:
                layer.keys, layer.values = layer.keys[sentence], layer.values[sentence]
        self._put_last(cache, past, mask, source)
        replaced: Any = nullcontext()
        if self.kind == "rnnsearch":
            keys = cache.cross_attention_cache.layers[0].keys[:, 0]
            replaced = mock.patch.object(self.decoder.attention, "project_keys", return_value=keys)
        given: Any = {"encoder_outputs": (source,), "attention_mask": mask, "cache": cache}
        with replaced:
            logits = self.model(decoder_input_ids=inputs["input_ids"], **given).logits
        present = {
            self.counter: F.pad(past[self.counter], (0, 0, 0, 1)),
            **_tensors(cache),
            **of_source,
        }
        if self.kind == "pervasive_attention" and "0.decoder.key" in self.states:
            sums = present["0.decoder.key"].view(
                mask.shape[0], -1, mask.shape[1], self.states["0.decoder.key"][2]
            )
            present["0.decoder.key"] = sums
        return logits, *(present[name] for name in self.states)

    def _cache(self, past: dict[str, Tensor], source: Tensor) -> Any:
        """The model's own cache, with keys and values of the source."""
        cache = self.model.make_cache(1)
        # Of the source's states those that have none in the past: all or none
        for index, layer in enumerate(self.decoder.layers if self.kind == "csan" else ()):
            keys = past[f"{index}.encoder.key"]
            cache.cross_attention_cache.update(keys, past[f"{index}.encoder.value"], index)
            layer.encoder_attn._keys_and_values(source[:, keys.shape[2] :], None, cache)
        if self.kind == "rnnsearch":
            keys = past["0.encoder.key"]
            cache.cross_attention_cache.update(keys, keys[..., :0], 0)
            self._keep_keys(cache, source[:, keys.shape[2] :])
        return cache

    def _put_last(self, cache: Any, past: dict[str, Tensor], mask: Tensor, source: Tensor) -> None:
        """Put what is kept of the tokens before into the cache."""
        for index, layer in enumerate(cache.self_attention_cache.layers):
            layer.cumulative_length = past[self.counter].shape[2]  # of sliding windows
            kept = [
                past[name]
                for kind in ("key", "value")
                if (name := f"{index}.decoder.{kind}") in past
            ]
            if index >= getattr(self.model.config, "decoder_layers", 0):
                kept = [self._last(tensor, mask, source) for tensor in kept]
            if kept:
                layer.lazy_initialization(kept[0], kept[0])
                layer.keys, layer.values = kept if len(kept) == 2 else (kept[0], kept[0][..., :0])

    def _keep_keys(self, cache: Any, source: Tensor) -> None:
        """Keep what RNNsearch projects of the source's states."""
        keys = self.decoder.attention.project_keys(source)[:, None]
        cache.cross_attention_cache.update(keys, keys[..., :0], 0)

    def _last(self, kept: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        """The last of what is kept of one position; ahead of the first token what stands before it."""
        batch, rows, length, width = kept.shape
        is_grid = self.kind == "pervasive_attention"
        first = kept.new_zeros(batch, rows, mask.shape[1] if is_grid else 1, width)
        if self.kind == "rnnsearch":
            first = self.decoder._initial_state(source, mask)[:, None, None]
        last = torch.cat([first, kept], dim=2)[:, :, length:]
        return last.reshape(batch, 1, 1, -1) if is_grid else last


def _tensors(cache: Any) -> dict[str, Tensor]:
    """Keys and values of a cache, by name."""
    halves = {
        "decoder": cache.self_attention_cache.layers,
        "encoder": cache.cross_attention_cache.layers,
    }
    layers = {
        f"{index}.{part}": layer
        for part, half in halves.items()
        for index, layer in enumerate(half)
    }
    return {
        f"{name}.{kind}": getattr(layer, f"{kind}s")
        for name, layer in layers.items()
        for kind in ("key", "value")
    }
