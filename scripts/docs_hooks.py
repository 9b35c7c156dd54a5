# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What mkdocs.yml builds the site from: the repository's own pages and pictures, and a reference
that is generated.
"""

import html
import importlib
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import csan_hf
from csan_hf.commands.train import format_help
from csan_hf.families import FAMILIES
from csan_hf.training.recipe import recipe_options
from csan_hf_cli import COMMANDS, build_parser, function_of

PATTERNS = (
    "*.md",
    "*.png",
    "*.svg",
    "*.yaml",
    "*.ipynb",
    "LICENSE",
    ":!tests",
    ":!model_cards/suites/*/report.md",
)
CONFIGS = (
    "csan_hf.training.arguments.TranslationTrainingArguments",
    "csan_hf.training.arguments.GenerationArguments",
    "csan_hf.data.DataArguments",
    "csan_hf.training.Recipe",
)
PACKAGES = (
    "models",
    "data",
    "pipelines",
    "evaluation",
    "alignment",
    "analysis",
    "training",
    "hub",
    "suites",
    "report",
)
"""Packages of csan_hf with a page of all their public names."""
FURTHER = {
    "models": ("csan_hf.models.locality.LocalityMethod", "csan_hf.models.attention_call.Term"),
    "pipelines": (
        "csan_hf.pipelines.onnx_model.OnnxTranslationModel",
        "csan_hf_runtime.translator.Translator",
    ),
    "evaluation": (
        "csan_hf.evaluation.loading.load_translation_model",
        "csan_hf.evaluation.metrics.CorpusMetric",
        "csan_hf.evaluation.metrics.load_metric",
        "csan_hf.evaluation.metrics.register_metric",
        "csan_hf.evaluation.significance.paired_test",
    ),
}
"""What stands in modules of these packages, and is for users, too."""
_TYPE_IN_DOCSTRING = re.compile(r"^( +\w+) \(`.*\):", re.MULTILINE)


class TypesOfSignatures(griffe.Extension):
    """Leaves the types of arguments to their annotations, where a docstring repeats them."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each class and function."""
        if obj.docstring is not None:
            obj.docstring.value = _TYPE_IN_DOCSTRING.sub(r"\1:", obj.docstring.value)


def on_config(config: MkDocsConfig) -> None:
    """Puts the version and the links of pyproject.toml into every page: the repository into its
    head, the place for reports into its foot.
    """
    config.site_name = f"csan_hf {csan_hf.__version__}"
    project = Path(config["config_file_path"]).with_name("pyproject.toml")
    urls = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["urls"]
    if "Repository" in urls:
        config.repo_url = urls["Repository"]
        config.repo_name = "Repository"
    if "Issues" in urls:
        link = {"icon": "material/bug", "name": "Report a problem", "link": urls["Issues"]}
        config.extra["social"] = [link]


def on_files(files: Files, config: dict) -> Files:
    """Puts every page at its path in the repository, so that the links between them hold."""
    root = Path(config["config_file_path"]).parent
    for page in list(files.documentation_pages()):
        files.remove(page)
    listed = subprocess.run(
        ["git", "ls-files", *PATTERNS], cwd=root, capture_output=True, text=True, check=True
    )
    for name in filter(lambda name: (root / name).is_file(), listed.stdout.splitlines()):
        files.append(File.generated(config, name, abs_src_path=str(root / name)))
    pages = {"commands": _commands(), "configs": _families() + _listed(CONFIGS)}
    for name in PACKAGES:
        package = importlib.import_module(f"csan_hf.{name}")
        # Configs have a page of their own
        public_names = [public for public in package.__all__ if not public.endswith("Config")]
        names = [f"csan_hf.{name}.{public}" for public in public_names if public != "TASK"]
        pages[name] = f"# csan_hf.{name}\n" + _listed([*names, *FURTHER.get(name, ())])
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **kwargs: Any) -> str:
    """Ends the page of a suite with its report, which lies beside its records."""
    path = Path(page.file.src_uri)
    if path.parent != Path("docs/results"):
        return markdown
    folder = f"../../model_cards/suites/{path.stem}"
    root = Path(config.config_file_path).parent
    report = (root / path.parent / folder / "report.md").read_text(encoding="utf-8")
    report = report.partition("\n")[2].replace("\n## ", "\n### ")
    report = re.sub(r"^!\[.*\]\(", rf"\g<0>{folder}/", report, flags=re.MULTILINE)
    return markdown.replace(f"({folder}/report.md", "(#report") + f"\n\n## Report\n{report}"


def _commands() -> str:
    """Every command and, as headings that can be linked and searched for, its options."""
    text = "# Commands\n"
    for name in COMMANDS:
        text += f"\n## csan-hf {name}\n"
        if name == "train":
            text += "\nThe options are the keys of a recipe.\n"
            for option in recipe_options("csan"):
                help = f"{option.help} ({option.type_name}; default {option.default_text})"
                text += _option(name, option.path, help)
            continue
        parser = build_parser(function_of(name), f"csan-hf {name}")
        text += f"\n```text\n{parser.format_usage()}\n{parser.description}\n```\n"
        for action in parser._actions:
            if action.help is not None:
                text += _option(name, action.dest, action.help.replace("%%", "%"))
    return text


def _option(command: str, name: str, text: str) -> str:
    anchor = re.sub(r"\W", "-", f"{command}-{name}")
    return f"\n### `--{name}` {{ #{anchor} }}\n\n{html.escape(text)}\n"


def _families() -> str:
    """The config of every family: its docstring, and the types and defaults of its fields."""
    text = "# Configs\n"
    for name, family in FAMILIES.items():
        fields = next(
            part for part in format_help(name).split("\n\n") if part.startswith("config (")
        )
        text += _listed([f"csan_hf.models.{family.config}"]) + f"\n```text\n{fields}\n```\n"
    return text


def _listed(names: Iterable[str]) -> str:
    return "".join(f"\n::: {name}\n" for name in names)
