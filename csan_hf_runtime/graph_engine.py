# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Search with exported ONNX graphs, without torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .alignment import Alignment
from .dictionary import DICTIONARY, PronouncingDictionary
from .engine import Pair, SourceBatch, padded, search_batch
from .export_files import TARGET_FOLDER
from .generation import Generation
from .graphs import GraphDecoder, Graphs
from .search import Hypothesis
from .settings import NonNegative, Positive, Settings
from .texts import SourceReader
from .vocabulary import VocabularyFile


@dataclass(frozen=True)
class ModelSettings(Settings):
    """Settings of config.json.

    Attributes:
        vocab_size: Tokens of the source, or of both sides.
        decoder_vocab_size: Tokens of the target.
        max_position_embeddings: Tokens of the longest text that there are positions for; None = any
            number.
        model_type: The family.
        position_embeddings: The kind of positions; None = a CSAN has none. Before: `sinusoids`.
        prefix: What stands before each source.
        line_token_id: The token that ends a line.
    """

    vocab_size: Positive
    decoder_vocab_size: Positive | None = None
    max_position_embeddings: Positive | None = None
    model_type: str = ""
    position_embeddings: str | None = ""  # where config.json does not say it
    sinusoids: str | None = ""
    prefix: str | None = None
    line_token_id: NonNegative | None = None

    @property
    def positions(self) -> int | None:
        """Tokens of the longest text that there are positions for; None = any number."""
        is_free = self.model_type == "csan" and self.position_embeddings is None
        return None if is_free or self.sinusoids is None else self.max_position_embeddings


class GraphEngine:
    """The graphs of an exported model, see `Engine`.

    Args:
        graphs: Encoder and decoder.
        source: The source's vocabulary.
        target: The target's; the same object where it is joint.
        generation: What generation_config.json says.
        config: What config.json says.
        dictionary: Of a pronouncer.
    """

    extends_positions = False

    def __init__(
        self,
        graphs: Graphs,
        *,
        source: VocabularyFile,
        target: VocabularyFile,
        generation: Generation,
        config: ModelSettings,
        dictionary: PronouncingDictionary | None = None,
    ) -> None:
        self.dictionary = dictionary
        self.source = source
        self.target = target
        self.positions = config.positions
        self.line_token = config.line_token_id if graphs.has_lines else None
        self._graphs = graphs
        self._generation = generation
        self._prefix = config.prefix or ""

    @classmethod
    def from_directory(cls, directory: str | os.PathLike, *, threads: int = 1) -> GraphEngine:
        """Loads what `csan-hf export-onnx` wrote, with its tokenizers.

        Args:
            directory: The directory.
            threads: Threads of a product.

        Raises:
            OSError: A file is missing or damaged.
            ValueError: A file has a setting that is unknown here or impossible; the message names
                both, the value and what is allowed.
        """
        folder = Path(directory)
        graphs = Graphs.from_directory(folder, threads=threads)
        config = ModelSettings.read(folder / "config.json")
        target_size = config.decoder_vocab_size or config.vocab_size
        if target_size != graphs.target_size:
            raise OSError(
                f"{folder / 'config.json'} says {target_size} tokens (decoder_vocab_size, "
                f"vocab_size), the graphs have {graphs.target_size}: it is another model's. Copy "
                "exports as whole folders."
            )
        source = target = VocabularyFile(folder, size=config.vocab_size)
        if (folder / TARGET_FOLDER).is_dir():
            target = VocabularyFile(
                folder / TARGET_FOLDER, size=target_size, settings=source.settings
            )
        generation_file = folder / "generation_config.json"
        generation = Generation.read(generation_file)
        generation.check_tokens(target_size, f"{generation_file}: ")
        dictionary = None
        if (folder / DICTIONARY).is_file():
            dictionary = PronouncingDictionary(folder / DICTIONARY, source.normalize)
        return cls(
            graphs,
            source=source,
            target=target,
            generation=generation,
            config=config,
            dictionary=dictionary,
        )

    def defaults(self, source_lang: str | None, target_lang: str | None) -> tuple[str, Generation]:
        """See `Engine`."""
        return self._prefix, self._generation

    def search(self, batch: SourceBatch) -> list[list[Hypothesis]]:
        """See `Engine`."""
        source = self._graphs.encode(batch.ids, batch.mask)
        copies = {name: tensor.repeat(batch.copies, axis=0) for name, tensor in source.items()}
        return search_batch(batch, GraphDecoder(self._graphs, copies))

    def check_attention(self, needed_for: str) -> None:
        """See `Engine`."""
        if not self._graphs.gives_attention:
            raise ValueError(
                f"{needed_for}: attention weights are needed, which these ONNX graphs do not give: "
                "export the model again, with --with_alignments."
            )

    def align(
        self, pairs: Sequence[Pair], read: SourceReader, source_lang: str | None
    ) -> list[Alignment]:
        """See `Engine`; what of a text is beyond the model's positions is not aligned."""
        if not pairs:
            return []
        sources = []
        targets = []
        for source, target in pairs:
            text, mark = read(source)
            original = self.source.tokenized(text, mark, source_lang)
            sources.append(original.shortened(self.positions))
            translated = self.target.tokenized(target, language=read.target_lang)
            targets.append(translated.shortened(self.positions))
        ids = padded([text.ids for text in sources], self.source.padding)
        mask = padded([(1,) * len(text.ids) for text in sources], 0)
        labels = padded([text.ids for text in targets], self.target.padding)
        start = np.full((len(pairs), 1), self._generation.decoder_start_token_id)
        inputs = np.concatenate([start, labels[:, :-1]], axis=1)
        weights = GraphDecoder(self._graphs, self._graphs.encode(ids, mask)).attention(inputs)
        alignments = []
        for original, translated, matrix in zip(sources, targets, weights, strict=True):
            alignments.append(Alignment.of_padded(original, translated, matrix))
        return alignments
