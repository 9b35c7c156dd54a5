# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The site that mkdocs.yml builds: the repository's own pages and pictures, and a reference
that is generated.
"""

import dataclasses
import html
import importlib
import inspect
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import csan_hf
from csan_hf.families import FAMILIES
from csan_hf.models.configuration_seq2seq import bounds_text
from csan_hf.training.recipe import Options, recipe_sections
from csan_hf_runtime.command_line import COMMANDS, build_parser, function_of
from csan_hf_runtime.command_line.declarations import type_name
from csan_hf_runtime.command_line.train import format_short_help

PATTERNS = (
    "*.md",
    "*.png",
    "*.svg",
    "*.yaml",
    "*.ipynb",
    "LICENSE",
    ":!tests",
)
ARGUMENTS = {
    "csan_hf.training.arguments.TranslationTrainingArguments": "training",
    "csan_hf.training.arguments.GenerationArguments": "generation",
    "csan_hf.data.DataArguments": None,
    "csan_hf.training.Recipe": None,
}
"""Classes of arguments, and the section of a recipe whose page explains their fields, if they do
not themselves."""
PACKAGES = (
    "models",
    "data",
    "pipelines",
    "evaluation",
    "alignment",
    "training",
    "hub",
    "lab.suites",
    "lab.report",
    "lab.analysis",
)
"""Packages of csan_hf with a page of all their public names."""
FURTHER = {
    "models": ("csan_hf.models.locality.LocalityMethod", "csan_hf.models.attention_call.Term"),
    "pipelines": ("csan_hf_runtime.translator.TextTranslator",),
    "evaluation": (
        "csan_hf.evaluation.loading.load_translation_model",
        "csan_hf.evaluation.metrics.CorpusMetric",
        "csan_hf.evaluation.metrics.load_metric",
        "csan_hf.evaluation.metrics.register_metric",
        "csan_hf.evaluation.scores.score_by_length",
        "csan_hf.evaluation.scores.score_translations",
        "csan_hf.evaluation.significance.paired_test",
    ),
    "hub": (
        "csan_hf.hub.heat_map.draw_heat_map",
        "csan_hf.hub.locality_picture.draw_locality",
    ),
}
"""Names in modules of these packages that are for users, too."""
_TYPE_IN_DOCSTRING = re.compile(r"^( +\w+) \(`.*\):", re.MULTILINE)
_ENTRY = re.compile(r"^( +)(\w+(?:, \w+)*):( .*(?:\n\1 .*)*)", re.MULTILINE)
_CONFIGS = {
    f"{family.config_class.__module__}.{family.config}": family.config_class
    for family in FAMILIES.values()
}


class TypesOfSignatures(griffe.Extension):
    """Leaves the types of arguments to their annotations, where a docstring repeats them, and gives
    configs, which become dataclasses at run time, the constructor and the bounds of one.
    """

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each class and function."""
        if obj.docstring is None:
            return
        fields: tuple[dataclasses.Field, ...] = ()
        if obj.path in _CONFIGS:
            fields = dataclasses.fields(_CONFIGS[obj.path])
            obj.set_member("__init__", _constructor(fields))
        text = _TYPE_IN_DOCSTRING.sub(r"\1:", obj.docstring.value)
        obj.docstring.value = _with_entries(text, fields)


def _constructor(fields: Iterable[dataclasses.Field]) -> griffe.Function:
    """The constructor that a dataclass of these fields has."""
    parameters = []
    for field in fields:
        parameter = griffe.Parameter(
            field.name,
            annotation=_python_type(field.type),
            kind=griffe.ParameterKind.keyword_only,
            default=repr(field.default),
        )
        parameters.append(parameter)
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters))


def _with_entries(text: str, fields: Iterable[dataclasses.Field]) -> str:
    """A docstring in which each argument has an entry of its own, which ends with its bounds."""
    bounds = {field.name: bounds_text(field) for field in fields}

    def separate(entry: re.Match[str]) -> str:
        indent, names, words = entry.groups()
        lines = []
        for name in names.split(", "):
            ending = f" Must be {bounds[name]}." if bounds.get(name) else ""
            lines.append(f"{indent}{name}:{words}{ending}")
        return "\n".join(lines)

    return _ENTRY.sub(separate, text)


def _python_type(annotation: object) -> str:
    return type_name(annotation).replace("null", "None")


def on_config(config: MkDocsConfig) -> None:
    """Puts the version into every page, and the pages of commands into the navigation."""
    config.site_name = f"csan_hf {csan_hf.__version__}"
    [reference] = [entry["Reference"] for entry in config.nav if "Reference" in entry]
    pages: list[Any] = ["reference/commands.md"]
    for name in COMMANDS:
        page: Any = _page_of(name)
        if name == "train":
            page = [page, *({section: _page_of(name, section)} for section in _sections())]
        pages.append({name: page})
    reference.insert(0, {"Commands": pages})


def _page_of(command: str, section: str = "") -> str:
    """The page of a command, or of a section of the keys of `csan-hf train`."""
    return f"reference/commands/{command}/{section or 'index'}.md"


def _sections() -> dict[str, Options]:
    """The sections of a recipe, without the top of the file."""
    sections = dict(recipe_sections("csan"))
    del sections[""]
    return sections


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
    pages = {"reference/commands.md": _commands(), "reference/configs.md": _configs()}
    for name in COMMANDS:
        pages[_page_of(name)] = _train() if name == "train" else _command(name)
    for name, section in _sections().items():
        pages[_page_of("train", name)] = _section(name, section)
    for name in PACKAGES:
        package = importlib.import_module(f"csan_hf.{name}")
        # Configs have a page of their own
        public_names = [public for public in package.__all__ if not public.endswith("Config")]
        names = [f"csan_hf.{name}.{public}" for public in public_names if public != "TASK"]
        text = f"# csan_hf.{name}\n" + _listed([*names, *FURTHER.get(name, ())])
        pages[f"reference/{name.rpartition('.')[2]}.md"] = text
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
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
    """Every command, what it does, and where its options are."""
    lines = ["# Commands", "", "| command | |", "| --- | --- |"]
    for name, (_, text) in COMMANDS.items():
        lines.append(f"| [csan-hf {name}](commands/{name}/index.md) | {text} |")
    return "\n".join(lines) + "\n"


def _command(name: str) -> str:
    """A command: usage, what it does, its arguments with their types and defaults."""
    function = function_of(name)
    parameters = inspect.signature(function, eval_str=True).parameters
    parser = build_parser(function, f"csan-hf {name}")
    rows = []
    for action in parser._actions:
        if action.dest not in parameters:  # --help
            continue
        annotation = parameters[action.dest].annotation
        facts = {"type": type_name(annotation).replace("null", "None")}
        option = (action.option_strings or [action.dest])[0]
        rows.append(_row(f"{name}-{action.dest}", option, action.help.replace("%%", "%"), facts))
    usage = f"{parser.format_usage()}\n{parser.description}"
    return f"# csan-hf {name}\n\n```text\n{usage}\n```\n\n{_table(rows)}"


def _train() -> str:
    """`csan-hf train`: its short help, and where the keys of each section are."""
    links = [f"- [{name}]({name}.md): {len(keys)} keys" for name, keys in _sections().items()]
    usage = f"# csan-hf train\n\n```text\n{format_short_help()}\n```\n\n## Sections\n\n"
    return usage + "\n".join(links)


def _section(name: str, section: Options) -> str:
    """The keys of a section, each with type, default, bounds and help."""
    rows = []
    for option in section.values():
        facts = {
            "type": type_name(option.annotation),
            "default": json.dumps(option.default),
            "bounds": option.bounds,
        }
        rows.append(_row(option.path, f"--{option.path}", option.help, facts))
    note = ""
    if name == "config":
        note = "These are the keys of `--model csan`; [configs](../../configs.md) has all families."
    return f"# csan-hf train: {name}\n\n{note}\n\n{_table(rows)}"


def _row(anchor: str, name: str, text: str, facts: dict[str, str]) -> str:
    """A row of a table as mkdocstrings makes them, which can be linked."""
    anchor = re.sub(r"\W", "-", anchor)
    description = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    details = ""
    for title, value in facts.items():
        if value:
            details += f"<b>{title.upper()}:</b> <code>{html.escape(value)}</code> "
    link = f'<a href="#{anchor}"><code>{name}</code></a>'
    return (
        f'<tr class="doc-section-item" id="{anchor}"><td>{link}</td>'
        f'<td class="doc-param-details">{description}<p>{details}</p></td></tr>'
    )


def _table(rows: Iterable[str]) -> str:
    head = "<thead><tr><th>NAME</th><th>DESCRIPTION</th></tr></thead>"
    return f"<table>{head}<tbody>\n" + "\n".join(rows) + "\n</tbody></table>\n"


def _configs() -> str:
    """The configs of all families, then the classes of a recipe's sections."""
    text = "# Configs\n"
    # Their tables say what their signatures would
    options = "options: {show_signature: false, separate_signature: false}"
    for family in FAMILIES.values():
        text += f"\n::: csan_hf.models.{family.config}\n    {options}\n"
    for name, section in ARGUMENTS.items():
        text += _listed([name])
        if section is not None:
            page = f"commands/train/{section}.md"
            text += f"\nIts fields are the keys of [`csan-hf train`, section {section}]({page}).\n"
    return text


def _listed(names: Iterable[str]) -> str:
    return "".join(f"\n::: {name}\n" for name in names)
