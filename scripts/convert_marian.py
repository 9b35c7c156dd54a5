"""Convert a Marian checkpoint to a CSAN for fine-tuning.

    python scripts/convert_marian.py Helsinki-NLP/opus-mt-de-en runs/opus-de-en-2d --local_window 11 --head_area 3

SOURCE is a directory or Hub name; DIRECTORY receives the self-contained checkpoint, with the tokenizer where there
is one. A tokenizer of the original Marian needs the package sentencepiece.
"""

import argparse
import sys
from pathlib import Path

from csan_hf.command_line import script
from csan_hf.data import TokenizerPair
from csan_hf.hub import convert_marian, save_self_contained


def load_tokenizers(source):
    try:
        return TokenizerPair.from_pretrained(source)
    except (OSError, ValueError, ImportError, TypeError) as error:
        print(f"{source}: no tokenizer to take along ({str(error).splitlines()[0]})", file=sys.stderr)
        return None


@script()
def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="directory or Hub name of a Marian checkpoint")
    parser.add_argument("directory", help="where to save the CSAN")
    parser.add_argument(
        "--local_window", type=int, help="window in tokens, odd, both edges included; default: unrestricted"
    )
    parser.add_argument("--head_area", type=int, default=1, help="heads attended to jointly, odd; default: 1")
    parser.add_argument("--localness_layers", type=int, nargs="*", help="local encoder layers, from 0")
    parser.add_argument("--decoder_localness_layers", type=int, nargs="*", help="local decoder layers, from 0")
    options = vars(parser.parse_args(arguments))
    source, directory = options.pop("source"), options.pop("directory")
    if Path(source).exists() and Path(source).resolve() == Path(directory).resolve():
        raise ValueError(f"{directory} is the checkpoint itself, which would be lost: choose another DIRECTORY")
    try:
        model = convert_marian(source, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error
    save_self_contained(model, load_tokenizers(source), directory)
    print(f"{directory}: CSAN with {model.num_parameters():,} parameters")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
