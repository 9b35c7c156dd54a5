# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of many sentences at once, fast and in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.utils import logging

from csan_hf.models.evaluation_view import evaluation_view
from csan_hf.pipelines import TextTranslationPipeline
from csan_hf.pipelines.markup import MarkedText
from csan_hf_runtime.sentences import SplitText
from csan_hf_runtime.text_files import counted
from csan_hf_runtime.texts import Translation as Hypothesis
from csan_hf_runtime.texts import batches_by_length, first_of_each_text
from csan_hf_runtime.windows import ahead, windows_of

from .pool import TranslationPool
from .prefixes import ForcedPrefixes, Prefix, PrefixReader

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair

logger = logging.get_logger(__name__)

Results = Callable[[], list[list[dict[str, Any]]]]
"""Returns the results of each segment of a batch, best first."""


def translate(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Collection[str],
    *,
    max_batch_tokens: int = 4096,
    progress: bool = False,
    processes: PartialState | None = None,
    **generate_arguments: Any,
) -> list[str]:
    """Translates any number of sentences, some thousands at a time by length, and returns them in
    the order given.

    Each is translated as `csan_hf.pipelines.TextTranslationPipeline` does: nothing of it is cut,
    but one that is longer than the model takes, or than its training sources were, is split and put
    together again; and where no length was set, a translation may have twice the source's tokens
    and 50.

    Args:
        model: A sequence-to-sequence model; it translates in evaluation mode, and is left in the
            mode that it has.
        tokenizers: Its source and target tokenizers.
        sentences: Source sentences or texts. A blank one gives an empty translation.
        max_batch_tokens: Source tokens in a batch, padding included; beams are not counted.
        progress: Shows a bar on standard error.
        processes: The processes that share the work, each of which calls this with the same
            sentences. Of R processes each translates every R-th batch; the batches, and hence the
            translations, are those of a single process. None: this process translates all.
        generate_arguments: For `generate`, such as `num_beams` and `max_length`, and the
            `src_lang`, `tgt_lang`, `prefix`, `split_sentences`, `unknown`, `markup` and `terms` of
            the pipeline; None means the default.

    Raises:
        ValueError: If `num_beams` is less than 1, or if a language is unknown or missing.
    """
    windows = translate_stream(
        model,
        tokenizers,
        sentences,
        max_batch_tokens=max_batch_tokens,
        progress=progress,
        processes=processes,
        **generate_arguments,
    )
    return list(chain.from_iterable(windows))


def translate_stream(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Iterable[str | None],
    **options: Any,
) -> Iterator[list[str]]:
    """Translates sentences as they come, in memory that does not grow with their number.

    A window of `WINDOW_LINES` sentences for each process, less where they are very long, is read
    and translated at a time, or what there is where `sentences` yields None; its sentences go
    together by length. Errors of the iteration over `sentences` are passed on.

    The options are those of `translate`, and `prefixes`, `lines_before` and `pool`. `prefixes` are
    how the translations begin, one for each sentence (where a text is split, for the first one of
    it); a prefix may end within a word. Lines are named in messages by their number, after
    `lines_before` that are not translated here.
    The processes of a `pool` translate the batches, and one window more is read ahead.

    Yields:
        The translations of a window, in order.
    """
    for results in _translate_windows(model, tokenizers, sentences, **options):
        yield [result[0]["translation_text"].strip() for result in results]


def n_best_stream(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Iterable[str | None],
    n: int,
    **options: Any,
) -> Iterator[list[list[Hypothesis]]]:
    """Translates sentences as `translate_stream` does, with the n best hypotheses of each, or n
    samples.

    Where a text is split, the n-th hypotheses of its sentences go together. A blank one has a
    single, blank, one. Hypotheses with the same text but other tokens count as one, with the better
    score; samples do not.
    `return_words` adds their words, `return_alignments` the alignment of these;
    `return_scores=False` saves the log-probabilities, which are 0 then.

    Yields:
        The hypotheses of a window, `[sentences][n]`, in the order that `generate` gives them.

    Raises:
        ValueError: See `translate`; or n is more than the beams, and no samples are drawn.
    """
    options = {"return_scores": True, **options, "num_return_sequences": n}
    for results in _translate_windows(model, tokenizers, sentences, **options):
        hypotheses = [_hypotheses(several) for several in results]
        if not options.get("do_sample"):
            hypotheses = [first_of_each_text(several) for several in hypotheses]
        yield hypotheses


def _hypotheses(several: list[dict[str, Any]]) -> list[Hypothesis]:
    if "sentences" not in several[0]:
        return [Hypothesis(several[0]["translation_text"].strip(), 0.0)]  # of tags alone
    hypotheses = []
    for result in several:
        words: list[dict[str, Any]] = []
        for part in result["sentences"]:
            words += part.get("words", ())
        log_probability = sum(part.get("log_probability", 0.0) for part in result["sentences"])
        text = result["translation_text"].strip()
        alignment = result.get("alignment", ())
        hypotheses.append(Hypothesis(text, log_probability, words, alignment))
    return hypotheses


@dataclass
class _Window:
    """Lines that are translated together.

    Attributes:
        marked_texts: The lines and their tags.
        splits: The segments of each line.
        work: Of each batch the numbers of its segments, and a function that returns their results.
    """

    marked_texts: list[MarkedText]
    splits: list[SplitText]
    work: list[tuple[list[int], Results]]


def _translate_windows(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    sentences: Iterable[str | None],
    *,
    max_batch_tokens: int = 4096,
    progress: bool = False,
    processes: PartialState | None = None,
    prefixes: Iterable[str] | None = None,
    pool: TranslationPool | None = None,
    **generate_arguments: Any,
) -> Iterator[list[list[dict[str, Any]]]]:
    """The results of each sentence of a window, as many as `num_return_sequences`."""
    is_main = processes is None or processes.is_main_process
    options = {name: value for name, value in generate_arguments.items() if value is not None}
    split_sentences = options.pop("split_sentences", "auto")
    unknown = options.pop("unknown", "warn")
    lines_read = options.pop("lines_before", 0)
    markup = options.pop("markup", None)
    if markup is not None:
        options["return_alignments"] = True
    is_training = any(module.training for module in model.modules())
    translator: Any = TextTranslationPipeline(
        model=evaluation_view(model) if is_training else model,
        tokenizer=tokenizers.source,
        target_tokenizer=tokenizers.target,
        device=model.device,
    )
    if options.get("return_alignments"):
        translator.check_alignable()
    reader = None if prefixes is None else PrefixReader(prefixes, tokenizers.target)
    split_lines = 0

    def begin_window(sentences: Sequence[str], bar: tqdm) -> _Window:
        """Splits the lines of a window; a pool begins to translate them."""
        nonlocal lines_read
        first_line = lines_read + 1
        marked_texts = translator.without_tags(sentences, markup)
        sentences = [marked.text for marked in marked_texts]
        sentences = translator.check_letters(sentences, unknown, first_line)
        lines_read += len(sentences)
        count = translator.token_counter(**options)
        splits = translator.split(sentences, split_sentences, **options)
        segments = [segment for split in splits for segment in split.segments]
        begins: list[Prefix] = []
        if reader is not None:
            texts = reader.take(len(sentences))
            how = "warn" if unknown == "skip" else unknown
            translator.check_letters(texts, how, first_line, of_target=True)
            for text, split in zip(texts, splits, strict=True):
                for number in range(len(split.segments)):
                    begins.append(reader.prefix_of(text if number == 0 else ""))
        batches = list(
            batches_by_length([count(segment) for segment in segments], max_batch_tokens)
        )
        bar.update(len(sentences) - len(segments))  # blank ones; below 0 where long ones are split
        if processes is not None:
            batches = batches[processes.process_index :: processes.num_processes]
        work: list[tuple[list[int], Results]] = []
        for batch in batches:
            batch_options = {**options, "batch_size": len(batch)}
            if begins:
                first_free = _first_free(translator, options)
                begin = ForcedPrefixes([begins[number] for number in batch], first_free)
                batch_options["logits_processor"] = [begin]
            batch_segments = [segments[number] for number in batch]
            if pool is None:
                results = partial(translator.translate_segments, batch_segments, **batch_options)
                work.append((batch, results))
            else:  # begun now, waited for later
                future = pool.translate_segments(batch_segments, **batch_options)
                work.append((batch, future.result))
        return _Window(marked_texts, splits, work)

    total = None  # a process counts its own share alone
    if processes is None and isinstance(sentences, Sized):
        total = len(sentences)
    windows = windows_of(sentences, 1 if processes is None else processes.num_processes)
    with tqdm(
        total=total, desc="translating", unit=" sentences", disable=not (progress and is_main)
    ) as bar:
        # A pool has the next window to go on with, while the last batches of one are translated
        begun = (begin_window(window, bar) for window in windows)
        for window in ahead(begun, 0 if pool is None else 1):
            numbered_results: list[tuple[int, list[dict[str, Any]]]] = []
            for batch, results in window.work:
                numbered_results += zip(batch, results(), strict=True)
                bar.update(len(batch))
            if processes is not None:
                numbered_results = gather_object(numbered_results)
            split_lines += sum(split.split_lines for split in window.splits)
            by_place = iter(result for _, result in sorted(numbered_results, key=itemgetter(0)))
            translations = [
                translator.join(split, list(islice(by_place, len(split.segments))), options)
                for split in window.splits
            ]
            if markup is not None:
                translator.add_tags(translations, window.marked_texts, **options)
            yield translations
    if reader is not None:
        reader.check_end()
    is_auto = split_sentences == "auto" and is_main
    if is_auto and split_lines and translator.usual_source is not None:
        logger.warning(translator.notice_of_splits(counted(split_lines, "line")))


def search_name(num_beams: int | None) -> str:
    """Names the search of so many beams, as scores are shown with it."""
    return "greedy" if num_beams in (None, 1) else f"beam {num_beams}"


def _first_free(translator: TextTranslationPipeline, options: dict[str, Any]) -> int:
    """The place of the first token that the model chooses: after the start and, where it is forced,
    the language.
    """
    _, generate_arguments = translator._language_settings(
        options.get("src_lang"), options.get("tgt_lang")
    )
    usual = translator.model.generation_config.forced_bos_token_id
    forced = generate_arguments.get("forced_bos_token_id", usual)
    return 1 if forced is None else 2
