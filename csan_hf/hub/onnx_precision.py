# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Precisions of ONNX graphs: float16 and int8 by rewriting those in float32."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from onnx import NodeProto

EXACT = "float32/"
"""Begins the names of nodes whose weights are kept in float32."""


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
    nodes = [*itertools.chain.from_iterable(map(quantised.replace, graph.node))]
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
            and not node.name.startswith(EXACT)
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
        if node.name.startswith(EXACT):
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


class Precision(NamedTuple):
    """How the numbers of graphs are kept.

    Attributes:
        convert: Rewrites the file of a graph in float32.
        largest_error: Of the logits, as a share of how these vary.
    """

    convert: Callable[[Path], None]
    largest_error: float


PRECISIONS = {
    "float32": Precision(convert=lambda path: None, largest_error=1e-3),
    "float16": Precision(convert=_to_float16, largest_error=0.05),
    "int8": Precision(convert=_to_int8, largest_error=0.3),
}
