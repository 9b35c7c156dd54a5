# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What pyproject.toml, constraints.txt and the scripts say agrees, for every Python that is named."""

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from csan_hf.models.configuration_seq2seq import MINIMUM_TRANSFORMERS, UNTESTED_TRANSFORMERS

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)


def listed(name):
    """The requirements of a list in pyproject.toml."""
    project = tomllib.loads(PROJECT)["project"]
    lists = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    return [Requirement(line) for line in lists[name]]


EXTRAS = ("train", "lab", "onnx", "dev")
LISTED = [*itertools.chain.from_iterable(map(listed, ("dependencies", *EXTRAS)))]
REQUIREMENTS = [
    requirement for requirement in LISTED if requirement.name != "csan_hf"
]  # of dev: the other extras


@pytest.mark.parametrize("python", PYTHONS)
def test_constraints_hold_one_version_of_everything_for_every_python(python):
    lines = map(Requirement, CONSTRAINTS.splitlines())
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    chosen = [line for line in lines if line.marker is None or line.marker.evaluate(environment)]
    versions = {line.name.lower(): str(line.specifier).removeprefix("==") for line in chosen}
    assert len(versions) == len(chosen)
    for requirement in REQUIREMENTS:
        assert requirement.specifier.contains(versions[requirement.name.lower()]), requirement
    assert {"numpy", "pandas", "pyarrow"} <= versions.keys(), (
        "what others depend on and often breaks"
    )


def test_every_requirement_has_a_lowest_version_and_it_is_that_which_is_tested():
    lowest = {}
    for requirement in (*REQUIREMENTS, *listed("demo"), *listed("docs"), *listed("notebook")):
        bounds = [bound.version for bound in requirement.specifier if bound.operator == ">="]
        # mypy needs any; an extra of this package
        if requirement.name not in ("types-PyYAML", "csan_hf"):
            [lowest[requirement.name]] = bounds
    function = 'source <(sed -n "/^constraints() {/,/^}/p" scripts/setup_environment.sh)'
    run = ["bash", "-c", f"{function}\nVERSIONS=lowest constraints"]
    printed = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert dict(line.split("==") for line in printed.splitlines()) == lowest


def test_the_package_and_its_checkpoints_promise_the_same_transformers():
    [specifier] = [
        requirement.specifier for requirement in REQUIREMENTS if requirement.name == "transformers"
    ]
    assert specifier == SpecifierSet(f">={MINIMUM_TRANSFORMERS},<6")
    newest = re.search(r"^transformers==5\.(\d+)", CONSTRAINTS, re.MULTILINE)[1]
    assert f"5.{int(newest) + 1}" == UNTESTED_TRANSFORMERS


def import_beside(transformers_version):
    """What importing the package prints beside a transformers that says to be of a version."""
    code = (
        "import transformers, importlib.metadata as metadata; version = metadata.version\n"
        f"transformers.__version__ = number = {transformers_version!r}\n"
        "metadata.version = lambda name: number if name == 'transformers' else version(name)\n"
        "import csan_hf, csan_hf.models"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_newer_transformers_gives_one_warning_with_both_versions():
    run = import_beside("5.99.1")
    assert run.returncode == 0, run.stderr
    [warning] = [line for line in run.stderr.splitlines() if "5.99.1" in line]
    assert f"to below {UNTESTED_TRANSFORMERS}" in warning


def test_an_older_transformers_is_refused_with_the_command_that_mends_it():
    run = import_beside("5.2.0")
    assert run.returncode == 1
    command = "pip install -U 'transformers<6'"
    assert run.stderr.endswith(f"need transformers {MINIMUM_TRANSFORMERS} or newer: {command}\n")


def test_the_small_distribution_asks_for_the_same_versions():
    project = tomllib.loads((ROOT / "runtime/pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    known = {requirement.name: requirement.specifier for requirement in REQUIREMENTS}
    for requirement in map(Requirement, project["dependencies"]):
        assert requirement.specifier == known.get(requirement.name, ""), requirement


@pytest.mark.parametrize("name", ["csan_hf", "csan_hf_runtime"])
def test_a_wheel_has_every_file_that_is_not_python(name):
    package = ROOT / name
    patterns = tomllib.loads(PROJECT)["tool"]["setuptools"]["package-data"][name]
    packed = set()
    for pattern in patterns:
        packed.update(package.glob(pattern))
    files = {
        path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path for path in files - packed if path.suffix not in (".py", ".md")} == set()


def test_a_folder_of_the_packages_name_is_not_taken_for_it(tmp_path):
    """Such as the clone, seen from its parent folder."""
    (tmp_path / "csan_hf").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", "import csan_hf; csan_hf.CsanConfig"]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
