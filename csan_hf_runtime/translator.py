# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""From texts to their translations, whatever searches for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from . import is_main_process
from .alignment import Alignment
from .constraints import Endings
from .coverage import uncovered_sentences
from .engine import Engine, Pair, SourceBatch, padded, source_reader
from .generation import Generation
from .markup import MarkedText, parse_markup
from .options import TranslationOptions
from .prefixes import Prefix
from .scores import is_scored
from .search import Hypothesis
from .sentences import EVERY_LINE, SplitText, sentences_of, split_text
from .terms import Terms, lacking, most_letters_after
from .text_files import counted, one_line
from .texts import (
    SentenceTranslation,
    SourceReader,
    Translation,
    Word,
    batches_by_length,
    checked_texts,
    first_of_each_text,
    warn,
    warn_once,
    words_of,
)
from .windows import ahead, windows_of

WINDOW_CHARACTERS = 2**22
"""Characters of the lines that are translated at a time; a document with more is cut there."""
# Of models whose decoder begins with the target language; others begin with the end of sentence
_LANGUAGE_STARTS_DECODER = ("MBartTokenizer", "MBartTokenizerFast", "PLBartTokenizer")
_NO_LIMIT = 10**9  # tokens
_MOST_WARNINGS = 10  # of letters that a vocabulary does not have
_MOST_TOKENS_TOGETHER = 1024
_TOKENS_OF_CONTEXT = 64  # more than the windows of preset lines reach
_MORE_OF_DOCUMENTS = 16  # tokens in a batch: the steps are those of the longest, whatever the batch
_BEAMS_FOR_TERMS = 8
_ROOM_FOR_TERMS = 3  # tokens, beside those of the terms: the end, and two

Argument = TypeVar("Argument")
Result = TypeVar("Result")

Finish: TypeAlias = Callable[[], list[list[Translation]]]
"""Returns the translations of each text, best first."""


class Workers(Protocol):
    """Asks an engine, in this process or those of several.

    Attributes:
        count: Processes.
        windows_ahead: Windows of lines that are begun before the last one is finished.
    """

    count: int
    windows_ahead: int

    def run(
        self, work: Callable[[Engine, Argument], Result], arguments: Sequence[Argument]
    ) -> Iterator[Result]:
        """Yields what a function of a module returns for the engine and each argument, in order."""


class ThisProcess:
    """Asks an engine of this process, one batch after the other."""

    count = 1
    windows_ahead = 0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(
        self, work: Callable[[Engine, Argument], Result], arguments: Sequence[Argument]
    ) -> Iterator[Result]:
        """See `Workers`; nothing is done before a result is asked for."""
        return map(partial(work, self._engine), arguments)


@dataclass(frozen=True)
class _Request:
    """A request: its options, and what follows from them.

    Attributes:
        options: The options.
        generation: The settings of the search.
        read: Tells what of a source is its text.
        encode: Returns the tokens of a source, with its language and what stands before it; it
            remembers them.
        terms: Terms that the translations must hold.
        generator: Gives the random numbers of samples.
        progress: Is told how many sentences are done.
    """

    options: TranslationOptions
    generation: Generation
    read: SourceReader
    encode: Callable[[str], list[int]]
    terms: Terms | None
    generator: np.random.Generator | None
    progress: Callable[[int], object]


@dataclass(frozen=True)
class _Prepared:
    """Texts as they are searched for.

    Attributes:
        marked_texts: The texts without their tags, and these.
        splits: The segments of each text.
        segments: Those of all texts.
        sentences: By numbers of segments: the sentences of those whose coverage is checked.
        batches: What is searched for together.
    """

    marked_texts: list[MarkedText]
    splits: list[SplitText]
    segments: list[str]
    sentences: dict[int, list[str]]
    batches: list[list[_Unit]]


@dataclass(frozen=True)
class _Unit:
    """A source of the search: a segment, or several lines of a text.

    Attributes:
        numbers: Numbers of segments, in the order of the text.
        context: How many of the first are read as context; their translations are discarded.
    """

    numbers: Sequence[int]
    context: int = 0

    @property
    def translated(self) -> Sequence[int]:
        """Numbers of the segments whose translations are wanted."""
        return self.numbers[self.context :]


class TextTranslator:
    """Translates texts of any length.

    ```python
    translator = TextTranslator.from_directory("onnx")
    [[translation]] = translator.translate(["Guten Morgen."])
    translation.text
    ```

    Every line of a text has a translation of its own, and line breaks, blank lines and indents are
    put back as they were. A model that attends line by line (preset lines) reads the lines of a
    text together. Of others a line with more tokens or sentences than 99 % of the training sources
    had is split into sentences, as is one with more tokens than the model takes; see `TextOptions`.

    Args:
        engine: What searches for translations.
        workers: What calls the engine; None = this process.

    Attributes:
        engine: See the arguments.
        workers: Likewise; they may be set as long as nothing is being translated.
    """

    def __init__(self, engine: Engine, *, workers: Workers | None = None) -> None:
        self.engine = engine
        self.workers = workers or ThisProcess(engine)

    @classmethod
    def from_directory(cls, directory: str | os.PathLike, *, threads: int = 1) -> TextTranslator:
        """Loads what `csan-hf export-onnx` wrote, with its tokenizers; see
        `GraphEngine.from_directory`.
        """
        from .graph_engine import GraphEngine  # not where csan_hf has no graphs

        return cls(GraphEngine.from_directory(directory, threads=threads))

    @property
    def source_limit(self) -> int | None:
        """The tokens of the longest source, special ones included; None = any number."""
        limits = (self.engine.positions, self.engine.source.most_tokens)
        return min(filter(None, limits), default=None)

    def translate(
        self,
        texts: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        terms: Terms | None = None,
        generator: np.random.Generator | None = None,
        first_line: int = 1,
        **options: Any,
    ) -> list[list[Translation]]:
        """Returns for each text its best translations, or samples; for a blank one a blank one.

        Where a text is split, the n-th hypotheses of its sentences go together. Hypotheses of one
        text, of other tokens, are one, with the better score; samples are all there. Of a
        pronouncer with a dictionary its entries come first, with probability 1, unless samples or
        prefixes are asked for.

        Args:
            texts: The texts.
            prefixes: How the translations begin (of a text that is split, that of its first
                sentence); a prefix may end within a word.
            terms: Terms whose targets must stand in the translations of sentences that hold them.
                Where one does not, the sentence is searched anew, with at least 8 beams, for
                translations that hold all of them (`csan_hf_runtime.constraints`).
            generator: Gives the random numbers of samples; None = one that begins with `seed`.
            first_line: The number of the first text, for messages.
            **options: See `TranslationOptions`.

        Raises:
            TypeError: `texts` or `prefixes` are one text, or hold something else than texts; or
                there is no such option.
            ValueError: A text holds half of a surrogate pair, a language is unknown or missing, an
                option is impossible, there are fewer beams than translations are asked for, or
                letters are unknown and `unknown` is `"error"`.
        """
        finish = self._begin_with_dictionary(
            texts,
            options=TranslationOptions(**options),
            prefixes=prefixes,
            terms=terms,
            generator=generator,
            first_line=first_line,
        )
        return finish()

    def stream(
        self,
        sentences: Iterable[str | None],
        *,
        prefixes: Iterable[str] | None = None,
        terms: Terms | None = None,
        lines_before: int = 0,
        progress: bool = False,
        **options: Any,
    ) -> Generator[list[list[Translation]]]:
        """Translates lines as they come, in memory that does not grow with their number.

        A window of `WINDOW_LINES` for each process, less where they are very long, is read and
        translated at a time, or what there is where `sentences` yields None. With `documents` a
        window goes on to the next blank line, up to `WINDOW_CHARACTERS`. Errors of the iteration
        over `sentences` are passed on.

        Args:
            sentences: The lines; None = translate what there is.
            prefixes: As in `translate`, one for each line.
            terms: As in `translate`.
            lines_before: Lines of a file ahead of these, for the numbers in messages.
            progress: Shows a bar on standard error, of the main process alone.
            **options: See `TranslationOptions`.

        Yields:
            The translations of a window, as `translate` returns them.
        """
        from tqdm.auto import tqdm  # slow to import, and not all need it

        chosen = TranslationOptions(**options)
        generator = np.random.default_rng(chosen.seed) if chosen.sample else None
        beginnings = None if prefixes is None else iter(prefixes)
        lines_read = lines_before
        bar = tqdm(
            total=len(sentences) if isinstance(sentences, Sized) else None,
            desc="translating",
            unit=" sentences",
            disable=not (progress and is_main_process()),
        )

        def begin(window: list[str]) -> Finish:
            nonlocal lines_read
            first_line = lines_read + 1
            lines_read += len(window)
            return self._begin_with_dictionary(
                window,
                options=chosen,
                prefixes=None if beginnings is None else list(islice(beginnings, len(window))),
                terms=terms,
                generator=generator,
                first_line=first_line,
                progress=bar.update,
            )

        windows = windows_of(
            sentences,
            size_of=len,
            largest=WINDOW_CHARACTERS,
            processes=self.workers.count,
            may_end_with=lambda line: not (chosen.documents and line.strip()),
        )
        with bar:
            for finish in ahead(map(begin, windows), self.workers.windows_ahead):
                yield finish()
        if beginnings is not None and next(beginnings, None) is not None:
            raise ValueError("There are more prefixes than sentences: give one for each.")

    def _begin_with_dictionary(
        self,
        texts: Iterable[str],
        *,
        options: TranslationOptions,
        prefixes: Iterable[str] | None,
        terms: Terms | None,
        **how: Any,
    ) -> Finish:
        """Begins to translate lines, whose white space at both ends does not matter, but for the
        indents of documents; of a text of several lines an empty first or last one stays a line.
        """
        lines = checked_texts("texts", texts)
        entries: list[list[str]] = [[] for _ in lines]
        returned = options.n_best or 1
        dictionary = self.engine.dictionary
        predicted_lines = lines
        if dictionary is not None and prefixes is None and not options.sample:
            entries = [
                [] if terms and terms.targets_of(line) else dictionary.pronunciations(line)
                for line in lines
            ]
            predicted_lines = [
                "" if len(known) >= returned else line
                for line, known in zip(lines, entries, strict=True)
            ]
        finish_texts = self.begin(
            predicted_lines, options=options, prefixes=prefixes, terms=terms, **how
        )

        def finish() -> list[list[Translation]]:
            translations = []
            for line, known, predicted in zip(lines, entries, finish_texts(), strict=True):
                is_line = "\n" not in line.strip()
                indent = ""
                if options.documents and is_line:
                    indent = line[: len(line) - len(line.lstrip())]
                stripped = [
                    translation._replace(text=indent + _stripped(translation.text, is_line))
                    for translation in predicted
                ]
                if not options.sample:
                    stripped = first_of_each_text(stripped)
                translations.append(_entries_first(line.strip(), known, stripped, returned))
            return translations

        return finish

    def begin(
        self,
        texts: Sequence[str],
        *,
        options: TranslationOptions,
        prefixes: Iterable[str] | None = None,
        terms: Terms | None = None,
        generator: np.random.Generator | None = None,
        first_line: int = 1,
        progress: Callable[[int], object] = lambda count: None,
    ) -> Finish:
        """Begins to translate texts; other processes go on with it.

        The arguments are those of `translate`, the texts from `checked_texts`. `progress` is called
        with numbers that add up to that of the texts.

        Returns:
            A function that waits for the translations, as many of each text as are asked for, with
            the white space of the source.

        Raises:
            TypeError, ValueError: See `translate`.
        """
        beginnings: list[str] = []
        if prefixes is not None:
            beginnings = checked_texts("prefixes", prefixes)
            if len(beginnings) != len(texts):
                raise ValueError(
                    f"prefixes must be one for each text, got {len(beginnings)} for {len(texts)} "
                    f"from line {first_line:,} on."
                )
        if beginnings and options.documents:
            raise ValueError("prefixes are of texts that are translated alone: not of documents.")
        request = self._request(options, terms, generator, progress)
        if terms is not None and (beginnings or request.generation.do_sample):
            raise ValueError("terms need a search of their own: leave out samples and prefixes.")
        prepared = self._prepare(texts, request, first_line)
        forced: list[Prefix] = []
        if beginnings:
            self._checked_letters(beginnings, request, first_line, is_target=True)
            forced = self._forced(beginnings, prepared.splits)
        sources = [
            self._source_batch(batch, prepared.segments, request, forced)
            for batch in prepared.batches
        ]
        searches = self.workers.run(_search, sources)
        return partial(self._finish, prepared, searches, request)

    def _prepare(self, texts: Sequence[str], request: _Request, first_line: int) -> _Prepared:
        """Takes tags out of texts, checks their letters and splits them."""
        marked_texts = [_without_tags(text, request.options) for text in texts]
        plain_texts = [marked.text for marked in marked_texts]
        readable_texts = self._checked_letters(plain_texts, request, first_line)
        splits = self._split(readable_texts, request)
        segments: list[str] = []
        for split in splits:
            segments += split.segments
        return _Prepared(
            marked_texts=marked_texts,
            splits=splits,
            segments=segments,
            sentences=self._sentences_to_check(segments, request),
            batches=self._batches(self._units(splits, segments, request), segments, request),
        )

    def _finish(
        self, prepared: _Prepared, searches: Iterator[list[list[Hypothesis]]], request: _Request
    ) -> list[list[Translation]]:
        """Waits for the hypotheses, and makes translations of them."""
        segments = prepared.segments
        hypotheses: dict[int, list[Hypothesis]] = {}
        texts = len(prepared.splits)
        texts_done = 0
        for batch, batch_hypotheses in zip(prepared.batches, searches, strict=True):
            for unit, unit_hypotheses in zip(batch, batch_hypotheses, strict=True):
                hypotheses |= self._of_lines(unit, unit_hypotheses, request.generation)
            done = texts * len(hypotheses) // len(segments)
            request.progress(done - texts_done)
            texts_done = done
        request.progress(texts - texts_done)  # where all are blank
        if request.terms is not None:
            self._require_terms(segments, hypotheses, request.terms, request)
        self._warn_of_cut_translations(hypotheses.values(), request)
        results = []
        for number, segment in enumerate(segments):
            results.append(
                [self._result(segment, hypothesis, request) for hypothesis in hypotheses[number]]
            )
        self._warn_of_omissions(segments, prepared.sentences, results, request)
        if request.options.needs_alignments:
            batches = []
            for batch in prepared.batches:
                batches.append([*chain.from_iterable(unit.translated for unit in batch)])
            results = self._with_alignments(batches, results, request)
        remaining = iter(results)
        translations = []
        for split, marked in zip(prepared.splits, prepared.marked_texts, strict=True):
            parts = list(islice(remaining, len(split.segments)))
            translations.append(self._joined(split, parts, marked, request))
        return translations

    # ---- what is asked for

    def _request(
        self,
        options: TranslationOptions,
        terms: Terms | None,
        generator: np.random.Generator | None,
        progress: Callable[[int], object],
    ) -> _Request:
        """Checks what is asked for, before anything is translated."""
        if options.needs_alignments:
            self.engine.check_attention("markup" if options.markup else "alignments")
        if options.check_coverage:
            if options.truncation:
                raise ValueError("check_coverage reads whole sources: leave out truncation.")
            self.engine.check_attention("check_coverage")
        _, defaults = self.engine.defaults(options.source_lang, options.target_lang)
        generation = defaults.replaced(**options.generation_fields(defaults))
        generation = self._in_language(generation, options.target_lang)
        if options.sample and generator is None:
            generator = np.random.default_rng(options.seed)
        reader = source_reader(
            self.engine, options.source_lang, options.target_lang, options.prefix
        )
        most_tokens = self.source_limit if options.truncation else None

        @lru_cache(maxsize=100_000)
        def encode(source: str) -> list[int]:
            text, mark = reader(source)
            vocabulary = self.engine.source
            ids = vocabulary.encode(
                mark + text, language=options.source_lang, most_tokens=most_tokens
            )
            # An empty text and a tokenizer that adds no end of sentence
            return ids or [vocabulary.padding]

        return _Request(options, generation, reader, encode, terms, generator, progress)

    def _in_language(self, generation: Generation, target_lang: str | None) -> Generation:
        """Settings with the token of the target language, in a multilingual model."""
        source = self.engine.source
        if not source.languages:
            return generation
        language = target_lang or source.target_language
        if language is not None:
            token = source.language_id(language)
            if source.kind in _LANGUAGE_STARTS_DECODER:
                generation = generation.replaced(decoder_start_token_id=token)
            else:
                generation = generation.replaced(forced_bos_token_id=token)
        starts_without = generation.decoder_start_token_id in source.no_languages
        if generation.forced_bos_token_id is None and starts_without:
            raise ValueError(
                "The model knows several languages: pass target_lang= (and source_lang=), which "
                "pipelines call tgt_lang (and src_lang), too."
            )
        return generation

    # ---- from texts to batches

    def _checked_letters(
        self, texts: Sequence[str], request: _Request, first_line: int, *, is_target: bool = False
    ) -> list[str]:
        """The texts, with `unknown="skip"` those empty that hold letters which the vocabulary of
        the source, or of the target, does not have; `ValueError` of them with `"error"`.
        """
        checked = list(texts)
        # White space at the ends of lines is not translated
        lines = ["\n".join(map(str.strip, text.splitlines())) for text in checked]
        unknown = request.options.unknown
        if is_target:
            side = "target"
            unknown = "warn" if unknown == "skip" else unknown
            unknown_pieces = self.engine.target.unknown_pieces(lines)
        else:
            side = "source"
            seen = request.generation.source_characters
            unknown_pieces = self.engine.source.unknown_pieces(lines, trained_on=seen)
        messages = []
        for number, pieces in enumerate(unknown_pieces):
            letters = [piece for piece in dict.fromkeys(pieces) if piece != "\n"]
            if letters:
                names = ", ".join(map(repr, letters))
                messages.append(
                    f"line {first_line + number:,}: the {side} vocabulary does not have {names}."
                )
                if unknown == "skip":
                    checked[number] = ""
        if messages and unknown == "error":
            raise ValueError(messages[0])
        for message in messages[:_MOST_WARNINGS]:
            warn(message)
        if len(messages) > _MOST_WARNINGS:
            warn(f"... and so in {len(messages) - _MOST_WARNINGS:,} more lines.")
        return checked

    def _language(self, request: _Request) -> str | None:
        """The language of the sources, as far as it is known."""
        usual = request.generation.usual_source
        usual_language = None if usual is None else usual.language
        return request.options.source_lang or self.engine.source.source_language or usual_language

    def _split(self, texts: Sequence[str], request: _Request) -> list[SplitText]:
        options = request.options
        usual = None if options.truncation else request.generation.usual_source
        most = {"auto": usual, "always": EVERY_LINE, "never": None}[options.split_sentences]
        splits = [
            split_text(
                text,
                count_tokens=lambda segment: len(request.encode(segment)),
                limit=None if options.truncation else self.source_limit,
                language=self._language(request),
                usual=most,
                tag=request.read.tags.leading(text, options.target_lang),
            )
            for text in texts
        ]
        is_split = any(split.split_lines for split in splits)
        if is_split and options.split_sentences == "auto" and usual is not None:
            warn_once(
                "Some lines had more text than the model was trained on (in 99 % of the cases at "
                f"most {counted(usual.sentences, 'sentence')} and {usual.tokens} tokens): "
                "translated sentence by sentence. split_sentences='never' leaves lines whole."
            )
        return splits

    def _forced(self, prefixes: Sequence[str], splits: Sequence[SplitText]) -> list[Prefix]:
        """How the translation of each segment begins."""
        forced = []
        for prefix, split in zip(prefixes, splits, strict=True):
            for number in range(len(split.segments)):
                forced.append(self.engine.target.prefix_of(prefix if number == 0 else ""))
        return forced

    def _units(
        self, splits: Sequence[SplitText], segments: Sequence[str], request: _Request
    ) -> list[_Unit]:
        """The segments one by one, or those of a text together, a document of many tokens in
        parts that begin with some lines before them: parts are translated at the same time.
        """
        options = request.options
        if self.engine.line_token is None and (options.documents or options.lines == "together"):
            asked_for = "documents" if options.documents else "lines='together'"
            raise ValueError(
                f"{asked_for} needs a model that attends line by line (preset lines): this one "
                "translates lines one by one."
            )
        mark = self.engine.line_token
        if mark is None or options.lines == "alone":
            return _alone(range(len(segments)))
        limit = self.source_limit or _NO_LIMIT
        most = min(limit, _MOST_TOKENS_TOGETHER)
        lengths = [len(request.encode(segment)) for segment in segments]
        units: list[_Unit] = []
        for document in _documents(splits, across_texts=options.documents):
            if any(mark in request.encode(segments[number]) for number in document):
                units += _alone(document)  # with the mark in their text they cannot be told apart
                continue
            begin = document.start
            for number in document:
                if number > begin and sum(lengths[begin : number + 1]) > most:
                    units.append(_with_context(document, begin, number, lengths, limit))
                    begin = number
            units.append(_with_context(document, begin, document.stop, lengths, limit))
        return units

    def _batches(
        self, units: Sequence[_Unit], segments: Sequence[str], request: _Request
    ) -> list[list[_Unit]]:
        """Groups units, those of similar length together."""
        options = request.options
        lengths = [
            sum(len(request.encode(segments[number])) for number in unit.numbers) for unit in units
        ]
        most = options.max_batch_tokens
        if any(len(unit.numbers) > 1 for unit in units):
            most *= _MORE_OF_DOCUMENTS
        batches = []
        for places in batches_by_length(lengths, most, options.batch_size):
            batches.append([units[place] for place in places])
        return batches

    def _encoded(self, unit: _Unit, segments: Sequence[str], request: _Request) -> list[int]:
        """The tokens of a unit: those of its lines, with marks between them."""
        first, *others = [segments[number] for number in unit.numbers]
        ids = request.encode(first)
        if not others or self.engine.line_token is None:
            return ids
        source = self.engine.source
        end = [ids[-1]] if ids[-1] in source.special else []
        together = ids[: len(ids) - len(end)]
        for segment in others:
            line, _ = request.read(segment)  # without the tag of its language
            together += [self.engine.line_token, *source.encode_alone(line)]
        return together + end

    def _of_lines(
        self, unit: _Unit, hypotheses: list[Hypothesis], generation: Generation
    ) -> dict[int, list[Hypothesis]]:
        """The hypotheses of a unit by segment; a mark counts as the end of its line."""
        if len(unit.numbers) == 1:
            return {unit.numbers[0]: hypotheses}
        of_segments: dict[int, list[Hypothesis]] = {number: [] for number in unit.translated}
        for hypothesis in hypotheses:
            is_mark = hypothesis.tokens == self.engine.line_token
            tokens = np.where(is_mark, generation.ends[0], hypothesis.tokens)
            places = is_mark.nonzero()[0] + 1
            values = hypothesis.log_probabilities
            lines = list(map(Hypothesis, np.split(tokens, places), np.split(values, places)))
            missing = len(unit.numbers) - len(lines)  # where the translation was cut
            lines += [Hypothesis(tokens[:0], values[:0])] * missing
            for number, line in zip(unit.translated, lines[unit.context :], strict=True):
                of_segments[number].append(line)
        return of_segments

    def _source_batch(
        self,
        batch: Sequence[_Unit],
        segments: Sequence[str],
        request: _Request,
        forced: Sequence[Prefix] = (),
    ) -> SourceBatch:
        sources = [self._encoded(unit, segments, request) for unit in batch]
        return SourceBatch(
            padded(sources, self.engine.source.padding),
            mask=padded([[1] * len(source) for source in sources], 0),
            limits=np.array([self._limit(unit, segments, request) for unit in batch]),
            generation=request.generation,
            returned=request.options.n_best or 1,
            with_scores=request.options.needs_scores,
            generator=request.generator,
            prefixes=[forced[unit.numbers[0]] for unit in batch] if forced else (),
        )

    def _limit(self, unit: _Unit, segments: Sequence[str], request: _Request) -> int:
        """The most tokens of a translation, the first included; of several lines as many as they
        may have together, or all that the model lets them have if nothing is asked for.
        """
        lengths = np.array([len(request.encode(segments[number])) for number in unit.numbers])
        options = request.options
        if len(lengths) == 1 or options.max_length or options.max_new_tokens:
            limit = int(self._limits(request.generation, lengths).sum())
        else:
            limit = int(_most_tokens(lengths).sum()) + len(lengths) + 1
        if self.engine.positions is None or self.engine.extends_positions:
            return limit
        return min(limit, self.engine.positions + 1)  # the last token is not read

    def _limits(self, generation: Generation, lengths: np.ndarray) -> np.ndarray:
        """The most tokens [B] of translations, the first included, of sources of lengths [B]."""
        positions = self.engine.positions or _NO_LIMIT
        if generation.max_new_tokens is not None:
            limits = np.full_like(lengths, generation.max_new_tokens + 1)
        elif generation.max_length is not None:
            limits = np.full_like(lengths, generation.max_length)
        else:
            free = 1 + _most_tokens(lengths)
            # A model that has made more positions for the source does so for the target
            limits = np.where(lengths > positions, free, np.minimum(free, max(positions, 2)))
        return limits

    # ---- from hypotheses to translations

    def _result(
        self, segment: str, hypothesis: Hypothesis, request: _Request
    ) -> SentenceTranslation:
        target = self.engine.target
        ids = hypothesis.tokens.tolist()
        text = target.decode(ids)
        if self.engine.line_token is not None:
            text = one_line(text)  # bytes of a byte-level vocabulary may be a line feed, too
        if not request.options.needs_scores:
            return SentenceTranslation(segment, text)
        is_counted = is_scored(
            hypothesis.tokens,
            ends=request.generation.ends,
            special=target.not_text,
            padding=target.padding,
        )
        values = np.where(is_counted, hypothesis.log_probabilities, np.nan)
        log_probability = float(np.nansum(values))
        words: list[Word] = []
        if request.options.return_words:
            words = words_of(
                ids,
                values.tolist(),
                decode=partial(target.decode, keep_special=True),
                name_of=target.name_of,
                ends=target.not_text,
            )
        score = log_probability / max(int(is_counted.sum()), 1)
        return SentenceTranslation(segment, text, log_probability, score, words)

    def _warn_of_cut_translations(
        self, hypotheses: Iterable[Sequence[Hypothesis]], request: _Request
    ) -> None:
        """Warns of translations that have no end, because they are as long as they may be, unless
        they are as long as was asked for.
        """
        generation = request.generation
        positions = self.engine.positions or _NO_LIMIT
        asked_for = request.options.max_new_tokens or request.options.max_length
        is_in_positions = self.engine.extends_positions or (asked_for or 0) <= positions
        if not len(generation.ends) or (asked_for and is_in_positions):
            return
        for segment_hypotheses in hypotheses:
            last_tokens = [hypothesis.tokens[-1:] for hypothesis in segment_hypotheses]
            if np.isin(np.concatenate(last_tokens), generation.ends).all():
                continue
            longest = generation.max_new_tokens or generation.max_length
            bound = "2 · source tokens + 50"
            advice = "pass a larger max_length"
            length = 1 + max(len(hypothesis.tokens) for hypothesis in segment_hypotheses)
            if length >= positions:
                bound = f"the {positions} tokens that the model has positions for"
                advice = "split the text"
            elif longest:
                bound = f"the {longest} tokens of the model's generation config"
            warn_once(f"A translation had not ended at {bound} and is cut there; {advice}.")

    def _joined(
        self,
        split: SplitText,
        results: Sequence[Sequence[SentenceTranslation]],
        marked: MarkedText,
        request: _Request,
    ) -> list[Translation]:
        """The translations of one text, of those of its segments [N][returned]."""
        source_word = self.engine.source.word
        target_word = self.engine.target.word
        tag = request.read.tags.leading(marked.text, request.options.target_lang)
        joined = []
        for sentences in list(zip(*results, strict=True)) or [()]:
            texts = [sentence.translation_text for sentence in sentences]
            words: list[Word] = []
            for sentence in sentences:
                words += sentence.words
            links = split.join_links(
                texts,
                [sentence.alignment for sentence in sentences],
                source_word=source_word,
                target_word=target_word,
            )
            text = split.join(texts)
            if request.options.markup is not None:
                text = marked.restore(
                    text, links, source_word=source_word, target_word=target_word, first=len(tag)
                )
            log_probability = sum((sentence.log_probability for sentence in sentences), 0.0)
            joined.append(Translation(text, log_probability, words, links, sentences))
        return joined

    # ---- terms

    def _require_terms(
        self,
        segments: Sequence[str],
        hypotheses: dict[int, list[Hypothesis]],
        terms: Terms,
        request: _Request,
    ) -> None:
        """Translates anew the segments with a translation that lacks the target of a term."""
        target = self.engine.target
        least_beams = max(request.generation.num_beams, _BEAMS_FOR_TERMS)
        targets = [terms.targets_of(segment) for segment in segments]
        phrases: dict[int, list[list[int]]] = {}
        by_beams: dict[int, list[int]] = {}
        for number, segment_hypotheses in hypotheses.items():
            if self._lacking(segment_hypotheses, targets[number]):
                phrases[number] = list(map(target.within_text, targets[number]))
                # A beam for each number of tokens that a hypothesis may hold
                beams = max(least_beams, 1 + sum(map(len, phrases[number])))
                by_beams.setdefault(beams, []).append(number)
        batches = []
        sources = []
        for beams, numbers in by_beams.items():
            for units in self._batches(_alone(numbers), segments, request):
                batch = [unit.numbers[0] for unit in units]
                source = self._source_batch(units, segments, request)
                limits = [self._limit_with(hypotheses[n], phrases[n]) for n in batch]
                most_letters = [list(map(most_letters_after, targets[n])) for n in batch]
                constrained = replace(
                    source,
                    generation=request.generation.replaced(num_beams=beams),
                    limits=np.minimum(source.limits, limits),
                    phrases=[phrases[n] for n in batch],
                    endings=Endings(target.continuing_letters, most_letters),
                )
                batches.append(batch)
                sources.append(constrained)
        for batch, of_batch in zip(batches, self.workers.run(_search, sources), strict=True):
            hypotheses |= zip(batch, of_batch, strict=True)
        for number in phrases:
            missing = self._lacking(hypotheses[number], targets[number])
            if missing:
                warn(
                    f"A translation lacks {missing[0]!r}, the term for one in "
                    f"{segments[number][:60]!r}: allow it more tokens."
                )

    def _lacking(self, hypotheses: Iterable[Hypothesis], targets: list[str]) -> list[str]:
        """The targets of terms that some of several translations lack."""
        missing: list[str] = []
        for hypothesis in hypotheses if targets else ():
            missing += lacking(targets, self.engine.target.decode(hypothesis.tokens.tolist()))
        return missing

    def _limit_with(self, hypotheses: Iterable[Hypothesis], phrases: list[list[int]]) -> int:
        """Tokens that a translation with phrases may have: hardly more than one without them has.

        A hypothesis that puts off a phrase may not end, and goes on with what is likely by token,
        but means nothing."""
        longest = max(len(hypothesis.tokens) for hypothesis in hypotheses)
        return 1 + longest + sum(map(len, phrases)) + _ROOM_FOR_TERMS

    # ---- alignments

    def _aligned(
        self, batches: Sequence[Sequence[Pair]], request: _Request
    ) -> Iterator[list[Alignment]]:
        """Aligns batches of pairs."""
        align = partial(_align, read=request.read, source_lang=request.options.source_lang)
        return self.workers.run(align, batches)

    def _with_alignments(
        self,
        batches: Sequence[Sequence[int]],
        results: list[list[SentenceTranslation]],
        request: _Request,
    ) -> list[list[SentenceTranslation]]:
        pairs_of_batches = []
        for batch in batches:
            pairs = []
            for number in batch:
                pairs += [
                    (result.source_text, result.translation_text) for result in results[number]
                ]
            pairs_of_batches.append(pairs)
        aligned = list(results)
        for batch, alignments in zip(
            batches, self._aligned(pairs_of_batches, request), strict=True
        ):
            links = (alignment.links() for alignment in alignments)
            for number in batch:
                aligned[number] = [
                    result._replace(alignment=next(links)) for result in results[number]
                ]
        return aligned

    def _sentences_to_check(
        self, segments: Sequence[str], request: _Request
    ) -> dict[int, list[str]]:
        """The sentences of segments that have several, where coverage is to be checked."""
        sentences = {}
        if request.options.check_coverage:
            language = self._language(request)
            for number, segment in enumerate(segments):
                text, _ = request.read(segment)
                sentences[number] = sentences_of(text, language)
        return {number: parts for number, parts in sentences.items() if len(parts) > 1}

    def _warn_of_omissions(
        self,
        segments: Sequence[str],
        sentences: dict[int, list[str]],
        results: Sequence[Sequence[SentenceTranslation]],
        request: _Request,
    ) -> None:
        """Warns of sentences that the best translations hardly attend to."""
        batches = []
        pairs = []
        for units in self._batches(_alone(sentences), segments, request):
            numbers = [unit.numbers[0] for unit in units]
            batches.append(numbers)
            pairs.append(
                [(segments[number], results[number][0].translation_text) for number in numbers]
            )
        for batch, alignments in zip(batches, self._aligned(pairs, request), strict=True):
            for number, alignment in zip(batch, alignments, strict=True):
                for place in uncovered_sentences(alignment, sentences[number]):
                    sentence = sentences[number][place].strip()[:60]
                    warn(
                        f"A translation seems to leave out {sentence!r}. Translate it on a line of "
                        "its own."
                    )


def _stripped(text: str, is_line: bool) -> str:
    """A text without white space at its ends; of one of several lines no line break goes."""
    if is_line:
        return text.strip()
    lines = text.split("\n")
    lines[0] = lines[0].lstrip()
    lines[-1] = lines[-1].rstrip()
    return "\n".join(lines)


def _documents(splits: Iterable[SplitText], *, across_texts: bool) -> list[range]:
    """The numbers of segments that belong together: those of a text, or of all texts up to a blank
    one.
    """
    documents: list[range] = []
    is_open = False
    number = 0
    for split in splits:
        end = number + len(split.segments)
        if is_open and end > number:
            documents[-1] = range(documents[-1].start, end)
        elif end > number:
            documents.append(range(number, end))
        is_open = across_texts and end > number
        number = end
    return documents


def _most_tokens(lengths: np.ndarray) -> np.ndarray:
    """The most tokens of translations of sources of so many tokens."""
    return 2 * lengths + 50


def _with_context(
    document: range, begin: int, end: int, lengths: Sequence[int], limit: int
) -> _Unit:
    """The lines of a document from `begin` to before `end`, and some before them, within a limit of
    tokens.
    """
    start = begin
    while (
        start > document.start
        and sum(lengths[start:begin]) < _TOKENS_OF_CONTEXT
        and sum(lengths[start - 1 : end]) <= limit
    ):
        start -= 1
    return _Unit(range(start, end), context=begin - start)


def _alone(numbers: Iterable[int]) -> list[_Unit]:
    return [_Unit([number]) for number in numbers]


def _search(engine: Engine, batch: SourceBatch) -> list[list[Hypothesis]]:
    return engine.search(batch)


def _align(
    engine: Engine, pairs: Sequence[Pair], *, read: SourceReader, source_lang: str | None
) -> list[Alignment]:
    return engine.align(pairs, read, source_lang)


def _without_tags(text: str, options: TranslationOptions) -> MarkedText:
    """A text and its tags; where no markup is asked for it has none."""
    return MarkedText(text, []) if options.markup is None else parse_markup(text, options.markup)


def _entries_first(
    word: str, entries: list[str], predicted: list[Translation], count: int
) -> list[Translation]:
    """The dictionary's entries of a word, then predictions that differ, `count` at most."""
    if not entries:
        return predicted
    translations = [
        Translation(entry, sentences=[SentenceTranslation(word, entry)]) for entry in entries
    ]
    translations += (other for other in predicted if other.text not in entries)
    return translations[:count]
