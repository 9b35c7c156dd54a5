# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What mkdocs.yml builds the site from: the repository's own pages and pictures, and a reference
that is generated.
"""

import subprocess
from pathlib import Path

from mkdocs.structure.files import File, Files

from csan_hf.commands.train import format_help
from csan_hf.families import FAMILIES
from csan_hf_cli import COMMANDS, build_parser, function_of

PATTERNS = (
    "*.md",
    "*.png",
    "*.yaml",
    "*.ipynb",
    "LICENSE",
    ":!tests",
    ":!model_cards/suites/*/runs",
)
CONFIGS = [
    f"training.arguments.{name}" for name in ("TranslationTrainingArguments", "GenerationArguments")
]
CONFIGS += ["data.DataArguments", "training.recipe.Recipe"]
API = [
    "pipelines.translation_pipeline",
    "pipelines.TextTranslationPipeline",
    "EnsembleForConditionalGeneration",
]
API += [
    f"hub.{name}"
    for name in ("convert_marian", "convert_m2m100", "convert_bart", "to_marian", "push_to_hub")
]
API += [
    "hub.save_self_contained",
    "evaluation.loading.load_translation_model",
    "evaluation.metrics.CorpusMetric",
]
API += [
    "evaluation.significance.paired_test",
    "models.locality.LocalityMethod",
    "models.attention_call.Term",
]
API += [
    "models.local_attention",
    "analysis.align",
    "analysis.draw_locality",
    "pipelines.onnx_model.OnnxTranslationModel",
]


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
    pages = {
        "commands": _commands(),
        "configs": _families() + _listed(CONFIGS),
        "api": "# Reference\n" + _listed(API),
    }
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def _commands() -> str:
    helps = {"train": format_help()}  # whose options are the recipe's keys
    for name in [name for name in COMMANDS if name not in helps]:
        helps[name] = build_parser(function_of(name), f"csan-hf {name}").format_help()
    return "# Commands\n\n" + "\n".join(
        f"## {name}\n\n```text\n{text}```\n" for name, text in helps.items()
    )


def _families() -> str:
    """The config of every family: its docstring, and the types and defaults of its fields."""
    text = "# Configs\n"
    for name, family in FAMILIES.items():
        fields = next(
            part for part in format_help(name).split("\n\n") if part.startswith("config (")
        )
        text += _listed([f"models.{family.config}"]) + f"\n```text\n{fields}\n```\n"
    return text


def _listed(names: list[str]) -> str:
    return "".join(f"\n::: csan_hf.{name}\n" for name in names)
