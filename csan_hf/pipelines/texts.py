# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of whole texts with any sequence-to-sequence model."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import Any

import torch
from transformers.utils import logging

from csan_hf_runtime.characters import has_all_bytes, unseen_characters
from csan_hf_runtime.constraints import Endings
from csan_hf_runtime.generation import Generation
from csan_hf_runtime.scores import is_scored
from csan_hf_runtime.sentences import SplitText, UsualSource, is_wide, sentences_of
from csan_hf_runtime.texts import (
    LanguageTags,
    SplitSentences,
    Unknown,
    check_choice,
    check_letters,
    notice_of_splits,
    split_texts,
    words_of,
)

from ..alignment import Alignment, align_pairs, check_fast, uncovered_sentences, word_pattern
from ..families import FAMILIES
from ..models.translation import TranslationPipeline, check_text
from .markup import MarkedText, Markup, parse_markup
from .search import search, search_by_default
from .terms import Terms, lacking, most_letters_after

logger = logging.get_logger(__name__)

_TRANSLATION_TASK = re.compile(r"translation_.+_to_.+")  # in T5's config.task_specific_params
_WINDOW_IN_BATCHES = 16
_BEAMS_FOR_TERMS = 8
_ROOM_FOR_TERMS = 3  # tokens, beside those of the terms: the end, and two


def _lacking_in(sequences: list[dict[str, Any]], targets: list[str]) -> list[str]:
    """The targets of terms that some of several translations lack."""
    missing: list[str] = []
    for sequence in sequences:
        missing += lacking(targets, sequence["translation_text"])
    return missing


class TextTranslationPipeline(TranslationPipeline):
    """A `TranslationPipeline` for texts of any length, which can score and align what it
    translates.

    ```python
    translator = translation_pipeline("facebook/m2m100_418M", src_lang="en", tgt_lang="de")
    translator(open("book.txt").read(), batch_size=16)[0]["translation_text"]
    ```

    **Length.** Every line of a text is translated by itself, and line breaks, blank lines and
    indents are put back as they were. A model that was trained on single sentences translates one
    of several and leaves out the others: a line with more tokens or sentences than 99 % of the
    training sources had (`generation_config.usual_source`, which training saves; a CSAN of the
    preset "long" needs no such bound) is split into sentences by
    [sentencex](https://github.com/wikimedia/sentencex), as is one with more tokens than the model
    takes (`source_limit`; a CSAN with `sinusoids=None` takes any number). A sentence that is still
    too long is cut after a clause or between words, with a warning. So nothing is lost, unless
    `truncation=True` asks for it.

    **Languages.** Those of T5 are the codes in the names of its tasks (`translation_en_to_de` in
    `config.task_specific_params`, with prefix and generation settings).

    **Batches.** `batch_size` counts lines and sentences; those of similar length share a batch. Of
    a generator or data set, 16 batches' worth of texts are read at a time (one text with a batch
    size of 1). Batches change nothing but speed; scores agree to about 5 digits in float32.

    Args:
        *args: Passed to `TranslationPipeline`.
        split_sentences (`str`, *optional*, defaults to `"auto"`): Lines that are split into
            sentences: `"always"`, all; `"auto"`, unusually long ones (see Length); `"never"`, only
            those with more tokens than the model takes. With `truncation=True` sources are cut
            instead, with `"always"` sentence by sentence.
        unknown (`str`, *optional*, defaults to `"warn"`): What is done with a text of letters or
            signs that the source vocabulary does not have, or of bytes and was not trained on
            (`generation_config.source_characters`), for which a model invents something:
            `"warn"`, `"skip"` (its translation is empty) or `"error"`.
        return_alignments (`bool`, *optional*, defaults to `False`): Align their words; see
            `__call__`.
        check_coverage (`bool`, *optional*, defaults to `False`): Warn of sentences left out; see
            `__call__`.
        trust_target_tokenizer (`bool`, *optional*, defaults to `False`): Let code of the target
            tokenizer in the checkpoint run.
        **kwargs: Passed to `TranslationPipeline`; `return_scores` and `return_words` as in
            `__call__`.
    """

    _splits_texts = True

    def __init__(
        self,
        *args: Any,
        split_sentences: SplitSentences = "auto",
        unknown: Unknown = "warn",
        return_alignments: bool = False,
        check_coverage: bool = False,
        trust_target_tokenizer: bool = False,
        **kwargs: Any,
    ) -> None:
        self._trusts_target_tokenizer = trust_target_tokenizer
        super().__init__(*args, **kwargs)
        self.split_sentences = split_sentences
        self.unknown = unknown
        self.return_alignments = return_alignments
        self.check_coverage = check_coverage

    def _sanitize_parameters(
        self, return_scores: bool | None = None, return_words: bool | None = None, **kwargs: Any
    ) -> tuple[dict, dict, dict]:
        preprocess_params, forward_params, postprocess_params = super()._sanitize_parameters(
            **kwargs
        )
        if return_scores is not None or return_words:
            forward_params["return_scores"] = return_scores or return_words
        if return_words is not None:
            postprocess_params["return_words"] = return_words
        return preprocess_params, forward_params, postprocess_params

    def __call__(  # type: ignore[override]
        self,
        inputs: str | Sequence[str] | Iterable[str],
        *,
        split_sentences: SplitSentences | None = None,
        unknown: Unknown | None = None,
        return_alignments: bool | None = None,
        check_coverage: bool | None = None,
        markup: Markup | None = None,
        terms: Terms | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Translates one text or many.

        Args:
            inputs (`str`, sequence, generator or data set of `str`): What to translate.
            split_sentences (`str`, *optional*): Lines that are split into sentences: `"auto"`,
                `"always"` or `"never"`; see the arguments of the class.
            unknown (`str`, *optional*): `"warn"`, `"skip"` or `"error"`; see the arguments of the
                class.
            return_scores (`bool`, *optional*): Add `"sentences"` to each result, a list with one
                dict for each line or sentence that was translated by itself: `source_text`,
                `translation_text`, `log_probability`, the sum of the natural logarithms of the
                probabilities of its tokens, end of sentence included, language tokens excluded, and
                `score`, their mean.
            return_words (`bool`, *optional*, defaults to `False`): Add `"sentences"` with scores
                and `words`, the translation's words with their `log_probability` and their
                `tokens`, each a dict of `token` and `log_probability`.
            return_alignments (`bool`, *optional*): Add `alignment`: pairs (source word, target
                word), counted from 0 in words that white space separates (letters, where the
                tokenizer is one of characters), from `csan_hf.evaluation.align`. Those of the text
                count over the whole text; `"sentences"` have their own.
            check_coverage (`bool`, *optional*): Warn where a translation seems to leave out a
                sentence of a line that has several, because the cross-attention hardly covers it
                (`csan_hf.alignment.coverage`).
            markup (`str`, *optional*): `"html"` or `"xliff"`: inline tags of the texts are put back
                where the words aligned to theirs stand (`csan_hf.pipelines.markup`), and entities
                such as `&amp;` are read and written. All else, `alignment` too, is of the text
                without tags.
            terms (`csan_hf.pipelines.terms.Terms`, *optional*): Terms whose targets must stand in
                the translations of sentences that hold them. Where one does not, the sentence is
                searched anew, with at least 8 beams, for translations that hold all of them
                (`csan_hf_runtime.constraints`).
            batch_size (`int`, *optional*, defaults to 1): Sentences translated at once.
            **kwargs: See `TranslationPipeline`.

        Raises:
            TypeError: An input is not a string.
            ValueError: See `TranslationPipeline`; or alignments are asked of a model of another
                family.
        """
        alignments = self.return_alignments if return_alignments is None else return_alignments
        if alignments or markup:
            self.check_alignable()
        options = {
            **kwargs,
            "batch_size": batch_size or self._batch_size or 1,
            "return_alignments": bool(alignments or markup),
            "markup": markup,
            "terms": terms,
            "check_coverage": self.check_coverage if check_coverage is None else check_coverage,
            "split_sentences": split_sentences or self.split_sentences,
            "unknown": unknown or self.unknown,
        }
        if isinstance(inputs, str):
            return self._translate([inputs], **options)[0]
        if isinstance(inputs, Sequence) and not isinstance(inputs, bytes):
            results = self._translate(list(inputs), **options)
            if all(len(result) == 1 for result in results):
                return [result[0] for result in results]
            return results
        is_iterable = hasattr(inputs, "__iter__") or hasattr(inputs, "__getitem__")
        if isinstance(inputs, bytes | Mapping) or not is_iterable:
            check_text(inputs)  # neither a text nor several
        return self._stream(inputs, **options)

    def _stream(
        self, inputs: Any, *, batch_size: int, **options: Any
    ) -> Iterator[list[dict[str, Any]]]:
        """Translates texts as they come, few at a time."""
        texts: Iterator[str]
        if hasattr(inputs, "__iter__"):
            texts = iter(inputs)
        else:  # of torch, data sets may have __getitem__ and __len__ alone
            texts = (inputs[number] for number in range(len(inputs)))
        size = 1 if batch_size == 1 else _WINDOW_IN_BATCHES * batch_size
        first_line = 1
        while window := list(islice(texts, size)):
            yield from self._translate(
                window, batch_size=batch_size, first_line=first_line, **options
            )
            first_line += len(window)

    def _translate(
        self,
        texts: list[str],
        *,
        batch_size: int,
        split_sentences: SplitSentences,
        unknown: Unknown,
        markup: Markup | None,
        first_line: int = 1,
        **options: Any,
    ) -> list[list[dict[str, Any]]]:
        """Translates texts: for each a list of `num_return_sequences` results."""
        for text in texts:
            check_text(text)
        marked_texts = self.without_tags(texts, markup)
        texts = [marked.text for marked in marked_texts]
        texts = self.check_letters(texts, unknown, first_line)
        if {**self._postprocess_params, **options}.get("return_tensors"):
            # Translations as tokens cannot be joined
            return self.translate_segments(texts, batch_size=batch_size, **options)
        splits = self.split(texts, split_sentences=split_sentences, **options)
        is_auto = split_sentences == "auto" and self.usual_source is not None
        if is_auto and any(split.split_lines for split in splits):
            logger.warning_once(self.notice_of_splits("Some lines"))
        segments = [segment for split in splits for segment in split.segments]
        # The longest first; results are in the order of the segments
        count = self.token_counter(**options)
        order = sorted(range(len(segments)), key=lambda number: -count(segments[number]))
        translations = self.translate_segments(
            [segments[number] for number in order], batch_size=batch_size, **options
        )
        by_number = dict(zip(order, translations, strict=True))
        remaining = (by_number[number] for number in range(len(segments)))
        results = [
            self.join(split, list(islice(remaining, len(split.segments))), options)
            for split in splits
        ]
        if markup:
            self.add_tags(results, marked_texts, **options)
        return results

    def without_tags(self, texts: Iterable[str], markup: Markup | None) -> list[MarkedText]:
        """Takes the tags out of texts; where there is no `markup` they have none.

        Raises:
            ValueError: `markup` is none of `Markup`.
        """
        if markup is None:
            return [MarkedText(text, []) for text in texts]
        check_choice("markup", markup, Markup)
        return [parse_markup(text, markup) for text in texts]

    def add_tags(
        self,
        results: Iterable[list[dict[str, Any]]],
        marked_texts: Iterable[MarkedText],
        **options: Any,
    ) -> None:
        """Puts the tags of texts into their translations, by the alignments of these; options are a
        call's.
        """
        language = self._target_language(options)
        source_word = word_pattern(self.tokenizer)
        target_word = word_pattern(self.target_tokenizer)
        for sequences, marked in zip(results, marked_texts, strict=True):
            language_tag = self._target_tags.leading(marked.text, language)
            for result in sequences:
                result["translation_text"] = marked.restore(
                    result["translation_text"],
                    result.get("alignment", ()),
                    source_word=source_word,
                    target_word=target_word,
                    first=len(language_tag),
                )

    def _add_alignments(
        self,
        segments: Sequence[str],
        translations: list[list[dict[str, Any]]],
        batch_size: int,
        options: dict[str, Any],
    ) -> None:
        results = []
        pairs = []
        for segment, sequences in zip(segments, translations, strict=True):
            for result in sequences:
                results.append(result)
                pairs.append((segment, result["translation_text"]))
        alignments = self._align(pairs, batch_size, options)
        for result, alignment in zip(results, alignments, strict=True):
            result["alignment"] = alignment.links()

    def check_alignable(self) -> None:
        """Raises `ValueError` where words cannot be aligned: for ONNX graphs, ensembles, other
        families, and tokenizers that are not fast ones.
        """
        gives_attention = getattr(self.model, "gives_attention", True)
        if not (gives_attention and self.model.config.model_type in FAMILIES):
            raise ValueError(
                f"Alignments are read from the attention of single torch models of the families "
                f"{', '.join(FAMILIES)}, not of {type(self.model).__name__}; `csan-hf align` takes "
                "other families, too."
            )
        check_fast(self.tokenizer, self.target_tokenizer)

    def _language_settings(
        self, src_lang: str | None, tgt_lang: str | None
    ) -> tuple[str, dict[str, Any]]:
        config = self.model.config
        tasks = getattr(config, "task_specific_params", None) or {}
        translations = list(filter(_TRANSLATION_TASK.fullmatch, tasks))
        task = f"translation_{src_lang}_to_{tgt_lang}"
        if task in translations:
            settings = dict(tasks[task])
            return settings.pop("prefix", ""), settings
        if translations and not getattr(config, "prefix", None):
            logger.warning_once(
                "Pass src_lang and tgt_lang, or prefix: this model knows "
                f"{', '.join(translations)}."
            )
            return "", {}
        return super()._language_settings(src_lang, tgt_lang)

    def split(
        self, texts: Iterable[str], split_sentences: SplitSentences = "auto", **options: Any
    ) -> list[SplitText]:
        """Splits texts into what the model takes; options are a call's: languages and prefix
        matter.

        Raises:
            ValueError: `split_sentences` is none of `SplitSentences`.
        """
        is_cut = options.get("truncation")
        return split_texts(
            texts,
            split_sentences=split_sentences,
            usual=None if is_cut else self.usual_source,
            limit=None if is_cut else self.source_limit,
            language=self._language_of(options),
            tag_of=partial(self._target_tags.leading, language=self._target_language(options)),
            count_tokens=self.token_counter(**options),
        )

    def check_letters(
        self,
        texts: Sequence[str],
        unknown: Unknown = "warn",
        first_line: int = 1,
        *,
        of_target: bool = False,
    ) -> list[str]:
        """Returns the texts, with `"skip"` those empty that hold letters which the vocabulary of
        the source, or of the target, does not have.

        Raises:
            ValueError: There is such a text, and `unknown` is `"error"`; or it is none of
                `Unknown`.
        """
        tokenizer = self.target_tokenizer if of_target else self.tokenizer
        return check_letters(
            texts,
            unknown,
            unknown_pieces=partial(
                _unknown_pieces,
                tokenizer,
                of_target=of_target,
                trained_on=None if of_target else self.source_characters,
            ),
            first_line=first_line,
            side="target" if of_target else "source",
        )

    @property
    def usual_source(self) -> UsualSource | None:
        """What 99 % of the training sources had at most; None = not known, or of no importance."""
        usual = getattr(self.model.generation_config, "usual_source", None)
        if usual is None:
            return None
        return UsualSource.from_dict(usual, "generation_config.json: usual_source: ")

    @property
    def source_characters(self) -> str | None:
        """The characters of the training sources (`csan_hf_runtime.characters`); None = not
        known.
        """
        ranges = getattr(self.model.generation_config, "source_characters", None)
        settings = {"source_characters": ranges}
        return Generation.from_dict(settings, "generation_config.json: ").source_characters

    def notice_of_splits(self, lines: str) -> str:
        """Says that lines were split at their sentences, and how to prevent it."""
        usual: Any = self.usual_source
        return notice_of_splits(usual, lines)

    @cached_property
    def _target_tags(self) -> LanguageTags:
        """The tags of a model of csan_hf with several target languages."""
        return LanguageTags(self.tokenizer.get_added_vocab())

    def _tokenize(
        self,
        text: str,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in `TranslationPipeline`; a tag within a text is text, unless the text begins with it
        and no language is given.
        """
        given_prefix = kwargs.pop("prefix", None)
        text, prefix = self._marked(text, src_lang, tgt_lang, given_prefix)
        return super()._tokenize(text, src_lang, tgt_lang, prefix=prefix, **kwargs)

    def _marked(
        self, text: str, src_lang: str | None, tgt_lang: str | None, prefix: str | None
    ) -> tuple[str, str]:
        """Returns a text without its tag, and what stands before it where the model reads it."""
        text, mark = self._target_tags.mark(text, prefix or "", tgt_lang)
        if not mark and prefix is None:
            mark = self._language_settings(src_lang, tgt_lang)[0]
        return text, mark

    def marked(self, text: str, **options: Any) -> tuple[str, str]:
        """The same, with a call's options or those of the pipeline.

        Raises:
            ValueError: The model translates into several languages, and neither the options nor the
                text name one that it knows.
        """
        settings = {**self._preprocess_params, **options}
        return self._marked(text, *map(settings.get, ("src_lang", "tgt_lang", "prefix")))

    def _target_language(self, options: dict[str, Any]) -> str | None:
        """The target language of a call or of the pipeline; None = the tokenizer's."""
        return options.get("tgt_lang") or self._preprocess_params.get("tgt_lang")

    def _source_language(self, options: dict[str, Any]) -> str | None:
        """The source language of a call or of the pipeline; None = the tokenizer's."""
        return options.get("src_lang") or self._preprocess_params.get("src_lang")

    def _language_of(self, options: dict[str, Any]) -> str | None:
        """The language of the sources, as far as call, pipeline or tokenizer tell."""
        usual = self.usual_source
        return (
            self._source_language(options)
            or getattr(self.tokenizer, "src_lang", None)
            or getattr(self.tokenizer, "source_lang", None)
            or (None if usual is None else usual.language)
        )

    def translate_segments(
        self,
        segments: Sequence[str],
        *,
        batch_size: int,
        check_coverage: bool = False,
        return_alignments: bool = False,
        terms: Terms | None = None,
        **options: Any,
    ) -> list[list[dict[str, Any]]]:
        """Translates segments as they are, in batches as they come: [N] ->
        [N][`num_return_sequences`].
        """
        sentences = self._sentences_to_check(segments, options) if check_coverage else []
        results = self._generate(segments, batch_size=batch_size, **options)
        if terms is not None:
            self._require_terms(segments, results, terms, batch_size, options)
        if any(sentences):
            self._warn_of_omissions(segments, sentences, results, batch_size, options)
        if return_alignments:
            self._add_alignments(segments, results, batch_size, options)
        return results

    def _generate(self, segments: Sequence[str], **options: Any) -> list[list[dict[str, Any]]]:
        # transformers advises batches where it is called often on a GPU: these are batches
        self.call_count = 0
        results = super().__call__(list(segments), **options)
        return [result if isinstance(result, list) else [result] for result in results]

    def _require_terms(
        self,
        segments: Sequence[str],
        results: list[list[dict[str, Any]]],
        terms: Terms,
        batch_size: int,
        options: dict[str, Any],
    ) -> None:
        """Translates anew the segments with a translation that lacks the target of a term."""
        chosen = self._get_set_generation_params(self._prepare_generate_kwargs(options))
        least_beams = max(chosen.get("num_beams") or 1, _BEAMS_FOR_TERMS)
        targets = [terms.targets_of(segment) for segment in segments]
        phrases: dict[int, list[list[int]]] = {}
        by_beams: dict[int, list[int]] = {}
        for number, sequences in enumerate(results):
            if _lacking_in(sequences, targets[number]):
                phrases[number] = [self.tokens_within_text(target) for target in targets[number]]
                # A beam for each number of tokens that a hypothesis may hold
                beams = max(least_beams, 1 + sum(map(len, phrases[number])))
                by_beams.setdefault(beams, []).append(number)
        for beams, numbers in by_beams.items():
            for start in range(0, len(numbers), batch_size):
                batch = numbers[start : start + batch_size]
                limits = [self._limit_with(results[n], phrases[n]) for n in batch]
                most_letters = [list(map(most_letters_after, targets[n])) for n in batch]
                constrained = {
                    **options,
                    "custom_generate": search,
                    "phrases": [phrases[n] for n in batch],
                    "endings": Endings(self._continuing_letters, most_letters),
                    "num_beams": beams,
                    "batch_size": len(batch),
                }
                constrained = self._with_limits(
                    constrained, torch.tensor(limits, device=self.model.device)
                )
                batch_results = self._generate([segments[n] for n in batch], **constrained)
                for number, sequences in zip(batch, batch_results, strict=True):
                    results[number] = sequences
        for number in phrases:
            missing = _lacking_in(results[number], targets[number])
            if missing:
                logger.warning(
                    f"A translation lacks {missing[0]!r}, the term for one in "
                    f"{segments[number][:60]!r}: allow it more tokens."
                )

    def _limit_with(self, sequences: list[dict[str, Any]], phrases: list[list[int]]) -> int:
        """Tokens that a translation with phrases may have: hardly more than one without them has.

        A hypothesis that puts off a phrase may not end, and goes on with what is likely by token,
        but means nothing."""
        lengths = [
            len(target_ids(self.target_tokenizer, sequence["translation_text"]))
            for sequence in sequences
        ]
        return max(lengths) + sum(map(len, phrases)) + _ROOM_FOR_TERMS

    @cached_property
    def _continuing_letters(self) -> dict[int, int]:
        """Tokens of the target that continue a word -> the letters that they add to it."""
        config = self.model.config
        size = getattr(config, "decoder_vocab_size", None) or config.vocab_size
        tokenizer = self.target_tokenizer
        text_of = tokenizer.convert_tokens_to_string
        not_text = self._not_text
        letters = {}
        word: list[str] = []  # a token that the others stand behind
        for number, token in enumerate(tokenizer.convert_ids_to_tokens(list(range(size)))):
            if token is None or number in not_text:
                continue
            if not word and text_of([token]).strip().isalpha():
                word = [token]
            added = text_of([*word, token]).removeprefix(text_of(word))
            if match := re.match(r"\w+", added):
                letters[number] = match.end()
        return letters

    def tokens_within_text(self, term: str) -> list[int]:
        """The tokens of a target term after others: as a rule with the space before it."""
        space = "" if is_wide(term[0]) else " "
        before = target_ids(self.target_tokenizer, ".")
        tokens = target_ids(self.target_tokenizer, f".{space}{term}")[len(before) :]
        if self.target_tokenizer.unk_token_id in tokens:
            raise ValueError(
                f"The term {term!r} has letters or signs that the target vocabulary does not have."
            )
        if not self.target_tokenizer.decode(tokens).strip():
            raise ValueError(
                f"The term {term!r} has no letters or signs that the model writes: leave it out."
            )
        return tokens

    def token_counter(self, **options: Any) -> Callable[[str], int]:
        """Returns a function that counts the tokens of a source, with its language and prefix; it
        remembers them.
        """
        settings = {**self._preprocess_params, **options}
        how = {name: settings.get(name) for name in ("src_lang", "tgt_lang", "prefix")}

        @lru_cache(maxsize=100_000)
        def count(text: str) -> int:
            return len(self._tokenize(text, **how, verbose=False)["input_ids"])

        return count

    def join(
        self, split: SplitText, results: list[list[dict[str, Any]]], options: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Puts one text's results together: [segments][R] -> [R]."""
        if not results:  # an empty text, or one of white space alone
            chosen = self._get_set_generation_params(self._prepare_generate_kwargs(options))
            count = chosen.get("num_return_sequences") or 1
            return [{"translation_text": split.gaps[0]} for _ in range(count)]
        joined = []
        for sequence in zip(*results, strict=True):
            translations = [part["translation_text"] for part in sequence]
            result: dict[str, Any] = {"translation_text": split.join(translations)}
            if "alignment" in sequence[0]:
                result["alignment"] = split.join_links(
                    translations,
                    [part["alignment"] for part in sequence],
                    source_word=word_pattern(self.tokenizer),
                    target_word=word_pattern(self.target_tokenizer),
                )
            if sequence[0].keys() & {"score", "alignment"}:
                result["sentences"] = [
                    {"source_text": segment, **part}
                    for segment, part in zip(split.segments, sequence, strict=True)
                ]
            joined.append(result)
        return joined

    def _align(
        self, pairs: list[tuple[str, str]], batch_size: int, options: dict[str, Any]
    ) -> list[Alignment]:
        from csan_hf.data import TokenizerPair  # slow to import, and few calls need it

        tokenizers = TokenizerPair(self.tokenizer, self.target_tokenizer)
        with self.source_language(self._source_language(options)):
            return list(
                align_pairs(
                    self.model,
                    tokenizers,
                    pairs,
                    batch_size=batch_size,
                    read=partial(self.marked, **options),
                )
            )

    def _sentences_to_check(
        self, segments: Sequence[str], options: dict[str, Any]
    ) -> list[list[str]]:
        """The sentences of each segment that has several; raises before anything is translated."""
        reason = None
        if not getattr(self.model, "gives_attention", True):
            reason = type(self.model).__name__
        if options.get("truncation"):
            reason = "truncation"
        if reason is not None:
            raise ValueError(
                f"check_coverage reads the cross-attention to whole sources, which {reason} does "
                "not give."
            )
        check_fast(self.tokenizer, self.target_tokenizer)
        language = self._language_of(options)
        texts = [self.marked(segment, **options)[0] for segment in segments]
        split = [sentences_of(text, language) for text in texts]
        return [sentences if len(sentences) > 1 else [] for sentences in split]

    def _warn_of_omissions(
        self,
        segments: Sequence[str],
        sentences_of_segments: list[list[str]],
        results: list[list[dict[str, Any]]],
        batch_size: int,
        options: dict[str, Any],
    ) -> None:
        """Warns of sentences that the best translations hardly attend to; [] is not checked."""
        checked = []
        pairs = []
        for segment, sentences, sequences in zip(
            segments, sentences_of_segments, results, strict=True
        ):
            if sentences:
                checked.append(sentences)
                pairs.append((segment, sequences[0]["translation_text"]))
        alignments = self._align(pairs, batch_size, options)
        for sentences, alignment in zip(checked, alignments, strict=True):
            for number in uncovered_sentences(alignment, sentences):
                sentence = sentences[number].strip()[:60]
                logger.warning(
                    f"A translation seems to leave out {sentence!r}. Translate it on a line of its "
                    "own."
                )

    def _forward(  # type: ignore[override]
        self, model_inputs: Any, return_scores: bool = False, **generate_kwargs: Any
    ) -> Any:
        """As in `TranslationPipeline`; with `return_scores` also `log_probabilities`: `_score`."""
        if self.model.config.model_type in FAMILIES and self.device.type == "cpu":
            generate_kwargs = search_by_default(generate_kwargs)
        outputs = super()._forward(model_inputs, **generate_kwargs)
        if return_scores:
            outputs["log_probabilities"] = self._score(model_inputs, outputs["output_ids"])
        return outputs

    def _score(self, model_inputs: Any, output_ids: torch.Tensor) -> torch.Tensor:
        """Log-probabilities [B, R, T - 1] of the tokens of `output_ids` [B, R, T], from one pass;
        NaN where a token does not count.
        """
        batch, returned, length = output_ids.shape
        ids = output_ids.flatten(0, 1)
        logits = self.model(
            input_ids=model_inputs["input_ids"].repeat_interleave(returned, 0),
            attention_mask=model_inputs["attention_mask"].repeat_interleave(returned, 0),
            decoder_input_ids=ids[:, :-1],
            use_cache=False,
        ).logits
        tokens = ids[:, 1:]
        scores = logits.float().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        is_counted = is_scored(
            tokens.cpu().numpy(),
            ends=self.model.generation_config.eos_token_id,
            special=self._not_text,
            padding=self.target_tokenizer.pad_token_id,
        )
        counted = torch.from_numpy(is_counted).to(tokens.device)
        return scores.masked_fill(~counted, math.nan).reshape(batch, returned, length - 1)

    @property
    def _not_text(self) -> set[int]:
        """Special tokens of the target, without that of unknown letters."""
        return {*self.target_tokenizer.all_special_ids} - {self.target_tokenizer.unk_token_id}

    def postprocess(  # type: ignore[override]
        self, model_outputs: dict[str, torch.Tensor], return_words: bool = False, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """As in `TranslationPipeline`; with scores, each dict has its `log_probability` and
        `score`, with `return_words` its `words`.
        """
        results = super().postprocess(model_outputs, **kwargs)
        if "log_probabilities" not in model_outputs:
            return results
        ids = model_outputs["output_ids"][0, :, 1:].tolist()
        log_probabilities = model_outputs["log_probabilities"][0].tolist()
        for result, row, values in zip(results, ids, log_probabilities, strict=True):
            counted = [value for value in values if not math.isnan(value)]
            result["log_probability"] = sum(counted)
            result["score"] = sum(counted) / max(len(counted), 1)
            if return_words:
                result["words"] = words_of(
                    row,
                    values,
                    decode=self.target_tokenizer.decode,
                    name_of=self.target_tokenizer.convert_ids_to_tokens,
                    ends=self._not_text,
                )
        return results

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Saves model, tokenizers and the `TranslationPipeline`, which needs only transformers."""
        plain = TranslationPipeline(
            model=self.model,
            tokenizer=self.tokenizer,
            target_tokenizer=self.target_tokenizer,
            device=self.device,
        )
        plain.save_pretrained(save_directory, **kwargs)


def target_ids(tokenizer: Any, texts: str | list[str]) -> Any:
    """The tokens of a target text, or of several, by the target's tokenizer."""
    return _encode(tokenizer, texts, of_target=True)["input_ids"]


def _encode(
    tokenizer: Any, texts: str | list[str], *, of_target: bool, **options: Any
) -> Mapping[str, Any]:
    # `text_target` chooses the target's vocabulary of a tokenizer that has two; multilingual ones
    # have one, and would ask for a target language
    name = "text_target" if of_target and not hasattr(tokenizer, "src_lang") else "text"
    return tokenizer(**{name: texts}, add_special_tokens=False, verbose=False, **options)


def _unknown_pieces(
    tokenizer: Any, texts: list[str], *, of_target: bool, trained_on: str | None
) -> list[list[str]]:
    """The pieces of each text that are unknown; the letters, of a slow tokenizer; of a vocabulary
    of bytes the characters that it was not `trained_on`, where that is known.
    """
    pieces: list[list[str]] = [[] for _ in texts]
    unknown = tokenizer.unk_token_id
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and has_all_bytes(backend):
        return unseen_characters(backend, texts, trained_on)
    if not texts or unknown is None:
        return pieces
    encode = partial(_encode, tokenizer, of_target=of_target)
    encoded = encode(texts, return_offsets_mapping=tokenizer.is_fast)
    for number, ids in enumerate(encoded["input_ids"]):
        text = texts[number]
        if tokenizer.is_fast:
            places = zip(ids, encoded["offset_mapping"][number], strict=True)
            pieces[number] = [text[start:end] for token, (start, end) in places if token == unknown]
        elif unknown in ids:
            pieces[number] = [letter for letter in text if unknown in encode(letter)["input_ids"]]
    return pieces
