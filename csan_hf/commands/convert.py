# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Convert a Marian, M2M100 or NLLB checkpoint to a CSAN for fine-tuning.

    csan-hf convert Helsinki-NLP/opus-mt-de-en runs/opus-de-en-2d --local_window 11 --head_area 3
    csan-hf convert facebook/nllb-200-distilled-600M runs/nllb --local_window 11

SOURCE is a directory or Hub name; DIRECTORY receives the self-contained checkpoint, with the tokenizer where there
is one. Any field of `CsanConfig` is an option; values are YAML, and several values make a list:
`--localness_layers 0 1`, `--localness_window query`, `--encoder_locality '[{window: 5}, null, null]'`. Without options
locality is off. A tokenizer of the original Marian or of M2M100 needs the package sentencepiece.
"""

import argparse
import pkgutil
import sys
from pathlib import Path
from typing import Any

import yaml
from transformers import PreTrainedConfig, PreTrainedModel

from csan_hf.command_line import script
from csan_hf.data import TokenizerPair
from csan_hf.families import FAMILIES
from csan_hf.files import reading_folder_or_name
from csan_hf.hub import save_self_contained


def load_tokenizers(source: str) -> TokenizerPair | None:
    """Loads the tokenizers of a checkpoint; None, with a notice, where there are none."""
    try:
        return TokenizerPair.from_pretrained(source)
    except (OSError, ValueError, ImportError, TypeError) as error:
        print(f"{source} has no tokenizer, so none is saved ({str(error).splitlines()[0]})", file=sys.stderr)
        return None


def config_fields(words: list[str]) -> dict[str, Any]:
    """Reads "--name value" and "--name=value" as fields of the config; a field of layer numbers takes any number."""
    fields: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, *value = word[2:].split("=", 1)
            fields[name] = [yaml.safe_load(each) for each in value]
        elif not name:
            raise ValueError(f"{word!r} is neither SOURCE, DIRECTORY nor an option.")
        else:
            fields[name].append(yaml.safe_load(word))
    for name, values in fields.items():
        if name.endswith("localness_layers"):
            continue
        if len(values) != 1:
            raise ValueError(f"--{name} takes one value, got {len(values)}.")
        fields[name] = values[0]
    return fields


def convert(source: str, fields: dict[str, Any]) -> PreTrainedModel:
    """Converts a checkpoint by its `model_type`."""
    with reading_folder_or_name(source, "model"):
        model_type = PreTrainedConfig.get_config_dict(source)[0].get("model_type", "")
    converters = FAMILIES["csan"].converters
    if model_type not in converters:
        raise ValueError(f"a model of type {model_type!r} cannot be converted, only {', '.join(converters)}.")
    return pkgutil.resolve_name(converters[model_type])(source, **fields)


@script()
def main(arguments: list[str]) -> None:
    """Runs `csan-hf convert`."""
    parser = argparse.ArgumentParser(
        prog="csan-hf convert", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="directory or Hub name of a checkpoint")
    parser.add_argument("directory", help="where to save the CSAN")
    options, words = parser.parse_known_args(arguments)
    source, directory = options.source, options.directory
    if Path(source).exists() and Path(source).resolve() == Path(directory).resolve():
        raise ValueError(f"{directory} is the checkpoint itself, which would be lost: choose another DIRECTORY")
    try:
        model = convert(source, config_fields(words))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{source}: {error}") from error
    save_self_contained(model, load_tokenizers(source), directory)
    print(f"{directory}: CSAN with {model.num_parameters():,} parameters")
