# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Recipes: one YAML file per experiment, with overrides from the command line.

A section holds the keyword arguments of a class or a function, which jsonargparse reads: a new key
is a new argument.
"""

import contextlib
import copy
import dataclasses
import difflib
import enum
import functools
import hashlib
import inspect
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import docstring_parser
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from transformers import PreTrainedConfig

from csan_hf.credentials import WHERE_INSTEAD, find_credentials
from csan_hf.data import DataArguments, train_tokenizers
from csan_hf.data.corpora import LEAST
from csan_hf.families import COMPARED, FAMILIES, ModelFamily, family_of
from csan_hf.models.configuration_csan import CsanConfig
from csan_hf.models.configuration_seq2seq import bounds_text
from csan_hf.models.locality import locality_presets
from csan_hf.recipes import RECIPES
from csan_hf_cli.declarations import option_text, type_name, union_members
from csan_hf_runtime.yaml_text import BoundedLoader

from .arguments import GenerationArguments, TranslationTrainingArguments, bounds_by_name


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


# Sections that affect something else than the training alone
_AFFECTED_BY_SECTION = {
    "data": Affects.TRAINING | Affects.SCORES,
    "generation": Affects.SCORES,
}
# Keys, or beginnings of keys, that affect something else than their section does. In `training`
# they are the library's arguments. Files in data_dir are compared by digests of their sentences.
_AFFECTED_BY_KEY = {
    Affects.NOTHING: (
        "output_dir name description license language dataset_name task hub_dataset "
        "validation_sha256 resume overwrite dry_run data.data_dir data.cache_dir "
        "training.logging_ training.report_to training.run_name training.disable_tqdm "
        "training.hub_ training.push_to_hub"
    ),
    # Not dataloader_drop_last, which changes the batches where max_tokens is null
    Affects.SPEED: (
        "training.use_cpu training.ddp_ training.per_device_eval training.dataloader_num "
        "training.dataloader_pin training.dataloader_persistent training.dataloader_prefetch "
        "training.dataloader_multiprocessing training.activation_checkpointing "
        "training.gradient_checkpointing"
    ),
    Affects.TRAINING: (
        "data.train data.train_size data.streaming data.buffer_size data.temperature "
        "data.max_source_length data.max_target_length data.max_length_ratio"
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
    for beginning, affects in _AFFECTS.items():
        if path.startswith(beginning):
            return affects
    return _AFFECTED_BY_SECTION.get(path.rpartition(".")[0], Affects.TRAINING)


# Keys of the command line, which are not stored
COMMANDS = ("resume", "overwrite", "dry_run")
SECTIONS = ("config", "data", "tokenizer", "training", "generation")
# The key of the section tokenizer that names an existing one; `tokenizer: NAME` is short for it
PRETRAINED = "pretrained"
_OF_A_FAMILY = {"name": None, "description": None}  # they do not hold for another family

# Keys that the underlying classes have, or that are looked for, but a recipe may not set, by the
# reason that the error gives
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
    "start several by torchrun --nproc_per_node N -m csan_hf train RECIPE (docs/many-gpus.md)": (
        "training.processes training.num_processes training.nproc_per_node training.gpus"
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
        hub_dataset: Hub name of the training data, for a link in the model card, if the data is
            read from files.
        validation_sha256: First digits of the SHA-256 of the validation references (lines that end
            in a line feed), one for each language pair. With other data the model card leaves out
            name, description, license, language, dataset_name and hub_dataset. null = the card has
            them with any data.
        bleu_tokenize: sacreBLEU's tokenizer: 13a, zh, ja-mecab, char...; null = chosen by the
            script (Latin, Chinese, Japanese...) of the references.
        resume: Continue from the last checkpoint in output_dir.
        overwrite: Delete the earlier run in output_dir before training.
        dry_run: Check the recipe and its data, print sizes, memory and time, and do not train.
        config: The network: sizes, dropout, locality. Fields of the family's configuration.
        data: The corpus: languages, files or data set, what is kept of it. Fields of
            `csan_hf.data.DataArguments`.
        tokenizer: Arguments of `csan_hf.data.train_tokenizers` (vocab_size, joint...), or the name
            of an existing one.
        training: Batches, optimiser, evaluation, checkpoints. Fields of
            `TranslationTrainingArguments`.
        generation: The search, for the final scores and the saved model. Fields of
            `GenerationArguments`.
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
    validation_sha256: list[str] | None = None
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
        existing: tuple[str, ...] = ()
        if self.init_from is not None:
            existing = ("config", "tokenizer")
        elif PRETRAINED in self.tokenizer:
            existing = ("tokenizer",)
        values = {}
        for option in recipe_options(self.model):
            if affecting is None or affected_by(option.path) & affecting:
                section = written.get(option.section, {}) if option.section else written
                default = None if option.section in existing else option.default
                values[option.path] = section.get(option.name, default)
        return values

    def fingerprint(self, affecting: Affects) -> str:
        """Returns a digest of the keys that affect something of `affecting` and are not at their
        defaults: it stays the same where a version adds a key.
        """
        defaults = {option.path: option.default for option in recipe_options(self.model)}
        values = {
            path: value for path, value in self.values(affecting).items() if value != defaults[path]
        }
        text = json.dumps(values, sort_keys=True, default=str)
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


def notify(text: str) -> None:
    """Prints a notice for people, in the main process."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


# ---- the keys


@dataclass(frozen=True)
class Option:
    """One key of a recipe.

    Attributes:
        section: Its section; "" is the top of the file.
        name: Its name in the section.
        annotation: Its type.
        default: Its value where a recipe leaves it out.
        help: A sentence or two.
        bounds: Its bounds in words; "" if it has none besides its type.
        parser: Parser of the section.
    """

    section: str
    name: str
    annotation: Any
    default: Any
    help: str
    bounds: str
    parser: ArgumentParser

    @property
    def path(self) -> str:
        """The key as the command line writes it: `training.learning_rate`."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def text(self) -> str:
        """Lines of help: name, type, default, bounds, and what the key is."""
        return option_text(self.path, self.annotation, self.default, self.help, self.bounds)

    def takes(self, kind: type) -> bool:
        """Whether a value of this type fits."""
        return any(
            member is Any or (typing.get_origin(member) or member) is kind
            for member in union_members(self.annotation)
        )

    def convert(self, value: object, where: str) -> Any:
        """Turns a value of YAML, or text of the command line, into the type of the key.

        YAML reads `1e3` as text, and a name that looks like a number as a number; the key's type
        corrects both. Raises a `RecipeError` that names the value by `where` if it does not fit.
        """
        if value is not None or self.takes(types.NoneType):
            for reading in _readings(value):
                with contextlib.suppress(ArgumentError):
                    content = {self.name: reading}
                    return self.parser.parse_object(content, defaults=False)[self.name]
        hint = ""
        if isinstance(value, bool) and self.takes(str):
            hint = " YAML reads no, off, yes and on as true or false: put the text in quotes."
        raise RecipeError(
            f"{where} must be {type_name(self.annotation)}, got {value!r:.200}.{hint}"
        )


def _readings(value: object) -> Iterator[Any]:
    """Yields the interpretations of a YAML value: as is, as a number, as text, as a list."""
    yield value
    if isinstance(value, list):
        yield [_number(item) for item in value]
        return
    yield _number(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    if isinstance(value, str) and "," in value and not value.startswith("["):
        yield from _readings([part.strip() for part in value.split(",")])


def _number(value: Any) -> Any:
    """Reads text such as `1e3` or `nan` as a number, and a number without a fraction as a whole
    one.
    """
    if isinstance(value, bool):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return value
    return int(number) if number.is_integer() else number


Section = dict[str, Option]
"""The keys of one section by name."""


@functools.cache
def _section(section: str, source: Callable[..., Any], without: tuple[str, ...] = ()) -> Section:
    """Reads the keys of a section: the arguments of a class or function that have defaults."""
    parameters = inspect.signature(source).parameters
    names = []
    for name, parameter in parameters.items():
        has_default = parameter.default is not parameter.empty
        if has_default and name not in without and f"{section}.{name}" not in _RESERVED:
            names.append(name)
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    add_arguments = parser.add_function_arguments
    if inspect.isclass(source):
        add_arguments = parser.add_class_arguments
    skipped: set[Any] = parameters.keys() - set(names)
    add_arguments(source, None, skip=skipped, fail_untyped=False)
    help_texts = _help_texts(source)
    bounds = _bounds(section, source)
    actions = {action.dest: action for action in parser._actions}
    options = {}
    for name in names:
        action = actions[name]
        options[name] = Option(
            section=section,
            name=name,
            annotation=getattr(action, "_typehint", action.type),
            default=getattr(action.default, "value", action.default),
            help=" ".join((help_texts.get(name) or "").split()).replace("None", "null"),
            bounds=bounds.get(name, ""),
            parser=parser,
        )
    return options


def _help_texts(source: Callable[..., Any]) -> dict[str, str | None]:
    """Reads help from docstrings, of the source or of its attributes, and from the metadata of
    dataclass fields.
    """
    texts: dict[str, str | None] = {}
    if dataclasses.is_dataclass(source):
        for argument in dataclasses.fields(source):
            text = argument.metadata.get("help", "")
            texts[argument.name] = text.replace("%%", "%")  # which transformers writes for argparse
    for entry in docstring_parser.parse_from_object(source).params:
        texts |= dict.fromkeys(entry.arg_name.split(", "), entry.description)
    return texts


def _bounds(section: str, source: Callable[..., Any]) -> dict[str, str]:
    """Returns the bounds, in words, of those keys of a section that have some."""
    if section == "data":
        return {name: f"at least {least}" for name, least in LEAST.items()}
    if section in ("training", "generation"):
        return bounds_by_name()
    bounds = {}
    if dataclasses.is_dataclass(source):
        for argument in dataclasses.fields(source):
            bounds[argument.name] = bounds_text(argument)
    return bounds


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
    inherited = PreTrainedConfig.__annotations__.keys() - config.__annotations__.keys()
    fields = _section("config", config, tuple(inherited))
    if config is CsanConfig:
        fields = {**_section("config", _preset_fields), **fields}
    return {
        "": _section("", Recipe, SECTIONS),
        "config": fields,
        "data": _section("data", DataArguments),
        "tokenizer": _section("tokenizer", train_tokenizers),
        "training": _section("training", TranslationTrainingArguments),
        "generation": _section("generation", GenerationArguments),
    }


def _preset_fields(fields: Mapping[str, Any], preset: str | None = None) -> dict[str, Any]:
    """See `CsanConfig.preset_fields`.

    Args:
        fields: The other keys of the section.
        preset: Name of a preset of `CsanConfig`, such as long, in place of the locality and
            sinusoids of a base or, on the command line, of the recipe; keys beside it win. null, if
            written = full attention.
    """
    with refusing("config.preset"):
        return CsanConfig.preset_fields(preset, fields)


def with_preset(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section config with the fields of its preset in place of the key `preset`."""
    fields = dict(config)
    if "preset" not in fields:
        return fields
    return _preset_fields(preset=fields.pop("preset"), fields=fields)


def recipe_options(model: str = "csan") -> Iterator[Option]:
    """Yields every key of a recipe for one model family, with type, default and help."""
    for section in recipe_sections(model).values():
        yield from section.values()


def find_key(name: str, sections: Mapping[str, Section]) -> Option:
    """Finds what a key of the command line means: a path, or a key that only one section has.

    Raises a `RecipeError` if there is none, with a suggestion, or if several sections have the key.
    """
    name = name.replace("-", "_")
    where, _, key = name.rpartition(".")
    if key in sections.get(where, {}):
        return sections[where][key]
    bare = [section[name] for section in sections.values() if name in section]
    if not bare:
        raise RecipeError(_unknown(name, sections))
    if len(bare) > 1:
        choices = " or ".join(f"--{option.path}" for option in bare)
        raise RecipeError(f"--{name} is ambiguous: write {choices}.")
    return bare[0]


def _unknown(path: str, sections: Mapping[str, Section]) -> str:
    """Explains why a key cannot be set, or suggests the nearest keys."""
    section, _, name = path.rpartition(".")
    for candidate in (section,) if section else SECTIONS:
        reason = _RESERVED.get(f"{candidate}.{name}")
        if reason:
            return f"{candidate}.{name} cannot be set: {reason}."
    paths: dict[str, list[str]] = {}  # of each key, in all sections
    for options in sections.values():
        for option in options.values():
            paths.setdefault(option.name, []).append(option.path)
    similar: list[str] = []
    for key in difflib.get_close_matches(name, paths, n=3):
        similar += paths[key]
    hint = f" Did you mean {' or '.join(similar[:3])}?" if similar else ""
    return f"unknown key {path}.{hint} (--help all lists all keys)"


# ---- the file


class _RepeatedKeyError(yaml.MarkedYAMLError):
    """A key occurs twice in a mapping."""


class _StrictLoader(BoundedLoader):
    """YAML in which a repeated key is an error, unless it comes with `<<: *other`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = str(key.value)
            if name in names:
                raise _RepeatedKeyError(
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
    file = _locate(path)
    content = read_yaml(file)
    base = content.pop("base", None)
    if base is None:
        return content
    below = read_yaml(_locate(find_base(base, file)))
    if "base" in below:
        raise RecipeError(
            f"{path}: the base {base} has a base itself: name that one, and repeat what {base} "
            "changes."
        )
    below.pop("output_dir", None)
    return merge(below, content)


def _locate(path: Path | str) -> Path:
    try:
        return RECIPES.locate(path)
    except ValueError as error:
        raise RecipeError(str(error)) from None


def find_base(base: Any, file: Path) -> Path:
    """Returns the file of a base that `file` names: a path as seen from it, or the name of a recipe
    that comes with csan_hf; YAML only, as errors show what was read.
    """
    if base in RECIPES.names():
        return RECIPES.file(base)
    if not str(base).endswith((".yaml", ".yml")):
        raise RecipeError(
            f"{file}: a base must be the path of a recipe (.yaml) as seen from this file, or the "
            f"name of one that comes with csan_hf, got {base!r}."
        )
    return file.parent / base


def check_sections(content: dict[str, Any], source: str) -> None:
    """Refuses a section that holds no keys and values."""
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
    description; where it names a preset, nothing that makes the first local or that a preset sets
    (sinusoids).
    """
    merged = copy.deepcopy(dict(first))
    model = merged.get("model", "csan")
    if second.get("model", model) != model:
        merged |= {"config": {}, **_OF_A_FAMILY}
    for key, value in second.items():
        section = merged.get(key) or {}
        if key in SECTIONS and isinstance(value, Mapping) and isinstance(section, Mapping):
            if "preset" in value:
                replaced = set().union(*locality_presets().values())
                section = {
                    name: field
                    for name, field in section.items()
                    if "local" not in name and name not in replaced
                }
            merged[key] = {**section, **copy.deepcopy(dict(value))}
        else:
            merged[key] = value
    return merged


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file of keys and values, none of them a credential.

    Raises:
        RecipeError: It cannot be read, or holds something else.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError, UnicodeDecodeError) as error:
        # Without the original error, which shows lines of the file: they may hold a credential
        reason = getattr(error, "problem", None) or getattr(error, "reason", error)
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = f"it is not valid YAML: {place}{reason}"
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    except (yaml.YAMLError, ValueError) as error:
        problem = str(error)
    else:
        refuse_credentials(content, str(path))
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


def _as_yaml(name: str, text: str) -> Any:
    """Parses a value of the command line; text that is not YAML stays."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except _RepeatedKeyError as error:
        raise RecipeError(f"--{name}: {error.problem}: write it once.") from None
    except (yaml.YAMLError, ValueError):
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
        refuse_credentials({name: _as_yaml(name, text)}, "the command line")
    return parse_recipe(content, str(path), overrides)


def parse_recipe(
    content: dict[str, Any], source: str, overrides: Sequence[tuple[str, str]] = ()
) -> Recipe:
    """Makes a recipe of the content of a file and of overrides; see `load_recipe`.

    `source` is the file's name for errors.
    """
    check_sections(content, source)
    content = dict(content)
    if isinstance(content.get("tokenizer"), str):
        content["tokenizer"] = {PRETRAINED: content["tokenizer"]}
    written_model = str(content.get("model", "csan"))
    model = dict(overrides).get("model", written_model)
    if model != written_model:
        content |= {**_OF_A_FAMILY, "model": model}
    sections = recipe_sections(model)
    previous_fields = recipe_sections(written_model)["config"]
    values: dict[str, Any] = {name: {} for name in sections}
    foreign = []  # fields of the file's family that another on the command line does not have
    for section, options in sections.items():
        entries = content.get(section) or {}
        if not section:
            entries = {key: value for key, value in content.items() if key not in SECTIONS}
        for key, value in entries.items():
            path = f"{section}.{key}" if section else str(key)
            if key in options:
                values[section][key] = options[key].convert(value, f"{source}: {path}")
            elif section == "config" and key in previous_fields:
                foreign.append(path)
            else:
                raise RecipeError(f"{source}: {_unknown(path, sections)}")
    if foreign:
        notify(
            f"{source}: {', '.join(foreign)} left out: {find_family(model).config} has no such "
            "fields, and its defaults are used (--help config lists them)."
        )
    changes: dict[str, Any] = {name: {} for name in sections}
    for name, value in _single_keys(overrides):
        option = find_key(name, sections)
        if value == "true" and not option.takes(bool):  # the text of a key without a value
            raise RecipeError(f"--{option.path} needs a value: {type_name(option.annotation)}.")
        changes[option.section][option.name] = option.convert(value, f"--{option.path}")
    top = values.pop("")
    top_changes = changes.pop("")
    recipe = merge({**top, **values}, {**top_changes, **changes})
    recipe["config"] = with_preset(recipe["config"])
    return Recipe(**recipe)


def _single_keys(overrides: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Yields overrides of keys: those of a section that is given as a mapping, one by one."""
    for name, text in overrides:
        section = _as_yaml(name, text) if name in SECTIONS else None
        if isinstance(section, dict):
            for key, value in section.items():
                yield f"{name}.{key}", value
        elif name == "tokenizer":
            yield f"tokenizer.{PRETRAINED}", text
        else:
            yield name, text
