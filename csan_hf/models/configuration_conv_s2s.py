# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of ConvS2S, convolutional sequence-to-sequence learning."""

from .configuration_seq2seq import MOST_LAYERS, Seq2SeqConfig, bounded


class ConvS2SConfig(Seq2SeqConfig):
    """Configuration of a convolutional encoder-decoder with attention in every decoder layer
    (Gehring et al., 2017).

    The defaults are the deep network of Elbayad et al. (CoNLL 2018, section 4.1).

    Args:
        vocab_size: Entries of the source vocabulary (of both, where shared).
        decoder_vocab_size: Entries of the target vocabulary; default: `vocab_size`.
        share_encoder_decoder_embeddings: Whether source and target share one embedding (and one
            vocabulary).
        tie_word_embeddings: Whether the output projection is the target embedding.
        embed_dim: Width e of embeddings, of what attention compares, and of the input of the output
            projection.
        hidden_size: Channels d of the convolutions' inputs; each makes 2d, one half gates the
            other.
        encoder_layers: Convolutions of the encoder.
        decoder_layers: Convolutions of the decoder, each followed by attention.
        kernel_size: Width of the convolutions, in tokens; odd.
        dropout: Dropout of embeddings, of the input of every convolution and of the output
            projection's.
        max_position_embeddings: Learned positions; longer inputs are refused.
        use_cache: Whether generation keeps the last `kernel_size` - 1 inputs of every decoder
            convolution.
        decoder_start_token_id: First input of the decoder.
        pad_token_id: Padding token.
        eos_token_id: End of a sentence.
        bos_token_id: Unused by the model.
        forced_eos_token_id: Token forced at the maximal length, `None` = none.

    Raises:
        ValueError: A field is out of range, or a keyword is a misspelt field.
    """

    model_type = "conv_s2s"
    attribute_map = {"num_hidden_layers": "encoder_layers"}  # noqa: RUF012

    vocab_size: int = bounded(12000, 1)
    share_encoder_decoder_embeddings: bool = False
    tie_word_embeddings: bool = False
    embed_dim: int = bounded(256, 1)
    hidden_size: int = bounded(256, 1)
    encoder_layers: int = bounded(16, 1, MOST_LAYERS)
    decoder_layers: int = bounded(12, 1, MOST_LAYERS)
    kernel_size: int = bounded(3, 1, odd=True)
    dropout: float | int = bounded(0.2, 0, below=1)
    max_position_embeddings: int = bounded(1024, 1)


ConvS2SConfig.register_for_auto_class()

__all__ = ["ConvS2SConfig"]
