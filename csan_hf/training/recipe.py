# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Recipes: one YAML file per experiment, with overrides from the command line.

A section holds the keyword arguments of a class or a function, which jsonargparse reads: a new key
is a new argument."""

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
    """What a key of a recipe changes: a combination of these.

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
# they are the library's arguments. What lies in data_dir is compared by digests of its sentences.
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
_AFFECTS = {
    beginning: affects
    for affects, beginnings in _AFFECTED_BY_KEY.items()
    for beginning in beginnings.split()
}


def affected_by(path: str) -> Affects:
    """What a key such as `training.learning_rate` changes."""
    if path in _AFFECTS:
        return _AFFECTS[path]
    for beginning, affects in _AFFECTS.items():
        if path.startswith(beginning):
            return affects
    return _AFFECTED_BY_SECTION[path.rpartition(".")[0]]


# Keys that say what to do with a recipe
COMMANDS = ("resume", "overwrite", "dry_run")
SECTIONS = ("config", "data", "tokenizer", "training", "generation")
# The key of the section tokenizer that names an existing one; `tokenizer: NAME` is short for it
PRETRAINED = "pretrained"
_OF_A_FAMILY = {"name": None, "description": None}  # which a card of another family must not have

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
    "training always runs, and the test splits are always translated": "training.do_train training.do_predict",
    "use training.eval_strategy": "training.do_eval",
    "the launcher sets it (accelerate launch --config_file)": "training.local_rank training.parallelism_config",
    f"a run writes and uploads its recipe: {WHERE_INSTEAD}": "training.hub_token",
    "one translation of each sentence is scored": "generation.num_return_sequences",
}
_RESERVED = {path: reason for reason, paths in _RESERVED_FOR.items() for path in paths.split()}


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
        bleu_tokenize: sacreBLEU's tokenizer: 13a, zh, ja-mecab, char...; null = 13a.
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
        """Returns what was set, without what the command line alone may say (resume, overwrite,
        dry_run).
        """
        values = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if value not in (None, {})
        }
        return {name: value for name, value in values.items() if name not in COMMANDS}

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
    """Makes a RecipeError that begins with `what` of whatever a class or a library raises."""
    try:
        yield
    except (
        Exception
    ) as error:  # strict configs raise classes of their own, infinity and missing libraries others
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
        self.name, self.source = name, source
        parameters = inspect.signature(source).parameters.items()
        options = [key for key, found in parameters if found.default is not found.empty]
        self.keys = tuple(
            key for key in options if key not in without and self.path(key) not in _RESERVED
        )

    def path(self, key: str) -> str:
        """Returns the key with the name of the section."""
        return f"{self.name}.{key}" if self.name else key

    @functools.cached_property
    def _parser(self) -> ArgumentParser:
        parser = ArgumentParser(exit_on_error=False, add_help=False)
        add = (
            parser.add_class_arguments
            if inspect.isclass(self.source)
            else parser.add_function_arguments
        )
        others: set[Any] = {*inspect.signature(self.source).parameters} - {*self.keys}
        add(self.source, None, skip=others, fail_untyped=False)
        return parser

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """The keys with their types, defaults and help."""
        fields = dataclasses.fields(self.source) if dataclasses.is_dataclass(self.source) else ()
        described = {field.name: field.metadata.get("help") for field in fields}
        for entry in docstring_parser.parse(inspect.getdoc(self.source) or "").params:
            described |= {
                key: entry.description
                for key in entry.arg_name.split(", ")
                if not described.get(key)
            }
        actions = {action.dest: action for action in self._parser._actions}
        return {
            key: Option(
                self.path(key),
                self.name,
                key,
                annotation=getattr(actions[key], "_typehint", actions[key].type),
                default=getattr(actions[key].default, "value", actions[key].default),
                help=textwrap.shorten(
                    described.get(key) or actions[key].help or "", 240, placeholder="..."
                ),
            )
            for key in self.keys
        }

    def convert(self, key: str, value: Any, where: str) -> Any:
        """Turns a value of YAML, or text of the command line, into the type of its key.

        YAML reads `1e3` as text, and a name that looks like a number as a number; the key's type
        corrects both. Raises a `RecipeError` that names the value by `where` if it does not fit.
        """
        annotation = self.options[key].annotation
        if value is not None or _takes(annotation, type(None)):
            for candidate in _readings(value):
                with contextlib.suppress(ArgumentError, RecursionError):
                    found = self._parser.parse_object({key: candidate}, defaults=False)[key]
                    return found.as_dict() if isinstance(found, Namespace) else found
        is_word = isinstance(value, bool) and _takes(annotation, str)
        hint = (
            " YAML reads no, off, yes and on as true or false: put the text in quotes."
            if is_word
            else ""
        )
        raise RecipeError(
            f"{where} must be {describe_type(annotation)}, got {_SHORT.repr(value)}.{hint}"
        )


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


def _readings(value: Any) -> Iterator[Any]:
    """Yields a value, and what else it may have meant: a number, a whole number, text."""
    yield value
    yield [_number(item) for item in value] if isinstance(value, list) else _number(value)
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


def _members(annotation: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the type alone."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _takes(annotation: Any, kind: type) -> bool:
    return any(
        member is Any or (typing.get_origin(member) or member) is kind
        for member in _members(annotation)
    )


def describe_type(annotation: Any) -> str:
    """Names a type for people: `int | null`, `list[int]`."""
    names = (
        "null" if member is types.NoneType else inspect.formatannotation(member)
        for member in _members(annotation)
    )
    return " | ".join(names)


def find_family(name: Any) -> ModelFamily:
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
    """Says why a key is none, or which is nearest to it."""
    if path in SECTIONS:
        return f"the section {path} must hold keys and values."
    section, _, name = path.rpartition(".")
    for owner in (section,) if section else SECTIONS:
        if reason := _RESERVED.get(f"{owner}.{name}"):
            return f"{owner}.{name} cannot be set: {reason}."
    known = {found.path(key): key for found in sections.values() for key in found.keys}
    close = difflib.get_close_matches(name, [*dict.fromkeys(known.values())], n=3)
    near = [found for wanted in close for found, key in known.items() if key == wanted][:3]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"unknown key {path}.{hint} (--help lists all keys)"


# ---- the file


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a repeated key is an error, unless it comes with `<<: *other`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [
            (str(key.value), key.start_mark)
            for key, _ in node.value
            if key.tag != "tag:yaml.org,2002:merge"
        ]
        for number, (name, mark) in enumerate(keys):
            if any(name == other for other, _ in keys[:number]):
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name!r} is repeated", problem_mark=mark
                )
        return super().construct_mapping(node, deep)


def read_recipe(path: Path | str) -> dict[str, Any]:
    """Reads a recipe, a file or the name of one that comes with csan_hf, on top of the one that its
    `base` names.

    Raises a `RecipeError` if one of them cannot be read, or holds a credential or a section that is
    none."""
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
    for recipe, source in ((below, base), (content, path)):
        check_sections(recipe, str(source))
    return merge({key: value for key, value in below.items() if key != "output_dir"}, content)


def find_base(base: Any, file: Path) -> Path:
    """The file of a base that `file` names; only YAML files, as lines of others could be secret."""
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
        if not isinstance(section, dict | None) and not (
            key == "tokenizer" and isinstance(section, str)
        ):
            raise RecipeError(
                f"{source}: the section {key} must hold keys and values, got a "
                f"{type(section).__name__}."
            )


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two sets of recipe keys as one: sections key by key, the second's values win.

    Where the second names another family, nothing is kept of the first's section config, name and
    description."""
    merged = copy.deepcopy(dict(first))
    if second.get("model", merged.get("model", "csan")) != merged.get("model", "csan"):
        merged |= {"config": {}, **_OF_A_FAMILY}
    for key, value in second.items():
        is_section = (
            key in SECTIONS and isinstance(value, Mapping) and not isinstance(merged.get(key), str)
        )
        merged[key] = (
            {**(merged.get(key) or {}), **copy.deepcopy(dict(value))} if is_section else value
        )
    return merged


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Reads a YAML file of keys and values; a name means the recipe that comes with csan_hf."""
    try:
        content = yaml.load(RECIPES.locate(path).read_text(encoding="utf-8"), Loader=_StrictLoader)
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError, UnicodeDecodeError) as error:
        # Without the original error, which shows lines of the file: they may hold a credential
        mark: Any = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = f"it is not valid YAML: {place}{getattr(error, 'problem', None) or getattr(error, 'reason', error)}"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = str(error)
    else:
        if isinstance(content, dict | None):
            return content or {}
        problem = f"it must hold keys and values, got a {type(content).__name__}"
    raise RecipeError(f"{path}: {problem}")


def refuse_credentials(content: Any, source: str) -> None:
    """Refuses tokens, passwords and keys: a run writes its recipe to files, logs and model cards,
    and uploads it.

    Raises a `RecipeError` that names the keys and never shows a value.
    """
    if found := list(find_credentials(content)):
        verb = "is a credential" if len(found) == 1 else "are credentials"
        raise RecipeError(
            f"{source}: {', '.join(found)} {verb}, which a recipe must not hold because a run "
            f"writes and uploads it. Take it out and {WHERE_INSTEAD}."
        )


def _as_yaml(text: str) -> Any:
    """Returns a value of the command line as YAML, to look for credentials in it; its text if it is
    not YAML.
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
    """Makes a recipe of what a file holds and of overrides; see `load_recipe`.

    `source` is what errors call the file.
    """
    content = dict(content)
    if isinstance(tokenizer := content.get("tokenizer"), str):
        content["tokenizer"] = {PRETRAINED: tokenizer}
    written = str(content.get("model", "csan"))
    model = dict(overrides).get("model", written)
    sections = recipe_sections(model)
    if model != written:
        content |= _OF_A_FAMILY
    if model != written and isinstance(config := content.get("config"), dict):
        content["config"] = _fields_of(
            sections["config"], config, recipe_sections(written)["config"], source
        )
    recipe = Recipe()
    for section, key, value in _entries(content, sections, source):
        converted = section.convert(key, value, f"{source}: {section.path(key)}")
        (getattr(recipe, section.name) if section.name else vars(recipe))[key] = converted
    for name, text in overrides:
        section, key = find_key(
            f"tokenizer.{PRETRAINED}" if name == "tokenizer" else name, sections
        )
        annotation = section.options[key].annotation
        if text == "true" and not _takes(annotation, bool):  # what a key without a value has
            raise RecipeError(f"--{section.path(key)} needs a value: {describe_type(annotation)}.")
        given: Any = text
        if (
            "," in text
            and text[0] != "["
            and _takes(annotation, list)
            and not _takes(annotation, str)
        ):
            given = [part.strip() for part in text.split(",")]
        converted = section.convert(key, given, f"--{section.path(key)}")
        (getattr(recipe, section.name) if section.name else vars(recipe))[key] = converted
    return recipe


def _fields_of(own: Section, config: dict[str, Any], other: Section, source: str) -> dict[str, Any]:
    """Leaves out the fields of a file's own family where the command line names another one, with a
    notice.
    """
    foreign = [key for key in config if key in other.keys and key not in own.keys]
    if foreign:
        print(
            f"{source}: {', '.join(map(own.path, foreign))} left out: {own.source.__name__} has "
            "no such fields, and its defaults are used (--help lists them).",
            file=sys.stderr,
        )
    return {key: value for key, value in config.items() if key not in foreign}


def _entries(
    content: dict[str, Any], sections: Mapping[str, Section], source: str
) -> Iterator[tuple[Section, str, Any]]:
    """Yields each value of a file with its section and key."""
    for name, value in content.items():
        is_section = name in SECTIONS and isinstance(value, dict | None)
        section = sections[name if is_section else ""]
        for key, entry in (value or {}).items() if is_section else [(name, value)]:
            if key not in section.keys:
                raise RecipeError(f"{source}: {_unknown(section.path(str(key)), sections)}")
            yield section, key, entry
