"""Recipes: one YAML file per experiment, with overrides from the command line."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from transformers import GenerationConfig, PreTrainedConfig

from csan_hf.credentials import WHERE_INSTEAD, find_credentials
from csan_hf.data import DataArguments, train_tokenizers

from .arguments import TranslationTrainingArguments
from .families import FAMILIES, get_family
from .options import (
    Option,
    RecipeError,
    convert,
    dataclass_options,
    describe_type,
    nearest,
    parse_text,
    signature_options,
)

# Keys that say what to do with a recipe
_COMMANDS = ("resume", "overwrite", "dry_run")
SECTIONS = ("config", "data", "tokenizer", "training", "generation")

# Keys that exist in the underlying classes but follow from something else, and from what.
_RESERVED: dict[str, dict[str, str]] = {
    "config": {
        **dict.fromkeys(("vocab_size", "decoder_vocab_size"), "it follows from tokenizer.vocab_size"),
        **dict.fromkeys(
            ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"),
            "it follows from the tokenizer",
        ),
        "is_encoder_decoder": "it follows from the model",
        "is_decoder": "it follows from the model",
        "architectures": "it follows from the model",
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
        "train_sampling_strategy": "batches are built by training.max_tokens",
        "length_column_name": "batches are built by training.max_tokens",
        "sortish_sampler": "batches are built by training.max_tokens",
        "remove_unused_columns": "the trainer needs its own value",
        "label_names": "the trainer needs its own value",
        "prediction_loss_only": "use training.predict_with_generate",
        "batch_eval_metrics": "BLEU is a corpus score",
        "do_train": "training always runs",
        "do_eval": "use training.eval_strategy",
        "do_predict": "the test splits are always translated",
        "local_rank": "the launcher sets it",
        "hub_token": f"a run writes and uploads its recipe: {WHERE_INSTEAD}",
    },
    "generation": {
        **dict.fromkeys(
            ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"),
            "it follows from the tokenizer",
        ),
    },
}


@dataclass
class Recipe:
    """One experiment. The sections hold only what the recipe says; classes fill in the rest.

    Args:
        model: family, see `csan_hf.training.families`.
        output_dir: folder for everything that a run writes.
        init_from: checkpoint folder or Hub name to start from, with its tokenizer; null = random weights.
        name: title of the model card; null = the folder's name.
        description: a sentence or two for the model card.
        license: licence of the trained model, as a Hub identifier such as apache-2.0.
        language: languages of the trained model, as ISO codes; null = those of the data.
        dataset_name: what the model card calls the data.
        task: the model card's task on the Hub; null = translation.
        hub_dataset: name on the Hub of training data that is read from files, for the model card to link.
        bleu_tokenize: sacreBLEU's tokenizer: 13a, zh, ja-mecab, char...; null = 13a.
        resume: whether to go on from the last checkpoint in output_dir.
        overwrite: whether to delete what an earlier run left in output_dir first.
        dry_run: whether only to check the recipe and its data, and to print sizes, memory and time.
        config: fields of the model's configuration.
        data: fields of `csan_hf.data.DataArguments`.
        tokenizer: arguments of `csan_hf.data.train_tokenizers`: vocab_size, joint...
        training: fields of `TranslationTrainingArguments`.
        generation: fields of transformers' `GenerationConfig`, for the final scores and the saved model.
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
        return {name: value for name, value in values.items() if name not in _COMMANDS}

    def to_yaml(self) -> str:
        """Returns a recipe file that gives this recipe again."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=100)

    def data_arguments(self) -> DataArguments:
        """Builds the data section.

        Raises:
            RecipeError: if `DataArguments` refuses it.
        """
        return self._build("data", DataArguments, self.data)

    def training_arguments(self) -> TranslationTrainingArguments:
        """Builds the training section.

        Raises:
            RecipeError: if there is no output_dir, or if the arguments are refused.
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
            # The last three: of infinity, of a file that a value names, of a library that it needs
            raise RecipeError(f"The section {section} is refused: {error}") from error


# ---- the keys


@functools.cache
def recipe_options(model: str = "csan") -> tuple[Option, ...]:
    """Lists every key of a recipe for one model family.

    Raises:
        RecipeError: if there is no such family.
    """
    options = dataclass_options("", Recipe, without=SECTIONS)
    config = get_family(model).config_class
    inherited = {name for name in PreTrainedConfig.__annotations__ if name not in config.__annotations__}
    options += dataclass_options("config", config, without={*_RESERVED["config"], *inherited})
    options += dataclass_options("data", DataArguments, without=_RESERVED["data"])
    options += signature_options("tokenizer", train_tokenizers, without=("dataset",))
    options += dataclass_options("training", TranslationTrainingArguments, without=_RESERVED["training"])
    options += [option for option in _generation_options() if option.name not in _RESERVED["generation"]]
    return tuple(options)


def _generation_options() -> list[Option]:
    documentation = inspect.cleandoc(GenerationConfig.__doc__ or "")
    kinds = {"int": int, "float": float, "bool": bool, "str": str}
    pattern = r"^ *(\w+) \(`(\w+)[^\n]*\):\n((?: +[^\n]+\n)+?)(?= *\w+ \(`| *>|\n)"
    described = {
        match[1]: (kinds.get(match[2], Any), " ".join(match[3].split()))
        for match in re.finditer(pattern, documentation, flags=re.MULTILINE)
    }
    names = [name for name in GenerationConfig().to_dict() if not name.startswith(("_", "transformers_"))]
    options = []
    for name in names:
        kind, text = described.get(name, (Any, ""))
        annotation: Any = kind if kind is Any else kind | None
        if name == "early_stopping":
            annotation = bool | str | None  # also the text "never"
        options.append(Option("generation", name, annotation, None, text[:240]))
    return options


# ---- the file


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error."""


def _mapping_without_duplicates(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if isinstance(key, list | dict | set):
            raise yaml.MarkedYAMLError(problem="a key must be text", problem_mark=key_node.start_mark)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {key!r} stands twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_duplicates)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Reads a recipe file without interpreting its keys.

    Raises:
        RecipeError: if it does not exist, is not UTF-8, is not YAML, or is not a mapping.
    """
    path = Path(path)
    if not path.is_file():
        near = sorted(str(file) for file in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        there = f" There are {', '.join(near)}." if near else ""
        raise RecipeError(f"There is no recipe {path}.{there}")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # Without the original error, which shows lines of the file: a credential may stand there
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
    """Returns what is nested in a value of the command line, which `parse_text` reads with its type and its errors."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def refuse_credentials(content: Any, source: str) -> None:
    """Refuses tokens, passwords and keys: a run writes its recipe to files, logs and model cards, and uploads it.

    Raises:
        RecipeError: if there are any; the message names the keys and never shows a value.
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
        overrides: pairs of a key (``training.learning_rate`` or a bare key that only one section has) and the
            text of a value.

    Raises:
        RecipeError: on an unknown key, which suggests the nearest, or on a value of another type.
    """
    content = read_yaml(path) if path is not None else {}
    refuse_credentials(content, str(path))
    for key, text in overrides:
        refuse_credentials({key: _value_or_text(text)}, "the command line")
    model = next((text for key, text in reversed(overrides) if key == "model"), content.get("model", "csan"))
    model = model if isinstance(model, str) else repr(model)
    options = recipe_options(model)
    recipe = Recipe()
    _leave_out_foreign_fields(content, model, str(path))
    for option, value, where in _entries(content, options, str(path)):
        _set(recipe, option, convert(value, option.annotation, where))
    for key, text in overrides:
        option = find_option(key, options)
        _set(recipe, option, parse_text(text, option))
    return recipe


def _leave_out_foreign_fields(content: dict[str, Any], model: str, source: str) -> None:
    """Drops a section config that describes another family, and says so: the rest of a recipe fits them all.

    A single field of another family among this one's own is a mistake, and stays to be refused.
    """
    section = content.get("config")
    if not isinstance(section, dict):
        return
    own = {option.path for option in recipe_options(model)}
    others = {option.path for family in FAMILIES if family != model for option in recipe_options(family)}
    foreign = [name for name in section if f"config.{name}" in others - own]
    if foreign and not any(f"config.{name}" in own - others for name in section):
        content["config"] = {name: value for name, value in section.items() if name not in foreign}
        print(
            f"{source}: {', '.join(f'config.{name}' for name in foreign)} left out: no fields of {model}, whose "
            f"defaults are used (--help lists them).",
            file=sys.stderr,
        )


def _entries(content: dict[str, Any], options: Sequence[Option], source: str) -> list[tuple[Option, Any, str]]:
    """Pairs each value of a file with its option."""
    by_path = {option.path: option for option in options}
    entries = []
    for key, value in content.items():
        if key in SECTIONS:
            if value is not None and not isinstance(value, dict):
                raise RecipeError(f"{source}: the section {key} must hold keys and values, got {value!r}.")
            pairs = [(f"{key}.{name}", entry) for name, entry in (value or {}).items()]
        else:
            pairs = [(str(key), value)]
        for name, entry in pairs:
            if name not in by_path:
                raise RecipeError(f"{source}: {_unknown(name, options)}")
            entries.append((by_path[name], entry, f"{source}: {name}"))
    return entries


def find_option(key: str, options: Sequence[Option]) -> Option:
    """Finds the option that a command-line key means.

    Raises:
        RecipeError: if there is none (the message suggests the nearest) or if several sections have the key.
    """
    key = key.replace("-", "_")
    exact = [option for option in options if option.path == key]
    if exact:
        return exact[0]
    bare = [option for option in options if option.name == key]
    if len(bare) == 1:
        return bare[0]
    if bare:
        raise RecipeError(f"--{key} is ambiguous: write {' or '.join(f'--{option.path}' for option in bare)}.")
    raise RecipeError(_unknown(key, options))


def _unknown(key: str, options: Sequence[Option]) -> str:
    section, _, name = key.rpartition(".")
    for owner, names in _RESERVED.items():
        if name in names and section in (owner, ""):
            return f"{owner}.{name} cannot be set: {names[name]}."
    return f"unknown key {key}.{nearest(key, options)} (--help lists all keys)"


def _set(recipe: Recipe, option: Option, value: Any) -> None:
    if option.section:
        getattr(recipe, option.section)[option.name] = value
    else:
        setattr(recipe, option.name, value)


# ---- the command line


def split_command_line(arguments: Sequence[str]) -> tuple[str | None, list[tuple[str, str]], bool]:
    """Splits ``RECIPE.yaml --key value --key=value --flag``.

    Returns:
        The recipe's path or None, the overrides, and whether help was asked for.

    Raises:
        RecipeError: on a second file name or an argument that is neither a file nor an option.
    """
    recipe: str | None = None
    overrides: list[tuple[str, str]] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument in ("-h", "--help"):
            return recipe, overrides, True
        if argument.startswith("--"):
            key, equals, value = argument[2:].partition("=")
            if not equals:
                takes_value = bool(rest) and not rest[0].startswith("--")
                value = rest.pop(0) if takes_value else "true"
            overrides.append((key, value))
        elif argument.startswith("-") or recipe is not None:
            raise RecipeError(f"{argument!r} is not understood: pass one recipe, then --key value pairs.")
        else:
            recipe = argument
    return recipe, overrides, False


def format_help(model: str = "csan", *, program: str = "scripts/train.py") -> str:
    """Returns the usage and every key with its type, default and help."""
    lines = [
        f"usage: python {program} RECIPE.yaml [--key value ...]",
        "",
        "Trains the model that a recipe describes. Every key of a recipe can be overridden:",
        f"  python {program} scripts/recipes/numbers.yaml --training.learning_rate 1e-3 --local_window 5",
        "A key may be written without its section where only one section has it. Values are YAML.",
        "The same command again resumes an interrupted run; --overwrite starts anew.",
    ]
    titles = {"": "top of the file", "config": f"config ({get_family(model).config})"}
    for section in ("", *SECTIONS):
        lines += ["", f"{titles.get(section, section)}:"]
        for option in recipe_options(model):
            if option.section == section:
                default = "null" if option.default is None else getattr(option.default, "value", option.default)
                lines.append(f"  --{option.path}  ({describe_type(option.annotation)}; default {default})")
                lines += textwrap.wrap(option.help, 100, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines) + "\n"
