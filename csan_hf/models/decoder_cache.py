# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The keys and values that a CSAN decoder keeps while it generates."""

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, EncoderDecoderCache

from .configuration_csan import CsanConfig


class _BeamSharedCache(DynamicCache):
    """Keys and values of the encoder's states, equal for all beams of a sentence."""

    def __init__(self, num_beams: int = 1) -> None:
        super().__init__()
        self.num_beams = num_beams

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the beams, unless each comes from a beam of its own sentence: these share their source.

        That is checked on a CPU alone. On an accelerator the check would wait for the device, which costs more than
        reordering.
        """
        if beam_idx.device.type == "cpu":
            sentence = torch.arange(beam_idx.shape[0]) // self.num_beams
            if torch.equal(beam_idx // self.num_beams, sentence):
                return
        super().reorder_cache(beam_idx)


def make_decoder_cache(config: CsanConfig, num_beams: int = 1) -> EncoderDecoderCache:
    """An empty cache in which a decoder layer with a window keeps only the keys of the window.

    The window's own keys are m past positions (M = 2m + 1). A layer with a method that needs all earlier keys keeps
    them all.

    Args:
        config: The model's configuration.
        num_beams: Consecutive rows of the batch that share a source sentence.
    """
    cache = DynamicCache()
    for layer_idx in range(config.decoder_layers):
        locality = config.layer_locality("decoder", layer_idx)
        if locality is not None and locality.past_tokens is not None:
            # The library's unit is the query and the keys before it; it keeps one fewer, and at least one.
            cache.layers.append(DynamicSlidingWindowLayer(max(locality.past_tokens + 1, 2)))
        else:
            cache.layers.append(DynamicLayer())
    return EncoderDecoderCache(cache, _BeamSharedCache(num_beams))
