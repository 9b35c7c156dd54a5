# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""transformers' own model tests, fetched at test time; none of their code is kept in this
repository.

pip fetches the source distribution that matches the installed transformers, which holds
`tests/test_modeling_common.py`, once into a cache folder. It lacks the tests of `generate` and of
single models. `python tests/contract/conformance/library_tests.py` fetches now and prints where the tests
are."""

import importlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import transformers
from filelock import FileLock

_DOWNLOAD_SECONDS = 300


class UnavailableError(Exception):
    """The library's tests cannot be had; the message says why."""


def fetch() -> Path:
    """The folder that holds the source distribution's `tests`, fetched if it is not in the cache.

    Safe to call from several processes at once: one fetches, the others wait for it. A folder
    appears under its final name only when it is complete.

    Raises:
        UnavailableError: There is no such distribution, or no network.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "csan_hf" / f"transformers-{transformers.__version__}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if not (folder / "tests").is_dir():
                _fetch_into(folder)
    except OSError as error:
        raise UnavailableError(
            f"the cache {folder.parent} cannot be used ({error}); set XDG_CACHE_HOME"
        ) from error
    return folder / "tests"


def _fetch_into(folder: Path) -> None:
    requirement = f"transformers=={transformers.__version__}"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as temporary:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
        ]
        command += ["--no-deps", "--no-binary", "transformers", "--retries", "1", "--timeout", "20"]
        try:
            subprocess.run(
                [*command, "--dest", temporary, requirement],
                check=True,
                timeout=_DOWNLOAD_SECONDS,
            )
        except subprocess.SubprocessError as error:
            raise UnavailableError(f"pip cannot fetch the sources: {error}") from error
        [archive] = Path(temporary).glob("transformers-*.tar.gz")
        with tarfile.open(archive) as tar:
            members = [
                member for member in tar if Path(member.name).match("transformers-*/tests/*.py")
            ]
            only_data: Any = (
                {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            )  # from Python 3.11.4 on
            tar.extractall(temporary, members, **only_data)
        sources = archive.with_suffix("").with_suffix("") / "tests"
        (sources / "__init__.py").touch()  # the library's ConfigTester loads it
        folder.mkdir(exist_ok=True)
        os.replace(sources, folder / "tests")


class LibraryTests:
    """The parts of the library's tests that the conformance tests use."""

    def __init__(self) -> None:
        _make_package(fetch())
        common = importlib.import_module("tests.test_modeling_common")
        self.ModelTesterMixin: Any = common.ModelTesterMixin
        self.ConfigTester: Any = importlib.import_module(
            "tests.test_configuration_common"
        ).ConfigTester


def _make_package(sources: Path) -> None:
    """Make `import tests.x` find the source distribution, then stand-ins of one line each."""
    package = ModuleType("tests")
    package.__path__ = [str(sources)]
    sys.modules["tests"] = package
    _stand_in("generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
    # Exporting has tests of its own here; the library's take minutes for each class.
    mixins = ("ExportTesterMixin", "ExportGenerateTesterMixin")
    _stand_in("exporters.test_export", **{name: type(name, (), {}) for name in mixins})
    _stand_in("test_pipeline_mixin", PipelineTesterMixin=type("PipelineTesterMixin", (), {}))
    _stand_in("utils.test_configuration_utils", config_common_kwargs={})


def _stand_in(name: str, **contents: Any) -> None:
    folder = name.rpartition(".")[0]
    if folder:
        package = ModuleType(f"tests.{folder}")
        package.__path__ = []
        sys.modules[package.__name__] = package
    module = ModuleType(f"tests.{name}")
    vars(module).update(contents)
    sys.modules[module.__name__] = module


if __name__ == "__main__":
    try:
        print(fetch())
    except UnavailableError as error:
        sys.exit(f"The library's tests are not available: {error}")
