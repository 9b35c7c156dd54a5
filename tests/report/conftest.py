"""Reports of invented translations, and Chromium without a window to look at them."""

import random
import shutil

import pytest

from csan_hf.report import System, compare_systems

WORDS = ["der", "die", "das", "ein", "Hund", "Mann", "Buch", "läuft", "liest", "schläft", "rot", "<b>", "&", "blau"]


@pytest.fixture(scope="session")
def invented():
    """Returns a function that makes sources, references, and a system for each rate of errors."""
    return make_translations


def make_translations(sentences, errors):
    generator = random.Random(1)
    references = [[generator.choice(WORDS) for _ in range(generator.randint(2, 9))] for _ in range(sentences)]

    def spoil(line, rate):
        return " ".join(generator.choice(WORDS) if generator.random() < rate else word for word in line)

    sources = [f"source {number} {' '.join(line).upper()}" for number, line in enumerate(references)]
    systems = [[spoil(line, rate) for line in references] for rate in errors]
    return sources, [" ".join(line) for line in references], systems


@pytest.fixture(scope="session")
def report():
    sources, references, (ours, theirs) = make_translations(45, (0.15, 0.4))
    systems = [System("ours", [ours]), System("theirs", [theirs])]
    made = compare_systems(systems, sources, references, metrics=["chrf", "wer", "exact_match"], samples=50)
    source_words, target_words = len(sources[0].split()), len(ours[0].split())
    matrix = [[99 if column == row else -5 for column in range(source_words)] for row in range(target_words)]
    made.alignments = [{0: matrix}, {}]
    return made


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """Returns a function that opens a window of Chromium, wide and light unless told otherwise."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_page_load_timeout(120)
    yield browser
    browser.quit()
