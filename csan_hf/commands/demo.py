# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf demo`: a page in the browser to try models, compare them, and click a word for its
alignment.
"""

import html
import logging
import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from huggingface_hub import ModelCard
from transformers.utils import cached_file
from yaml import YAMLError

from csan_hf.evaluation.loading import load_engine
from csan_hf.hub.model_card import EXAMPLES
from csan_hf_runtime import exported_folder
from csan_hf_runtime.engine import source_reader
from csan_hf_runtime.extras import needs_extra
from csan_hf_runtime.languages import base_language
from csan_hf_runtime.texts import warn_once
from csan_hf_runtime.translator import TextTranslator

# What can be clicked needs a category
_WORD = "word"
_CLICKED = "clicked"
# Text stays legible on these, in the dark too: gradio halves their opacity
_COLOURS = {_WORD: "#e5e7eb", _CLICKED: "#f0e442"}
_DARKEST = 0.7
_CSS = "#translate {background: #c2410c} .min_value, .max_value {color: inherit !important}"
_MOST_CHARACTERS = 5000
SERVED: dict[str, Any] = {
    "max_file_size": 0,
    "enable_monitoring": False,
    "ssr_mode": False,
    "share": False,
    "footer_links": [],
    "app_kwargs": {"openapi_url": None},
    "css": _CSS,
}
"""How the page of `build_demo` is launched: with nothing beside it."""

_logger = logging.getLogger("csan_hf")


def demo(
    models: list[str],
    /,
    *,
    text: str = "",
    source_lang: str | None = None,
    target_lang: str | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Try a checkpoint in the browser, or compare several: translate, and click a word for its
    alignment.

        csan-hf demo runs/numbers
        csan-hf demo runs/numbers runs/numbers_pervasive_attention --port 7861

    The page can be opened only on this machine, unless --host says otherwise. Needs `pip install
    'csan_hf[demo]'`.

    Args:
        models: folder or Hub name; one, or several to compare
        text: text to begin with (default: that of a model's card)
        host: address to serve at
        port: port to serve at (default: a free one from 7860)
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # before models are loaded for nothing
        socket.create_server((host, port or 0), family=family).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"nothing can be served at {host} ({error}): choose another --host or --port."
        ) from error
    import_gradio()
    load = partial(
        DemoModel,
        source_lang=source_lang,
        target_lang=target_lang,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    loaded = list(map(load, models))
    if host not in ("127.0.0.1", "::1", "localhost"):
        print(
            f"Served at {host}, without a password: whoever reaches this machine there can use it.",
            file=sys.stderr,
        )
    build_demo(loaded, example=text).launch(server_name=host, server_port=port, **SERVED)


@dataclass
class TranslatedText:
    """The words of a text and of its translation, with the line breaks of the latter.

    `rows` has for each of `target` where in `source` its sentence begins, and how strongly it is
    related to the words of that sentence: float32 [words]."""

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    rows: list[tuple[int, np.ndarray]] = field(default_factory=list)

    def marked(self, clicked: int | None = None) -> tuple[list, list]:
        """Returns target and source words; the latter with how strongly they are related to a
        clicked target word.
        """
        kinds = [None if word.isspace() else _WORD for word in self.target]
        shares = np.zeros(len(self.source))
        if clicked is not None:
            kinds[clicked] = _CLICKED
            start, row = self.rows[clicked]
            strongest = row.max(initial=0.0) or 1.0
            shares[start : start + len(row)] = _DARKEST * row.clip(min=0) / strongest
        target = list(zip(self.target, kinds, strict=True))
        return target, list(zip(self.source, shares.tolist(), strict=True))


class DemoModel:
    """A checkpoint, a folder or a name on the Hub, that translates texts and aligns their words.

    Attributes:
        languages: Codes of source and target language; none where neither tokenizer nor card name a
            pair.
        examples: Texts to begin with: that of the card, and one in the source language.
    """

    def __init__(
        self,
        name: str,
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        device: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self.path = name
        self.name = os.path.basename(os.path.normpath(name))
        engine = load_engine(name, device=device, trust_remote_code=trust_remote_code)
        self.translator = TextTranslator(engine)
        prefix, generation = engine.defaults(source_lang, target_lang)
        vocabulary = engine.source
        if not (vocabulary.languages or prefix or vocabulary.holds(f">>{target_lang}<<")):
            source_lang = target_lang = None  # meant for another one of the models
        self._languages: dict[str, Any] = {"source_lang": source_lang, "target_lang": target_lang}
        # Or fail now, without a page
        self.translator.translate(["1"], num_beams=1, **self._languages)
        self.num_beams = generation.num_beams
        card = _card_of(str(exported_folder(name) or name))
        pairs: list[Any] = [
            [
                source_lang or vocabulary.source_language,
                target_lang or vocabulary.target_language,
            ]
        ]
        if card:
            pairs.append(card.data.get("language"))
        self.languages: list[str] = next(
            (pair for pair in pairs if isinstance(pair, list) and len(pair) == 2 and all(pair)), []
        )
        language = base_language(self.languages[0]) if self.languages else ""
        examples = [_example_of(card), EXAMPLES.get(language, "")]
        self.examples = [example for example in examples if example]

    def translate(self, text: str, num_beams: int) -> TranslatedText:
        """Translates a text sentence by sentence; what may be wrong with the translation is logged
        as a warning.
        """
        warn_once.cache_clear()  # whoever translates next is to see it too
        [[translation]] = self.translator.translate(
            [text], split_sentences="always", num_beams=num_beams, **self._languages
        )
        pairs = [(one.source_text, one.translation_text) for one in translation.sentences]
        sources: list[Sequence[str]] = [source.split() for source, _ in pairs]
        try:
            engine = self.translator.engine
            engine.check_attention("The alignment of words")
            reader = source_reader(engine, **self._languages)
            alignments = engine.align(pairs, reader, self._languages["source_lang"])
            matrices = [alignment.word_matrix() for alignment in alignments]
            sources = [alignment.source.words for alignment in alignments]  # or letters
        except ValueError as error:
            _logger.warning(f"Words are not aligned: {error}")
            matrices = [np.zeros((len(target.split()), 0)) for _, target in pairs]
        translated = TranslatedText()
        end = 0
        for words, (_, target), matrix in zip(sources, pairs, matrices, strict=True):
            start = translation.text.index(target, end)
            breaks = translation.text.count("\n", end, start)
            end = start + len(target)
            if breaks:
                translated.rows.append((0, np.zeros(0)))
                translated.target.append("\n" * breaks)
            translated.rows += [(len(translated.source), row) for row in matrix]
            translated.source += words
            translated.target += target.split()
        return translated


def _card_of(name: str) -> ModelCard | None:
    readme = cached_file(name, "README.md", _raise_exceptions_for_missing_entries=False)
    try:
        return ModelCard.load(readme, ignore_metadata_errors=True) if readme else None
    # Somebody else's, which says nothing that the page needs
    except (YAMLError, ValueError, RecursionError):
        return None


def _example_of(card: ModelCard | None) -> str:
    """The text that a card translates, or "" where there is none."""
    example = card and re.search(r'translator\("((?:[^"\\]|\\.)+)"\)\[0\]', card.text)
    return re.sub(r"\\(.)", r"\1", example[1]) if example else ""


def build_demo(models: Sequence[DemoModel], *, example: str = "") -> Any:
    """Builds the page, a `gradio.Blocks`, for one model or several to compare, with examples to
    click.
    """
    gradio = import_gradio()
    with needs_extra("demo"):
        from babel.core import Locale
    language_names = Locale("en").languages
    titles = titles_of(models)
    examples = [example] if example else []
    for model in models:
        examples += [text for text in model.examples if text not in examples]

    class ToPage(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            gradio.Warning(html.escape(f"{self.name}: {record.getMessage()}"))

    to_page = ToPage()
    for name in ("csan_hf", "csan_hf_runtime"):
        logging.getLogger(name).addHandler(to_page)

    def translate(text: str, num_beams: int) -> list[Any]:
        text = (text or "").strip()
        is_fit = 0 < len(text) <= _MOST_CHARACTERS
        if not is_fit:
            gradio.Warning(
                f"Write 1 to {_MOST_CHARACTERS:,} characters: the text has {len(text):,}."
            )
        shown: list[Any] = []
        for model, title in zip(models, titles, strict=True):
            translation = TranslatedText()
            to_page.name = title
            if is_fit:
                try:
                    translation = model.translate(text, num_beams)
                except ValueError as error:
                    _logger.warning(f"Not translated: {error}")
            shown += [translation, *translation.marked()]
        return shown

    def select(translated: TranslatedText, event: gradio.SelectData) -> Any:  # type: ignore[name-defined]
        return translated.marked(event.index)

    with gradio.Blocks(title=f"{', '.join(titles)}: translate") as page:
        gradio.Markdown(
            "# Translate\n\nThen click a word of the translation: the source words it comes from "
            "darken."
        )
        source = gradio.Textbox(
            examples[0] if examples else "", label="Source", lines=3, max_lines=12, elem_id="source"
        )
        if examples:
            gradio.Examples(examples, source)
        num_beams = models[0].num_beams
        beams = gradio.Slider(1, max(num_beams, 10), value=num_beams, step=1, label="Beams")
        button = gradio.Button("Translate", variant="primary", elem_id="translate")
        outputs: list[Any] = []
        with gradio.Row():
            for number, (model, title) in enumerate(zip(models, titles, strict=True)):
                with gradio.Column():
                    names = [
                        language_names.get(base_language(code), code) for code in model.languages
                    ]
                    gradio.Markdown(f"## {title}\n\n{' → '.join(names)}")
                    translation = gradio.HighlightedText(
                        [],
                        label="Translation",
                        color_map=_COLOURS,
                        show_inline_category=False,
                        elem_id=f"translation-{number}",
                    )
                    aligned = gradio.HighlightedText(
                        [], label="Source", elem_id=f"aligned-{number}"
                    )
                    state = gradio.State(TranslatedText())
                    translation.select(
                        select, state, [translation, aligned], api_visibility="private"
                    )
                    outputs += [state, translation, aligned]
        gradio.on(
            [button.click, source.submit],
            translate,
            [source, beams],
            outputs,
            api_visibility="private",
        )
    return page.queue(max_size=20, api_open=False)


def titles_of(models: Sequence[DemoModel]) -> list[str]:
    """Returns the last parts of the models' names, or the whole names where the last parts are the
    same.
    """
    names = [model.name for model in models]
    return names if len(set(names)) == len(names) else [model.path for model in models]


def import_gradio() -> Any:
    """Returns gradio, or raises `ImportError` with a line that says how to install it."""
    for name in ("GRADIO_ANALYTICS_ENABLED", "GRADIO_RUN_HISTORY"):
        os.environ.setdefault(name, "False")  # nothing is sent anywhere, or kept
    with needs_extra("demo"):
        import gradio
    return gradio
