# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Recipes: one YAML file per experiment, with overrides from the command line.

A section holds the keyword arguments of a class or a function, which jsonargparse reads: a new key
is a new argument.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import difflib
import enum
import functools
import hashlib
import inspect
import json
import math
import reprlib
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import docstring_parser
import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from transformers import PreTrainedConfig

from csan_hf.credentials import WHERE_INSTEAD, find_credentials
from csan_hf.data import DataArguments, train_tokenizers
from csan_hf.families import COMPARED, FAMILIES, ModelFamily, family_of
from csan_hf.recipes import RECIPES

from .arguments import GenerationArguments, TranslationTrainingArguments


class RecipeError(ValueError):
    """A recipe or a command line that cannot be run; the message says where and what to do."""


class Affects(enum.Flag):
    """Effects of a recipe's key; they combine.

    From it follow whether a run may be resumed (the same `TRAINING`), whether a suite has trained a
    run already (the same `TRAINING` and `SCORES`), and which keys of the data decide what systems
    are scored on (`SCORES`).
    """

    NOTHING = 0
    SPEED = enum.auto()
    TRAINING = enum.auto()
    SCORES = enum.auto()


_AFFECTED_BY_SECTION = {
    "": Affects.TRAINING,
    "config": Affects.TRAINING,
    "data": Affects.TRAINING | Affects.SCORES,
    "tokenizer": Affects.TRAINING,
    "training": Affects.TRAINING,
    "generation": Affects.SCORES,
}
# Keys, or beginnings of keys, that affect something else than their section does. In `training`
# they are the library's arguments. Files in data_dir are compared by digests of their sentences.
_AFFECTED_BY_KEY = {
    Affects.NOTHING: (
        "output_dir name description license language dataset_name task hub_dataset resume "
        "overwrite dry_run data.data_dir training.logging_ training.report_to training.run_name "
        "training.disable_tqdm training.hub_ training.push_to_hub"
    ),
    # Not dataloader_drop_last, which changes the batches where max_tokens is null
    Affects.SPEED: (
        "training.use_cpu training.ddp_ training.per_device_eval training.dataloader_num "
        "training.dataloader_pin training.dataloader_persistent training.dataloader_prefetch "
        "training.dataloader_multiprocessing training.activation_checkpointing "
        "training.gradient_checkpointing"
    ),
    Affects.TRAINING: (
        "data.train data.train_size data.streaming data.max_source_length data.max_target_length "
        "data.max_length_ratio"
    ),
    Affects.SCORES: (
        "data.test data.test_size data.join_test training.eval_ training.early_stopping "
        "training.save_ training.keep_best training.load_best training.average_best "
        "training.batch_norm_batches"
    ),
}


def _by_word(words_of_value: Mapping[Any, str]) -> dict[str, Any]:
    """Turns value -> words around: word -> value."""
    values: dict[str, Any] = {}
    for value, words in words_of_value.items():
        values |= dict.fromkeys(words.split(), value)
    return values


_AFFECTS: dict[str, Affects] = _by_word(_AFFECTED_BY_KEY)


def affected_by(path: str) -> Affects:
    """Returns the effects of a key such as `training.learning_rate`."""
    if path in _AFFECTS:
        return _AFFECTS[path]
    for beginning, affects in _AFFECTS.items():
        if path.startswith(beginning):
            return affects
    return _AFFECTED_BY_SECTION[path.rpartition(".")[0]]


# Keys of the command line, which are not stored
COMMANDS = ("resume", "overwrite", "dry_run")
SECTIONS = ("config", "data", "tokenizer", "training", "generation")
# The key of the section tokenizer that names an existing one; `tokenizer: NAME` is short for it
PRETRAINED = "pretrained"
_OF_A_FAMILY = {"name": None, "description": None}  # they do not hold for another family

# Keys that the underlying classes have but a recipe may not set, by the reason that the error gives
_RESERVED_FOR = {
    "it follows from tokenizer.vocab_size": "config.vocab_size config.decoder_vocab_size",
    "it follows from the tokenizer": (
        "config.pad_token_id config.eos_token_id config.bos_token_id "
        "config.decoder_start_token_id generation.pad_token_id generation.eos_token_id "
        "generation.bos_token_id generation.decoder_start_token_id"
    ),
    "it follows from the model": "config.is_encoder_decoder config.is_decoder config.architectures",
    "use tokenizer.vocab_size": "data.vocab_size",
    "use tokenizer.target_vocab_size": "data.target_vocab_size",
    "use tokenizer.joint": "data.joint_vocabulary",
    "use tokenizer.split_digits": "data.split_digits",
    "write output_dir at the top of the recipe": "training.output_dir",
    "a run resumes by itself; use --overwrite to start anew": "training.resume_from_checkpoint",
    "use the section generation": "training.generation_config training.generation_max_length",
    "use training.keep_best": "training.save_total_limit",
    "batches are built by training.max_tokens": (
        "training.train_sampling_strategy training.length_column_name training.sortish_sampler"
    ),
    "the trainer needs its own value": "training.remove_unused_columns training.label_names",
    "use training.predict_with_generate": "training.prediction_loss_only",
    "BLEU is a corpus score": "training.batch_eval_metrics",
    "training always runs, and the test splits are always translated": (
        "training.do_train training.do_predict"
    ),
    "use training.eval_strategy": "training.do_eval",
    "the launcher sets it (accelerate launch --config_file)": (
        "training.local_rank training.parallelism_config"
    ),
    f"a run writes and uploads its recipe: {WHERE_INSTEAD}": "training.hub_token",
    "one translation of each sentence is scored": "generation.num_return_sequences",
}
_RESERVED: dict[str, str] = _by_word(_RESERVED_FOR)


@dataclass
class Recipe:
    """One experiment. The sections hold only what the recipe says; classes fill in the rest.

    Args:
        model: Family of the model: csan, pervasive_attention, rnnsearch, conv_s2s, or one of
            transformers' to compare with, such as t5 or led (`csan_hf.families.COMPARED`).
        output_dir: Folder for everything that a run writes.
        init_from: Checkpoint folder or Hub name to start from, with its tokenizer; null = random
            weights.
        name: Title of the model card; null = the folder's name.
        description: A sentence or two for the model card.
        license: Licence of the trained model, as a Hub identifier such as apache-2.0.
        language: Languages of the trained model, as ISO codes; null = those of the data.
        dataset_name: What the model card calls the data.
        task: The model card's task on the Hub; null = translation.
        hub_dataset: Name on the Hub of training data that is read from files, for the model card to
            link.
        bleu_tokenize: sacreBLEU's tokenizer: 13a, zh, ja-mecab, char...; null = by the
            references' script.
        resume: Whether to continue from the last checkpoint in output_dir.
        overwrite: Whether to delete what an earlier run left in output_dir before training.
        dry_run: Whether only to check the recipe and its data, and to print sizes, memory and time.
        config: Fields of the model's configuration.
        data: Fields of `csan_hf.data.DataArguments`.
        tokenizer: Arguments of `csan_hf.data.train_tokenizers` (vocab_size, joint...), or the name
            of an existing one.
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
        """Returns the keys that are set, without those of the command line (resume, overwrite,
        dry_run).
        """
        values = {}
        for name, value in dataclasses.asdict(self).items():
            if name not in COMMANDS and value not in (None, {}):
                values[name] = value
        return values

    def to_yaml(self) -> str:
        """Returns a recipe file that gives this recipe again."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=100)

    def values(self, affecting: Affects | None = None) -> dict[str, Any]:
        """Returns every key that affects something of `affecting` (None: every key) with its value.

        A key that is left out has its default, unless that comes from a checkpoint or a tokenizer.
        """
        written = self.to_dict()
        reads_config = self.init_from is not None
        reads_tokenizer = reads_config or PRETRAINED in self.tokenizer
        values = {}
        for option in recipe_options(self.model):
            if affecting is not None and not affected_by(option.path) & affecting:
                continue
            default = option.default
            if reads_config and option.section == "config":
                default = None
            if reads_tokenizer and option.section == "tokenizer":
                default = None
            section = written.get(option.section, {}) if option.section else written
            values[option.path] = section.get(option.name, default)
        return values

    def fingerprint(self, affecting: Affects) -> str:
        """Returns a digest of the keys that affect something of `affecting`."""
        text = json.dumps(self.values(affecting), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def data_arguments(self) -> DataArguments:
        """Builds the data section, or raises a RecipeError."""
        with refusing("The section data is refused"):
            return DataArguments(**self.data)

    def training_arguments(self) -> TranslationTrainingArguments:
        """Builds the training section, or raises a RecipeError, also if there is no output_dir."""
        if not self.output_dir:
            raise RecipeError(
                "output_dir is missing: write it in the recipe or pass --output_dir FOLDER."
            )
        with refusing("The section training is refused"):
            return TranslationTrainingArguments(output_dir=self.output_dir, **self.training)


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turns whatever a class or a library raises into a RecipeError that begins with `what`."""
    try:
        yield
    except Exception as error:  # strict configs and missing libraries raise classes of their own
        raise RecipeError(f"{what}: {error}") from error


# ---- the keys


@dataclass(frozen=True)
class Option:
    """One key of a recipe; `path` is how the command line writes it: `training.learning_rate`."""

    path: str
    section: str
    name: str
    annotation: Any
    default: Any
    help: str


class Section:
    """The keys of one section ("" is the top of the file): the arguments of a class or function
    that have defaults.

    The parser, which takes half a second for the longest, is made when it is needed.
    """

    def __init__(
        self, name: str, source: Callable[..., Any], without: Collection[str] = ()
    ) -> None:
        self.name = name
        self.source = source
        self.parameters = inspect.signature(source).parameters
        self.keys = []
        for key, parameter in self.parameters.items():
            has_default = parameter.default is not parameter.empty
            if has_default and key not in without and self.path(key) not in _RESERVED:
                self.keys.append(key)

    def path(self, key: str) -> str:
        """Returns the key with the name of the section."""
        return f"{self.name}.{key}" if self.name else key

    @functools.cached_property
    def _parser(self) -> ArgumentParser:
        parser = ArgumentParser(exit_on_error=False, add_help=False)
        add_arguments = parser.add_function_arguments
        if inspect.isclass(self.source):
            add_arguments = parser.add_class_arguments
        skipped: set[Any] = {*self.parameters} - {*self.keys}
        add_arguments(self.source, None, skip=skipped, fail_untyped=False)
        return parser

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """The keys with their types, defaults and help."""
        options = {}
        help_texts = self._help_texts()
        for action in self._parser._actions:
            key = action.dest
            if key in self.keys:
                options[key] = Option(
                    path=self.path(key),
                    section=self.name,
                    name=key,
                    annotation=getattr(action, "_typehint", action.type),
                    default=getattr(action.default, "value", action.default),
                    help=textwrap.shorten(
                        help_texts.get(key) or action.help or "", 240, placeholder="..."
                    ),
                )
        return {key: options[key] for key in self.keys}

    def _help_texts(self) -> dict[str, str | None]:
        """Reads help from the metadata of dataclass fields, or from the docstring."""
        texts: dict[str, str | None] = {}
        for entry in docstring_parser.parse(inspect.getdoc(self.source) or "").params:
            texts |= dict.fromkeys(entry.arg_name.split(", "), entry.description)
        if dataclasses.is_dataclass(self.source):
            for argument in dataclasses.fields(self.source):
                if argument.metadata.get("help"):
                    texts[argument.name] = argument.metadata["help"]
        return texts

    def convert(self, key: str, value: object, where: str) -> Any:
        """Turns a value of YAML, or text of the command line, into the type of its key.

        YAML reads `1e3` as text, and a name that looks like a number as a number; the key's type
        corrects both. Raises a `RecipeError` that names the value by `where` if it does not fit.
        """
        annotation = self.options[key].annotation
        if value is not None or _takes(annotation, type(None)):
            for reading in _readings(value):
                with contextlib.suppress(ArgumentError, RecursionError):
                    converted = self._parser.parse_object({key: reading}, defaults=False)[key]
                    return converted.as_dict() if isinstance(converted, Namespace) else converted
        hint = ""
        if isinstance(value, bool) and _takes(annotation, str):
            hint = " YAML reads no, off, yes and on as true or false: put the text in quotes."
        raise RecipeError(
            f"{where} must be {describe_type(annotation)}, got {_SHORT.repr(value)}.{hint}"
        )


_SHORT = reprlib.Repr()
_SHORT.maxstring = 200
_SHORT.maxother = 200


def _readings(value: object) -> Iterator[Any]:
    """Yields the interpretations of a YAML value: as is, as a number, as text."""
    yield value
    if isinstance(value, list):
        yield [_number(item) for item in value]
    else:
        yield _number(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _number(value: Any) -> Any:
    """Reads text such as `1e3` or `nan` as a number, and a number without a fraction as a whole
    one.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return value
    if isinstance(value, bool):
        return value
    return int(number) if math.isfinite(number) and number.is_integer() else number


def _members(annotation: object) -> tuple[Any, ...]:
    """Returns the members of a union, or the type alone."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _takes(annotation: object, kind: type) -> bool:
    return any(
        member is Any or (typing.get_origin(member) or member) is kind
        for member in _members(annotation)
    )


def describe_type(annotation: object) -> str:
    """Names a type for people: `int | null`, `list[int]`."""
    names = (
        "null" if member is types.NoneType else inspect.formatannotation(member)
        for member in _members(annotation)
    )
    return " | ".join(names)


def find_family(name: object) -> ModelFamily:
    """Looks up the family that the key `model` names, or raises a RecipeError."""
    family = family_of(name)
    if not family.classes:
        known = ", ".join(sorted(FAMILIES))
        raise RecipeError(
            f"model must be one of {known}, or of transformers' {', '.join(COMPARED)}, got "
            f"{name!r}."
        )
    return family


@functools.cache
def recipe_sections(model: str = "csan") -> dict[str, Section]:
    """Returns the sections of a recipe for one model family, the top of the file as ""."""
    config = find_family(model).config_class
    inherited = [
        key for key in PreTrainedConfig.__annotations__ if key not in config.__annotations__
    ]
    return {
        "": Section("", Recipe, SECTIONS),
        "config": Section("config", config, inherited),
        "data": Section("data", DataArguments),
        "tokenizer": Section("tokenizer", train_tokenizers),
        "training": Section("training", TranslationTrainingArguments),
        "generation": Section("generation", GenerationArguments),
    }


def recipe_options(model: str = "csan") -> tuple[Option, ...]:
    """Lists every key of a recipe for one model family, with type, default and help."""
    return tuple(
        option for section in recipe_sections(model).values() for option in section.options.values()
    )


def find_key(name: str, sections: Mapping[str, Section]) -> tuple[Section, str]:
    """Finds what a key of the command line means: a path, or a key that only one section has.

    Raises a `RecipeError` if there is none, with a suggestion, or if several sections have the key.
    """
    name = name.replace("-", "_")
    where, _, key = name.rpartition(".")
    if where in sections and key in sections[where].keys:
        return sections[where], key
    bare = [section for section in sections.values() if name in section.keys]
    if len(bare) != 1:
        choices = " or ".join(f"--{section.path(name)}" for section in bare)
        raise RecipeError(
            f"--{name} is ambiguous: write {choices}." if bare else _unknown(name, sections)
        )
    return bare[0], name


def _unknown(path: str, sections: Mapping[str, Section]) -> str:
    """Explains why a key cannot be set, or suggests the nearest keys."""
    if path in SECTIONS:
        return f"the section {path} must hold keys and values."
    section, _, name = path.rpartition(".")
    for candidate in (section,) if section else SECTIONS:
        reason = _RESERVED.get(f"{candidate}.{name}")
        if reason:
            return f"{candidate}.{name} cannot be set: {reason}."
    paths: dict[str, list[str]] = {}  # of each key, in all sections
    for entry in sections.values():
        for key in entry.keys:
            paths.setdefault(key, []).append(entry.path(key))
    similar: list[str] = []
    for key in difflib.get_close_matches(name, paths, n=3):
        similar += paths[key]
    hint = f" Did you mean {' or '.join(similar[:3])}?" if similar else ""
    return f"unknown key {path}.{hint} (--help lists all keys)"


# ---- the file


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a repeated key is an error, unless it comes with `<<: *other`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = str(key.value)
            if name in names:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name!r} is repeated", problem_mark=key.start_mark
                )
            names.add(name)
        return super().construct_mapping(node, deep)


def read_recipe(path: Path | str) -> dict[str, Any]:
    """Reads a recipe, a file or the name of one that comes with csan_hf, merged over its `base`.

    Raises:
        RecipeError: If one of the two cannot be read, or holds a credential or a section without
            keys and values.
    """
    content = read_yaml(path)
    refuse_credentials(content, str(path))
    base = content.pop("base", None)
    if base is None:
        return content
    below = read_yaml(find_base(base, RECIPES.locate(path)))
    if "base" in below:
        raise RecipeError(
            f"{path}: the base {base} has a base itself: name that one, and repeat what {base} "
            "changes."
        )
    refuse_credentials(below, str(base))
    check_sections(below, str(base))
    check_sections(content, str(path))
    below.pop("output_dir", None)
    return merge(below, content)


def find_base(base: Any, file: Path) -> Path:
    """Returns the file of a base that `file` names; YAML only, as errors show what was read."""
    if base in RECIPES.names():
        return RECIPES.file(base)
    if not str(base).endswith((".yaml", ".yml")):
        raise RecipeError(
            f"{file}: a base must be the path of a recipe (.yaml) as seen from this file, or the "
            f"name of one that comes with csan_hf, got {base!r}."
        )
    return file.parent / base


def check_sections(content: dict[str, Any], source: str) -> None:
    """Refuses a section that holds no keys and values, before recipes are merged by section."""
    for key in SECTIONS:
        section = content.get(key)
        is_name = key == "tokenizer" and isinstance(section, str)
        if not is_name and not isinstance(section, dict | None):
            raise RecipeError(
                f"{source}: the section {key} must hold keys and values, got a "
                f"{type(section).__name__}."
            )


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two sets of recipe keys: sections key by key, the second's values win.

    Where the second names another family, nothing is kept of the first's section config, name and
    description.
    """
    merged = copy.deepcopy(dict(first))
    model = merged.get("model", "csan")
    if second.get("model", model) != model:
        merged |= {"config": {}, **_OF_A_FAMILY}
    for key, value in second.items():
        section = merged.get(key) or {}
        if key in SECTIONS and isinstance(value, Mapping) and isinstance(section, Mapping):
            merged[key] = {**section, **copy.deepcopy(dict(value))}
        else:
            merged[key] = value
    return merged


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Reads a YAML file of keys and values; a name means the recipe that comes with csan_hf."""
    try:
        content = yaml.load(RECIPES.locate(path).read_text(encoding="utf-8"), Loader=_StrictLoader)
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError, UnicodeDecodeError) as error:
        # Without the original error, which shows lines of the file: they may hold a credential
        reason = getattr(error, "problem", None) or getattr(error, "reason", error)
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = f"it is not valid YAML: {place}{reason}"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = str(error)
    else:
        if isinstance(content, dict | None):
            return content or {}
        problem = f"it must hold keys and values, got a {type(content).__name__}"
    raise RecipeError(f"{path}: {problem}")


def refuse_credentials(content: object, source: str) -> None:
    """Refuses tokens, passwords and keys: a run writes its recipe to files, logs and model cards,
    and uploads it.

    Raises:
        RecipeError: It names the keys and never shows a value.
    """
    keys = list(find_credentials(content))
    if keys:
        verb = "is a credential" if len(keys) == 1 else "are credentials"
        raise RecipeError(
            f"{source}: {', '.join(keys)} {verb}, which a recipe must not hold because a run "
            f"writes and uploads it. Take it out and {WHERE_INSTEAD}."
        )


def _as_yaml(text: str) -> Any:
    """Parses a value of the command line, to look for credentials in it; text that is not YAML
    stays.
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def load_recipe(path: Path | str | None, overrides: Sequence[tuple[str, str]] = ()) -> Recipe:
    """Reads a recipe and applies overrides.

    Args:
        path: YAML file; None = an empty recipe.
        overrides: Pairs of a key (`training.learning_rate` or a bare key that only one section has)
            and the text of a value.

    Raises:
        RecipeError: On an unknown key, which suggests the nearest, or on a value of another type.
    """
    content = read_recipe(path) if path is not None else {}
    for name, text in overrides:
        refuse_credentials({name: _as_yaml(text)}, "the command line")
    return parse_recipe(content, str(path), overrides)


def parse_recipe(
    content: dict[str, Any], source: str, overrides: Sequence[tuple[str, str]] = ()
) -> Recipe:
    """Makes a recipe of the content of a file and of overrides; see `load_recipe`.

    `source` is the file's name for errors.
    """
    content = dict(content)
    tokenizer = content.get("tokenizer")
    if isinstance(tokenizer, str):
        content["tokenizer"] = {PRETRAINED: tokenizer}
    written_model = str(content.get("model", "csan"))
    model = dict(overrides).get("model", written_model)
    sections = recipe_sections(model)
    if model != written_model:
        content |= _OF_A_FAMILY
        if isinstance(content.get("config"), dict):
            content["config"] = _fields_of_family(
                content["config"],
                sections["config"],
                previous=recipe_sections(written_model)["config"],
                source=source,
            )
    recipe = Recipe()
    for section, key, value in _entries(content, sections, source):
        _set(recipe, section, key, section.convert(key, value, f"{source}: {section.path(key)}"))
    for name, text in overrides:
        if name == "tokenizer":
            name = f"tokenizer.{PRETRAINED}"
        section, key = find_key(name, sections)
        annotation = section.options[key].annotation
        if text == "true" and not _takes(annotation, bool):  # the text of a key without a value
            raise RecipeError(f"--{section.path(key)} needs a value: {describe_type(annotation)}.")
        value = text
        takes_list = _takes(annotation, list) and not _takes(annotation, str)
        if takes_list and "," in text and text[0] != "[":
            value = [part.strip() for part in text.split(",")]
        _set(recipe, section, key, section.convert(key, value, f"--{section.path(key)}"))
    return recipe


def _set(recipe: Recipe, section: Section, key: str, value: object) -> None:
    if section.name:
        getattr(recipe, section.name)[key] = value
    else:
        setattr(recipe, key, value)


def _fields_of_family(
    config: dict[str, Any], section: Section, *, previous: Section, source: str
) -> dict[str, Any]:
    """Leaves out the config's fields that only the file's family has, with a notice, where the
    command line names another family.
    """
    foreign = [key for key in config if key in previous.keys and key not in section.keys]
    if foreign:
        print(
            f"{source}: {', '.join(map(section.path, foreign))} left out: "
            f"{section.source.__name__} has no such fields, and its defaults are used (--help "
            "lists them).",
            file=sys.stderr,
        )
    return {key: value for key, value in config.items() if key not in foreign}


def _entries(
    content: dict[str, Any], sections: Mapping[str, Section], source: str
) -> Iterator[tuple[Section, str, Any]]:
    """Yields each value of a file with its section and key."""
    for name, value in content.items():
        section = sections[""]
        entries = {name: value}
        if name in SECTIONS and isinstance(value, dict | None):
            section = sections[name]
            entries = value or {}
        for key, entry in entries.items():
            if key not in section.keys:
                raise RecipeError(f"{source}: {_unknown(section.path(str(key)), sections)}")
            yield section, key, entry
