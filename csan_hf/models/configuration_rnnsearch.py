# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of RNNsearch, the recurrent encoder-decoder with attention."""

from typing import Literal

from .configuration_seq2seq import MOST_LAYERS, Seq2SeqConfig, bounded


class RnnSearchConfig(Seq2SeqConfig):
    """Configuration of a recurrent encoder-decoder with attention (Bahdanau et al., 2015; Luong et
    al., 2015).

    The defaults are the baseline of Elbayad et al. (CoNLL 2018, section 4.1). Its published 6M
    parameters fit `tie_word_embeddings=False`; with the tied projection of the paper's text there
    are 3.6M.

    Args:
        vocab_size: Entries of the source vocabulary (of both, where shared).
        decoder_vocab_size: Entries of the target vocabulary; default: `vocab_size`.
        share_encoder_decoder_embeddings: Whether source and target share one embedding (and one
            vocabulary).
        tie_word_embeddings: Whether the output projection is the target embedding.
        source_embed_dim: Width d_s of the source embedding.
        target_embed_dim: Width d_t of the target embedding.
        hidden_size: Width d of the decoder's LSTM, and of the encoder's two directions together.
            Even.
        encoder_layers: Bi-directional LSTMs of the encoder, stacked.
        attention: Energy of a decoder state h and an encoder state s: `"dot"` h·s, `"general"` h·(W
            s) (Luong et al., section 3.1) or `"additive"` v·tanh(W h + U s) (Bahdanau et al.,
            appendix A.1.2).
        input_feeding: Whether the attentional state of a step is an input of the next (Luong et
            al., section 3.3).
        dropout: Dropout of both embeddings, of the states between encoder layers, and of the
            attentional state before the output projection.
        init_std: Standard deviation of new embeddings; default: their width ** -0.5.
        use_cache: Whether generation keeps the decoder's state.
        decoder_start_token_id: First input of the decoder.
        pad_token_id: Padding token.
        eos_token_id: End of a sentence.
        bos_token_id: Unused by the model.
        forced_eos_token_id: Token forced at the maximal length, `None` = none.

    Raises:
        ValueError: A field is out of range, or a keyword is a misspelt field.
    """

    model_type = "rnnsearch"
    attribute_map = {"num_hidden_layers": "encoder_layers"}  # noqa: RUF012

    vocab_size: int = bounded(12000, 1)
    share_encoder_decoder_embeddings: bool = False
    source_embed_dim: int = bounded(128, 1)
    target_embed_dim: int = bounded(128, 1)
    hidden_size: int = bounded(256, 2)
    encoder_layers: int = bounded(1, 1, MOST_LAYERS)
    attention: Literal["dot", "general", "additive"] = "dot"
    input_feeding: bool = False
    dropout: float | int = bounded(0.2, 0, below=1)
    init_std: float | int | None = bounded(None, above=0)

    @property
    def output_dim(self) -> int:
        """Width of the attentional state, from which the vocabulary is projected."""
        return self.target_embed_dim if self.tie_word_embeddings else self.hidden_size

    def validate_fields(self) -> None:
        """Raise `ValueError` where the configuration is impossible; the message names field and
        value.
        """
        super().validate_fields()
        if self.hidden_size % 2:
            raise ValueError(
                f"`hidden_size` must be even (two directions share it), got {self.hidden_size}."
            )
        if self.share_encoder_decoder_embeddings and self.source_embed_dim != self.target_embed_dim:
            raise ValueError(
                f"`target_embed_dim` ({self.target_embed_dim}) must equal `source_embed_dim` "
                f"({self.source_embed_dim}) with share_encoder_decoder_embeddings=True."
            )


RnnSearchConfig.register_for_auto_class()

__all__ = ["RnnSearchConfig"]
