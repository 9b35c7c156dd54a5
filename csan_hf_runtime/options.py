# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Options of a translation, the same for the command line and for Python; they check themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from .settings import BeamCount, NonNegative, Positive, Range, Settings

if TYPE_CHECKING:
    from .generation import Generation

SplitSentences = Literal["auto", "always", "never"]
"""Which lines are split into sentences; see `TextOptions`."""

Unknown = Literal["warn", "skip", "error"]
"""Treatment of texts with letters or signs that the source vocabulary does not have."""

Lines = Literal["auto", "together", "alone"]
"""Whether the lines of a text are translated together; see `TextOptions`."""

Markup = Literal["html", "xliff"]
"""Kinds of inline tags: those of HTML, those of XLIFF 1.2 and 2."""


@dataclass(frozen=True)
class BeamOptions(Settings):
    """How translations are searched for; None is as the model's generation config says.

    Attributes:
        num_beams: number of beams; 1 = greedy search (default: the model's, or as many as n_best)
        max_length: maximum number of target tokens, the first of the decoder included (default: the
            model's, or twice the source's tokens and 50)
        max_new_tokens: maximum number of generated tokens, instead of max_length
        length_penalty: above 0 favours long outputs (default: the model's)
    """

    num_beams: BeamCount | None = None
    max_length: Annotated[int, Range(2)] | None = None
    max_new_tokens: Positive | None = None
    length_penalty: float | None = None


@dataclass(frozen=True)
class CorpusOptions(BeamOptions):
    """How the sources of a test set are translated.

    Attributes:
        truncation: truncate a text longer than the model takes, instead of splitting it
        split_sentences: which lines are split and translated sentence by sentence: never = only
            lines longer than the model takes, as in the scores of training; auto = also lines with
            more tokens or sentences than 99 % of the training sources; always = all
    """

    truncation: bool = False
    split_sentences: SplitSentences = "never"


@dataclass(frozen=True)
class SearchOptions(BeamOptions):
    """How translations are searched for, or drawn.

    Attributes:
        n_best: the N best hypotheses of each text, or N samples, with their log-probabilities
        sample: draw translations instead of searching for the best
        temperature: of samples: below 1 sharpens the probabilities
        top_k: of samples: draw from the K likeliest tokens; 0 = from all
        top_p: of samples: draw from the likeliest tokens whose probabilities reach this sum
        seed: of samples: of the random numbers
    """

    n_best: Positive | None = None
    sample: bool = False
    temperature: float | None = None
    top_k: NonNegative | None = None
    top_p: float | None = None
    seed: NonNegative = 0

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        super().__post_init__()
        of_samples = (self.temperature, self.top_k, self.top_p)
        if not self.sample and of_samples != (None, None, None):
            raise ValueError("temperature, top_k and top_p need sample.")
        if self.num_beams is not None and self.num_beams < (self.n_best or 1) and not self.sample:
            raise ValueError(
                f"n_best={self.n_best} needs as many beams, got num_beams={self.num_beams}; or "
                "sample."
            )

    def generation_fields(self, defaults: Generation) -> dict[str, Any]:
        """Returns what is chosen, by the names of generation_config.json; beams are the
        model's, or as many as hypotheses.
        """
        settings: dict[str, Any] = {
            "num_beams": self.num_beams,
            "max_length": self.max_length,
            "max_new_tokens": self.max_new_tokens,
            "length_penalty": self.length_penalty,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }
        if self.sample:
            settings |= {"do_sample": True, "num_beams": 1}
        elif self.num_beams is None and not defaults.do_sample:
            settings["num_beams"] = max(defaults.num_beams, self.n_best or 1)
        chosen = {name: value for name, value in settings.items() if value is not None}
        if self.max_length is not None:
            chosen.setdefault("max_new_tokens", None)  # the model's, which else comes first
        return chosen


@dataclass(frozen=True)
class TextOptions(Settings):
    """How texts are read, and what is told of their translations.

    Attributes:
        source_lang: source language of a multilingual model, in the code of the model: de, deu_Latn
        target_lang: target language of a multilingual model, in the code of the model
        truncation: truncate a text longer than the model takes, instead of splitting it
        split_sentences: which lines are split and translated sentence by sentence: auto = lines
            with more tokens or sentences than 99 % of the training sources; always = all; never =
            only lines longer than the model takes
        lines: whether the lines of a text are translated together, each in the context of the
            others, 1,024 tokens at a time: auto = where the model attends line by line (preset
            lines); together; alone
        documents: lines up to a blank one are a document and translated together, by a model that
            attends line by line; indents stay
        unknown: what to do with a line that has characters missing from the source vocabulary:
            warn; skip = an empty translation; error
        markup: format of inline tags in the input, html or xliff: tags are put back around the
            words aligned to those they enclosed; entities such as &amp; are decoded and encoded
        check_coverage: warn where a translation seems to leave out a sentence of a line that has
            several
        max_batch_tokens: source tokens in a batch, padding included; beams are not counted; of
            documents 16 times as many
    """

    source_lang: str | None = None
    target_lang: str | None = None
    truncation: bool = False
    split_sentences: SplitSentences = "auto"
    lines: Lines = "auto"
    documents: bool = False
    unknown: Unknown = "warn"
    markup: Markup | None = None
    check_coverage: bool = False
    max_batch_tokens: Positive = 4096

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        super().__post_init__()
        if self.documents and self.lines == "alone":
            raise ValueError("documents are translated together: leave out lines='alone'.")


@dataclass(frozen=True)
class TranslationOptions(TextOptions, SearchOptions):
    """All options of a translation.

    Attributes:
        prefix: What stands before each source; None = as the model's config says.
        batch_size: Sentences in a batch, instead of `max_batch_tokens`.
        return_scores: Whether log-probabilities are needed; else they may be 0.
        return_words: Whether to give words, with the log-probabilities of their tokens.
        return_alignments: Whether to align the words of text and translation.
    """

    prefix: str | None = None
    batch_size: Positive | None = None
    return_scores: bool = False
    return_words: bool = False
    return_alignments: bool = False

    @property
    def needs_scores(self) -> bool:
        """Whether log-probabilities are told."""
        return self.return_scores or self.return_words

    @property
    def needs_alignments(self) -> bool:
        """Whether words are aligned: for the caller, or to put tags back."""
        return self.return_alignments or self.markup is not None
