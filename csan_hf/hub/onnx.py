# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Export to ONNX with a cache, and translation with ONNX Runtime by transformers' `generate`.

Files, inputs and outputs are named as optimum's are. Its merged decoder has a branch without cache for the first step;
here a cache of length 0, which its runners feed there too, makes that unnecessary.

Shapes: B sentences, J source positions, V target vocabulary, d width.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"
PAST, PRESENT = "past_key_values.", "present."


def export_onnx(
    model: PreTrainedModel, directory: str | os.PathLike, *, precision: str = "float32", tokenizers: Any = None
) -> Path:
    """Writes a sequence-to-sequence model as two ONNX graphs, for any batch size and length within its positions.

    `encoder_model.onnx` gives `last_hidden_state` [B, J, d] of `input_ids` and `attention_mask` [B, J];
    `decoder_model_merged.onnx` gives `logits` [B, 1, V] and the cache `present.*` of `input_ids` [B, 1],
    `encoder_attention_mask`, `encoder_hidden_states` and `past_key_values.*`, the cache after the token before; ahead
    of the first token its free axes have length 0. `OnnxTranslationModel` runs them; `scripts/translate_onnx.py` does
    so without torch. Everything is written beside `directory` and then moved.

    Args:
        model: A model of csan_hf (float32), unwrapped.
        directory: A new or empty directory.
        precision: `"float32"`; `"float16"`, with inputs and outputs in float32; or `"int8"`: weights of 8 bits,
            activations quantised at run time.
        tokenizers: The tokenizer or `TokenizerPair` to save beside the graphs; None = none.

    Returns:
        `directory` as a `Path`.

    Raises:
        ValueError: The model is not in float32, or the directory is not empty.
        ImportError: Onnx, onnxscript or onnxruntime is missing (`pip install csan_hf[onnx]`).
    """
    _check_installed()
    directory, convert = Path(directory), {"float32": None, "float16": _to_float16, "int8": _to_int8}[precision]
    if model.dtype != torch.float32:
        raise ValueError(f"The model's data type must be float32, got {model.dtype}: call model.float().")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} is not empty; ONNX graphs need a new directory.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as temporary:
        staging = Path(temporary, "onnx")
        model.config.save_pretrained(staging)
        model.generation_config.save_pretrained(staging)
        _trace(model.eval(), staging)
        for name in (ENCODER, DECODER) if convert is not None else ():
            convert(staging / name)
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


def _to_int8(path: Path) -> None:
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # shapes of weights that the quantiser transposes
    # Depthwise ones, which have few weights, are slower in integers
    depthwise = [
        node.name for node in model.graph.node if any(each.name == "group" and each.i > 1 for each in node.attribute)
    ]
    quantize_dynamic(model, path, per_channel=True, nodes_to_exclude=depthwise)


def _to_float16(path: Path) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), path)


@torch.no_grad()
def _trace(model: Any, directory: Path) -> None:
    """Writes both graphs."""
    step, encoder = _Step(model), model.get_encoder()
    ids, mask = torch.ones(2, 2, 6, dtype=torch.long)
    both = {0: "batch_size", 1: "encoder_sequence_length"}
    source = {"input_ids": (ids, both), "attention_mask": (mask, both)}
    target = {"input_ids": (ids[:, :1], {0: "batch_size"}), "encoder_attention_mask": (mask, both)}
    target["encoder_hidden_states"] = encoder(ids, mask).last_hidden_state, both
    present = {"logits": {0: "batch_size"}}
    for name, (rows, width) in step.states.items():
        # A traced length must be neither 0 nor 1, and that of all positions not below that of a window's
        tensor = torch.zeros(2, rows, 5 if name == step.counter else 2, width)
        target[PAST + name] = tensor, {0: "batch_size", 2: f"past {name}"}
        present[PRESENT + name] = {0: "batch_size", 2: f"present {name}"}
    module = sys.modules[type(model).__module__]
    made = {"create_causal_mask": _no_mask, "create_bidirectional_mask": _padding_mask, "run_lstm": _run_lstm}
    # Blocks are made for one length
    implementation = mock.patch.object(model.config, "_attn_implementation_internal", "sdpa")
    with implementation, mock.patch.multiple(module, create=True, **made):
        _export(encoder, source, {"last_hidden_state": both}, directory / ENCODER)
        _export(step, target, present, directory / DECODER)


def _export(module: nn.Module, inputs: Mapping[str, Any], outputs: Mapping[str, Any], path: Path) -> None:
    """Saves the graph of a module, of tensors with the names of their free axes; the fourth and later are a list."""
    tensors = [tensor for tensor, _ in inputs.values()]
    free = [dict.fromkeys(axes, torch.export.Dim.AUTO) for _, axes in inputs.values()]
    arguments, shapes = ((*each[:3], each[3:]) if each[3:] else tuple(each) for each in (tensors, free))
    names: Any = {"input_names": list(inputs), "output_names": list(outputs)}
    program: Any = torch.onnx.export(module, arguments, dynamic_shapes=shapes, dynamo=True, verbose=False, **names)
    axes = {**{name: axes for name, (_, axes) in inputs.items()}, **outputs}
    for value in (*program.model.graph.inputs, *program.model.graph.outputs):
        for axis, name in axes[value.name].items():
            value.shape[axis] = name
    for node in program.model.graph:
        node.metadata_props.clear()  # stack traces, longer than small weights
    program.save(path)


def _no_mask(**inputs: Any) -> None:
    """The causal mask of one query, which sees all that the cache holds."""


def _padding_mask(inputs_embeds: Tensor, attention_mask: Tensor, **inputs: Any) -> Tensor:
    """What is added to energies, [B, 1, 1, J]."""
    dtype = inputs_embeds.dtype
    return (1 - attention_mask[:, None, None].to(dtype)) * torch.finfo(dtype).min


def _run_lstm(lstm: nn.LSTM, inputs: Tensor, mask: Tensor) -> Tensor:
    """See `modeling_rnnsearch.run_lstm`: the encoder's as one operation of ONNX, for all lengths."""
    batch, length = mask.shape
    places = torch.arange(length) + (~mask).long() * length
    real_first = places.argsort(dim=1).unsqueeze(-1)
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = {kind: [getattr(lstm, f"{kind}_l0{end}") for end in ("", "_reverse")] for kind in kinds}
    stacked = {kind: torch.stack([_gates(each) for each in pair]) for kind, pair in weights.items()}
    bias = torch.cat([stacked.pop("bias_ih"), stacked.pop("bias_hh")], dim=1)
    operands = (
        inputs.gather(1, real_first.expand_as(inputs)).transpose(0, 1),
        *stacked.values(),
        bias,
        mask.sum(dim=1).int(),
    )
    states = torch.onnx.ops.symbolic(
        "LSTM",
        operands,
        {"hidden_size": lstm.hidden_size, "direction": "bidirectional"},
        dtype=inputs.dtype,
        shape=[length, 2, batch, lstm.hidden_size],
    )
    states = states.permute(2, 0, 1, 3).flatten(2)
    return torch.zeros_like(states).scatter(1, real_first.expand_as(states), states)


def _gates(weight: Tensor) -> Tensor:
    """The gates i, f, g, o of torch as ONNX orders them."""
    return weight.unflatten(0, (4, -1))[[0, 3, 1, 2]].flatten(0, 1)


class _Step(nn.Module):
    """One step of a decoder whose cache is its last argument and, after the logits, its result.

    Attributes:
        states: Rows and width of every tensor [B, rows, positions, width] of the cache, by name. A layer of it that
            keeps no keys of attention has what it keeps as keys.
        counter: The tensor whose positions are all that were decoded, of no width where no other has so many.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.decoder, self.kind = model, model.model.decoder, model.config.model_type
        layers = self._layers(model.make_cache(1))
        tensors = {index: self._tensors(index) for index in range(len(layers))}
        self.states = {f"{index}.{name}": size for index, sizes in tensors.items() for name, size in sizes.items()}
        counting = (index for index, layer in enumerate(layers) if not layer.is_sliding)
        self.counter = f"{next(counting, len(layers))}.decoder.key"
        if self.kind == "rnnsearch":
            self.counter = "0.decoder.key"  # has no need of it
        self.states.setdefault(self.counter, (1, 0))

    @staticmethod
    def _layers(cache: Any) -> Any:
        return cache.self_attention_cache.layers

    def _tensors(self, index: int) -> dict[str, tuple[int, int]]:
        """Rows and width of the tensors of a layer of the cache."""
        config: Any = self.model.config
        if self.kind == "conv_s2s":
            return {"decoder.key": (1, config.hidden_size)}
        if self.kind == "rnnsearch":
            state = 1, 2 * config.hidden_size + config.output_dim
            return {"decoder.key": state, "encoder.key": (1, config.hidden_size)}
        if self.kind == "pervasive_attention":
            block = getattr(self.decoder, f"{config.block}_block")
            return {"decoder.key": (config.num_layers, block.pending_channels)}
        if index >= config.decoder_layers:  # the sums of `cross_locality`
            return {"decoder.key": (config.decoder_attention_heads, 1)}
        attention = self.decoder.layers[index].self_attn
        heads = attention.num_heads, attention.head_dim
        return dict.fromkeys(("decoder.key", "decoder.value", "encoder.key", "encoder.value"), heads)

    def forward(self, input_ids: Tensor, mask: Tensor, source: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        """[B, 1], [B, J], [B, J, d] and the cache -> [B, 1, V] and the cache."""
        past = dict(zip(self.states, tensors, strict=True))
        cache: Any = self.model.make_cache(1)
        for index, layer in enumerate(self._layers(cache)):
            keys, values = (past.get(f"{index}.decoder.{name}") for name in ("key", "value"))
            if values is None:
                keys = self._filled_up(keys, layer, mask, source)
            layer.lazy_initialization(keys, keys)
            if values is None:  # the sums of a CSAN are both
                values = keys if self.kind == "csan" else keys[..., :0]
            layer.keys, layer.values = keys, values
            layer.cumulative_length = past[self.counter].shape[2]  # of sliding windows
        present = self._of_the_source(cache, past, source)
        encoded = {"encoder_outputs": (source,), "attention_mask": mask}
        with self._projected(present.get("0.encoder.key")):
            logits = self.model(decoder_input_ids=input_ids, past_key_values=cache, **encoded).logits
        for index, layer in enumerate(self._layers(cache)):
            present |= {f"{index}.decoder.key": layer.keys, f"{index}.decoder.value": layer.values}
        if self.kind == "pervasive_attention":
            rows, width = self.states["0.decoder.key"]
            present["0.decoder.key"] = layer.keys.view(mask.shape[0], rows, mask.shape[1], width)
        if self.counter not in present:
            present[self.counter] = torch.cat([past[self.counter], source.new_zeros(mask.shape[0], 1, 1, 0)], dim=2)
        return logits, *(present[name] for name in self.states)

    def _filled_up(self, keys: Tensor, layer: Any, mask: Tensor, source: Tensor) -> Tensor:
        """The keys of a layer that keeps a fixed number of positions: fewer have what stands for those before them."""
        batch, rows, held, width = keys.shape
        is_grid = self.kind == "pervasive_attention"
        first = keys.new_zeros(batch, rows, mask.shape[1] if is_grid else layer.sliding_window - 1, width)
        if self.kind == "rnnsearch":
            first = self.decoder._initial_state(source, mask)[:, None, None]
        keys = torch.cat([first, keys], dim=2)[:, :, held:]
        return keys.reshape(batch, 1, 1, -1) if is_grid else keys

    def _of_the_source(self, cache: Any, past: dict[str, Tensor], source: Tensor) -> dict[str, Tensor]:
        """Keys and values of the source's states, computed of those alone that have none in the past: all or none."""
        present = {}
        new = source[:, past["0.encoder.key"].shape[2] :] if "0.encoder.key" in past else source
        if self.kind == "rnnsearch":
            keys = self.decoder.attention.project_keys(new)[:, None]
            present["0.encoder.key"] = torch.cat([past["0.encoder.key"], keys], dim=2)
        for index, layer in enumerate(self.decoder.layers if self.kind == "csan" else ()):
            attention = layer.encoder_attn
            for kind, project in (("key", attention.k_proj), ("value", attention.v_proj)):
                name = f"{index}.encoder.{kind}"
                present[name] = torch.cat([past[name], attention._split_heads(project(new))], dim=2)
            pair = (present[f"{index}.encoder.{kind}"] for kind in ("key", "value"))
            cache.cross_attention_cache.update(*pair, index)
            cache.is_updated[index] = True
        return present

    def _projected(self, keys: Tensor | None) -> Any:
        """A context in which RNNsearch attends to these keys instead of projecting the source again."""
        if self.kind != "rnnsearch" or keys is None:
            return nullcontext()
        return mock.patch.object(self.decoder.attention, "project_keys", return_value=keys[:, 0])


class _OnnxEncoder(nn.Module):
    """The encoder's graph, as `generate` calls it."""

    main_input_name = "input_ids"

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> BaseModelOutput:
        """[B, J] -> `last_hidden_state` [B, J, d]; without a mask every token counts."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        (states,) = self.session.run(None, {"input_ids": input_ids.numpy(), "attention_mask": mask.long().numpy()})
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states))


class _OnnxCache:
    """The tensors that the decoder's graph gave after `length` positions, where ONNX Runtime made them."""

    def __init__(self, session: Any, batch: int) -> None:
        self.length = 0
        sizes = {each.name: [batch, *each.shape[1:]] for each in session.get_inputs() if each.name.startswith(PAST)}
        empty = {name: [0 if isinstance(axis, str) else axis for axis in size] for name, size in sizes.items()}
        self.tensors = {name: _value(np.zeros(size, np.float32)) for name, size in empty.items()}

    def get_seq_length(self, *args: Any) -> int:
        """The positions."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let beams go on from others of their sentence, with the source's tensors in common."""
        rows = beam_idx.numpy()
        if not (rows == np.arange(len(rows))).all():
            own = {name: tensor for name, tensor in self.tensors.items() if ".encoder." not in name}
            self.tensors |= {name: _value(tensor.numpy()[rows]) for name, tensor in own.items()}


def _value(array: np.ndarray) -> Any:
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


class OnnxTranslationModel(PreTrainedModel, GenerationMixin):
    """A model that `export_onnx` wrote, on ONNX Runtime: greedy and beam search, sampling, the pipeline.

    ```python
    model = OnnxTranslationModel.from_directory("onnx")
    translation_pipeline(model, tokenizer=AutoTokenizer.from_pretrained("onnx"), device="cpu")("Guten Morgen.")
    ```
    """

    main_input_name = "input_ids"
    base_model_prefix = ""
    _supports_sdpa = True
    _is_stateful = False

    def __init__(self, config: Any, encoder: Any, decoder: Any) -> None:
        super().__init__(config)
        self.encoder, self._decoder = _OnnxEncoder(encoder), decoder
        self._outputs = [output.name for output in decoder.get_outputs()]

    @classmethod
    def from_directory(cls, directory: str | os.PathLike, **options: Any) -> OnnxTranslationModel:
        """Loads what `export_onnx` wrote.

        Args:
            directory: The directory.
            **options: See `onnxruntime.InferenceSession`: `sess_options` for the number of threads.

        Raises:
            OSError: The directory or a file is missing.
            ImportError: See `export_onnx`.
        """
        _check_installed()
        from onnxruntime import InferenceSession

        config = AutoConfig.from_pretrained(directory)
        if missing := [name for name in (ENCODER, DECODER) if not Path(directory, name).is_file()]:
            raise FileNotFoundError(f"{directory} lacks {', '.join(missing)}: export the model with `export_onnx`.")
        model = cls(config, *(InferenceSession(Path(directory, name), **options) for name in (ENCODER, DECODER)))
        model.generation_config = GenerationConfig.from_pretrained(directory)
        model.name_or_path = str(directory)
        return model.eval()

    from_pretrained = from_directory  # type: ignore[assignment]

    device = property(lambda self: torch.device("cpu"))
    dtype = property(lambda self: torch.float32)

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """The encoder, for `generate`."""
        return self.encoder

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `forward` makes its own

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: _OnnxCache | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits [B, I, V] for `decoder_input_ids` [B, I] and sources [B, J] or what the encoder made of them."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        states, tokens = encoder_outputs[0].numpy(), decoder_input_ids.numpy()
        mask = np.ones(states.shape[:2], np.int64) if attention_mask is None else attention_mask.long().numpy()
        cache = past_key_values or _OnnxCache(self._decoder, len(tokens))
        source = {"encoder_hidden_states": _value(states), "encoder_attention_mask": _value(mask)}
        logits = [self._step(tokens[:, place : place + 1], source, cache) for place in range(tokens.shape[1])]
        return Seq2SeqLMOutput(logits=torch.cat(logits, dim=1), past_key_values=cache)

    def _step(self, tokens: np.ndarray, source: dict[str, Any], cache: _OnnxCache) -> Tensor:
        names = [name for name in self._outputs if cache.length == 0 or ".encoder." not in name]
        feeds = {"input_ids": _value(tokens), **source, **cache.tensors}
        logits, *present = self._decoder.run_with_ort_values(names, feeds)
        cache.tensors |= {name.replace(PRESENT, PAST): value for name, value in zip(names[1:], present, strict=True)}
        cache.length += 1
        return torch.from_numpy(logits.numpy())

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, past_key_values: _OnnxCache | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Returns the decoder's inputs of a step: the tokens that are not yet in the cache."""
        new = input_ids[:, past_key_values.length :] if past_key_values is not None else input_ids
        given = {name: kwargs.get(name) for name in ("attention_mask", "encoder_outputs")}
        return {"decoder_input_ids": new, "past_key_values": past_key_values, **given}
