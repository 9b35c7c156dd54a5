# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf convert`, `export-onnx` and `push`: checkpoints from elsewhere or on their way there."""

import logging
import operator
import pkgutil
import sys
from pathlib import Path
from typing import Any, Literal

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from csan_hf import hub
from csan_hf.data import TokenizerPair
from csan_hf.evaluation import torch_engine
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.families import FAMILIES
from csan_hf.hub.public_files import public_files
from csan_hf_runtime.text_files import check_new_directory, read_lines, reading_folder_or_name
from csan_hf_runtime.translator import TextTranslator


def convert(source: str, directory: Path, /, **fields: Any) -> None:
    """Convert a Marian, M2M100, NLLB, BART or mBART checkpoint to a CSAN for fine-tuning.

        csan-hf convert Helsinki-NLP/opus-mt-de-en runs/opus-de-en-2d --head_area 3
        csan-hf convert facebook/nllb-200-distilled-600M runs/nllb --head_area 3

    Any field of `CsanConfig` is an option (`csan-hf train --help config` explains them). Values are
    YAML, and several values make a list: `--localness_layers 0 1`, `--localness_window query`,
    `--encoder_locality '[{window: 5}, null, null]'`. Without options locality is off.

    Args:
        source: directory or Hub name of a checkpoint
        directory: where to save the self-contained CSAN, with the tokenizer if there is one; new
            or empty
    """
    check_new_directory(directory)
    for name, value in fields.items():
        if name.endswith("localness_layers") and value is not None and not isinstance(value, list):
            fields[name] = [value]
    try:
        with reading_folder_or_name(source, "model"):
            model_type = PreTrainedConfig.get_config_dict(source)[0].get("model_type", "")
        converters = FAMILIES["csan"].converters
        if not model_type:
            raise ValueError(
                "it has no config.json of a model: save an adapter's model, after "
                "merge_and_unload(), and convert that."
            )
        if model_type not in converters:
            raise ValueError(
                f"a model of type {model_type!r} cannot be converted, only {', '.join(converters)}."
            )
        model = pkgutil.resolve_name(converters[model_type])(source, **fields)
    except (OSError, ValueError, RuntimeError, StrictDataclassError) as error:
        raise ValueError(f"{source}: {error}") from error
    try:
        tokenizers = TokenizerPair.from_pretrained(source)
    except (OSError, ValueError, ImportError, TypeError) as error:
        print(
            f"{source} has no tokenizer, so none is saved ({str(error).splitlines()[0]})",
            file=sys.stderr,
        )
        tokenizers = None
    hub.save_self_contained(model, tokenizers, directory)
    print(f"{directory}: CSAN with {model.num_parameters():,} parameters")


def export_onnx(
    model: str,
    directory: str,
    /,
    *,
    precision: Literal["float32", "float16", "int8"] = "float32",
    with_alignments: bool = False,
    check: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Export a checkpoint to ONNX, for ONNX Runtime.

        csan-hf export-onnx runs/numbers runs/numbers-onnx --precision int8

    Needs `pip install '.[onnx]'` in a checkout. DIRECTORY receives the graphs of encoder and
    decoder (files named as optimum's), the config and the tokenizers. Translate with `csan-hf
    translate --model DIRECTORY`, which does not need torch.

    Args:
        directory: where to save the graphs; new or empty
        precision: format of the weights; int8 also computes in integers, float16 computes in
            float32
        with_alignments: let the graphs give the attention to the source, too, which alignments,
            markup and coverage are read from
        check: text, one sentence per line, to translate with torch and with the graphs; the number
            of equal translations is printed
    """
    from csan_hf.hub import onnx  # which needs an extra

    lines = list(read_lines(check)) if check else []
    network, tokenizers = load_translation_model(
        model, device="cpu", trust_remote_code=trust_remote_code
    )
    # It says of each graph that torchvision is missing, which no model needs
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    onnx.export_onnx(
        network,
        directory,
        precision=precision,
        with_attention=with_alignments,
        tokenizers=tokenizers,
    )
    print(f"{directory}: {type(network).__name__} as ONNX graphs, {precision}")
    if not lines:
        return
    translations = []
    engine = torch_engine(network, tokenizers)
    for translator in (TextTranslator(engine), TextTranslator.from_directory(directory)):
        translations.append([several[0].text for several in translator.translate(lines)])
    equal = sum(map(operator.eq, *translations))
    print(f"{equal} of {len(lines)} translations are the same")


def push(
    directory: str,
    repo_id: str,
    /,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "Upload a checkpoint of csan_hf",
    check_only: bool = False,
    trust_remote_code: bool = False,
) -> None:
    """Upload the folder of a run, or any self-contained checkpoint, to the Hub.

        csan-hf push runs/numbers NAME/numbers-en-de

    The folder is checked first, in a process that cannot import csan_hf; an incomplete one is
    refused, with what is missing. Training checkpoints and logs are not uploaded. Log in
    with `hf auth login`, or set HF_TOKEN.

    Args:
        directory: folder of the checkpoint
        repo_id: OWNER/NAME of the repository, created if missing
        private: make a new repository private
        revision: branch to commit to (default: main)
        message: message of the commit
        check_only: check the folder, list what would be uploaded and upload nothing
        trust_remote_code: let the check run code of the checkpoint that is not csan_hf's own, or
            another version's
    """
    hub.check_checkpoint(directory, trust_remote_code=trust_remote_code)
    if check_only:
        for name, path in sorted(public_files(Path(directory)).items()):
            print(f"{path.stat().st_size:>13,}  {name}")
        print(f"{directory} is complete; these files, sizes in bytes, would be uploaded.")
        return
    commit = hub.push_checkpoint(
        directory, repo_id, private=private, revision=revision, commit_message=message, check=False
    )
    print(commit.commit_url)
    print(
        f'It loads with {repo_id!r}, revision="{commit.oid}", trust_remote_code=True: its card has '
        "the lines."
    )
