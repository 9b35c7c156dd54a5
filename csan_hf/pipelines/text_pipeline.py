# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of whole texts with any sequence-to-sequence model, with the manners of a pipeline of
transformers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any

from csan_hf_runtime.generation import Generation
from csan_hf_runtime.options import SplitSentences, TextOptions, TranslationOptions, Unknown
from csan_hf_runtime.terms import Terms
from csan_hf_runtime.texts import SentenceTranslation, Translation, checked_texts
from csan_hf_runtime.translator import TextTranslator

from ..models.translation import TranslationPipeline, check_text
from .tokenizer_vocabulary import TokenizerVocabulary
from .torch_engine import TorchEngine, task_name, translation_tasks

_WINDOW_IN_BATCHES = 16
_LENGTHS = ("max_length", "max_new_tokens")
# How transformers calls languages, and csan_hf's command
LANGUAGES = {"source_lang": "src_lang", "target_lang": "tgt_lang"}
_OPTIONS = {field.name for field in fields(TextOptions)} - {
    *LANGUAGES,
    "truncation",
    "max_batch_tokens",
}
_OPTIONS |= {"return_scores", "return_words", "return_alignments"}


class TextTranslationPipeline(TranslationPipeline):
    """A `TranslationPipeline` for texts of any length, which can score and align what it
    translates.

    ```python
    translator = translation_pipeline("facebook/m2m100_418M", src_lang="en", tgt_lang="de")
    translator(open("book.txt").read(), batch_size=16)[0]["translation_text"]
    ```

    **Length.** Every line of a text has a translation of its own, and line breaks, blank lines and
    indents are put back as they were. A model that attends line by line (preset "lines") reads the
    lines of a text together. A model that was trained on single sentences translates one of several
    and leaves out the others: a line with more tokens or sentences than 99 % of the training
    sources had (`generation_config.usual_source`, which training saves; a CSAN of the preset "long"
    needs no such bound) is split into sentences by
    [sentencex](https://github.com/wikimedia/sentencex), as is one with more tokens than the model
    takes (`source_limit`; a CSAN with `position_embeddings=None` takes any number). A sentence that
    is still too long is cut after a clause or between words, with a warning. So nothing is lost,
    unless `truncation=True` asks for it.

    **Languages.** Those of T5 are the codes in the names of its tasks (`translation_en_to_de` in
    `config.task_specific_params`, with prefix and generation settings). `source_lang` and
    `target_lang` mean the same as `src_lang` and `tgt_lang`.

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
        trust_target_tokenizer (`bool`, *optional*, defaults to `False`): Let code of the target
            tokenizer in the checkpoint run.
        **kwargs: Passed to `TranslationPipeline`; or defaults of every call, see `__call__`.
    """

    _splits_texts = True

    def __init__(
        self,
        *args: Any,
        split_sentences: SplitSentences = "auto",
        unknown: Unknown = "warn",
        trust_target_tokenizer: bool = False,
        **kwargs: Any,
    ) -> None:
        self._trusts_target_tokenizer = trust_target_tokenizer
        options = _take_text_options(kwargs)
        super().__init__(*args, **kwargs)
        self._options = {"split_sentences": split_sentences, "unknown": unknown, **options}

    def __call__(  # type: ignore[override]
        self,
        inputs: str | Sequence[str] | Iterable[str],
        *,
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
            return_scores (`bool`, *optional*, defaults to `False`): Add `"sentences"` to each
                result, a list with one dict for each line or sentence that was translated by
                itself: `source_text`, `translation_text`, `log_probability`, the sum of the natural
                logarithms of the probabilities of its tokens, end of sentence included, language
                tokens excluded, and `score`, their mean.
            return_words (`bool`, *optional*, defaults to `False`): Add `"sentences"` with scores
                and `words`, the translation's words with their `log_probability` and their
                `tokens`, each a dict of `token` and `log_probability`.
            return_alignments (`bool`, *optional*, defaults to `False`): Add `alignment`: pairs
                (source word, target word), counted from 0 in words that white space separates
                (letters, where the tokenizer is one of characters), from the model's attention
                (`csan_hf.evaluation.align`). Those of the text count over the whole text;
                `"sentences"` have their own.
            check_coverage (`bool`, *optional*, defaults to `False`): Warn where a translation seems
                to leave out a sentence of a line that has several, because the cross-attention
                hardly covers it (`csan_hf_runtime.coverage`).
            markup (`str`, *optional*): `"html"` or `"xliff"`: inline tags of the texts are put back
                where the words aligned to theirs stand (`csan_hf_runtime.markup`), and entities
                such as `&amp;` are read and written. All else, `alignment` too, is of the text
                without tags.
            terms (`csan_hf_runtime.terms.Terms`, *optional*): Terms whose targets must stand in
                the translations of sentences that hold them. Where one does not, the sentence is
                searched anew, with at least 8 beams, for translations that hold all of them
                (`csan_hf_runtime.constraints`).
            batch_size (`int`, *optional*, defaults to 1): Sentences translated at once.
            **kwargs: See `TranslationPipeline`.

        Raises:
            TypeError: An input is not a string.
            ValueError: See `TranslationPipeline`; or attention weights are needed, which the model
                does not give.
        """
        batch_size = batch_size or self._batch_size or 1
        kwargs.pop("num_workers", None)  # of a loader of data, which there is none of
        options = {**self._options, **_take_text_options(kwargs), "batch_size": batch_size}
        preprocess, forward, postprocess = self._sanitize_parameters(**kwargs)
        preprocess = {**self._preprocess_params, **preprocess}
        postprocess = {**self._postprocess_params, **postprocess}
        if postprocess.get("return_tensors"):  # tokens of segments cannot be joined
            _check_whole_texts(options)
            return super().__call__(inputs, batch_size=batch_size, **kwargs)
        arguments = {**self._forward_params, **forward}
        for name, name_in_transformers in LANGUAGES.items():
            arguments.pop(name_in_transformers, None)
            options[name] = preprocess.get(name_in_transformers)
        arguments = self._prepare_generate_kwargs(arguments)
        chosen = self._get_set_generation_params(arguments)
        # Of each call: languages and lengths of tokenizers may be set at any time
        source = TokenizerVocabulary(self.tokenizer, is_target=False)
        cleans_up = bool(postprocess.get("clean_up_tokenization_spaces"))
        target = TokenizerVocabulary(self.target_tokenizer, is_target=True, cleans_up=cleans_up)
        engine = TorchEngine(self.model, source, target, **arguments)
        _, generation = engine.defaults(options["source_lang"], options["target_lang"])
        n_best = chosen.get("num_return_sequences") or 1
        _check_beams(n_best, generation)
        options |= {name: arguments[name] for name in _LENGTHS if arguments.get(name)}
        asked = TranslationOptions(
            **options,
            n_best=n_best,
            prefix=preprocess.get("prefix"),
            truncation=bool(preprocess.get("truncation")),
        )
        windows = self._windows(inputs, batch_size)
        results = self._translated(TextTranslator(engine), windows, asked, terms)
        if isinstance(inputs, str):
            return next(results)
        if not isinstance(inputs, Sequence):
            return results
        listed = list(results)
        if all(len(translations) == 1 for translations in listed):
            return [translation for [translation] in listed]
        return listed

    def _language_settings(
        self, src_lang: str | None, tgt_lang: str | None
    ) -> tuple[str, dict[str, Any]]:
        settings = translation_tasks(self.model.config).get(task_name(src_lang, tgt_lang))
        if settings is None:
            return super()._language_settings(src_lang, tgt_lang)
        of_task = dict(settings)
        return of_task.pop("prefix", ""), of_task

    def _windows(self, inputs: Any, batch_size: int) -> Iterator[list[str]]:
        """Texts that are translated together: all that are there, or few of those that come."""
        if isinstance(inputs, str):
            return iter([[inputs]])
        is_iterable = hasattr(inputs, "__iter__") or hasattr(inputs, "__getitem__")
        if isinstance(inputs, bytes | Mapping) or not is_iterable:
            check_text(inputs)  # neither a text nor several
        if isinstance(inputs, Sequence):
            return iter([list(inputs)])
        texts: Iterator[str]
        if hasattr(inputs, "__iter__"):
            texts = iter(inputs)
        else:  # a data set of torch may have these two methods alone
            texts = map(inputs.__getitem__, range(len(inputs)))
        size = 1 if batch_size == 1 else _WINDOW_IN_BATCHES * batch_size
        return iter(lambda: list(islice(texts, size)), [])

    def _translated(
        self,
        translator: TextTranslator,
        windows: Iterator[list[str]],
        options: TranslationOptions,
        terms: Terms | None,
    ) -> Iterator[list[dict[str, Any]]]:
        """Yields the results of each text, `num_return_sequences` of them."""
        first_line = 1
        for window in windows:
            texts = checked_texts("texts", window)
            finish = translator.begin(texts, options=options, terms=terms, first_line=first_line)
            first_line += len(window)
            for translations in finish():
                results = [_as_dict(translation, options) for translation in translations]
                if len(results) == 1:  # of a blank text, too
                    results *= options.n_best or 1
                yield results

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Saves model, tokenizers and the `TranslationPipeline`, which needs only transformers."""
        plain = TranslationPipeline(
            model=self.model,
            tokenizer=self.tokenizer,
            target_tokenizer=self.target_tokenizer,
            device=self.device,
        )
        plain.save_pretrained(save_directory, **kwargs)


def _take_text_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of texts out of the arguments of a call, without those that are None, and
    leaves languages by their names in transformers.
    """
    for name, name_in_transformers in LANGUAGES.items():
        if name in kwargs:
            kwargs[name_in_transformers] = kwargs.pop(name)
    taken = {name: kwargs.pop(name) for name in _OPTIONS & kwargs.keys()}
    return {name: value for name, value in taken.items() if value is not None}


def _check_whole_texts(options: dict[str, Any]) -> None:
    """Refuses options of texts where tokens are returned."""
    of_texts = sorted(options.keys() - {"split_sentences", "unknown", "batch_size"})
    if options["unknown"] != "warn":
        of_texts.append("unknown")
    if of_texts:
        raise ValueError(
            f"return_tensors gives tokens of whole texts alone: leave out {', '.join(of_texts)}."
        )


def _check_beams(returned: int, generation: Generation) -> None:
    """Refuses more sequences than beams, as `generate` does."""
    if returned > generation.num_beams and not generation.do_sample:
        raise ValueError(
            f"num_return_sequences={returned} needs as many beams, got "
            f"num_beams={generation.num_beams}; or do_sample=True."
        )


def _as_dict(translation: Translation, options: TranslationOptions) -> dict[str, Any]:
    result: dict[str, Any] = {"translation_text": translation.text}
    if translation.sentences and options.needs_alignments:
        result["alignment"] = translation.alignment
    if translation.sentences and (options.needs_scores or options.needs_alignments):
        sentences = [_sentence(sentence, options) for sentence in translation.sentences]
        result["sentences"] = sentences
    return result


def _sentence(sentence: SentenceTranslation, options: TranslationOptions) -> dict[str, Any]:
    entry = sentence._asdict()
    is_asked_for = {
        "log_probability": options.needs_scores,
        "score": options.needs_scores,
        "words": options.return_words,
        "alignment": options.needs_alignments,
    }
    return {name: value for name, value in entry.items() if is_asked_for.get(name, True)}
