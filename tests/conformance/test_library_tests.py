# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""How the library's tests are fetched, and how their outcome is judged."""

import io
import tarfile

import pytest
import transformers
from conformance import library_tests
from conformance.library_tests import UnavailableError, cache_folder, fetch
from conformance.report import unexplained_skips
from conformance.skips import SKIPS, reason_to_skip


def sources(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"transformers-0/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(library_tests.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_fetched_distribution_is_kept(cache, tmp_path, monkeypatch):
    files = {"tests/test_modeling_common.py": b"x = 1", "tests/deep/er.py": b"", "src/test.py": b"", "setup.py": b""}
    downloads = []

    def download(folder):
        downloads.append(folder)
        return sources(folder / "transformers-0.tar.gz", files)

    monkeypatch.setattr(library_tests, "_download", download)
    folder = fetch()
    assert folder == cache / f"transformers-{transformers.__version__}" / "tests"
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "test_modeling_common.py"]
    assert (folder / "test_modeling_common.py").read_bytes() == b"x = 1"
    assert fetch() == folder
    assert len(downloads) == 1
    assert sorted(path.name for path in cache.iterdir()) == [cache_folder().name, cache_folder().name + ".lock"]


def test_a_broken_distribution_leaves_nothing(cache, monkeypatch):
    monkeypatch.setattr(library_tests, "_download", lambda folder: sources(folder / "a.tar.gz", {"tests/a.py": b""}))
    with pytest.raises(UnavailableError, match=r"a\.tar\.gz holds no tests/test_modeling_common\.py"):
        fetch()
    assert not cache_folder().exists()


def test_without_an_index_the_reason_is_given_once_for_all_workers(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UnavailableError, match=rf"sources of transformers=={transformers.__version__}: ERROR"):
        fetch()
    monkeypatch.setattr(library_tests, "_download", lambda folder: pytest.fail("tried again"))
    with pytest.raises(UnavailableError, match="cannot fetch the sources"):
        fetch()


def test_an_unusable_cache_folder_is_named(cache, monkeypatch):
    cache.write_text("a file")
    with pytest.raises(UnavailableError, match=rf"{cache}.*set {library_tests.CACHE_VARIABLE}"):
        fetch()


def test_a_skip_that_marian_passed_needs_a_line_in_the_table():
    listed = "test_hidden_states_output"
    rows = {
        "MarianModel": {"test_a": "passed", "test_b": "skipped", "test_c": "passed", listed: "passed"},
        "MarianMTModel": {"test_b": "passed"},
        "CsanModel_1D": {"test_a": "skipped", "test_b": "skipped", "test_c": "passed"},
        "CsanForConditionalGeneration_2D": {"test_a": "skipped", "test_b": "skipped"},
        "PervasiveAttentionModel": {"test_c": "skipped", listed: "skipped"},
    }
    assert unexplained_skips(rows) == [
        "CsanForConditionalGeneration_2D.test_b",
        "CsanModel_1D.test_a",
        "PervasiveAttentionModel.test_c",
    ]


def test_only_listed_tests_are_skipped():
    assert reason_to_skip("PervasiveAttentionModel", "test_hidden_states_output") is not None
    assert reason_to_skip("PervasiveAttentionModel", "test_save_load") is None
    assert reason_to_skip("CsanModel_2D", "test_hidden_states_output") is None
    assert not any(name.startswith(("Csan", "Marian")) for name in SKIPS)
