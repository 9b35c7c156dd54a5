# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What each of two launched processes does for `test_processes.py`; the argument is the folder that
both share.

The folder holds a tokenizer, tokenized data and models; every process adds a file `found-RANK.pt`.
"""

import itertools
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict
from transformers import AutoModelForSeq2SeqLM

import csan_hf  # noqa: F401  (registers the families)
import csan_hf_runtime.command_line
from csan_hf.data import DataArguments, TokenizerPair, TokenStream
from csan_hf.evaluation import translate
from csan_hf.hub import locality_picture
from csan_hf.training import TranslationTrainer, callbacks, load_recipe, loss
from csan_hf.training.teachers import teach
from csan_hf_runtime.command_line.train import read_command_line

UPDATES, ACCUMULATION = 3, 2
loss.PIECE_ON_CPU = 10_000  # logits; so that every batch has several pieces
SIZES = (1, 7, 11)


def make_trainer(
    folder: Path,
    family: str,
    stream: TokenStream | None = None,
    *,
    accumulation: int = ACCUMULATION,
    teacher: str | None = None,
) -> TranslationTrainer:
    """A trainer whose updates are plain gradient steps, so that too large a gradient shows."""
    data = DatasetDict.load_from_disk(str(folder / "data"))
    words = (
        f"--output_dir {folder}/trainer --max_steps {UPDATES} --max_tokens 400 --max_cells 3000 "
        f"--gradient_accumulation_steps {accumulation} --optim sgd --learning_rate 0.1 "
        "--lr_scheduler_type constant --max_grad_norm 0 --per_device_eval_batch_size 4 --bf16 false "
        "--logging_steps 1 --eval_strategy no --save_strategy no --report_to none --disable_tqdm"
    )
    if teacher is not None:
        words += f" --teachers [{folder}/{teacher}]"
    _, settings, _ = read_command_line(words.split())
    arguments = load_recipe(None, settings).training_arguments()
    tokenizers = TokenizerPair.from_pretrained(str(folder / "tokenizer"))
    pairs = stream or data["train"]
    if teacher is not None:
        pairs, _ = teach(data["train"], arguments, tokenizers, cache=folder / "cache")
    return TranslationTrainer(
        AutoModelForSeq2SeqLM.from_pretrained(folder / family),
        arguments,
        tokenizers=tokenizers,
        train_dataset=pairs,
    )


def read_stream(folder: Path) -> list[str]:
    """Sources of this process's half of a pass over a stream of 40 pairs."""
    tokenizers = TokenizerPair.from_pretrained(str(folder / "tokenizer"))
    args = DataArguments(streaming=True, data_dir=str(folder), train="train.{lang}", buffer_size=10)
    stream = TokenStream(args, tokenizers, sample=read_test_set(folder, 1))
    trainer = make_trainer(folder, "csan", stream)
    sources: list[str] = []
    for batch in trainer.get_train_dataloader():
        sources += trainer.decode(batch["input_ids"])
        if len(sources) >= 20:
            break
    return sources


def read_test_set(folder: Path, size: int) -> Dataset:
    return DatasetDict.load_from_disk(str(folder / "data"))["test"].select(range(size))


def evaluate(trainer: TranslationTrainer, folder: Path) -> dict:
    """Hypotheses and loss of test sets of several sizes."""
    return {
        size: trainer.translate_dataset(read_test_set(folder, size), num_beams=2) for size in SIZES
    }


def translate_all(trainer: TranslationTrainer, folder: Path, processes=None) -> dict:
    """Translations of test sets of several sizes."""
    options = {"max_batch_tokens": 40, "processes": processes}
    sources = {size: read_test_set(folder, size)["source"] for size in SIZES}
    return {
        size: translate(trainer.model, trainer.tokenizers, list(sources[size]), **options)
        for size in SIZES
    }


def work(folder: Path, family: str) -> dict:
    trainer = make_trainer(folder, family)
    batches = list(itertools.islice(trainer.get_train_dataloader(), UPDATES * ACCUMULATION))
    results = {
        "evaluated": evaluate(trainer, folder),
        "translated": translate_all(trainer, folder, PartialState()),
    }
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    results |= {"batches": batches, "losses": losses, "weights": trainer.model.state_dict()}
    if family == "pervasive_attention":
        norm = trainer.model.model.decoder.dense_block.feature_norm
        results["shares"] = norm.process_group is torch.distributed.group.WORLD
    return results


def train_student(folder: Path, *, accumulation: int) -> dict:
    """Weights of one family after training with a teacher of another."""
    trainer = make_trainer(folder, "csan", accumulation=accumulation, teacher="pervasive_attention")
    trainer.train()
    return trainer.model.state_dict()


def main(folder: Path, arguments: list[str]) -> None:
    results = {family: work(folder, family) for family in ("csan", "pervasive_attention")}
    results["stream"] = read_stream(folder)
    results["student"] = train_student(folder, accumulation=ACCUMULATION)
    torch.save(results, folder / f"found-{PartialState().process_index}.pt")
    PartialState().wait_for_everyone()
    # the end of the run draws the picture that is looked for
    callbacks.draw_training = locality_picture.draw_locality = lambda what, path, *search: None
    sys.exit(csan_hf_runtime.command_line.main(["train", *arguments]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
