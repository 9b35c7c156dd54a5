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
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import EncoderDecoderCache

from csan_hf.families import FAMILIES
from csan_hf.models.attention_call import ForwardPass
from csan_hf.models.csan_attention import AttentionMasks, CsanAttention
from csan_hf.models.modeling_csan import add_handicap
from csan_hf_runtime.export_files import FILES, digests_of_files
from csan_hf_runtime.extras import needs_extra
from csan_hf_runtime.graphs import (
    ALIGNMENT,
    DECODER,
    ENCODER,
    LINES,
    PAST,
    PRESENT,
    SOURCE,
    WEIGHTS,
    GraphDecoder,
    Graphs,
)
from csan_hf_runtime.text_files import new_directory, write_json

from .vocabularies import save_vocabularies

if TYPE_CHECKING:
    from onnx import NodeProto

Tensors = dict[str, Tensor]
_Decoded = tuple[Tensor, Tensors, Tensor | None]

_SUMS = "0.decoder.key"
"""The tensor of a grid's cache."""
_LINES = f"0.{LINES}"
_EXACT = "float32/"
"""Begins the names of nodes whose weights are kept in float32."""


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
    convert = _CONVERTERS[precision]
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
        if not error <= _LARGEST_ERRORS[precision]:  # nor is it "not a number"
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


def _to_int8(path: Path) -> None:
    import onnx
    from onnx import helper, numpy_helper, parser
    from onnxruntime.quantization import quant_pre_process
    from onnxruntime.quantization.onnx_model import ONNXModel

    quant_pre_process(path, path, skip_symbolic_shape=True)
    model = onnx.load(path)
    graph = model.graph
    quantised = _Int8Nodes(
        {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    )
    nodes = [replacement for node in graph.node for replacement in quantised.replace(node)]
    del graph.node[:]
    graph.node.extend(nodes)
    for name, array in quantised.tensors.items():
        graph.initializer.append(numpy_helper.from_array(array, name))
    ONNXModel(model).clean_initializers()
    model.functions.extend(map(parser.parse_function, _INT8_FUNCTIONS))
    domains = {opset.domain for opset in model.opset_import}
    for domain in {_INT8_DOMAIN, "com.microsoft"} - domains:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    onnx.save(model, path)


_INT8_DOMAIN = "csan_hf.int8"
# A scale for each row of activations: a sentence does not depend on those beside it. Of a row of
# zeros the shares are no numbers; the integers that these become are multiplied by 0.
_INT8_FUNCTIONS = (
    """<domain: "csan_hf.int8", opset_import: ["": 20]>
    quantise (states) => (integers, largest) {
        last = Constant <value_ints: ints = [-1]> ()
        magnitudes = Abs (states)
        largest = ReduceMax (magnitudes, last)
        shares = Div (states, largest)
        unit = Constant <value: tensor = float {0.007874016}> ()
        zero = Constant <value: tensor = uint8 {128}> ()
        integers = QuantizeLinear (shares, unit, zero)
    }""",
    """<domain: "csan_hf.int8", opset_import: ["": 20, "com.microsoft": 1]>
    multiply (integers, largest, weights, scales) => (product) {
        unit = Constant <value: tensor = float {0.007874016}> ()
        zero = Constant <value: tensor = uint8 {128}> ()
        shares = com.microsoft.MatMulIntegerToFloat (integers, weights, unit, scales, zero)
        product = Mul (shares, largest)
    }""",
    """<domain: "csan_hf.int8", opset_import: ["": 20]>
    dequantise (integers, scales) => (weights) {
        whole = Cast <to: int = 1> (integers)
        weights = Mul (whole, scales)
    }""",
)


_PLAIN = {"alpha": 1, "beta": 1, "transA": 0, "axis": 0}
"""Values of attributes that nodes must have, if any, to be replaced."""


class _Int8Nodes:
    """Replaces nodes with weights by nodes with weights in bytes.

    Attributes:
        tensors: The bytes and their scales, by name.
    """

    def __init__(self, constants: dict[str, np.ndarray]) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self._constants = constants
        self._quantised: set[str] = set()  # activations

    def replace(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yields the nodes in place of one; convolutions would be slower in integers."""
        converters = {
            "MatMul": self._product,
            "Gemm": self._product,
            "Gather": self._rows_of_table,
            "LSTM": self._recurrent,
        }
        if node.op_type in converters and self._is_plain(node):
            yield from converters[node.op_type](node)
        else:
            yield node

    def _is_plain(self, node: NodeProto) -> bool:
        """Whether a node multiplies by, or takes rows of, a float32 matrix and does no more."""
        from onnx import helper

        weights = self._constants.get(node.input[0 if node.op_type == "Gather" else 1])
        options = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        return (
            weights is not None
            and weights.ndim == (3 if node.op_type == "LSTM" else 2)
            and weights.dtype == np.float32
            and not node.name.startswith(_EXACT)
            and all(options.get(name, value) == value for name, value in _PLAIN.items())
        )

    def _product(self, node: NodeProto) -> Iterator[NodeProto]:
        from onnx import helper

        states, name, *biases = node.input
        weights = self._constants[name]
        if any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
            weights = weights.T
            name += ".transposed"
        # 7 bits: sums of products of 8 bits overflow on CPUs without VNNI
        quantised_weights = self._in_bytes(name, weights, axis=0, largest=63)
        rows = [f"{states}.int8", f"{states}.largest"]
        if states not in self._quantised:
            self._quantised.add(states)
            yield helper.make_node("quantise", [states], rows, domain=_INT8_DOMAIN)
        (output,) = node.output
        product = f"{output}.product" if biases else output
        yield helper.make_node(
            "multiply", [*rows, *quantised_weights], [product], domain=_INT8_DOMAIN
        )
        for bias in biases:
            yield helper.make_node("Add", [product, bias], [output])

    def _rows_of_table(self, node: NodeProto) -> Iterator[NodeProto]:
        name = node.input[0]
        integers, scales = self._in_bytes(name, self._constants[name], axis=0, largest=127)
        (output,) = node.output
        node.input[0] = integers
        node.output[0] = f"{output}.integers"
        yield node
        yield _dequantise(node.output[0], scales, output)

    def _recurrent(self, node: NodeProto) -> Iterator[NodeProto]:
        """Weights that are float32 again from loading on: `DynamicQuantizeLSTM` has one scale for
        all sentences.
        """
        for place in (1, 2):
            name = node.input[place]
            integers, scales = self._in_bytes(name, self._constants[name], axis=-1, largest=127)
            node.input[place] = f"{name}.float32"
            yield _dequantise(integers, scales, node.input[place])
        yield node

    def _in_bytes(
        self, name: str, weights: np.ndarray, *, axis: int, largest: int
    ) -> tuple[str, str]:
        """Names of integers, of magnitudes up to `largest`, and of scales, one along `axis`."""
        names = f"{name}.int{largest}", f"{name}.scales{largest}"
        scales = np.abs(weights).max(axis=axis, keepdims=axis == -1) / largest
        scales[scales == 0] = 1
        self.tensors[names[0]] = np.rint(weights / scales).astype(np.int8)
        self.tensors[names[1]] = scales
        return names


def _dequantise(integers: str, scales: str, output: str) -> NodeProto:
    from onnx import helper

    return helper.make_node("dequantise", [integers, scales], [output], domain=_INT8_DOMAIN)


def _to_float16(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(path)
    graph = model.graph
    exact = set()
    for node in graph.node:
        if node.name.startswith(_EXACT):
            exact |= set(node.input)
    casts = []
    for tensor in graph.initializer:
        name = tensor.name
        is_matrix = sum(size > 1 for size in tensor.dims) > 1
        if is_matrix and name not in exact and tensor.data_type == TensorProto.FLOAT:
            halved = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(halved, f"{name}.float16"))
            casts.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)


_LARGEST_ERRORS = {"float32": 1e-3, "float16": 0.05, "int8": 0.3}
_CONVERTERS: dict[str, Callable[[Path], None]] = {
    "float32": lambda path: None,
    "float16": _to_float16,
    "int8": _to_int8,
}


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
                node.name = f"{_EXACT}{node.name}"
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
    make_encoder, make_step = _MODULES.get(model.config.model_type, (_Encoder, _Step))
    encoder = make_encoder(model.get_encoder())
    step = make_step(model, with_attention)
    ids = torch.ones(2, 6, dtype=torch.long)
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
        yield _Part(SOURCE, _Source(step), inputs, axes, outputs=list(of_source))
    rows = 3 * len(ids)  # another number of beams than is usual, so that it is free
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


class _Encoder(nn.Module):
    """An encoder that takes a dictionary."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, inputs: Tensors) -> Tensor:
        """[B, J, d] of `input_ids` and `attention_mask` [B, J]."""
        states: Tensor = self.encoder(**inputs).last_hidden_state
        return states


class _Step(nn.Module):
    """One step of a decoder that takes and returns the cache; as it is, of decoders that keep
    windows and nothing of the source.

    Attributes:
        states: Heads, positions and width of every tensor [B · K, heads, positions, width] that a
            step returns, by name. The positions are those to trace with: neither 0 nor 1, and more
            of layers that keep all.
        counter: The tensor that tells the number of earlier tokens: that of a layer that keeps all,
            or one of no width.
        shares_source: Whether the beams of a sentence share its states; else these are repeated.
    """

    shares_source = False

    def __init__(self, model: Any, with_attention: bool) -> None:
        super().__init__()
        self.model = model
        self.with_attention = with_attention
        self.decoder = model.model.decoder
        token = torch.ones(1, 1, dtype=torch.long)
        encoded = model.get_encoder()(token, token)
        cache = model.make_cache(1)
        model(encoder_outputs=encoded, decoder_input_ids=token, cache=cache)
        layers = cache.self_attention_cache.layers
        growing = [index for index, layer in enumerate(layers) if not layer.is_sliding]
        self.counter = f"{growing[0] if growing else len(layers)}.decoder.key"
        states = {self.counter: (1, 5, 0)}
        for name, tensor in _target_tensors(cache).items():
            positions = 5 if int(name.split(".")[0]) in growing else 2
            if tensor.shape[3] > 0:
                states[name] = (tensor.shape[1], positions, tensor.shape[3])
        self.states = states

    def forward(self, inputs: Tensors) -> tuple[Tensor, ...]:
        """Logits [B · K, 1, V], the cache, and with attention its weights [B · K, 1, J]."""
        ids = inputs["input_ids"]
        source = inputs["encoder_hidden_states"]
        mask = inputs["encoder_attention_mask"]
        past = {
            name.removeprefix(PAST): tensor
            for name, tensor in inputs.items()
            if name.startswith(PAST)
        }
        if not self.shares_source:
            rows = ids.shape[0]
            sentences = torch.arange(rows) // (rows // source.shape[0])
            source = source[sentences]
            mask = mask[sentences]
            for name in past:
                if name not in self.states:  # of the source
                    past[name] = past[name][sentences]
        logits, present, weights = self.decode(ids, source, mask, past)
        present.setdefault(self.counter, F.pad(past[self.counter], (0, 0, 0, 1)))
        outputs = [logits, *(present[name] for name in self.states)]
        if self.with_attention and weights is not None:
            outputs.append(weights)
        return tuple(outputs)

    def project(self, inputs: Tensors) -> Tensors:
        """Keys and values [B, heads, J, width] of `encoder_hidden_states` [B, J, d], by name."""
        return {}

    def decode(self, ids: Tensor, source: Tensor, mask: Tensor, past: Tensors) -> _Decoded:
        """Logits [B · K, 1, V], the cache with the last tokens, and weights [B · K, 1, J] or None.

        Args:
            ids: The last tokens [B · K, 1].
            source: The encoder's states [B · K, J, d], or [B, J, d] where they are shared.
            mask: 1 = a real token of the source.
            past: The cache without the last tokens.
        """
        cache = self.fill(past)
        outputs = self.model(
            decoder_input_ids=ids,
            encoder_outputs=(source,),
            attention_mask=mask,
            cache=cache,
            output_attentions=self.with_attention,
        )
        weights = outputs.cross_attentions[-1].mean(dim=1) if self.with_attention else None
        return outputs.logits, _target_tensors(cache), weights

    def fill(self, past: Tensors) -> EncoderDecoderCache:
        """The model's own cache, with the target's layers as in `past`."""
        cache: Any = self.model.make_cache(1)
        for index, layer in enumerate(cache.self_attention_cache.layers):
            layer.cumulative_length = past[self.counter].shape[2]  # of sliding windows
            keys = past.get(f"{index}.decoder.key")
            if keys is not None:
                layer.lazy_initialization(keys, keys)
                layer.keys = keys
                layer.values = past.get(f"{index}.decoder.value", keys[..., :0])
        return cache


class _Source(nn.Module):
    """Keys and values that a decoder needs of each source."""

    def __init__(self, step: _Step) -> None:
        super().__init__()
        self.step = step

    def forward(self, inputs: Tensors) -> tuple[Tensor, ...]:
        """See `_Step.project`."""
        return tuple(self.step.project(inputs).values())


class _GridStep(_Step):
    """A step of Pervasive Attention; the cache holds sums [rows, layers, J, width]."""

    def __init__(self, model: Any, with_attention: bool) -> None:
        super().__init__(model, with_attention)
        if _SUMS in self.states:  # not with kernels of 1
            _, positions, width = self.states[_SUMS]
            depth = model.config.num_layers
            self.states[_SUMS] = (depth, positions, width // depth)

    def decode(self, ids: Tensor, source: Tensor, mask: Tensor, past: Tensors) -> _Decoded:
        """See `_Step`; ahead of the first token the sums are 0."""
        if _SUMS not in past:
            return super().decode(ids, source, mask, past)
        rows, columns = source.shape[:2]
        sums = F.pad(past[_SUMS], (0, 0, columns, 0))[:, :, -columns:]
        past[_SUMS] = sums.reshape(rows, 1, 1, -1)
        logits, present, weights = super().decode(ids, source, mask, past)
        sums = present[_SUMS].view(rows, -1, columns, sums.shape[3])
        return logits, {_SUMS: sums}, weights


class _CsanEncoder(_Encoder):
    """CSAN's encoder with masks that do not depend on the number of queries."""

    def forward(self, inputs: Tensors) -> Tensor:
        """See `_Encoder`."""
        embeddings = self.encoder.embed_tokens(inputs["input_ids"])
        states: Tensor = self.encoder._run(
            embeddings, _masks(inputs["attention_mask"], ForwardPass())
        )
        return states


class _CsanStep(_Step):
    """A step of CSAN, whose beams share a source unless cross-attention is local."""

    def __init__(self, model: Any, with_attention: bool) -> None:
        self.attentions = [layer.encoder_attn for layer in model.model.decoder.layers]
        self.line_method = model.config.line_method
        super().__init__(model, with_attention)
        if with_attention:
            last = self.attentions[-1]
            last.config = deepcopy(last.config)
            last.config._attn_implementation = "eager"
        self.shares_source = all(attention.locality is None for attention in self.attentions)
        if self.shares_source:
            for layer in self.decoder.layers:
                layer.encoder_attn = _AttentionOfBeams(layer.encoder_attn)

    def project(self, inputs: Tensors) -> Tensors:
        """See `_Step`; of a model with lines those of `input_ids` [B, J], too, [B, 1, J, 1]."""
        projected = {}
        for index, attention in enumerate(self.attentions):
            source = inputs["encoder_hidden_states"]
            key, value = attention._keys_and_values(source, None, None)
            projected[f"{index}.encoder.key"] = key
            projected[f"{index}.encoder.value"] = value
        if self.line_method is not None:
            lines = self.line_method.source_lines(self.model.config, inputs["input_ids"])
            projected[_LINES] = lines[:, None, :, None]
        return projected

    def decode(self, ids: Tensor, source: Tensor, mask: Tensor, past: Tensors) -> _Decoded:
        """See `_Step`; one query sees all that is kept, so the target needs no mask."""
        cache = self.fill(past)
        past_length = cache.get_seq_length()
        cross_masks = _masks(mask, ForwardPass())._replace(query_offset=past_length)
        handicaps = None
        if self.line_method is not None:
            cross_masks, handicaps = self.line_method.read(
                self.model.config,
                cross_masks,
                source_lines=past[_LINES][:, 0, :, 0],
                target_lines=None,
                input_ids=ids,
                cache=cache,
                wants_weights=self.with_attention,
            )
        attended: list[Any] = []
        with self.attentions[-1].register_forward_hook(lambda *call: attended.append(call[-1])):
            states = self.decoder._run(
                self.decoder.embed_tokens(ids),
                AttentionMasks(shared=ForwardPass(), query_offset=past_length),
                source,
                encoder_attention_mask=cross_masks,
                cache=cache,
                output_attentions=self.with_attention,
            )
        logits = self.model._project(states, add_handicap(cross_masks, handicaps))
        weights = None
        if self.with_attention:
            [(_, of_heads)] = attended  # [B, H, K, J], or [B · K, H, 1, J]
            known = (ids.shape[0], 1, of_heads.shape[-1])
            weights = _reshape(of_heads.mean(dim=1), torch.tensor([-1, 1, 0]), known)
        return logits, _target_tensors(cache), weights

    def fill(self, past: Tensors) -> EncoderDecoderCache:
        """See `_Step`; the source's keys and values, and sums that begin with 0, are there, too."""
        depth = len(self.attentions)
        for name, sums in past.items():
            if name != self.counter and int(name.split(".")[0]) >= depth:
                past[name] = F.pad(sums, (0, 0, 1, 0))[:, :, -1:]
        cache = super().fill(past)
        for index in range(depth):
            key, value = past[f"{index}.encoder.key"], past[f"{index}.encoder.value"]
            cache.cross_attention_cache.update(key, value, index)
            cache.is_updated[index] = True
        return cache


def _masks(mask: Tensor, forward_pass: ForwardPass) -> AttentionMasks:
    """Masks of attention to a source; `mask` [B, J], 1 = a real token."""
    real = mask.bool()
    return AttentionMasks(
        full=real[:, None, None],
        padding=real,
        first_real=real.int().argmax(dim=-1),
        shared=forward_pass,
    )


class _AttentionOfBeams(nn.Module):
    """Cross-attention with the beams [B · K, 1, d] of a sentence as its queries [B, K, d]: keys are
    not repeated.
    """

    locality = None
    is_by_line = False

    def __init__(self, attention: CsanAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, states: Tensor, **inputs: Any) -> tuple[Tensor, Tensor | None]:
        """See `CsanAttention`."""
        rows, _, width = states.shape
        sentences = inputs["key_value_states"].shape[0]
        shape = torch.cat([torch.full((1,), sentences), torch.tensor([-1, width])])
        queries = _reshape(states, shape, (sentences, rows // sentences, width))
        output, weights = self.attention(queries, **inputs)
        return _reshape(output, torch.tensor([-1, 1, width]), states.shape), weights


def _reshape(states: Tensor, shape: Tensor, known: tuple[int, ...]) -> Tensor:
    """ONNX's Reshape; torch would have to prove that the number of beams is whole.

    Args:
        states: Any tensor.
        shape: The new shape, of which one number may be -1; 0 is as before.
        known: The new shape in torch's symbols.
    """
    reshaped: Tensor = torch.onnx.ops.symbolic(
        "Reshape", (states, shape), dtype=states.dtype, shape=known
    )
    return reshaped


class _RecurrentEncoder(_Encoder):
    """RNNsearch's encoder with its LSTM as one operation of ONNX, whose gates are i, o, f and g."""

    def forward(self, inputs: Tensors) -> Tensor:
        """See `_Encoder`."""
        lstm = self.encoder.lstm
        real = inputs["attention_mask"].bool()
        length = real.shape[1]
        embeddings = self.encoder.embed_tokens(inputs["input_ids"])
        order = (torch.arange(length) + (~real).long() * length).argsort(dim=1).unsqueeze(-1)
        real_first = embeddings.gather(1, order.expand_as(embeddings)).transpose(0, 1)
        parameters = []
        for pair in zip(*lstm.all_weights, strict=True):  # of both directions
            gates = torch.stack(pair).unflatten(1, (4, -1))
            parameters.append(gates[:, [0, 3, 1, 2]].flatten(1, 2))
        weights, recurrent, *biases = parameters
        states = torch.onnx.ops.symbolic(
            "LSTM",
            (real_first, weights, recurrent, torch.cat(biases, dim=1), real.sum(dim=1).int()),
            {"hidden_size": lstm.hidden_size, "direction": "bidirectional"},
            dtype=embeddings.dtype,
            shape=(length, 2, real.shape[0], lstm.hidden_size),
        )
        states = states.permute(2, 0, 1, 3).flatten(2)
        return torch.zeros_like(states).scatter(1, order.expand_as(states), states)


class _RecurrentStep(_Step):
    """A step of RNNsearch, whose cache holds the last state and the keys of the source."""

    def project(self, inputs: Tensors) -> Tensors:
        """See `_Step`."""
        keys = self.decoder.attention.project_keys(inputs["encoder_hidden_states"])
        return {"0.encoder.key": keys[:, None]}

    def decode(self, ids: Tensor, source: Tensor, mask: Tensor, past: Tensors) -> _Decoded:
        """See `_Step`, and `RnnSearchDecoder.decode`, which projects the keys in every call."""
        real = mask.bool()
        first = self.decoder._initial_state(source, real)[:, None, None]
        states = torch.cat([first, past["0.decoder.key"]], dim=2)
        h, c, fed = self.decoder._split(states[:, 0, -1])
        embeddings = self.decoder.embed_tokens(ids)
        if self.model.config.input_feeding:
            embeddings = torch.cat([embeddings, fed.transpose(0, 1)], dim=-1)
        weights = self.decoder.lstm.all_weights[0]
        query, c = torch.lstm_cell(embeddings[:, 0], (h[0], c[0]), *weights)
        query = query[:, None]
        attended, weights = self.decoder.attention(query, past["0.encoder.key"][:, 0], source, real)
        state = torch.cat([query, c[:, None], attended], dim=-1)
        return self.model._project(attended), {"0.decoder.key": state.unsqueeze(1)}, weights


# Of families whose graphs differ from the model as torch runs it, or keep more than windows
_MODULES: dict[str, tuple[type[_Encoder], type[_Step]]] = {
    "csan": (_CsanEncoder, _CsanStep),
    "pervasive_attention": (_Encoder, _GridStep),
    "rnnsearch": (_RecurrentEncoder, _RecurrentStep),
}


def _target_tensors(cache: Any) -> Tensors:
    """Keys and values of the layers that keep target positions, by name."""
    tensors = {}
    for index, layer in enumerate(cache.self_attention_cache.layers):
        tensors[f"{index}.decoder.key"] = layer.keys
        tensors[f"{index}.decoder.value"] = layer.values
    return tensors
