# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Upload the folder of a run, or any self-contained checkpoint, to the Hub.

    csan-hf push runs/numbers NAME/numbers-en-de

The folder is checked first, in a process that cannot import csan_hf; an incomplete one is refused, with what is
missing. Checkpoints of the training and logs are not uploaded. Log in with `hf auth login`, or set HF_TOKEN.
"""

import argparse

from csan_hf.command_line import script
from csan_hf.hub import check_checkpoint, push_checkpoint


@script()
def main(arguments: list[str]) -> None:
    """Runs `csan-hf push`."""
    parser = argparse.ArgumentParser(
        prog="csan-hf push", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", help="folder of the checkpoint")
    parser.add_argument("repo_id", help="OWNER/NAME of the repository, created if missing")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument("--revision", help="branch to commit to (default: main)")
    parser.add_argument("--message", default="Upload a checkpoint of csan_hf", help="message of the commit")
    parser.add_argument("--check_only", action="store_true", help="check the folder and upload nothing")
    args = parser.parse_args(arguments)
    check_checkpoint(args.directory)
    if args.check_only:
        print(f"{args.directory} is complete.")
        return
    commit = push_checkpoint(
        args.directory,
        args.repo_id,
        private=args.private,
        revision=args.revision,
        commit_message=args.message,
        check=False,
    )
    print(commit.commit_url)
