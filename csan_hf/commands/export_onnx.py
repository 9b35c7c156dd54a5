# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Export a checkpoint to ONNX, for ONNX Runtime.

    csan-hf export-onnx runs/numbers runs/numbers-onnx --precision int8

DIRECTORY receives the graphs of encoder and decoder, config and tokenizers. `csan_hf.hub.onnx.OnnxTranslationModel`
translates with them; `--check FILE` translates the lines of a file with both and counts equal translations.
"""

import argparse
from typing import Any

from transformers import PreTrainedModel

from csan_hf.command_line import script
from csan_hf.data import TokenizerPair
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.files import read_lines
from csan_hf.hub.onnx import OnnxTranslationModel, export_onnx
from csan_hf.pipelines import TextTranslationPipeline


def compare(model: PreTrainedModel, tokenizers: TokenizerPair, directory: str, lines: list[str]) -> int:
    """Number of lines that are translated alike."""
    translations = []
    models: list[Any] = [model, OnnxTranslationModel.from_directory(directory)]
    for each in models:
        pair: Any = {"tokenizer": tokenizers.source, "target_tokenizer": tokenizers.target}
        results = TextTranslationPipeline(model=each, **pair, device="cpu")(lines, batch_size=16)
        translations.append([result["translation_text"] for result in results])
    return sum(here == there for here, there in zip(*translations, strict=True))


@script({ImportError: 2})
def main(arguments: list[str]) -> None:
    """Runs `csan-hf export-onnx`."""
    parser = argparse.ArgumentParser(
        prog="csan-hf export-onnx", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="checkpoint folder or Hub name")
    parser.add_argument("directory", help="where to save the graphs; new or empty")
    parser.add_argument("--precision", choices=["float32", "int8"], default="float32", help="(default: %(default)s)")
    parser.add_argument("--check", metavar="FILE", help="text to translate with both, one sentence per line")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code from the checkpoint")
    options = parser.parse_args(arguments)
    lines = list(read_lines(options.check)) if options.check else []
    model, tokenizers = load_translation_model(
        options.model, device="cpu", trust_remote_code=options.trust_remote_code
    )
    export_onnx(model, options.directory, precision=options.precision, tokenizers=tokenizers)
    print(f"{options.directory}: {type(model).__name__} as ONNX graphs, {options.precision}")
    if lines:
        print(f"{compare(model, tokenizers, options.directory, lines)} of {len(lines)} translations are the same")
