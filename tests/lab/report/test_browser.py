# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The report in a browser."""

import dataclasses
import json
import unicodedata

import numpy as np
import pytest

from csan_hf.lab.report import write_report

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait


def emulate(browser, *, width=1200, scheme="light"):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False},
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.fixture
def page(chromium, report, tmp_path):
    write_report(report, tmp_path / "report.html")
    emulate(chromium)
    chromium.get_log("browser"), chromium.get_log("performance")
    chromium.get((tmp_path / "report.html").as_uri())
    yield chromium
    assert (
        chromium.get_log("browser") == []
    )  # no error, nothing that the page's policy had to block


def texts(browser, selector):
    script = (
        "return [...document.querySelectorAll(arguments[0])].map(node => node.innerText.trim())"
    )
    return browser.execute_script(script, selector)  # at one moment, whatever the page does next


def headings(browser):
    return [int(text.split()[1].replace(",", "")) - 1 for text in texts(browser, ".example h3")]


def status_is(browser, beginning):
    WebDriverWait(browser, 30).until(
        lambda b: b.find_element(By.ID, "status").text.startswith(beginning)
    )


def test_opens_without_network_and_pages(page):
    requests = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    urls = [
        r["params"]["request"]["url"]
        for r in requests
        if r["method"] == "Network.requestWillBeSent"
    ]
    assert urls == [page.current_url]
    status_is(page, "45 of 45 sentences, page 1 of 3")
    assert headings(page) == list(range(20))
    page.find_element(By.ID, "next").click()
    assert headings(page) == list(range(20, 40))
    assert (
        page.switch_to.active_element.get_attribute("id") == "examples"
    )  # a screen reader goes on from there
    page.find_element(By.ID, "next").click()
    assert not page.find_element(By.ID, "next").is_enabled()
    assert headings(page) == list(range(40, 45))
    assert len(page.find_elements(By.CSS_SELECTOR, "figure svg")) == 2
    box = page.find_element(By.ID, "page")
    for typed, number, first in (("2.5", 2, 20), ("9", 3, 40), ("-1", 1, 0), ("", 1, 0)):
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(typed or Keys.DELETE, Keys.ENTER)
        status_is(page, f"45 of 45 sentences, page {number} of 3")
        assert headings(page)[0] == first


def test_sorts(page, report):
    Select(page.find_element(By.ID, "sort")).select_by_visible_text("chrF: ours minus theirs")
    gain = np.round(report.systems[0].segment_scores[0], 2) - np.round(
        report.systems[1].segment_scores[0], 2
    )
    assert headings(page) == sorted(range(45), key=lambda row: (gain[row], row))[:20]
    Select(page.find_element(By.ID, "order")).select_by_visible_text("highest first")
    assert headings(page) == sorted(range(45), key=lambda row: (-gain[row], row))[:20]
    Select(page.find_element(By.ID, "sort")).select_by_visible_text("length of the source")
    assert (
        headings(page)
        == sorted(range(45), key=lambda row: (-len(report.sources[row].split()), row))[:20]
    )


def test_searches_all_text_whatever_the_case_and_form_of_its_characters(page, report):
    page.execute_script("data.sources[7] += arguments[0]", unicodedata.normalize("NFD", " Tür"))
    box = page.find_element(By.ID, "search")
    box.send_keys("schläft ROT")
    ours, theirs = (system.runs[0] for system in report.systems)
    everything = zip(report.sources, report.references, ours, theirs, strict=True)
    rows = []
    for row, lines in enumerate(everything):
        if any("schläft rot" in line.lower() for line in lines):
            rows.append(row)
    assert rows
    status_is(page, f"{len(rows)} of 45 sentences")
    assert headings(page) == rows[:20]
    box.clear()
    box.send_keys("nowhere", Keys.ENTER)
    status_is(page, "0 of 45 sentences, page 1 of 1")
    box.clear()
    box.send_keys("source", Keys.ENTER)
    page.find_element(By.ID, "differ").click()
    differing = [row for row in range(45) if ours[row] != theirs[row]]
    status_is(page, f"{len(differing)} of 45 sentences")
    page.find_element(By.ID, "differ").click()
    box.clear()
    box.send_keys("tür", Keys.ENTER)
    status_is(page, "1 of 45 sentences")
    assert headings(page) == [7]
    text = "a\x85b\u2028c\ufeffd\x1ce\xa0\u3000f\u200bg\t "  # words are Python's
    assert page.execute_script("return [words(arguments[0]), words(' ')]", text) == [
        text.split(),
        [],
    ]


def test_marks_differences(page, report):
    Select(page.find_element(By.ID, "against")).select_by_visible_text("the reference")
    for item, row in zip(
        page.find_elements(By.CSS_SELECTOR, ".example"), headings(page), strict=True
    ):
        for place, text in enumerate(item.find_elements(By.CSS_SELECTOR, ".text")):
            script = (
                "return [...arguments[0].childNodes].map(n => [n.nodeName, n.textContent.trim()])"
            )
            parts = page.execute_script(script, text)
            for kind, line in (
                ("INS", report.systems[place].runs[0][row]),
                ("DEL", report.references[row]),
            ):
                assert (
                    " ".join(words for name, words in parts if name in ("#text", kind) and words)
                    == line
                )
    Select(page.find_element(By.ID, "against")).select_by_visible_text("nothing")
    assert not page.find_elements(By.CSS_SELECTOR, ".example ins, .example del")
    Select(page.find_element(By.ID, "against")).select_by_visible_text("theirs")
    assert page.find_elements(By.CSS_SELECTOR, ".example ins")


def test_opens_an_alignment_with_the_keyboard(page, report):
    button = page.find_element(By.CSS_SELECTOR, ".example button")
    assert button.text.startswith("Alignment")
    button.send_keys(Keys.ENTER)
    dialog = page.find_element(By.ID, "alignment")
    assert dialog.is_displayed()
    assert texts(page, ".matrix tbody th") == report.systems[0].runs[0][0].split()
    assert len(page.find_elements(By.CSS_SELECTOR, ".matrix thead th")) == 1 + len(
        report.sources[0].split()
    )
    assert texts(page, ".matrix tbody tr:first-child td")[:3] == ["99", "-5", "-5"]
    places = "return [...document.querySelectorAll('.best')].map(n => [n.cellIndex - 1, n.parentElement.rowIndex - 1])"
    assert sorted(map(tuple, page.execute_script(places))) == sorted(
        report.systems[0].alignments[0].links
    )
    assert "for each target word, 2-0 0-1." in page.find_element(By.ID, "alignment-note").text
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not dialog.is_displayed()
    assert page.switch_to.active_element == button


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colour_schemes(page, scheme):
    emulate(page, scheme=scheme)

    def check(is_dark):
        colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (colour == "rgb(20, 23, 28)") == is_dark
        text, edges = page.execute_script(CONTRASTS)
        assert min(text.values()) >= 4.5, text
        assert min(edges) >= 3

    check(scheme == "dark")
    button = page.find_element(By.ID, "theme")
    names = ["Light mode", "Dark mode"]  # of what a click does
    if scheme == "light":
        names.reverse()
    # The page hears of the new scheme with its next frame
    WebDriverWait(page, 30).until(lambda _: button.text == names[0])
    button.click()
    assert button.text == names[1]
    check(scheme == "light")


# WCAG 2.2: relative luminance, and the contrast of text with what is behind it
CONTRASTS = """
const rgb = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
const light = colour => rgb(colour).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = node => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
};
const contrast = (...colours) => {
  const [a, b] = colours.map(light).sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
const found = {};
for (const selector of ["body", ".quiet", "ins", "del", "button", "#controls label", ".example dt", "svg text"]) {
  const node = document.querySelector(selector);
  const style = getComputedStyle(node);
  const ink = selector === "svg text" ? style.fill : style.color;
  found[selector] = contrast(ink, behind(node));
}
const box = document.getElementById("search");
found.placeholder = contrast(getComputedStyle(box, "::placeholder").color, behind(box));
const edges = [...document.querySelectorAll("button, select, input:not([type=checkbox])")]
  .map(node => contrast(getComputedStyle(node).borderTopColor, behind(node.parentElement)));
return [found, edges];
"""


def test_a_phone_needs_no_sideways_scrolling_and_long_names_have_room(page, report, tmp_path):
    names = [f"{'transformer_with_areas_' * 3}{number}" for number in (1, 2)]
    systems = [
        dataclasses.replace(system, name=name)
        for system, name in zip(report.systems, names, strict=True)
    ]
    write_report(dataclasses.replace(report, systems=systems), tmp_path / "long.html")
    inside = "n.getBoundingClientRect().left >= n.closest('td').getBoundingClientRect().left"
    for address in (page.current_url, (tmp_path / "long.html").as_uri()):
        page.get(address)
        for width in (1200, 390):
            emulate(page, width=width)
            assert page.execute_script("return document.documentElement.scrollWidth") <= width
            assert page.execute_script(
                f"return [...document.querySelectorAll('.test')].every(n => {inside})"
            )
            assert page.execute_script(
                "return [...document.querySelectorAll('button, input, select, figure, .example')]"
                f".every(n => n.getBoundingClientRect().right <= {width})"
            )


def test_everything_has_a_name_for_screen_readers(page):
    page.find_element(
        By.CSS_SELECTOR, ".contents a[href='#plots-heading']"
    ).click()  # opens what is folded
    nodes = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = {}
    for node in nodes:
        if not node.get("ignored"):
            named.setdefault(node["role"]["value"], []).append(
                node.get("name", {}).get("value", "")
            )
    for role in (
        "button",
        "combobox",
        "searchbox",
        "spinbutton",
        "checkbox",
        "image",
        "region",
        "search",
        "heading",
    ):
        assert named[role], role
        assert all(name.strip() for name in named[role]), (role, named[role])
    assert "Alignment of sentence 1 by ours" in named["button"]
