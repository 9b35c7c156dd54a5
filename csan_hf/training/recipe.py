# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Recipes: one YAML file per experiment, with overrides from the command line.

A section holds the keyword arguments of a class or a function, which jsonargparse reads: a new key
is a new argument.
"""

import contextlib
import copy
import dataclasses
import difflib
import functools
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import docstring_parser
import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from transformers import PreTrainedConfig

from csan_hf.credentials import WHERE_INSTEAD, find_credentials
from csan_hf.data import DataArguments, TokenizerArguments
from csan_hf.data.joining import LINE_FEED
from csan_hf.families import FAMILIES, LIBRARY_TYPES, ModelFamily, family_of
from csan_hf.models.configuration_csan import LONG_FIELDS, CsanConfig
from csan_hf.models.configuration_seq2seq import bounds_text
from csan_hf.models.short_form import SHORT_FIELDS, ShortForm
from csan_hf.recipes import RECIPES
from csan_hf_runtime.command_line.declarations import option_text, type_name, union_members
from csan_hf_runtime.keys import Affects, Key, declare, declared_keys, section_names
from csan_hf_runtime.yaml_text import BoundedLoader, load_yaml

from .arguments import LIBRARY, GenerationArguments, TranslationTrainingArguments
from .errors import RecipeError, notify, refusing

# Keys of the command line, which are not stored
COMMANDS = ("resume", "overwrite", "dry_run")
# The key of the section tokenizer that names an existing one; `tokenizer: NAME` is short for it
PRETRAINED = "pretrained"
_OF_A_FAMILY = {"name": None, "description": None}  # they do not hold for another family


@dataclass
class Recipe:
    """One experiment. The sections hold only what the recipe says; classes fill in the rest.

    Args:
        model: Family of the model: csan, pervasive_attention, rnnsearch, conv_s2s, or one of
            transformers' to compare with, such as t5 or led (`csan_hf.families.LIBRARY_TYPES`).
        output_dir: Folder for everything that a run writes.
        init_from: Checkpoint folder or Hub name to start from, with its tokenizer; null = random
            weights.
        name: Title of the model card; null = the folder's name.
        description: A sentence or two for the model card. Description and name are left out where
            the command line names another family, locality or direction, with a direction language,
            too; and where the recipe has a dataset_name and the command line names another corpus,
            with license, dataset_name and hub_dataset.
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
        tokenizer: Fields of `csan_hf.data.TokenizerArguments` (vocab_size, joint...), or the name
            of an existing one.
        training: Batches, optimiser, evaluation, checkpoints. Fields of
            `TranslationTrainingArguments`.
        generation: The search, for the final scores and the saved model. Fields of
            `GenerationArguments`.
    """

    model: str = declare("csan", Affects.TRAINING)
    output_dir: str | None = None
    init_from: str | None = declare(None, Affects.TRAINING)
    name: str | None = None
    description: str | None = None
    license: str | None = None
    language: str | list[str] | None = None
    dataset_name: str | None = None
    task: Literal["translation", "text2text-generation"] | None = None
    hub_dataset: str | None = None
    validation_sha256: list[str] | None = None
    bleu_tokenize: str | None = declare(None, Affects.TRAINING)
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
        if self.model == CsanConfig.model_type and self.init_from is None:
            written["config"] = _long_form(self.config)  # the same locality, the same values
        if self.init_from is not None:
            existing = ("config", "tokenizer")
        elif PRETRAINED in self.tokenizer:
            existing = ("tokenizer",)
        values = {}
        for option in recipe_options(self.model):
            if affecting is None or option.affects & affecting:
                default = None if option.section in existing else option.default
                values[option.path] = option.values_in(written).get(option.name, default)
        return values

    def fingerprint(self, affecting: Affects) -> str:
        """Returns a digest of the keys that affect something of `affecting` and are not at their
        defaults: it stays the same where a version adds a key.
        """
        defaults = {option.path: option.default for option in recipe_options(self.model)}
        changed = {
            path: value for path, value in self.values(affecting).items() if value != defaults[path]
        }
        text = json.dumps(changed, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def line_token(self) -> str | None:
        """The token that ends a line; None: texts have no lines."""
        token = self.tokenizer.get("line_token")
        if token is None and (self.data.get("documents") or self._attends_by_line()):
            return LINE_FEED
        return token

    def _attends_by_line(self) -> bool:
        """Whether the section config alone says that the network attends line by line."""
        config_class = find_family(self.model).config_class
        if self.init_from is not None or not hasattr(config_class, "line_method"):
            return False
        with refusing("The section config is refused"):
            return config_class(**self.config).line_method is not None

    def data_arguments(self) -> DataArguments:
        """Builds the data section, or raises a RecipeError."""
        separator = " " if self.line_token is None else LINE_FEED
        with refusing("The section data is refused"):
            return DataArguments(**self.data, separator=separator)

    def tokenizer_arguments(self) -> TokenizerArguments:
        """Builds the tokenizer section, or raises a RecipeError."""
        with refusing("The section tokenizer is refused"):
            return TokenizerArguments(**{**self.tokenizer, "line_token": self.line_token})

    def training_arguments(self) -> TranslationTrainingArguments:
        """Builds the training section, or raises a RecipeError, also if there is no output_dir."""
        if not self.output_dir:
            raise RecipeError(
                "output_dir is missing: write it in the recipe or pass --output_dir FOLDER."
            )
        # TypeError: a keyword of accelerator_config
        with refusing("The section training is refused", TypeError):
            return TranslationTrainingArguments(output_dir=self.output_dir, **self.training)


SECTIONS = section_names(Recipe)

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
        affects: Its effects.
    """

    section: str
    name: str
    annotation: Any
    default: Any
    help: str
    bounds: str = ""
    affects: Affects = Affects.TRAINING

    @property
    def path(self) -> str:
        """The key as the command line writes it: `training.learning_rate`."""
        return f"{self.section}.{self.name}" if self.section else self.name

    def text(self, recipe: Recipe | None = None) -> str:
        """Returns lines of help: name, type, default, bounds, a recipe's value, what the key is."""
        facts = [self.bounds] if self.bounds else []
        values = {} if recipe is None else self.values_in(recipe.to_dict())
        if values.get(self.name, self.default) != self.default:
            facts.append(f"here {json.dumps(values[self.name])}")
        return option_text(self.path, self.annotation, self.default, self.help, *facts)

    def values_in(self, recipe: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the values of its section in the keys of a recipe."""
        return recipe.get(self.section, {}) if self.section else recipe

    @functools.cached_property
    def _parser(self) -> ArgumentParser:
        parser = ArgumentParser(exit_on_error=False, add_help=False)
        parser.add_argument(f"--{self.name}", type=self.annotation)
        return parser

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
                    return self._parser.parse_object(content, defaults=False)[self.name]
        hint = ""
        if isinstance(value, bool) and self.takes(str):
            hint = " YAML reads no, off, yes and on as true or false: put the text in quotes."
        raise RecipeError(
            f"{where} must be {type_name(self.annotation)}, got {value!r:.200}.{hint}"
        )

    def store(self, recipe: dict[str, Any], value: object, where: str) -> None:
        """Converts a value, and puts it at its place in a recipe."""
        values = recipe.setdefault(self.section, {}) if self.section else recipe
        values[self.name] = self.convert(value, where)


def _readings(value: object) -> Iterator[Any]:
    """Yields the interpretations of a YAML value: as is, as a number, as text, as a list."""
    yield value
    if isinstance(value, list):
        yield [_number(item) for item in value]
        return
    yield _number(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    if isinstance(value, str) and not value.startswith("["):
        yield from _readings([part.strip() for part in value.split(",")])


def _number(value: object) -> object:
    """Reads text such as `1e3` or `nan` as a number, and a number without a fraction as a whole
    one.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return value
    return int(number) if number.is_integer() else number


Options = dict[str, Option]
"""The keys of one section by name."""

Overrides = Sequence[tuple[str, str | None]]
"""Keys of the command line, each with the text of its value; None: it has none."""


@functools.cache
def _options_of(section: str, source: type, affects: Affects = Affects.TRAINING) -> Options:
    """Reads the keys of a section: the fields of a dataclass that a recipe may set.

    Args:
        section: Name of the section.
        source: The dataclass.
        affects: Effects of the fields that declare none.
    """
    inherited: set[str] = set()
    if issubclass(source, PreTrainedConfig):
        inherited = PreTrainedConfig.__annotations__.keys() - source.__annotations__.keys()
    declared = declared_keys(source, LIBRARY.get(section, {}))
    annotations = typing.get_type_hints(source, localns={"torch": torch})
    help_texts = _help_texts(source)
    options = {}
    for argument in dataclasses.fields(source):
        name = argument.name
        declaration = declared.get(name, Key())
        if declaration.refusal or name in inherited or name in SECTIONS:
            continue
        default = argument.default
        if argument.default_factory is not dataclasses.MISSING:
            default = argument.default_factory()
        options[name] = Option(
            section=section,
            name=name,
            annotation=annotations[name],
            default=getattr(default, "value", default),
            help=" ".join((help_texts.get(name) or "").split()).replace("None", "null"),
            bounds=declaration.bounds.words if declaration.bounds else bounds_text(argument),
            affects=affects if declaration.affects is None else declaration.affects,
        )
    return options


def _help_texts(source: type) -> dict[str, str | None]:
    """Reads help from the metadata of fields, and from docstrings of the class and its fields."""
    texts: dict[str, str | None] = {}
    for argument in dataclasses.fields(source):
        text = argument.metadata.get("help", "")
        texts[argument.name] = text.replace("%%", "%")  # which transformers writes for argparse
    for entry in docstring_parser.parse_from_object(source).params:
        texts |= dict.fromkeys(entry.arg_name.split(", "), entry.description)
    return texts


def find_family(name: object) -> ModelFamily:
    """Looks up the family that the key `model` names, or raises a RecipeError."""
    family = family_of(name)
    if not family.classes:
        known = ", ".join(sorted(FAMILIES))
        raise RecipeError(
            f"model must be one of {known}, or of transformers' {', '.join(LIBRARY_TYPES)}, got "
            f"{name!r}."
        )
    return family


@functools.cache
def recipe_sections(model: str = Recipe.model) -> dict[str, Options]:
    """Returns the sections of a recipe for one model family, the top of the file as ""."""
    config = find_family(model).config_class
    network = _options_of("config", config)
    if config is CsanConfig:
        short_form = _options_of("config", ShortForm)
        network = {**_options_of("config", _WrittenOut), **short_form, **network}
    return {
        "": _options_of("", Recipe, Affects.NOTHING),
        "config": network,
        "data": _options_of("data", DataArguments, Affects.TRAINING | Affects.SCORES),
        "tokenizer": _options_of("tokenizer", TokenizerArguments),
        "training": _options_of("training", TranslationTrainingArguments),
        "generation": _options_of("generation", GenerationArguments, Affects.SCORES),
    }


@dataclass(frozen=True)
class _WrittenOut:
    """Keys of the section config that are written out as fields of `CsanConfig`.

    Args:
        preset: Name of a preset of `CsanConfig`, such as long, in place of the locality and
            sinusoids of a base or, on the command line, of the recipe; keys beside it win. null, if
            written = full attention.
        sinusoids: Former name of position_embeddings.
    """

    preset: str | None = None
    sinusoids: Literal["marian", "m2m_100", "bart"] | None = "marian"


def _long_form(fields: Mapping[str, Any]) -> dict[str, Any]:
    """See `CsanConfig.long_form`."""
    with refusing("The section config is refused"):
        return dict(CsanConfig.long_form(fields))


def affected_by(path: str) -> Affects:
    """Returns the effects of a key such as `training.learning_rate`; `TRAINING` of one that is not
    known.
    """
    section, _, name = path.rpartition(".")
    option = recipe_sections().get(section, {}).get(name)
    return Affects.TRAINING if option is None else option.affects


def recipe_options(model: str = Recipe.model) -> Iterator[Option]:
    """Yields every key of a recipe for one model family, with type, default and help."""
    for options in recipe_sections(model).values():
        yield from options.values()


def find_key(name: str, sections: Mapping[str, Options]) -> Option:
    """Finds what a key of the command line means: a path, or a key that only one section has.

    Raises a `RecipeError` if there is none, with a suggestion, or if several sections have the key.
    """
    name = name.replace("-", "_")
    where, _, key = name.rpartition(".")
    if key in sections.get(where, {}):
        return sections[where][key]
    bare = [options[name] for options in sections.values() if name in options]
    if not bare:
        raise RecipeError(_unknown(name, sections))
    if len(bare) > 1:
        choices = " or ".join(f"--{option.path}" for option in bare)
        raise RecipeError(f"--{name} is ambiguous: write {choices}.")
    return bare[0]


def _unknown(path: str, sections: Mapping[str, Options]) -> str:
    """Explains why a key cannot be set, or suggests the nearest keys."""
    if path in SECTIONS:
        return f"{path} is a section: write --{path}.KEY VALUE, or --{path} '{{KEY: VALUE}}'."
    section, _, name = path.rpartition(".")
    for candidate in (section,) if section else SECTIONS:
        declaration = LIBRARY.get(candidate, {}).get(name, Key())
        if declaration.refusal:
            return f"{candidate}.{name} cannot be set: {declaration.refusal}."
    # Of each key, in all sections, and at the top of each section
    paths: dict[str, list[str]] = {}
    if not section:
        paths = {name: [name] for name in SECTIONS}
    for options in sections.values():
        for option in options.values():
            paths.setdefault(option.name, []).append(option.path)
    similar: list[str] = []
    for known in dict.fromkeys(_similar(name, paths)):
        similar += paths[known]
    hint = f" Did you mean {' or '.join(similar[:3])}?" if similar else ""
    return f"unknown key {path}.{hint} (--help all lists all keys)"


def _similar(name: str, names: Iterable[str]) -> list[str]:
    """Lists the names that are meant by their initials (lr), contain a name, or are spelt alike."""
    short = []
    longer = []
    for known in names:
        initials = "".join(word[:1] for word in known.split("_"))
        if name == initials:
            short.append(known)
        elif name in known:
            longer.append(known)
    return [*short, *longer, *difflib.get_close_matches(name, names, n=3)]


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
        ValueError: One of the two is not there, cannot be read, or holds a credential or a section
            without keys and values.
    """
    file = RECIPES.locate(path)
    content = read_yaml(file)
    base = content.pop("base", None)
    if base is None:
        return content
    below = read_yaml(RECIPES.locate(find_base(base, file)))
    if "base" in below:
        raise RecipeError(
            f"{path}: the base {base} has a base itself: name that one, and repeat what {base} "
            "changes."
        )
    below.pop("output_dir", None)
    return merge(below, content)


def find_base(base: object, file: Path) -> Path:
    """Returns the file of a base that `file` names: a path as seen from it, or the name of a recipe
    that comes with csan_hf; YAML only, as errors show what was read.
    """
    name = str(base)
    if name in RECIPES.names():
        return RECIPES.file(name)
    if not name.endswith((".yaml", ".yml")):
        raise RecipeError(
            f"{file}: a base must be the path of a recipe (.yaml) as seen from this file, or the "
            f"name of one that comes with csan_hf, got {base!r}."
        )
    return file.parent / name


def check_sections(content: dict[str, Any], source: str) -> None:
    """Refuses a section that holds no keys and values."""
    for section in SECTIONS:
        values = content.get(section)
        is_name = section == "tokenizer" and isinstance(values, str)
        if not is_name and not isinstance(values, dict | None):
            raise RecipeError(
                f"{source}: the section {section} must hold keys and values, got a "
                f"{type(values).__name__}."
            )


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two sets of recipe keys: sections key by key, the second's values win.

    Where the second names another family, nothing is kept of the first's section config, name and
    description; where it names a preset, nothing that makes the first local or that a preset sets
    (sinusoids).
    """
    merged = copy.deepcopy(dict(first))
    model = merged.get("model", Recipe.model)
    if second.get("model", model) != model:
        merged |= {"config": {}, **_OF_A_FAMILY}
    for key, value in second.items():
        values = merged.get(key) or {}
        if key in SECTIONS and isinstance(value, Mapping) and isinstance(values, Mapping):
            if "preset" in value:
                replaced = {*SHORT_FIELDS, *LONG_FIELDS, "position_embeddings", "sinusoids"}
                values = {name: values[name] for name in values if name not in replaced}
            merged[key] = {**values, **copy.deepcopy(dict(value))}
        else:
            merged[key] = value
    return merged


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file of keys and values, none of them a credential.

    Raises:
        RecipeError: It cannot be read, or holds something else.
    """
    try:
        content = load_yaml(path.read_text(encoding="utf-8"), _StrictLoader)
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    except ValueError as error:
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
    except yaml.YAMLError:
        return text


def load_recipe(path: Path | str | None, overrides: Overrides = ()) -> Recipe:
    """Reads a recipe and applies overrides.

    Args:
        path: YAML file; None = an empty recipe.
        overrides: Pairs of a key (`training.learning_rate` or a bare key that only one section has)
            and the text of its value, None if it has none.

    Raises:
        RecipeError: On an unknown key, which suggests the nearest, or on a value of another type.
    """
    content = read_recipe(path) if path is not None else {}
    for name, text in overrides:
        if text is not None:
            refuse_credentials({name: _as_yaml(name, text)}, "the command line")
    return parse_recipe(content, str(path), overrides)


def parse_recipe(content: dict[str, Any], source: str, overrides: Overrides = ()) -> Recipe:
    """Makes a recipe of the content of a file and of overrides; see `load_recipe`.

    `source` is the file's name for errors.
    """
    check_sections(content, source)
    written_model = str(content.get("model", Recipe.model))
    model = dict(overrides).get("model") or written_model
    if model != written_model:
        content = {**content, **_OF_A_FAMILY, "model": model}
    sections = recipe_sections(model)
    previous_fields = recipe_sections(written_model)["config"]
    keys = _keys_of_file(content, source, sections, previous_fields)
    chosen = _keys_of_command_line(overrides, sections)
    recipe = merge(keys, chosen)
    left_out = sorted(_contradicted(keys, recipe) - chosen.keys())
    if left_out:
        notify(f"{source}: {', '.join(left_out)} left out: the command line names something else.")
    for name in left_out:
        del recipe[name]
    if "preset" in recipe.get("config", {}):
        recipe["config"] = _long_form(recipe["config"])
    return Recipe(**recipe)


def _contradicted(before: Mapping[str, Any], recipe: Mapping[str, Any]) -> set[str]:
    """What a file says for the card that does not hold for another corpus, direction or
    locality.
    """

    def is_changed(section: str, names: Iterable[str]) -> bool:
        file_values = before.get(section) or {}
        values = recipe.get(section) or {}
        return any(file_values.get(name) != values.get(name) for name in names)

    contradicted: set[str] = set()
    if is_changed("config", (*SHORT_FIELDS, *LONG_FIELDS, "preset")):
        contradicted.update(_OF_A_FAMILY)
    if is_changed("data", ("source_lang", "target_lang", "language_pairs")):
        contradicted.update((*_OF_A_FAMILY, "language"))
    # The card knows the corpus by the digest, where there is one
    has_name = before.get("dataset_name") is not None and before.get("validation_sha256") is None
    if has_name and is_changed("data", ("dataset", "train")):
        contradicted.update((*_OF_A_FAMILY, "license", "dataset_name", "hub_dataset"))
    return contradicted.intersection(before)


def _keys_of_file(
    content: Mapping[str, Any],
    source: str,
    sections: Mapping[str, Options],
    previous_fields: Options,
) -> dict[str, Any]:
    """Converts the values of a file; of its section config those `previous_fields` of the file's
    family are left out, with a notice, that another on the command line does not have.
    """
    keys: dict[str, Any] = {}
    foreign = []
    for section, name, value in _entries(content):
        path = f"{section}.{name}" if section else str(name)
        if name in sections[section]:
            sections[section][name].store(keys, value, f"{source}: {path}")
        elif section == "config" and name in previous_fields:
            foreign.append(path)
        else:
            raise RecipeError(f"{source}: {_unknown(path, sections)}")
    if foreign:
        family = find_family(content["model"])
        notify(
            f"{source}: {', '.join(foreign)} left out: {family.config} has no such fields, and its "
            "defaults are used (--help config lists them)."
        )
    return keys


def _entries(content: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields section, key and value of all that a file says."""
    for name, value in content.items():
        if name not in SECTIONS:
            yield "", name, value
        elif isinstance(value, str):
            yield name, PRETRAINED, value
        else:
            for key, setting in (value or {}).items():
                yield name, key, setting


def _keys_of_command_line(overrides: Overrides, sections: Mapping[str, Options]) -> dict[str, Any]:
    """Converts the values of overrides; a key without one is true."""
    keys: dict[str, Any] = {}
    for name, text in overrides:
        for path, value in _single_keys(name, text):
            option = find_key(path, sections)
            if text is None and not option.takes(bool):
                raise RecipeError(f"--{option.path} needs a value: {type_name(option.annotation)}.")
            option.store(keys, True if text is None else value, f"--{option.path}")
    return keys


def _single_keys(name: str, text: str | None) -> Iterator[tuple[str, Any]]:
    """Yields a key with its value; those of a section that is given as a mapping, one by one."""
    section = _as_yaml(name, text or "") if name in SECTIONS else None
    if isinstance(section, dict):
        for key, value in section.items():
            yield f"{name}.{key}", value
    elif name == "tokenizer":
        yield f"tokenizer.{PRETRAINED}", text
    else:
        yield name, text
