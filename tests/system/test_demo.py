# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf demo` in a browser."""

import re
import socket
import sys
from pathlib import Path
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from pipelines import multilingual

from csan_hf.commands import demo
from csan_hf.commands.demo import DemoModel, TranslatedText, build_demo, titles_of
from csan_hf_runtime.command_line import main

FIXTURES = Path(__file__).parents[1] / "frozen"
TEXT = "The number is two."


def test_a_clicked_word_is_marked_and_the_words_of_its_sentence_by_their_share():
    nothing = np.zeros(0)
    rows = [(0, np.array([9.0])), (0, nothing), (1, np.array([0.2, 0.8])), (1, np.array([-1, 0]))]
    translated = TranslatedText(["Oh!", "the", "house"], ["Ach!", "\n", "das", "Haus"], rows)
    target, source = translated.marked()
    assert target == [("Ach!", "word"), ("\n", None), ("das", "word"), ("Haus", "word")]
    assert source == [("Oh!", 0), ("the", 0), ("house", 0)]
    marked_target, marked_source = translated.marked(2)
    assert marked_target == [*target[:2], ("das", "clicked"), target[3]]
    assert [word for word, _ in marked_source] == ["Oh!", "the", "house"]
    of_oh, of_the, of_house = [share for _, share in marked_source]
    assert of_oh == 0
    assert of_house == pytest.approx(0.7)
    assert of_the == pytest.approx(of_house / 4)
    assert translated.marked(3)[1] == source, "nothing positive: nothing is marked"


def test_what_keeps_a_demo_from_opening_is_one_line(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert main(["demo", "x", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert "Address already in use (while attempting to bind on address ('127.0.0.1'," in error
    assert error.count("\n") == 1
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", str(FIXTURES / "csan"), "--device", "cpu"]) == 2
    error = "error: gradio is not installed: pip install 'csan_hf[demo]', in a checkout '.[demo]'\n"
    assert capsys.readouterr().err == error


@pytest.mark.parametrize(
    ("host", "is_said"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)]
)
def test_a_demo_that_others_can_reach_says_so(host, is_said, monkeypatch, capsys):
    for name in ("import_gradio", "DemoModel", "build_demo"):
        monkeypatch.setattr(demo, name, Mock())
    assert main(["demo", "x", "--host", host]) == 0
    assert ("whoever reaches this machine" in capsys.readouterr().err) == is_said
    assert demo.build_demo().launch.call_args.kwargs["server_name"] == host


def test_models_have_names_and_translate_every_sentence():
    first, second = (DemoModel(f"{FIXTURES}{path}/csan", device="cpu") for path in ("", "/."))
    assert titles_of([first]) == ["csan"]
    assert titles_of([first, second]) == [f"{FIXTURES}/csan", f"{FIXTURES}/./csan"]
    sentence = first.translate(TEXT, 1)
    text = first.translate(f" {TEXT} {TEXT}\n\n{TEXT} ", 1)
    assert text.source == TEXT.split() * 3
    lines = [*sentence.target * 2, "\n\n", *sentence.target]
    assert text.target == lines, "not the first of a line alone"
    width = len(sentence.target)
    assert [start for start, _ in text.rows[::width][:2]] == [0, 4]
    start, shares = text.rows[-1]
    assert start == 8
    assert shares == pytest.approx(sentence.rows[-1][1], abs=1e-5)


def test_models_of_others_know_their_languages_and_need_no_alignment(tmp_path, caplog):
    for make in (multilingual.marian, multilingual.nllb):
        for part in make(tmp_path / make.__name__):
            part.save_pretrained(tmp_path / make.__name__)
    card = '---\nlanguage: [de, en]\n---\ntranslator("Eins, \\"zwei\\".")[0]["t"]'
    (tmp_path / "marian/README.md").write_text(card)
    with pytest.raises(ValueError, match="pass target_lang="):
        DemoModel(str(tmp_path / "nllb"), device="cpu")
    for name, languages, example, is_marked in (
        ("marian", ["de", "en"], 'Eins, "zwei".', False),
        ("nllb", ["deu_Latn", "fra_Latn"], "Ein Hund läuft durch den Schnee.", True),
    ):
        folder = str(tmp_path / name)
        model = DemoModel(folder, device="cpu", source_lang="deu_Latn", target_lang="fra_Latn")
        assert (model.languages, model.examples[0]) == (languages, example)
        _, [(_, share), *_] = model.translate("one two", 1).marked(0)
        assert (share > 0) == is_marked
    assert "Words are not aligned: MarianTokenizer" in caplog.text
    assert "no effect" not in caplog.text, "languages that are meant for the other model"


def test_two_models_translate_and_a_click_shows_the_alignment(chromium):
    models = [
        DemoModel(str(FIXTURES / name), device="cpu") for name in ("csan", "pervasive_attention")
    ]
    pytest.importorskip("gradio", reason="gradio is not installed")
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait

    page = build_demo(models, example=TEXT)
    _, address, _ = page.launch(
        server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **demo.SERVED
    )
    try:
        chromium.get(address)
        # Gradio may draw the page anew while it is read.
        wait = WebDriverWait(chromium, 60, ignored_exceptions=[StaleElementReferenceException])

        def texts(path):
            return [element.text for element in chromium.find_elements(By.CSS_SELECTOR, path)]

        wait.until(lambda browser: browser.find_elements(By.ID, "translate"))[0].click()
        num_beams = models[0].num_beams
        expected = [model.translate(TEXT, num_beams) for model in models]
        for number, translated in enumerate(expected):
            path = f"#translation-{number} .token"
            last = len(translated.target) - 1
            assert wait.until(lambda _, path=path: texts(path)) == translated.target
            wait.until(
                lambda browser, path=path: (
                    browser.find_elements(By.CSS_SELECTOR, path)[-1].click() or True
                )
            )
            source = f"#aligned-{number} .token"
            shown = wait.until(
                lambda browser, source=source: colours(
                    browser.find_elements(By.CSS_SELECTOR, source)
                )
            )
            assert np.argmax(shown) == np.argmax([mark for _, mark in translated.marked(last)[1]])
            colour = [
                token.get_attribute("style")
                for token in chromium.find_elements(By.CSS_SELECTOR, path)
            ]
            assert colour.index(colour[-1]) == last, "the clicked word alone has its colour"
        for text, message in (
            ("\b", "the text has 0"),
            ("two " * 60, "csan: A sentence is longer than the 32 tokens"),
        ):
            chromium.find_element(By.CSS_SELECTOR, "#source textarea").send_keys(
                Keys.CONTROL, "a", Keys.NULL, text
            )
            chromium.find_element(By.ID, "translate").click()
            wait.until(
                lambda _, message=message: any(message in toast for toast in texts(".toast-body"))
            )
        body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\na\r\n--x--\r\n'
        upload = Request(
            f"{address}gradio_api/upload", body, {"Content-Type": "multipart/form-data; boundary=x"}
        )
        with pytest.raises(HTTPError, match="413"):
            urlopen(upload)
    finally:
        page.close()


def colours(words):
    """How strongly each word is marked: the opacity of its background; nothing while nothing is."""
    opacities = []
    for word in words:
        channels = re.findall(r"[\d.]+", word.value_of_css_property("background-color"))
        opacities.append(float(channels[3]) if len(channels) > 3 else 1.0)
    return opacities if any(opacities) else []
