# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf`: its table of subcommands, what it imports and when, and the recipes that come with it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from csan_hf.commands import COMMANDS, main
from csan_hf.recipes import RECIPES
from csan_hf.suites import SUITES

PACKAGE = Path(__file__).parents[1] / "csan_hf"


def test_every_file_is_a_command_and_every_command_a_file():
    files = {path.stem for path in (PACKAGE / "commands").glob("*.py")} - {"__init__"}
    assert files == {name.replace("-", "_") for name in COMMANDS}


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in COMMANDS)
    assert main([]) == 2


def test_a_misspelt_command_suggests_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "error: there is no command 'trian': did you mean train?\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    try:
        status = main([name, "--help"])
    except SystemExit as stop:  # argparse's way to end
        status = stop.code
    assert status == 0
    assert f"usage: csan-hf {name} " in capsys.readouterr().out


def test_recipes_and_suites_are_listed(capsys):
    assert main(["recipes"]) == 0
    recipes, suites = (part.splitlines() for part in capsys.readouterr().out.split("\n\n"))
    assert recipes[0] == "Recipes:"
    assert [line.split()[0] for line in recipes[1:]] == RECIPES.names()
    assert suites[0] == "Suites:"
    assert [line.split()[0] for line in suites[1:]] == SUITES.names()
    assert all(len(line.split()) > 3 for line in recipes[1:] + suites[1:]), "every one says what it is"
    assert not set(RECIPES.names()) & set(SUITES.names())


@pytest.mark.parametrize(("files", "name"), [(RECIPES, "numbers"), (SUITES, "naacl_table1")])
def test_recipes_and_suites_are_copied(files, name, tmp_path, capsys):
    copy = tmp_path / "mine.yaml"
    assert main(["recipes", name, "--output", str(copy)]) == 0
    assert yaml.safe_load(copy.read_text()) == yaml.safe_load(files.file(name).read_text())
    assert main(["recipes", name, "--output", str(copy)]) == 2
    assert "exists: choose another" in capsys.readouterr().err


def test_a_recipe_goes_to_standard_output_or_into_a_new_file_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments in (["g2p"], ["g2p", "--output", "-"]):
        assert main(["recipes", *arguments]) == 0
        assert yaml.safe_load(capsys.readouterr().out) == yaml.safe_load(SUITES.file("g2p").read_text())
    assert main(["recipes", "--output", "new.yaml"]) == 2
    assert "--output new.yaml: which recipe or suite?" in capsys.readouterr().err
    (tmp_path / "link.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    assert main(["recipes", "g2p", "--output", "link.yaml"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["link.yaml"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["recipes", "nmbers"], "There is no recipe or suite nmbers. Did you mean numbers?"),
        (["recipes", "naacl_tabel1"], "Did you mean naacl_table1?"),
        (["recipes", "G2P.yaml"], "Did you mean g2p?"),
        (["compare", "./g2p", "--output", "runs"], "There is no suite ./g2p."),
        (["train", "scripts/recipes/nmbers.yaml"], "Did you mean numbers?"),
        (["train", "nmbers"], "There is no recipe nmbers. Did you mean numbers?"),
        (["compare", "naacl_tabel1", "--output", "runs"], "Did you mean naacl_table1?"),
    ],
)
def test_a_misspelt_name_suggests_the_nearest(arguments, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


HEAVY = ("datasets", "evaluate", "gradio", "jsonargparse", "matplotlib", "num2words", "onnx")
HEAVY += ("pandas", "pyarrow", "rapidfuzz", "sacrebleu", "selenium", "sentencex", "tensorboard")


def test_importing_the_package_and_its_help_loads_neither_plotting_nor_training_nor_corpora():
    """Only what the Auto classes and models of transformers load by themselves comes with it."""
    code = (
        "import sys, transformers.models.marian.modeling_marian, transformers.pipelines.base\n"
        "before = set(sys.modules)\n"
        "from csan_hf.commands import main\n"
        "main(['--help'])\n"
        "print(*(set(sys.modules) - before), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "csan_hf.models.modeling_csan" in loaded
    assert not {name for name in loaded if name.partition(".")[0] in HEAVY}
    areas = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("csan_hf.")}
    unneeded = {
        f"csan_hf.{area}"
        for area in ("training", "data", "evaluation", "analysis", "comparison", "report", "hub", "recipes", "suites")
    }
    assert not areas & {f"csan_hf.{area}" for area in unneeded}


# ---- imports within the package


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def imports_of(name, path):
    """Modules of the package that a module imports; not those for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            submodules = [f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in MODULES]
            yield from submodules or ([base] if base in MODULES else [])


def find_cycle(graph):
    """Returns the modules of one cycle in the order in which they import each other; empty if there is none."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node) :]
        if node in done:
            return []
        path.append(node)
        for following in graph[node]:
            if cycle := visit(following):
                return cycle
        path.pop()
        done.add(node)
        return []

    return next((cycle for node in graph if (cycle := visit(node))), [])


def test_no_modules_import_each_other():
    """Neither at their head nor in functions, where a cycle hides; a package's `__init__` counts for what it names."""
    graph = {name: sorted(set(imports_of(name, path))) for name, path in MODULES.items()}
    assert len(graph) > 100
    assert graph["csan_hf.commands.train"], "imports are found"
    assert find_cycle(graph) == []


def test_a_cycle_is_found():
    assert find_cycle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c"]
    assert find_cycle({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_every_file_names_its_licence():
    files = [
        path for folder in ("csan_hf", "scripts", "tests") for path in sorted((PACKAGE.parent / folder).rglob("*.py"))
    ]
    assert len(files) > 300
    without = [
        path
        for path in files
        if path.stat().st_size and "Apache License, Version 2.0" not in path.read_text(encoding="utf-8")[:200]
    ]
    assert without == []
