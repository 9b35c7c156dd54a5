# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of texts with an exported model, without torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from .dictionary import DICTIONARY, PronouncingDictionary
from .export_files import TARGET_FOLDER
from .generation import Generation
from .graphs import Graphs
from .prefixes import Prefix
from .scores import is_scored
from .search import Hypothesis
from .sentences import SplitText
from .settings import Range, Settings
from .texts import (
    LanguageTags,
    SplitSentences,
    Translation,
    Unknown,
    batches_by_length,
    check_letters,
    checked_texts,
    first_of_each_text,
    notice_of_splits,
    split_texts,
    words_of,
)
from .vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_Size = Annotated[int, Range(1)]

# Of models whose decoder begins with the target language; others begin with the end of sentence
_LANGUAGE_STARTS_DECODER = ("MBartTokenizer", "MBartTokenizerFast", "PLBartTokenizer")
_NO_LIMIT = 10**9  # tokens; transformers writes 1e30

Encode = Callable[[str], list[int]]
"""Returns the tokens of a source, with its language and what stands before it."""


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
    """

    vocab_size: _Size
    decoder_vocab_size: _Size | None = None
    max_position_embeddings: _Size | None = None
    model_type: str = ""
    position_embeddings: str | None = ""
    sinusoids: str | None = ""
    prefix: str | None = None


class Translator:
    """Translates texts of any length, as `csan_hf.pipelines.TextTranslationPipeline` does.

    ```python
    translator = Translator.from_directory("onnx")
    [[translation]] = translator.translate(["Guten Morgen."])
    translation.text
    ```

    Args:
        graphs: Encoder and decoder.
        source: The source's vocabulary.
        target: The target's; the same object where it is joint.
        generation: What generation_config.json says.
        config: What config.json says.
        dictionary: Of a pronouncer: words whose pronunciations are looked up.
    """

    def __init__(
        self,
        graphs: Graphs,
        *,
        source: Vocabulary,
        target: Vocabulary,
        generation: Generation,
        config: ModelSettings,
        dictionary: PronouncingDictionary | None = None,
    ) -> None:
        self.source = source
        self.target = target
        self.generation = generation
        self._dictionary = dictionary
        self._graphs = graphs
        self._config = config
        # Sources of a Marian model need none
        self._tags = LanguageTags(() if source.kind == "MarianTokenizer" else source.added)

    @classmethod
    def from_directory(cls, directory: str | os.PathLike, *, threads: int = 1) -> Translator:
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
        source = target = Vocabulary(folder, size=config.vocab_size)
        if (folder / TARGET_FOLDER).is_dir():
            target = Vocabulary(folder / TARGET_FOLDER, size=target_size, settings=source.settings)
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

    @property
    def source_limit(self) -> int | None:
        """The tokens of the longest source, special ones included; None = any number."""
        limit = min(self._positions or _NO_LIMIT, self.source.most_tokens or _NO_LIMIT)
        return limit if limit < _NO_LIMIT else None

    @property
    def _positions(self) -> int | None:
        """Tokens of the longest text that the model has positions for; None = any number."""
        config = self._config
        is_free = config.model_type == "csan" and config.position_embeddings is None
        return None if is_free or config.sinusoids is None else config.max_position_embeddings

    def translate(
        self,
        texts: Iterable[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        num_beams: int | None = None,
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        return_scores: bool = False,
        return_words: bool = False,
        prefixes: Iterable[str] | None = None,
        split_sentences: SplitSentences = "auto",
        truncation: bool = False,
        unknown: Unknown = "warn",
        sample: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: np.random.Generator | None = None,
        max_batch_tokens: int = 4096,
        first_line: int = 1,
    ) -> list[list[Translation]]:
        """Returns for each text its best translations, or samples; for a blank one a blank one.

        Where a text is split, the n-th hypotheses of its sentences go together. Hypotheses of one
        text, of other tokens, are one, with the better score; samples are all there. What is None
        is as generation_config.json says; where no length is set, a translation may have twice the
        source's tokens and 50. Of a pronouncer with a dictionary its entries come first, with
        probability 1, unless samples or prefixes are asked for.

        Args:
            texts: The texts.
            source_lang: Their language, of a model of several.
            target_lang: The language of the translations, of a model of several.
            num_beams: Beams; 1 = greedy search. None: as many as `n_best`, at least.
            max_length: The most tokens of a translation, the first of the decoder included.
            max_new_tokens: The same without it.
            length_penalty: Above 1 favours long translations.
            n_best: Translations of each text, at most one for each beam.
            return_scores: Whether log-probabilities are needed; else they may be 0.
            return_words: Whether to give words with those of their tokens.
            prefixes: How the translations begin (of a text that is split, that of its first
                sentence); a prefix may end within a word.
            split_sentences: Lines that are split into sentences: `"auto"`, those with more tokens
                or sentences than 99 % of the training sources, `"always"`, all, or `"never"`, those
                with more tokens than the model takes.
            truncation: Cut sources that are longer than the model takes, instead of splitting them.
            unknown: What is done with a text of letters that the vocabulary does not have:
                `"warn"`, `"skip"` (its translation is empty) or `"error"`.
            sample: Draw translations instead of searching for the best.
            temperature: Of samples: below 1 sharpens the probabilities.
            top_k: Of samples: draw from so many likeliest tokens.
            top_p: Of samples: draw from the likeliest tokens whose probabilities reach this sum.
            generator: Gives the random numbers of samples.
            max_batch_tokens: Source tokens in a batch, padding included; beams are not counted.
            first_line: The number of the first text, for messages.

        Raises:
            TypeError: `texts` or `prefixes` are one text, or hold something else than texts.
            ValueError: A text holds half of a surrogate pair, a language is unknown or missing, an
                option is impossible, there are fewer beams than translations are asked for, or
                letters are unknown and `unknown` is `"error"`.
        """
        texts = checked_texts("texts", texts)
        if prefixes is not None:
            prefixes = checked_texts("prefixes", prefixes)
            if len(prefixes) != len(texts):
                raise ValueError(
                    f"prefixes must be one for each text, got {len(prefixes)} for {len(texts)}."
                )
        if not isinstance(n_best, int) or n_best < 1:
            raise ValueError(f"n_best must be an integer from 1, got {n_best!r:.80}.")
        entries: list[list[str]] = [[] for _ in texts]
        if self._dictionary is not None and prefixes is None and not sample:
            entries = [self._dictionary.pronunciations(text) for text in texts]
            is_known = [len(known) >= n_best for known in entries]
            texts = ["" if known else text for text, known in zip(texts, is_known, strict=True)]
        if num_beams is None and not sample:
            num_beams = max(self.generation.num_beams, n_best)
        chosen: dict[str, Any] = {
            "num_beams": num_beams,
            "max_length": max_length,
            "max_new_tokens": max_new_tokens,
            "length_penalty": length_penalty,
            "do_sample": sample or None,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        chosen = {name: value for name, value in chosen.items() if value is not None}
        generation = self._in_language(self.generation.replaced(**chosen), target_lang)
        if generation.num_beams < n_best and not generation.do_sample:
            raise ValueError(f"n_best={n_best} needs as many beams, got num_beams={num_beams}.")
        trained_on = self.generation.source_characters
        texts = check_letters(
            texts,
            unknown,
            unknown_pieces=partial(self.source.unknown_pieces, trained_on=trained_on),
            first_line=first_line,
        )
        encode = self._encoder(
            source_lang, target_lang, most_tokens=self.source_limit if truncation else None
        )
        splits = self._split(
            texts,
            encode,
            split_sentences=split_sentences,
            truncation=truncation,
            source_lang=source_lang,
            target_lang=target_lang,
        )
        segments = [segment for split in splits for segment in split.segments]
        beginnings = None
        if prefixes is not None:
            check_letters(
                prefixes,
                "warn" if unknown == "skip" else unknown,
                unknown_pieces=self.target.unknown_pieces,
                first_line=first_line,
                side="target",
            )
            beginnings = self._beginnings(prefixes, splits)
        hypotheses = self._hypotheses(
            [encode(segment) for segment in segments],
            generation,
            returned=n_best,
            generator=generator,
            with_scores=return_scores or return_words,
            beginnings=beginnings,
            max_batch_tokens=max_batch_tokens,
        )
        chosen_limit = max_new_tokens or max_length
        if chosen_limit is None or chosen_limit > (self._positions or _NO_LIMIT):
            self._warn_of_cut_translations(generation, hypotheses)
        remaining = iter(hypotheses)
        translations = []
        for split in splits:
            parts = list(islice(remaining, len(split.segments)))
            joined = self._joined(split, parts, with_words=return_words)
            translations.append(joined if generation.do_sample else first_of_each_text(joined))
        return [
            _entries_first(known, predicted, n_best) if known else predicted
            for known, predicted in zip(entries, translations, strict=True)
        ]

    def _in_language(self, generation: Generation, target_lang: str | None) -> Generation:
        """Settings with the token of the target language, in a multilingual model."""
        if not self.source.languages:
            return generation
        language = target_lang or self.source.target_language
        if language is not None:
            token = self.source.language_id(language)
            if self.source.kind in _LANGUAGE_STARTS_DECODER:
                generation = generation.replaced(decoder_start_token_id=token)
            else:
                generation = generation.replaced(forced_bos_token_id=token)
        starts_without = generation.decoder_start_token_id in self.source.no_languages
        if generation.forced_bos_token_id is None and starts_without:
            raise ValueError(
                "The model knows several languages: pass target_lang= (and source_lang=)."
            )
        return generation

    def _prefix(self, target_lang: str | None) -> str:
        """What stands before each source: its target language, or what the model always gets."""
        if self.source.languages:
            return ""
        if target_lang is not None:
            mark = f">>{target_lang}<<"
            if self.source.holds(mark):
                return f"{mark} "
            _warn_once(
                f"target_lang={target_lang!r} has no effect: the model's vocabulary names no "
                "languages."
            )
        return self._config.prefix or ""

    def _encoder(
        self, source_lang: str | None, target_lang: str | None, *, most_tokens: int | None
    ) -> Encode:
        """Returns a function that encodes sources, with their languages; it remembers them."""

        @lru_cache(maxsize=100_000)
        def encode(text: str) -> list[int]:
            text, prefix = self._tags.mark(text, "", target_lang)
            prefix = prefix or self._prefix(target_lang)
            ids = self.source.encode(prefix + text, language=source_lang, most_tokens=most_tokens)
            # An empty text and a tokenizer that adds no end of sentence
            return ids or [self.source.padding]

        return encode

    def _split(
        self,
        texts: Sequence[str],
        encode: Encode,
        *,
        split_sentences: SplitSentences,
        truncation: bool,
        source_lang: str | None,
        target_lang: str | None,
    ) -> list[SplitText]:
        usual = None if truncation else self.generation.usual_source
        usual_language = None if usual is None else usual.language
        splits = split_texts(
            texts,
            split_sentences=split_sentences,
            usual=usual,
            limit=None if truncation else self.source_limit,
            language=source_lang or self.source.source_language or usual_language,
            tag_of=partial(self._tags.leading, language=target_lang),
            count_tokens=lambda text: len(encode(text)),
        )
        is_split = any(split.split_lines for split in splits)
        if is_split and split_sentences == "auto" and usual is not None:
            _warn_once(notice_of_splits(usual, "Some lines"))
        return splits

    def _beginnings(self, prefixes: Sequence[str], splits: Sequence[SplitText]) -> list[Prefix]:
        """How the translation of each segment begins."""
        beginnings = []
        for prefix, split in zip(prefixes, splits, strict=True):
            for number in range(len(split.segments)):
                beginnings.append(self.target.prefix_of(prefix if number == 0 else ""))
        return beginnings

    def _hypotheses(
        self,
        sources: Sequence[list[int]],
        generation: Generation,
        *,
        returned: int,
        generator: np.random.Generator | None,
        with_scores: bool,
        beginnings: Sequence[Prefix] | None,
        max_batch_tokens: int,
    ) -> list[list[Hypothesis]]:
        """Translates sources, those of similar length together; [N] -> [N][returned]."""
        hypotheses: dict[int, list[Hypothesis]] = {}
        for batch in batches_by_length([len(ids) for ids in sources], max_batch_tokens):
            lengths = np.array([len(sources[number]) for number in batch])
            ids = np.full((len(batch), lengths.max()), self.source.padding)
            for row, number in enumerate(batch):
                ids[row, : lengths[row]] = sources[number]
            found = generation.search(
                self._graphs,
                ids,
                mask=(np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64),
                limits=self._limits(generation, lengths),
                returned=returned,
                generator=generator,
                with_scores=with_scores,
                beginnings=None if beginnings is None else [beginnings[n] for n in batch],
            )
            hypotheses |= zip(batch, found, strict=True)
        return [hypotheses[number] for number in range(len(sources))]

    def _limits(self, generation: Generation, lengths: np.ndarray) -> np.ndarray:
        """The most tokens [B] of translations, the first included, of sources of lengths [B]."""
        positions = self._positions or _NO_LIMIT
        if generation.max_new_tokens is not None:
            limits = np.full_like(lengths, generation.max_new_tokens + 1)
        elif generation.max_length is not None:
            limits = np.full_like(lengths, generation.max_length)
        else:
            limits = np.minimum(2 * lengths + 50, max(positions - 1, 1)) + 1
        return np.minimum(limits, positions + 1)  # the last token is not read

    def _warn_of_cut_translations(
        self, generation: Generation, hypotheses: Sequence[Sequence[Hypothesis]]
    ) -> None:
        """Warns of translations that have no end, because they are as long as they may be."""
        ends = self.generation.ends
        if not len(ends):
            return
        for several in hypotheses:
            if not all(np.isin(hypothesis.tokens[-1:], ends).all() for hypothesis in several):
                longest = generation.max_new_tokens or generation.max_length
                bound = "2 · source tokens + 50"
                advice = "pass a larger max_length"
                if longest and longest > (self._positions or _NO_LIMIT):
                    bound = f"the {self._positions} tokens that the model has positions for"
                    advice = "split the text"
                elif longest:
                    bound = f"the {longest} tokens of the model's generation config"
                _warn_once(f"A translation had not ended at {bound} and is cut there; {advice}.")

    def _joined(
        self, split: SplitText, hypotheses: Sequence[Sequence[Hypothesis]], *, with_words: bool
    ) -> list[Translation]:
        """The translations of one text, of those of its segments [N][returned]."""
        if not split.segments:
            return [Translation("", 0.0)]
        joined = []
        for parts in zip(*hypotheses, strict=True):
            texts = []
            words: list[dict[str, Any]] = []
            log_probability = 0.0
            for hypothesis in parts:
                ids = hypothesis.tokens.tolist()
                counted = is_scored(
                    hypothesis.tokens,
                    ends=self.generation.ends,
                    special=self.target.not_text,
                    padding=self.target.padding,
                )
                values = np.where(counted, hypothesis.log_probabilities, np.nan)
                texts.append(self.target.decode(ids))
                log_probability += float(np.nansum(values))
                if with_words:
                    words += words_of(
                        ids,
                        values.tolist(),
                        decode=partial(self.target.decode, keep_special=True),
                        name_of=self.target.name_of,
                        ends=self.target.not_text,
                    )
            joined.append(Translation(split.join(texts).strip(), log_probability, words))
        return joined


def _entries_first(
    entries: list[str], predicted: list[Translation], count: int
) -> list[Translation]:
    """What the dictionary has of a word, and predictions that differ from it, `count` at most."""
    translations = [Translation(entry, 0.0) for entry in entries]
    translations += (other for other in predicted if other.text not in entries)
    return translations[:count]


@lru_cache
def _warn_once(message: str) -> None:
    logger.warning(message)
