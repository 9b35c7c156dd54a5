# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Uploading checkpoints, checked before they leave."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import filter_repo_objects
from transformers import PreTrainedModel
from yaml import YAMLError

from ..data.tokenization import Tokenizers
from ..models.seq2seq_model import TARGET_TOKENIZER_SUBFOLDER
from .checkpoint import save_self_contained
from .model_card import card_problems, task_of, write_model_card
from .public_files import (
    IncompleteCheckpointError,
    foreign_code,
    public_content,
    public_files,
    read_json,
)

PUSHED = ".pushed-"
"""Begins the names of folders in a run with what is being uploaded."""

# Files that the library's own pushes may have left in a repository, which must
# not stay public
_NOT_PUBLIC = [
    "training_args.bin",
    "checkpoint-*/*",
    "last-checkpoint/*",
    "runs/*events.out.*",
    "evaluation/scores.json",  # of csan_hf, with the model's path
    "evaluation/forced.json",
    "optimizer.pt",
    "optimizer.bin",
    "scaler.pt",
    "scheduler.pt",
    "rng_state*.pth",
    "complete.json",
    "trainer_state.json",
]

# Environment variables with the login of the Hub, which the check does not need
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")

# Runs where csan_hf cannot be imported; a random model may translate into nothing, so only failures
# count
_LOADS_ALONE = """
import sys
sys.modules["csan_hf"] = None
from transformers import AutoConfig, AutoTokenizer, pipeline
import transformers
directory, task = sys.argv[1:]
config = AutoConfig.from_pretrained(directory, trust_remote_code=True)
for name, reference in getattr(config, "auto_map", {"AutoModelForSeq2SeqLM": ""}).items():
    # A classifier has no decoder, whose weights the other classes would miss
    whole = task == "translation" or reference.split(".")[-1] in config.architectures
    if name.startswith("AutoModel") and whole:
        getattr(transformers, name).from_pretrained(directory, trust_remote_code=True)
AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
options = {"max_new_tokens": 2} if task == "translation" else {}
if task != "translation" or getattr(config, "custom_pipelines", None):
    pipeline(task, model=directory, trust_remote_code=True, device="cpu")("a", **options)
"""


def check_checkpoint(
    directory: str | os.PathLike, *, load: bool = True, trust_remote_code: bool = False
) -> None:
    """Checks that a folder holds all that a shared checkpoint needs.

    Args:
        directory: The folder.
        load: Whether to load every class of what would be uploaded, and to translate, in a fresh
            process without csan_hf.
        trust_remote_code: Whether code in the checkpoint that is not this version's of csan_hf may
            run.

    Raises:
        IncompleteCheckpointError: Something is missing, must not be uploaded or does not load; the
            message says what.
        ValueError: Loading would run code that is not trusted; none did run.
    """
    directory = Path(directory)
    config = read_json(directory / "config.json")
    task = task_of(config)
    needed = ["config.json", "tokenizer_config.json", "README.md"]
    if config.get("custom_pipelines"):  # of models that translate
        needed.append("generation_config.json")
        if config.get("share_encoder_decoder_embeddings") is False:
            needed.append(f"{TARGET_TOKENIZER_SUBFOLDER}/tokenizer_config.json")
    problems = [f"{name} is missing" for name in needed if not (directory / name).is_file()]
    if not problems:
        try:
            card = ModelCard.load(directory / "README.md")
            for problem in card_problems(card, pipeline_tag=task):
                problems.append(f"README.md: {problem}")
            additions_of(directory)
        except FileNotFoundError as error:
            problems.append(f"{Path(error.filename).name} is missing, which other code imports")
        except UnicodeDecodeError as error:
            problems.append(f"README.md is not UTF-8: {error}")
        except YAMLError as error:
            problems.append(f"README.md has no valid metadata: {error}")
    # An ensemble brings no code and needs csan_hf
    if not problems and load and config.get("model_type") != "ensemble":
        if not trust_remote_code and (foreign := foreign_code(directory)):
            raise ValueError(
                f"{directory}: the check would run code that is not that of this csan_hf "
                f"({', '.join(foreign)}): pass --trust_remote_code, in Python "
                "trust_remote_code=True, if you trust it."
            )
        failure = _load_alone(public_files(directory), task)
        if failure is not None:
            problems.append(f"it does not load where only transformers is installed: {failure}")
    if problems:
        raise IncompleteCheckpointError(
            f"{directory} cannot be shared:\n- "
            + "\n- ".join(problems)
            + "\n`save_self_contained` of csan_hf.hub "
            "writes weights, code and tokenizers, `write_model_card` the card."
        )


def _load_alone(files: Mapping[str, Path], task: str) -> str | None:
    """Loads what would be uploaded and nothing beside it; returns the last line of an error."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "checkpoint")
        for name, path in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(path.resolve())
        environment = {**os.environ, "HF_HOME": home, "HF_HUB_OFFLINE": "1"}
        for name in _TOKENS:
            environment.pop(name, None)
        command = [sys.executable, "-c", _LOADS_ALONE, str(folder), task]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=home
        )
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or ["no message"])[-1]


def push_checkpoint(
    directory: str | os.PathLike,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    commit_message: str = "Upload a checkpoint of csan_hf",
    check: bool = True,
    trust_remote_code: bool = False,
) -> CommitInfo:
    """Uploads a self-contained checkpoint, as `csan-hf train` or `save_self_contained` writes it.

    A second commit makes the card load the first one, which is returned: without a revision
    transformers warns of each file of code that it downloads.

    Args:
        directory: The folder, with a model card in `README.md`.
        repo_id: `owner/name`; created if missing.
        private: Whether a new repository is private; None = the account's default.
        token: A write token; None = the one of `hf auth login`.
        revision: Branch, created if missing; None = main.
        commit_message: The commit's message.
        check: Whether to refuse an incomplete checkpoint (`check_checkpoint`).
        trust_remote_code: See `check_checkpoint`.

    Raises:
        IncompleteCheckpointError: The checkpoint is incomplete, or holds what must not be uploaded;
            nothing was.
        ValueError: See `check_checkpoint`.
        huggingface_hub.errors.HfHubHTTPError: The Hub refused.
        ConnectionError: The Hub is out of reach.
    """
    if check:
        check_checkpoint(directory, trust_remote_code=trust_remote_code)
    additions = additions_of(Path(directory))
    api = HfApi(token=token)
    try:
        # With the user's name, where that is left out
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        _make_branch(api, repo_id, revision)
        private_files = filter_repo_objects(
            api.list_repo_files(repo_id, revision=revision), allow_patterns=_NOT_PUBLIC
        )
        operations: Any = [*additions, *map(CommitOperationDelete, private_files)]
        commit = api.create_commit(
            repo_id, operations, revision=revision, commit_message=commit_message
        )
        for addition in additions:
            if addition.path_in_repo == "README.md":
                api.create_commit(
                    repo_id,
                    [_pinned_card(addition, repo_id, commit.oid)],
                    revision=revision,
                    commit_message="Card with the revision to load",
                )
        return commit
    except HTTPError as error:
        if isinstance(error, OSError):  # an answer of the Hub
            raise
        raise ConnectionError(
            f"The Hub cannot be reached, {directory} was not uploaded: {error}"
        ) from error


def _make_branch(api: HfApi, repo_id: str, revision: str | None) -> None:
    """Makes a branch where there is none, but for a pull request, which the Hub makes."""
    if revision is not None and not revision.startswith("refs/"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)


def _pinned_card(card: CommitOperationAdd, repo_id: str, commit: str) -> CommitOperationAdd:
    """The card with its calls pinned to this commit, of which the library does not warn."""
    with card.as_file() as file:
        text = file.read().decode("utf-8")
    call = rf'\1"{repo_id}", revision="{commit}"'
    pinned = re.sub(r'(pipeline\("[\w-]+", model=)"[^"]*"', call, text)
    return CommitOperationAdd(card.path_in_repo, pinned.encode())


def additions_of(directory: Path, recipe: Path | None = None) -> list[CommitOperationAdd]:
    """Returns the additions of a commit for the folder of a run or checkpoint: public files with
    public content.

    `recipe` is that of the run; None = the one in the folder. Raises `PrivateContentError` as
    `public_files` does."""
    uploads = []
    for name, path in public_files(directory).items():
        content = public_content(directory, name, path, recipe or directory / "recipe.yaml")
        uploads.append(CommitOperationAdd(name, path if content is None else content))
    return uploads


def push_in_background(
    checkpoint: Path,
    repo_id: str,
    *,
    token: str | None,
    revision: str | None,
    commit_message: str,
) -> Future[CommitInfo]:
    """Uploads the public files of a checkpoint while training goes on, which may delete it before
    the upload ends.

    Args:
        checkpoint: The folder of a checkpoint within that of its run.
        repo_id: `owner/name`, which exists.
        token: See `push_checkpoint`, as for `revision` and `commit_message`.
    """
    run = checkpoint.resolve().parent
    with ExitStack() as stack:
        where = tempfile.TemporaryDirectory(prefix=PUSHED, dir=run, ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(where), "checkpoint")
        for name, path in public_files(checkpoint).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path.resolve(), folder / name)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, folder / name)
        api = HfApi(token=token)
        additions = additions_of(folder, run / "recipe.yaml")

        def upload() -> CommitInfo:
            _make_branch(api, repo_id, revision)
            return api.create_commit(
                repo_id, additions, revision=revision, commit_message=commit_message
            )

        job = api.run_as_future(upload)
        kept = stack.pop_all()
    job.add_done_callback(lambda _: kept.close())
    return job


def push_to_hub(
    model: PreTrainedModel,
    tokenizers: Tokenizers | None,
    repo_id: str,
    *,
    recipe: dict[str, Any] | None = None,
    results: dict[str, Any] | None = None,
    **options: Any,
) -> CommitInfo:
    """Uploads a model in memory: weights, config, code, tokenizers, translation pipeline and card.

    Args:
        model: A model of csan_hf: one that translates, or a classifier.
        tokenizers: Its tokenizer or `TokenizerPair`.
        repo_id: `owner/name`.
        recipe: For the card; see `write_model_card`.
        results: For the card; see `write_model_card`.
        options: Further arguments of `push_checkpoint`.

    Raises:
        IncompleteCheckpointError: The checkpoint does not load by itself; nothing was uploaded.
    """
    with tempfile.TemporaryDirectory() as temporary:
        directory = save_self_contained(model, tokenizers, Path(temporary) / repo_id.split("/")[-1])
        card_recipe: dict[str, Any] = {
            "name": directory.name,
            "model": model.config.model_type,
            "training": {"hub_model_id": repo_id},
        }
        card_results = {"model": type(model).__name__, "parameters": model.num_parameters()}
        write_model_card(directory, card_recipe | (recipe or {}), card_results | (results or {}))
        # The code of the model, which runs here
        return push_checkpoint(directory, repo_id, trust_remote_code=True, **options)
