# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Convert a checkpoint of the Pervasive Attention authors' 2018 code (elbayadm/attn2d).

    csan-hf convert-attn2d save/l24/model-best.pth runs/l24

CHECKPOINT is what their trainer saved, model.pth or model-best.pth; DIRECTORY receives the self-contained checkpoint.
Their vocabularies lie beside the data, not in the checkpoint, so no tokenizer is saved.
"""

import argparse

from csan_hf.command_line import script
from csan_hf.hub import convert_attn2d, save_self_contained


@script()
def main(arguments: list[str]) -> None:
    """Runs `csan-hf convert-attn2d`."""
    parser = argparse.ArgumentParser(
        prog="csan-hf convert-attn2d", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="file with a state dict")
    parser.add_argument("directory", help="where to save the model")
    parser.add_argument(
        "--aggregation",
        default="max",
        help="their aggregator.mode: max (the default), truncated-max or truncated-mean",
    )
    parser.add_argument("--pad_token_id", type=int, default=0, help="their <PAD>; default: 0")
    parser.add_argument("--eos_token_id", type=int, default=2, help="their <EOS>; default: 2")
    parser.add_argument("--decoder_start_token_id", type=int, default=3, help="their <BOS>; default: 3")
    options = vars(parser.parse_args(arguments))
    checkpoint, directory = options.pop("checkpoint"), options.pop("directory")
    try:
        model = convert_attn2d(checkpoint, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"{checkpoint}: {error}") from error
    save_self_contained(model, None, directory)
    print(f"{directory}: Pervasive Attention with {model.num_parameters():,} parameters")
