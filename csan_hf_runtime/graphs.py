# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The ONNX graphs of an exported model and the cache of its decoder.

Shapes: B sentences, K beams of each, R = B · K rows, J source positions, T target positions, V
target vocabulary, d width."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from . import DECODER, ENCODER, SOURCE
from .export_files import FILES, check_files

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

PAST, PRESENT = "past_key_values.", "present."
ALIGNMENT = "alignment"
"""The output of a decoder that gives its attention to the source."""

LINES = "encoder.line_ids"
"""Ends the name of the tensor of a source's lines."""
WEIGHTS = "weights"
"""The key of a graph's metadata under which lies a digest of its model's weights."""
_ENCODER_INPUTS = {"input_ids", "attention_mask"}
_DECODER_INPUTS = {"input_ids", "encoder_hidden_states", "encoder_attention_mask"}

_TOKENS_ENCODED = 4096
"""Tokens that the encoder takes at a time, as its attention may be of all pairs of a source's."""
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


Tensors = dict[str, np.ndarray]


class Graphs:
    """Encoder and decoder of an exported model on ONNX Runtime.

    Args:
        encoder: Session of `encoder_model.onnx`.
        decoder: Session of `decoder_model_merged.onnx`.
        source: Session of `source_model.onnx`, of decoders that need it.
    """

    def __init__(
        self,
        encoder: InferenceSession,
        decoder: InferenceSession,
        source: InferenceSession | None = None,
    ) -> None:
        self._encoder = encoder
        self._decoder = decoder
        self._source = source
        past = [node for node in decoder.get_inputs() if node.name.startswith(PAST)]
        self._past_of_target = [node for node in past if not _is_of_source(node.name)]
        outputs = [node.name for node in decoder.get_outputs()]
        self.gives_attention = ALIGNMENT in outputs
        self.has_lines = any(node.name.endswith(LINES) for node in decoder.get_inputs())
        self._presents = [name for name in outputs if name.startswith(PRESENT)]
        self._past_names = [name.replace(PRESENT, PAST) for name in self._presents]

    @property
    def target_size(self) -> int:
        """Tokens of the target's vocabulary."""
        logits, *_ = self._decoder.get_outputs()
        size: int = logits.shape[-1]
        return size

    @classmethod
    def from_directory(cls, directory: str | os.PathLike, *, threads: int = 1) -> Graphs:
        """Loads what `csan-hf export-onnx` wrote.

        Args:
            directory: The directory.
            threads: Threads of a product.

        Raises:
            OSError: A file is missing or damaged, or of another model or program. (Exports of
                earlier versions do not say of which model they are.)
        """
        from onnxruntime import InferenceSession, SessionOptions  # not where csan_hf has no graphs

        options = SessionOptions()
        options.intra_op_num_threads = threads
        slow = ["SkipLayerNormFusion"]  # slower than its parts
        files = [Path(directory, name) for name in (ENCODER, DECODER)]
        if missing := [file.name for file in files if not file.is_file()]:
            raise FileNotFoundError(
                f"{directory} is no folder of ONNX graphs, which csan-hf export-onnx writes: it "
                f"lacks {' and '.join(missing)}."
            )
        if (source := Path(directory, SOURCE)).is_file():
            files.append(source)
        try:
            sessions = [InferenceSession(file, options, disabled_optimizers=slow) for file in files]
        except Exception as error:  # of a class for each fault
            raise OSError(
                f"{directory} cannot be read ({error}): export the model again."
            ) from error
        encoder_inputs = {node.name for node in sessions[0].get_inputs()}
        decoder_inputs = {node.name for node in sessions[1].get_inputs()}
        of_source: set[str] = set()
        for session in sessions[2:]:
            of_source.update(node.name for node in session.get_outputs())
        other_inputs = {
            name for name in decoder_inputs if _is_of_source(name) or not name.startswith(PAST)
        }
        inputs = (encoder_inputs, other_inputs)
        weights = {session.get_modelmeta().custom_metadata_map.get(WEIGHTS) for session in sessions}
        if inputs != (_ENCODER_INPUTS, _DECODER_INPUTS | of_source) or len(weights) > 1:
            raise OSError(
                f"The graphs in {directory} do not belong together (is {SOURCE} there, and are "
                "all of one model?), or are of another program, such as optimum. Run csan-hf "
                "export-onnx again."
            )
        check_files(Path(directory), sessions[0].get_modelmeta().custom_metadata_map.get(FILES))
        return cls(*sessions)

    def encode(self, ids: np.ndarray, mask: np.ndarray) -> Tensors:
        """Returns the decoder's inputs by sources [B, J], by name; `mask` is 1 for real tokens."""
        parts = []
        rows = max(1, _TOKENS_ENCODED // ids.shape[1])
        for start in range(0, len(ids), rows):
            part = slice(start, start + rows)
            inputs = {"input_ids": ids[part], "attention_mask": mask[part]}
            parts += self._encoder.run(None, inputs)
        tensors = {"encoder_hidden_states": np.concatenate(parts), "encoder_attention_mask": mask}
        if self._source is not None:
            known = {**tensors, "input_ids": ids}
            inputs = {node.name: known[node.name] for node in self._source.get_inputs()}
            names = [node.name for node in self._source.get_outputs()]
            tensors.update(zip(names, self._source.run(names, inputs), strict=True))
        return tensors

    def decode(self, output: str, inputs: Tensors) -> tuple[np.ndarray, Tensors]:
        """Returns an output [R, 1, ...] of the decoder, and the cache that it leaves, by name."""
        values, *present = self._decoder.run([output, *self._presents], inputs)
        return values, dict(zip(self._past_names, present, strict=True))

    def first_tensors(self, rows: int) -> Tensors:
        """The cache that the decoder takes ahead of the first token."""
        tensors = {}
        for node in self._past_of_target:
            sizes = [0 if isinstance(size, str) else size for size in node.shape[1:]]
            tensors[node.name] = np.zeros([rows, *sizes], _TYPES[node.type])
        return tensors


class GraphDecoder:
    """A decoder for `search`: the graphs with the sources that are being translated.

    Args:
        graphs: The graphs.
        source: What `Graphs.encode` gives of B sentences.

    Attributes:
        cache: The tensors that the decoder's graph gave after the last tokens; none before the
            first.
    """

    def __init__(self, graphs: Graphs, source: Tensors) -> None:
        self._graphs = graphs
        self.source = source
        self.cache: Tensors = {}
        self._length = 0

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [R, V] of what follows [R, T], of which the cache has the first tokens."""
        for place in range(self._length, tokens.shape[1]):
            logits = self._next("logits", tokens[:, place])
        return logits.astype(np.float32, copy=False)

    def attention(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the weights [B, T, J] with which what follows tokens [B, T] is predicted from the
        source; `Graphs.gives_attention` says whether there are such.
        """
        return np.stack([self._next(ALIGNMENT, column) for column in tokens.T], axis=1)

    def keep(self, rows: np.ndarray, sentences: np.ndarray | None) -> None:
        """Goes on with some rows, in this order, of some sentences; None = of all."""
        if sentences is not None:
            self.source = {name: tensor[sentences] for name, tensor in self.source.items()}
            self.cache = {name: tensor[rows] for name, tensor in self.cache.items()}
            return
        moved = (rows != np.arange(len(rows))).nonzero()[0]
        for tensor in self.cache.values():
            tensor[moved] = tensor[rows[moved]]

    def _next(self, output: str, tokens: np.ndarray) -> np.ndarray:
        """An output [R, ...] of the decoder after the last tokens [R], which join the cache."""
        if self._length == 0:
            self.cache = self._graphs.first_tensors(len(tokens))
        inputs = {"input_ids": tokens[:, None], **self.source, **self.cache}
        values, present = self._graphs.decode(output, inputs)
        self.cache.update(present)
        self._length += 1
        return values[:, 0]


def _is_of_source(name: str) -> bool:
    return ".encoder." in name
