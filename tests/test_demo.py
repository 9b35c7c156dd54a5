# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf demo` in a browser."""

import re
import socket
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from csan_hf.analysis import Alignment
from csan_hf.analysis.tokenized_text import TokenizedText
from csan_hf.commands import demo
from csan_hf.commands.demo import DemoModel, build_demo, highlight_source, titles_of
from csan_hf_cli import main

FIXTURES = Path(__file__).parent / "fixtures"
TEXT = "The number is two."


def text_of(*words):
    return TokenizedText(" ".join(words), tuple(range(len(words))), words, words, tuple(range(len(words))))


def test_a_clicked_word_marks_the_source_words_by_their_share():
    matrix = np.array([[0.2, 0.8], [-1.0, 0.5], [0.0, -1.0]], dtype=np.float32)
    alignment = Alignment(text_of("the", "house"), text_of("das", "Haus", "!"), matrix)
    assert highlight_source(alignment, None) == [("the", 0.0), ("house", 0.0)]
    assert highlight_source(alignment, 0) == [("the", pytest.approx(0.25)), ("house", 1.0)]
    assert highlight_source(alignment, 1) == [("the", 0.0), ("house", 1.0)]
    assert highlight_source(alignment, 2) == [("the", 0.0), ("house", 0.0)], "nothing positive: nothing is marked"


def test_without_gradio_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", str(FIXTURES / "csan"), "--device", "cpu"]) == 2
    assert capsys.readouterr().err == "error: the demo needs gradio: pip install csan_hf[demo]\n"


@pytest.mark.parametrize(("host", "is_said"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_a_demo_that_others_can_reach_says_so(host, is_said, monkeypatch, capsys):
    for name in ("import_gradio", "DemoModel", "build_demo"):
        monkeypatch.setattr(demo, name, Mock())
    assert main(["demo", "x", "--host", host]) == 0
    assert ("whoever reaches this machine" in capsys.readouterr().err) == is_said
    assert demo.build_demo().launch.call_args.kwargs["server_name"] == host


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--port", "70000"), "nothing can be served at 127.0.0.1, port 70000 ("),
        (("--host", "no such host"), "nothing can be served at no such host ("),
        (("--port", "{taken}"), "choose another --host or --port"),
    ],
)
def test_addresses_that_cannot_be_served_are_one_line(options, message, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert main(["demo", "x", *(option.format(taken=server.getsockname()[1]) for option in options)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_models_have_names_and_translate_more_than_white_space():
    first, second = (DemoModel(f"{FIXTURES}{path}/csan", device="cpu") for path in ("", "/."))
    assert titles_of([first]) == ["csan"]
    assert titles_of([first, second]) == [f"{FIXTURES}/csan", f"{FIXTURES}/./csan"]
    assert first.translate(" \n ", 1) is None
    assert first.translate(f" {TEXT}\n{TEXT} ", 1).source.text == f"{TEXT} {TEXT}"


def test_two_models_translate_and_a_click_shows_the_alignment(chromium):
    models = [DemoModel(str(FIXTURES / name), device="cpu") for name in ("csan", "pervasive_attention")]
    pytest.importorskip("gradio", reason="gradio is not installed")
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    _, address, _ = (page := build_demo(models, example=TEXT)).launch(
        server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, ssr_mode=False
    )
    try:
        chromium.get(address)
        # Gradio may draw the page anew while it is read.
        wait = WebDriverWait(chromium, 60, ignored_exceptions=[StaleElementReferenceException])
        wait.until(lambda browser: browser.find_elements(By.ID, "translate"))[0].click()
        expected = [model.translate(TEXT, 5) for model in models]
        for number, alignment in enumerate(expected):
            path = f"#translation-{number} .token"
            words = wait.until(
                lambda browser, path=path: [word.text for word in browser.find_elements(By.CSS_SELECTOR, path)]
            )
            assert words == list(alignment.target.words)
            wait.until(lambda browser, path=path: browser.find_elements(By.CSS_SELECTOR, path)[-1].click() or True)
            marks = highlight_source(alignment, len(words) - 1)
            source = f"#aligned-{number} .token"
            shown = wait.until(lambda browser, source=source: colours(browser.find_elements(By.CSS_SELECTOR, source)))
            assert np.argmax(shown) == np.argmax([mark for _, mark in marks])
    finally:
        page.close()


def colours(words):
    """How strongly each word is marked: the opacity of its background; nothing while nothing is."""
    found = [re.findall(r"[\d.]+", word.value_of_css_property("background-color")) for word in words]
    opacities = [float(numbers[3]) if len(numbers) > 3 else 1.0 for numbers in found]
    return opacities if any(opacities) else []
