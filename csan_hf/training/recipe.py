# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Recipes: one YAML file per experiment, with overrides from the command line.

A section holds the keyword arguments of a class or a function, which jsonargparse reads: a new key is a new argument.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import json
import logging
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from transformers import PreTrainedConfig

from csan_hf.credentials import WHERE_INSTEAD, find_credentials
from csan_hf.data import DataArguments, train_tokenizers
from csan_hf.families import FAMILIES, ModelFamily
from csan_hf.recipes import RECIPES

from .arguments import GenerationArguments, TranslationTrainingArguments


class RecipeError(ValueError):
    """A recipe or a command line that cannot be run; the message says where and what to do."""


# Keys that say what to do with a recipe
COMMANDS = ("resume", "overwrite", "dry_run")
SECTIONS = ("config", "data", "tokenizer", "training", "generation")
# The key of the section tokenizer that names an existing one; `tokenizer: NAME` is short for it
PRETRAINED = "pretrained"

_TOKEN_IDS = dict.fromkeys(
    ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"), "it follows from the tokenizer"
)
# Keys that the underlying classes have but a recipe may not set, and the reason that the error gives
_RESERVED: dict[str, dict[str, str]] = {
    "config": {
        **dict.fromkeys(("vocab_size", "decoder_vocab_size"), "it follows from tokenizer.vocab_size"),
        **_TOKEN_IDS,
        **dict.fromkeys(("is_encoder_decoder", "is_decoder", "architectures"), "it follows from the model"),
    },
    "data": {
        "vocab_size": "use tokenizer.vocab_size",
        "target_vocab_size": "use tokenizer.target_vocab_size",
        "joint_vocabulary": "use tokenizer.joint",
        "split_digits": "use tokenizer.split_digits",
    },
    "training": {
        "output_dir": "write output_dir at the top of the recipe",
        "resume_from_checkpoint": "a run resumes by itself; use --overwrite to start anew",
        "generation_config": "use the section generation",
        "generation_max_length": "use generation.max_length",
        "save_total_limit": "use training.keep_best",
        **dict.fromkeys(
            ("train_sampling_strategy", "length_column_name", "sortish_sampler"),
            "batches are built by training.max_tokens",
        ),
        **dict.fromkeys(("remove_unused_columns", "label_names"), "the trainer needs its own value"),
        "prediction_loss_only": "use training.predict_with_generate",
        "batch_eval_metrics": "BLEU is a corpus score",
        "do_train": "training always runs",
        "do_eval": "use training.eval_strategy",
        "do_predict": "the test splits are always translated",
        "local_rank": "the launcher sets it",
        "parallelism_config": "the launcher sets it (accelerate launch --config_file)",
        "hub_token": f"a run writes and uploads its recipe: {WHERE_INSTEAD}",
    },
    "generation": {
        **_TOKEN_IDS,
        "num_return_sequences": "one translation of each sentence is scored",
    },
}


@dataclass
class Recipe:
    """One experiment. The sections hold only what the recipe says; classes fill in the rest.

    Args:
        model: Family of the model, "csan" or "pervasive_attention", or another entry of `csan_hf.families`.
        output_dir: Folder for everything that a run writes.
        init_from: Checkpoint folder or Hub name to start from, with its tokenizer; null = random weights.
        name: Title of the model card; null = the folder's name.
        description: A sentence or two for the model card.
        license: Licence of the trained model, as a Hub identifier such as apache-2.0.
        language: Languages of the trained model, as ISO codes; null = those of the data.
        dataset_name: What the model card calls the data.
        task: The model card's task on the Hub; null = translation.
        hub_dataset: Name on the Hub of training data that is read from files, for the model card to link.
        bleu_tokenize: sacreBLEU's tokenizer: 13a, zh, ja-mecab, char...; null = 13a.
        resume: Whether to continue from the last checkpoint in output_dir.
        overwrite: Whether to delete what an earlier run left in output_dir before training.
        dry_run: Whether only to check the recipe and its data, and to print sizes, memory and time.
        config: Fields of the model's configuration.
        data: Fields of `csan_hf.data.DataArguments`.
        tokenizer: Arguments of `csan_hf.data.train_tokenizers` (vocab_size, joint...), or the name of an existing one.
        training: Fields of `TranslationTrainingArguments`.
        generation: Fields of `GenerationArguments`, for the final scores and the saved model.
    """

    model: str = "csan"
    output_dir: str | None = None
    init_from: str | None = None
    name: str | None = None
    description: str | None = None
    license: str | None = None
    language: str | list[str] | None = None
    dataset_name: str | None = None
    task: Literal["translation", "text2text-generation"] | None = None
    hub_dataset: str | None = None
    bleu_tokenize: str | None = None
    resume: bool = True
    overwrite: bool = False
    dry_run: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns what was set, without what the command line alone may say (resume, overwrite, dry_run)."""
        values = {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, {})}
        return {name: value for name, value in values.items() if name not in COMMANDS}

    def to_yaml(self) -> str:
        """Returns a recipe file that gives this recipe again."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=100)

    def check_text(self) -> None:
        """Raises a RecipeError for a lone surrogate, which neither recipe nor card could be written with."""
        for key, value in self.to_dict().items():
            try:
                json.dumps(value, ensure_ascii=False, default=str).encode()
            except UnicodeEncodeError as error:
                bad = error.object[error.start : error.end]
                raise RecipeError(
                    f"{key} holds {bad!r}, half of a character, which no file can: write it anew."
                ) from None

    def data_arguments(self) -> DataArguments:
        """Builds the data section, or raises a RecipeError."""
        return self._build("data", DataArguments, self.data)

    def training_arguments(self) -> TranslationTrainingArguments:
        """Builds the training section.

        Raises:
            RecipeError: If there is no output_dir, or if the arguments are refused.
        """
        if not self.output_dir:
            raise RecipeError("output_dir is missing: write it in the recipe or pass --output_dir FOLDER.")
        values = {"output_dir": self.output_dir, **self.training}
        return self._build("training", TranslationTrainingArguments, values)

    @staticmethod
    def _build(section: str, cls: Any, values: dict[str, Any]) -> Any:
        try:
            return cls(**values)
        except (TypeError, ValueError, OverflowError, OSError, ImportError) as error:
            # The last three: from infinity, from a file that a value names, from a library that it needs
            raise RecipeError(f"The section {section} is refused: {error}") from error


# ---- the keys


@dataclass(frozen=True)
class Option:
    """One key of a recipe; the top of the file is the section ""."""

    section: str
    name: str
    annotation: Any
    default: Any
    help: str

    @property
    def path(self) -> str:
        """The key as the command line writes it, for example `training.learning_rate`."""
        return key_path(self.section, self.name)


def key_path(section: str, name: str) -> str:
    """Joins a section and a key, as in `training.learning_rate`; the top of the file has the section ""."""
    return f"{section}.{name}" if section else name


class Section:
    """The keys of one section. The parser, which takes half a second for the longest, is made when it is needed.

    Args:
        name: The section's name in a recipe; "" for the top of the file.
        source: Dataclass, configuration or function whose arguments with defaults are the keys.
        without: Arguments that a recipe may not set.
    """

    def __init__(self, name: str, source: Callable[..., Any], without: Iterable[str] = ()) -> None:
        self.name = name
        self.source = source
        self.without = frozenset(without)
        self.keys = tuple(
            key
            for key, parameter in inspect.signature(source).parameters.items()
            if parameter.default is not inspect.Parameter.empty and key not in self.without
        )

    def path(self, key: str) -> str:
        """Returns the key with the name of the section."""
        return key_path(self.name, key)

    @functools.cached_property
    def _parser(self) -> ArgumentParser:
        parser = ArgumentParser(exit_on_error=False, add_help=False, logger=_silent())
        add = parser.add_class_arguments if inspect.isclass(self.source) else parser.add_function_arguments
        excluded = {*inspect.signature(self.source).parameters} - {*self.keys}
        add(self.source, None, skip={*excluded}, fail_untyped=False)
        return parser

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """The keys with their types, defaults and help."""
        described: dict[str, str] = {}
        if dataclasses.is_dataclass(self.source):
            described = {field.name: field.metadata.get("help", "") for field in dataclasses.fields(self.source)}
        actions = {action.dest: action for action in self._parser._actions}
        return {
            key: Option(
                section=self.name,
                name=key,
                annotation=getattr(actions[key], "_typehint", actions[key].type),
                default=getattr(actions[key].default, "value", actions[key].default),
                help=_first_sentences(described.get(key) or actions[key].help or ""),
            )
            for key in self.keys
        }

    def convert(self, key: str, value: Any, where: str) -> Any:
        """Turns a value into the type of its key.

        YAML reads `1e3` as text, and a name that looks like a number as a number; the key's type corrects both.

        Args:
            key: One of the section.
            value: What YAML made of it, or text of the command line.
            where: How an error names it, for example `recipe.yaml: training.learning_rate`.

        Raises:
            RecipeError: If the value does not fit.
        """
        option = self.options[key]
        if value is not None or _takes(option.annotation, type(None)):
            for candidate in _readings(value):
                with contextlib.suppress(ArgumentError, RecursionError):
                    found = self._parser.parse_object({key: candidate}, defaults=False)[key]
                    return found.as_dict() if isinstance(found, Namespace) else found
        raise RecipeError(
            f"{where} must be {describe_type(option.annotation)}, got {_shown(value)}.{_hint(option, value)}"
        )

    def convert_text(self, key: str, text: str) -> Any:
        """Converts a value of the command line; a list may also be written with commas alone."""
        where = f"--{self.path(key)}"
        annotation = self.options[key].annotation
        if "," in text and not text.startswith("[") and _takes(annotation, list) and not _takes(annotation, str):
            return self.convert(key, [part.strip() for part in text.split(",")], where)
        return self.convert(key, text, where)


def _readings(value: Any) -> Iterator[Any]:
    """Yields a value, and what else it may have meant: a number, a whole number, text."""
    yield value
    if isinstance(value, list):
        yield [_number(item) for item in value]
    elif not isinstance(value, bool | None):
        yield _number(value)
        if isinstance(value, int | float):
            yield str(value)


def _number(value: Any) -> Any:
    """Reads text such as `1e3` or `nan` as a number, and a number without a fraction as a whole one."""
    if isinstance(value, bool):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return value
    return int(number) if math.isfinite(number) and number.is_integer() else number


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _hint(option: Option, value: Any) -> str:
    if isinstance(value, bool) and _takes(option.annotation, str):
        return " YAML reads no, off, yes and on as true or false: put the text in quotes."
    return ""


def _takes(annotation: Any, kind: type) -> bool:
    """Says whether a type is `kind`, or a union that contains it."""
    members = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return any(member is Any or (typing.get_origin(member) or member) is kind for member in members)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


_TYPE_NAMES = {
    **{bool: "true or false", int: "integer", float: "number", str: "text", dict: "mapping", list: "list"},
    **{type(None): "null", Any: "any value"},
}


def describe_type(annotation: Any) -> str:
    """Names a type for people: `integer or null`, `list of integer`, `true or false`."""
    if annotation in _TYPE_NAMES:
        return _TYPE_NAMES[annotation]
    arguments = typing.get_args(annotation)
    if _is_union(annotation):
        return " or ".join(dict.fromkeys(describe_type(member) for member in arguments))
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin in (list, tuple) and arguments:
        return f"list of {describe_type(arguments[0])}"
    return str(_TYPE_NAMES.get(origin) or getattr(annotation, "__name__", annotation))


def nearest(key: str, sections: Iterable[Section]) -> str:
    """Suggests the keys nearest to a misspelt one: ` Did you mean training.learning_rate?`, or "" if none is near."""
    known = [(name, section.path(name)) for section in sections for name in section.keys]
    names = sorted({name for name, _ in known})
    close = difflib.get_close_matches(key.rsplit(".", 1)[-1], names, n=3, cutoff=0.6)
    found = [path for wanted in close for name, path in known if name == wanted]
    return f" Did you mean {' or '.join(found[:3])}?" if found else ""


def _first_sentences(text: str, limit: int = 240) -> str:
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    whole = text[:limit].rpartition(". ")[0]
    return f"{whole}." if whole else f"{text[:limit].rpartition(' ')[0]}..."


def _silent() -> logging.Logger:
    """A logger for what jsonargparse says of defaults that it cannot check, such as bf16's."""
    logger = logging.getLogger(f"{__name__}.silent")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return logger


def find_family(name: Any) -> ModelFamily:
    """Looks up the family that the key `model` names, or raises a RecipeError."""
    if name not in FAMILIES:
        raise RecipeError(f"model must be one of {', '.join(sorted(FAMILIES))}, got {name!r}.")
    return FAMILIES[name]


def recipe_sections(model: str = "csan") -> dict[str, Section]:
    """Returns the sections of a recipe for one model family, the top of the file as ""."""
    sources: dict[str, Any] = {
        "": Recipe,
        "config": find_family(model).config_class,
        "data": DataArguments,
        "tokenizer": train_tokenizers,
        "training": TranslationTrainingArguments,
        "generation": GenerationArguments,
    }
    return {name: _section(name, source) for name, source in sources.items()}


@functools.cache
def _section(name: str, source: Any) -> Section:
    without = {*_RESERVED.get(name, ())}
    if name == "":
        without.update(SECTIONS)
    elif name == "config":
        without.update(key for key in PreTrainedConfig.__annotations__ if key not in source.__annotations__)
    return Section(name, source, without)


def recipe_options(model: str = "csan") -> tuple[Option, ...]:
    """Lists every key of a recipe for one model family, with type, default and help."""
    return tuple(option for section in recipe_sections(model).values() for option in section.options.values())


# ---- the file


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a repeated key is an error."""


def _mapping_without_duplicates(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *other`, whose keys may be said again
            continue
        key = loader.construct_object(key_node)
        if isinstance(key, list | dict | set):
            raise yaml.MarkedYAMLError(problem="a key must be text", problem_mark=key_node.start_mark)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {key!r} is repeated", problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_duplicates)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Reads a recipe file without interpreting its keys.

    Args:
        path: The file, or the name of a recipe that comes with csan_hf.

    Raises:
        RecipeError: If it does not exist, is not UTF-8, is not YAML, or is not a mapping.
    """
    try:
        path = RECIPES.locate(path)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # Without the original error, which shows lines of the file: they may hold a credential
        raise RecipeError(f"{path} is not valid YAML: {_describe_fault(error)}") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise RecipeError(f"{path} must hold keys and values, got a {type(content).__name__}.")
    return content


def _describe_fault(error: Exception) -> str:
    """Says in one line what is wrong with a YAML file, without quoting it."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (at byte {error.start:,})"
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None)
    return f"{place}{problem or 'a value cannot be read'}"


def _value_or_text(text: str) -> Any:
    """Returns a value of the command line as YAML, to look for credentials in it; its text if it is not YAML."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def refuse_credentials(content: Any, source: str) -> None:
    """Refuses tokens, passwords and keys: a run writes its recipe to files, logs and model cards, and uploads it.

    Raises:
        RecipeError: If there are any; the message names the keys and never shows a value.
    """
    found = list(find_credentials(content))
    if found:
        verb = "is a credential" if len(found) == 1 else "are credentials"
        raise RecipeError(
            f"{source}: {', '.join(found)} {verb}, which a recipe must not hold because a run writes and uploads it. "
            f"Take it out and {WHERE_INSTEAD}."
        )


def load_recipe(path: Path | str | None, overrides: Sequence[tuple[str, str]] = ()) -> Recipe:
    """Reads a recipe and applies overrides.

    Args:
        path: YAML file; None = an empty recipe.
        overrides: Pairs of a key (`training.learning_rate` or a bare key that only one section has) and the
            text of a value.

    Raises:
        RecipeError: On an unknown key, which suggests the nearest, or on a value of another type.
    """
    content = read_yaml(path) if path is not None else {}
    refuse_credentials(content, str(path))
    for key, text in overrides:
        refuse_credentials({key: _value_or_text(text)}, "the command line")
    if isinstance(name := content.get("tokenizer"), str):
        content["tokenizer"] = {PRETRAINED: name}
    model = next((text for key, text in reversed(overrides) if key == "model"), content.get("model", "csan"))
    sections = recipe_sections(model if isinstance(model, str) else repr(model))
    recipe = Recipe()
    _leave_out_foreign_fields(content, sections["config"], str(path))
    for section, key, value in _entries(content, sections, str(path)):
        _set(recipe, section, key, section.convert(key, value, f"{path}: {section.path(key)}"))
    for name, text in overrides:
        section, key = find_key(name, sections)
        _set(recipe, section, key, section.convert_text(key, text))
    return recipe


def _leave_out_foreign_fields(content: dict[str, Any], own: Section, source: str) -> None:
    """Drops a section config that describes another family, with a notice: the rest of a recipe fits all families.

    Where the section also has fields of this family, those of another one are a mistake and are kept, to be refused.
    """
    given = content.get("config")
    if not isinstance(given, dict):
        return
    others = {key for family in FAMILIES for key in recipe_sections(family)["config"].keys if key not in own.keys}
    shared = {
        key for name in FAMILIES if (section := recipe_sections(name)["config"]) is not own for key in section.keys
    }
    foreign = [key for key in given if key in others]
    if foreign and not any(key in own.keys and key not in shared for key in given):
        content["config"] = {key: value for key, value in given.items() if key not in foreign}
        print(
            f"{source}: {', '.join(map(own.path, foreign))} left out: {own.source.__name__} has no such fields, and "
            f"its defaults are used (--help lists them).",
            file=sys.stderr,
        )


def _entries(content: dict[str, Any], sections: Mapping[str, Section], source: str) -> list[tuple[Section, str, Any]]:
    """Pairs each value of a file with its section and key."""
    entries = []
    for name, value in content.items():
        if name in SECTIONS:
            if value is not None and not isinstance(value, dict):
                raise RecipeError(f"{source}: the section {name} must hold keys and values, got {value!r}.")
            entries += [(sections[name], str(key), entry) for key, entry in (value or {}).items()]
        else:
            entries.append((sections[""], str(name), value))
    for section, key, _ in entries:
        if key not in section.keys:
            raise RecipeError(f"{source}: {_unknown(section.path(key), sections)}")
    return entries


def find_key(name: str, sections: Mapping[str, Section]) -> tuple[Section, str]:
    """Finds what a key of the command line means: a path, or a key that only one section has.

    Raises:
        RecipeError: If there is none (the message suggests the nearest) or if several sections have the key.
    """
    name = name.replace("-", "_")
    where, _, key = name.rpartition(".")
    if where in sections and key in sections[where].keys:
        return sections[where], key
    bare = [section for section in sections.values() if name in section.keys]
    if len(bare) > 1:
        choices = " or ".join(f"--{section.path(name)}" for section in bare)
        raise RecipeError(f"--{name} is ambiguous: write {choices}.")
    if not bare:
        raise RecipeError(_unknown(name, sections))
    return bare[0], name


def _unknown(path: str, sections: Mapping[str, Section]) -> str:
    section, _, name = path.rpartition(".")
    for owner, names in _RESERVED.items():
        if name in names and section in (owner, ""):
            return f"{key_path(owner, name)} cannot be set: {names[name]}."
    return f"unknown key {path}.{nearest(path, sections.values())} (--help lists all keys)"


def _set(recipe: Recipe, section: Section, key: str, value: Any) -> None:
    if section.name:
        getattr(recipe, section.name)[key] = value
    else:
        setattr(recipe, key, value)
