# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf demo`: a page in the browser to try models, compare them, and click a word for its alignment."""

import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from csan_hf.analysis import Alignment, align
from csan_hf.evaluation.loading import load_translation_model

_WORD = "word"  # what can be clicked needs a category


def demo(
    models: list[str],
    /,
    *,
    text: str = "",
    host: str = "127.0.0.1",
    port: int | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Try a checkpoint in the browser, or compare several: translate, and click a word for its alignment.

        csan-hf demo runs/numbers
        csan-hf demo runs/numbers runs/numbers_pervasive_attention --port 7861

    The page can be opened only on this machine, unless --host says otherwise. Needs `pip install csan_hf[demo]`.

    Args:
        models: folder or Hub name; one, or several to compare
        text: text to begin with
        host: address to serve at
        port: port to serve at (default: a free one from 7860)
    """
    try:  # before models are loaded for nothing
        socket.create_server((host, port or 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, OverflowError, UnicodeError) as error:
        at = f"{host}, port {port}" if port else host
        raise ValueError(f"nothing can be served at {at} ({error}): choose another --host or --port.") from error
    import_gradio()
    loaded = [DemoModel(name, device=device, trust_remote_code=trust_remote_code) for name in models]
    if host not in ("127.0.0.1", "::1", "localhost"):
        print(f"Served at {host}, without a password: whoever reaches this machine there can use it.", file=sys.stderr)
    build_demo(loaded, example=text).launch(server_name=host, server_port=port)


class DemoModel:
    """A checkpoint, a folder or a name on the Hub, that translates one text and aligns it."""

    def __init__(self, name: str, *, device: str | None = None, trust_remote_code: bool = False) -> None:
        self.path, self.name = name, os.path.basename(os.path.normpath(name))
        self.model, self.tokenizers = load_translation_model(name, device=device, trust_remote_code=trust_remote_code)

    def translate(self, text: str, num_beams: int) -> Alignment | None:
        """Translates a text, whose line breaks count as spaces; None if it is empty."""
        line = " ".join(text.split())
        return align(self.model, self.tokenizers, [line], num_beams=num_beams)[0] if line else None


def highlight_source(alignment: Alignment, word: int | None) -> list[tuple[str, float]]:
    """Returns the source words, each with how strongly it is related to a target word (1 = the most; None = none)."""
    if word is None:
        return [(text, 0.0) for text in alignment.source.words]
    row = alignment.word_matrix()[word].clip(min=0)
    highest = float(row.max(initial=0.0)) or 1.0
    return [(text, float(value) / highest) for text, value in zip(alignment.source.words, row, strict=True)]


def build_demo(models: Sequence[DemoModel], *, example: str = "") -> Any:
    """Builds the page, a `gradio.Blocks`, for one model or several to compare, with an example to begin with."""
    gradio = import_gradio()
    with gradio.Blocks(title="csan_hf") as page:
        gradio.Markdown("Translate, then click a word of the translation: the source words that it comes from darken.")
        source = gradio.Textbox(value=example, label="Source", lines=2, elem_id="source", max_length=5000)
        beams = gradio.Slider(1, 10, value=5, step=1, label="Beams")
        button = gradio.Button("Translate", variant="primary", elem_id="translate")
        with gradio.Row():
            for number, (model, title) in enumerate(zip(models, titles_of(models), strict=True)):
                with gradio.Column():
                    gradio.Markdown(f"### {title}")
                    _add_model(gradio, model, number, source, beams, button)
    return page


def titles_of(models: Sequence[DemoModel]) -> list[str]:
    """Returns the last parts of the models' names, or the whole names where the last parts are the same."""
    names = [model.name for model in models]
    return names if len(set(names)) == len(names) else [model.path for model in models]


def _add_model(gradio: Any, model: DemoModel, number: int, source: Any, beams: Any, button: Any) -> None:
    """Adds the translation of one model, and what happens on clicks."""
    shown = {"color_map": {_WORD: "#e5e7eb"}, "show_inline_category": False}
    translation = gradio.HighlightedText(label="Translation", elem_id=f"translation-{number}", **shown)
    aligned = gradio.HighlightedText(label="Source", elem_id=f"aligned-{number}")
    state = gradio.State()

    def translate(text: str, num_beams: int) -> tuple[Alignment | None, list, list]:
        alignment = model.translate(text, int(num_beams))
        if alignment is None:
            return None, [], []
        return alignment, [(word, _WORD) for word in alignment.target.words], highlight_source(alignment, None)

    def select(alignment: Alignment | None, event: gradio.SelectData) -> list[tuple[str, float]]:
        return [] if alignment is None else highlight_source(alignment, int(event.index))

    gradio.on([button.click, source.submit], translate, [source, beams], [state, translation, aligned])
    translation.select(select, [state], [aligned])


def import_gradio() -> Any:
    """Returns gradio, or raises `ImportError` with a line that says how to install it."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # nothing is sent anywhere
    try:
        import gradio
    except ModuleNotFoundError as error:
        raise ImportError("the demo needs gradio: pip install csan_hf[demo]") from error
    return gradio
