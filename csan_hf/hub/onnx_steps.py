# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Encoders and decoding steps of the families, as modules that become ONNX graphs.

Shapes: B sentences, K beams of each, J source positions, V target vocabulary, d width.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from csan_hf.models.attention_call import ForwardPass
from csan_hf.models.csan_attention import AttentionMasks, CsanAttention
from csan_hf.models.modeling_csan import add_penalty
from csan_hf.models.modeling_rnnsearch import BidirectionalLSTM, reading_order
from csan_hf_runtime.graphs import LINES, PAST

Tensors = dict[str, Tensor]
_Decoded = tuple[Tensor, Tensors, Tensor | None]

_SUMS = "0.decoder.key"
"""The tensor of a grid's cache."""
_LINES = f"0.{LINES}"
_GROWING = 5
"""Positions to trace layers with that keep all."""
_WINDOW = 2
"""Positions to trace layers with that keep a window."""


class Encoder(nn.Module):
    """An encoder that takes a dictionary."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, inputs: Tensors) -> Tensor:
        """[B, J, d] of `input_ids` and `attention_mask` [B, J]."""
        states: Tensor = self.encoder(**inputs).last_hidden_state
        return states


class Step(nn.Module):
    """One step of a decoder that takes and returns the cache; as it is, of decoders that keep
    windows and nothing of the source.

    Attributes:
        states: Heads, positions and width of every tensor [B · K, heads, positions, width] that a
            step returns, by name. The positions are those to trace with: neither 0 nor 1, and more
            of layers that keep all.
        counter: The tensor that tells the number of earlier tokens: that of a layer that keeps all,
            or one of no width.
        shares_source: Whether the beams of a sentence share its states; else these are repeated.
        shared: Names of tensors of the source that its beams share in any case.
    """

    shares_source = False
    shared: tuple[str, ...] = ()

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
        states = {self.counter: (1, _GROWING, 0)}
        for name, tensor in _target_tensors(cache).items():
            positions = _GROWING if int(name.split(".")[0]) in growing else _WINDOW
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
                if name not in self.states and name not in self.shared:  # of the source
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


class Source(nn.Module):
    """Keys and values that a decoder needs of each source."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def forward(self, inputs: Tensors) -> tuple[Tensor, ...]:
        """See `Step.project`."""
        return tuple(self.step.project(inputs).values())


class _GridStep(Step):
    """A step of Pervasive Attention; the cache holds sums [rows, layers, J, width]."""

    def __init__(self, model: Any, with_attention: bool) -> None:
        super().__init__(model, with_attention)
        if _SUMS in self.states:  # not with kernels of 1
            _, positions, width = self.states[_SUMS]
            depth = model.config.num_layers
            self.states[_SUMS] = (depth, positions, width // depth)

    def decode(self, ids: Tensor, source: Tensor, mask: Tensor, past: Tensors) -> _Decoded:
        """See `Step`; ahead of the first token the sums are 0."""
        if _SUMS not in past:
            return super().decode(ids, source, mask, past)
        rows, columns = source.shape[:2]
        sums = F.pad(past[_SUMS], (0, 0, columns, 0))[:, :, -columns:]
        past[_SUMS] = sums.reshape(rows, 1, 1, -1)
        logits, present, weights = super().decode(ids, source, mask, past)
        sums = present[_SUMS].view(rows, -1, columns, sums.shape[3])
        return logits, {_SUMS: sums}, weights


class _CsanEncoder(Encoder):
    """CSAN's encoder with masks that do not depend on the number of queries."""

    def forward(self, inputs: Tensors) -> Tensor:
        """See `Encoder`."""
        embeddings = self.encoder.embed_tokens(inputs["input_ids"])
        states: Tensor = self.encoder._run(
            embeddings, _masks(inputs["attention_mask"], ForwardPass())
        )
        return states


class _CsanStep(Step):
    """A step of CSAN, whose beams share a source unless cross-attention is local, and in any case
    the keys of layers that attend by line.
    """

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
        if not with_attention:  # which is to all tokens
            for index, attention in enumerate(self.attentions):
                if attention.is_by_line:
                    self.shared += (f"{index}.encoder.key", f"{index}.encoder.value")

    def project(self, inputs: Tensors) -> Tensors:
        """See `Step`; of a model with lines those of `input_ids` [B, J], too, [B, 1, J, 1]."""
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
        """See `Step`; one query sees all that is kept, so the target needs no mask."""
        cache = self.fill(past)
        past_length = cache.get_seq_length()
        cross_masks = _masks(mask, ForwardPass())._replace(query_offset=past_length)
        penalties = None
        if self.line_method is not None:
            cross_masks, penalties = self.line_method.read(
                self.model.config,
                cross_masks,
                source_lines=past[_LINES].squeeze((1, 3)),
                target_lines=None,
                input_ids=ids,
                cache=cache,
                wants_weights=self.with_attention,
            )
            by_line = self._gather_lines(cross_masks.by_line, cache)
            cross_masks = cross_masks._replace(by_line=by_line)
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
        logits = self.model._project(states, add_penalty(cross_masks, penalties))
        weights = None
        if self.with_attention:
            [(_, of_heads)] = attended  # [B, H, K, J], or [B · K, H, 1, J]
            known = (ids.shape[0], 1, of_heads.shape[-1])
            weights = _reshape(of_heads.mean(dim=1), torch.tensor([-1, 1, 0]), known)
        return logits, _target_tensors(cache), weights

    def _gather_lines(self, masks: AttentionMasks, cache: EncoderDecoderCache) -> AttentionMasks:
        """Replaces the keys that the beams share by those of the source tokens that are left, and
        returns the masks for these.
        """
        places = masks.lines.places
        if places is None:  # with attention
            return masks
        rows = places.shape[0]
        layers: Any = cache.cross_attention_cache.layers
        for attention, layer in zip(self.attentions, layers, strict=True):
            if attention.is_by_line:
                sentences, heads = layer.keys.shape[:2]
                sentence = torch.arange(rows) // (rows // sentences)
                head = torch.arange(heads)
                index = (sentence[:, None, None], head[:, None], places[:, None])
                layer.keys = layer.keys[index]
                layer.values = layer.values[index]
        return masks._replace(lines=masks.lines._replace(places=None))

    def fill(self, past: Tensors) -> EncoderDecoderCache:
        """See `Step`; the source's keys and values, and sums that begin with 0, are there, too."""
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


class _RecurrentEncoder(Encoder):
    """RNNsearch's encoder with each layer as one operation of ONNX."""

    def forward(self, inputs: Tensors) -> Tensor:
        """See `Encoder`."""
        real = inputs["attention_mask"].bool()
        embeddings = self.encoder.embed_tokens(inputs["input_ids"])
        lengths = real.sum(dim=1).int()
        order = reading_order(real)
        states = embeddings.gather(1, order.expand_as(embeddings)).transpose(0, 1)
        for layer in self.encoder.layers:
            states = _lstm_operation(layer, states, lengths)
        states = states.transpose(0, 1)
        return torch.zeros_like(states).scatter(1, order.expand_as(states), states)


def _lstm_operation(layer: BidirectionalLSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
    """ONNX's LSTM: states [J, B, d] of inputs [J, B, ...], real tokens first."""
    directions = zip(layer.forwards.all_weights[0], layer.backwards.all_weights[0], strict=True)
    parameters = []
    for direction_pair in directions:
        gates = torch.stack(direction_pair).unflatten(1, (4, -1))
        # torch's gates are i, f, g, o, ONNX's i, o, f, g
        parameters.append(gates[:, [0, 3, 1, 2]].flatten(1, 2))
    weights, recurrent, *biases = parameters
    length, batch, _ = inputs.shape
    width = layer.forwards.hidden_size
    states: Tensor = torch.onnx.ops.symbolic(
        "LSTM",
        (inputs, weights, recurrent, torch.cat(biases, dim=1), lengths),
        {"hidden_size": width, "direction": "bidirectional"},
        dtype=inputs.dtype,
        shape=(length, 2, batch, width),
    )
    return states.transpose(1, 2).flatten(2)


class _RecurrentStep(Step):
    """A step of RNNsearch, whose cache holds the last state and the keys of the source."""

    def project(self, inputs: Tensors) -> Tensors:
        """See `Step`."""
        keys = self.decoder.attention.project_keys(inputs["encoder_hidden_states"])
        return {"0.encoder.key": keys[:, None]}

    def decode(self, ids: Tensor, source: Tensor, mask: Tensor, past: Tensors) -> _Decoded:
        """See `Step`, and `RnnSearchDecoder.decode`, which projects the keys in every call."""
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
MODULES: dict[str, tuple[type[Encoder], type[Step]]] = {
    "csan": (_CsanEncoder, _CsanStep),
    "pervasive_attention": (Encoder, _GridStep),
    "rnnsearch": (_RecurrentEncoder, _RecurrentStep),
}


def _target_tensors(cache: Any) -> Tensors:
    """Keys and values of the layers that keep target positions, by name."""
    tensors = {}
    for index, layer in enumerate(cache.self_attention_cache.layers):
        tensors[f"{index}.decoder.key"] = layer.keys
        tensors[f"{index}.decoder.value"] = layer.values
    return tensors
