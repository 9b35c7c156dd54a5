# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""--overwrite deletes what a run of ours wrote and nothing else ever; a folder has one run at a
time.
"""

import contextlib
import errno
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest
from system.training.tiny_runs import TINY, parse

from csan_hf.training import output_folder
from csan_hf.training.errors import RecipeError
from csan_hf.training.output_folder import (
    LOCK_FILE,
    MARK,
    begin_run,
    check_output_folder,
    lock_folder,
)
from csan_hf.training.run import train_from_recipe


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def old_run(tmp_path):
    """A folder that a run made, with a note of its user."""
    output = tmp_path / "run"
    names = (
        "recipe.yaml README.md model.safetensors checkpoint-5/model.safetensors runs/log "
        "tokenizer.json note"
    )
    for name in names.split():
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text(f"old {name}")
    (output / MARK).write_text("")
    return output


def make_recipe(output, words="--overwrite"):
    return parse(f"{TINY} --output_dir {output} {words}")


@pytest.mark.parametrize("words", ["--overwrite", "", "--resume false"])
def test_what_no_run_of_ours_wrote_is_not_touched(words, tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "notes").write_text("mine")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        RecipeError,
        match=r"holds README.md.*no mark of a run \(.csan_hf_run\).*nothing was changed",
    ):
        train_from_recipe(make_recipe(".", words))
    assert contents(tmp_path) == {"README.md": "mine", "runs/notes": "mine"}


def test_a_new_run_that_does_not_begin_leaves_the_old_one(old_run):
    before = contents(old_run)
    with pytest.raises(RecipeError, match="The data cannot be used"):
        train_from_recipe(make_recipe(old_run, "--overwrite --max_source_length 2"))
    assert contents(old_run) == before


@pytest.mark.parametrize("key", ["init_from", "teachers"])
@pytest.mark.parametrize("initial", ["run", "run/checkpoint-5", ".", "link"])
def test_the_folder_of_a_model_that_is_read_is_not_overwritten(initial, key, old_run):
    (old_run.parent / "link").symlink_to(old_run)
    before = contents(old_run)
    with pytest.raises(RecipeError, match=f"{key} reads .*would write over what it reads"):
        train_from_recipe(make_recipe(old_run, f"--overwrite --{key} {old_run.parent / initial}"))
    assert contents(old_run) == before


def test_overwrite_deletes_what_a_run_wrote_and_nothing_else(old_run, tmp_path):
    elsewhere = tmp_path / "elsewhere" / "optimizer.pt"
    elsewhere.parent.mkdir()
    elsewhere.write_text("mine")
    (old_run / ".locality.png.de1a4f6e8b22").write_text("of a writer that was killed")
    (old_run / ".pushed-abc").mkdir()
    (old_run / "checkpoint-6").symlink_to(elsewhere.parent)  # of which the link alone is deleted
    begin_run(make_recipe(old_run), old_run)
    assert sorted(path.name for path in old_run.iterdir()) == [MARK, "note", "recipe.yaml"]
    assert "train_size: 200" in (old_run / "recipe.yaml").read_text()
    assert elsewhere.read_text() == "mine"


def test_another_run_within_a_folder_is_not_deleted(old_run):
    inner = old_run / "runs" / "inner"
    inner.mkdir(parents=True)
    (inner / MARK).touch()
    with pytest.raises(
        RecipeError, match=r"runs holds another run, which would be deleted: move it"
    ):
        train_from_recipe(make_recipe(old_run))
    assert (inner / MARK).is_file()
    elsewhere = shutil.move(old_run / "runs", old_run.parent / "elsewhere")
    (old_run / "runs").symlink_to(elsewhere)  # of which the link alone is deleted
    check_output_folder(make_recipe(old_run), old_run)


def test_a_file_is_no_folder_for_a_run(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RecipeError, match=r"mine cannot be written to \(it is a file\)"):
        train_from_recipe(make_recipe(tmp_path / "mine"))


def test_the_lock_is_not_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_FILE).symlink_to(tmp_path / "mine")
    with pytest.raises(RecipeError, match="cannot be written to"):
        train_from_recipe(make_recipe(tmp_path / "run"))
    assert (tmp_path / "mine").read_text() == "mine"


# ---- two runs in one folder: the second is refused, until the first has ended, however it ended


def _hold(folder, connection, with_child):
    with lock_folder(folder):
        child = os.fork() if with_child else None
        if child == 0:
            signal.pause()
        connection.send(child)
        connection.recv()


@contextlib.contextmanager
def held(folder, with_child=False):
    """Yields a process that holds a folder, with a child if asked to, like a data worker."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(folder, theirs, with_child))
    process.start()
    child = ours.recv()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        if child:
            os.kill(child, signal.SIGKILL)


def test_a_second_run_is_refused_before_it_touches_anything(tmp_path):
    folder = tmp_path / "run"
    with held(folder) as (process, ours):
        (folder / "results.json").write_text("{}")
        with pytest.raises(
            RecipeError, match=rf"in use by process {process.pid} on \S+ since 2\S+ .*--output_dir"
        ):
            train_from_recipe(make_recipe(folder))
        assert sorted(path.name for path in folder.iterdir()) == [LOCK_FILE, "results.json"]
        ours.send("leave")
        process.join()
        assert not (folder / LOCK_FILE).exists()
    with lock_folder(folder):
        pass


def test_kill_9_gives_the_folder_back_though_a_data_worker_lives_on(tmp_path):
    with held(tmp_path, with_child=True) as (process, _):
        process.kill()
        process.join()
        assert (tmp_path / LOCK_FILE).exists()
        with lock_folder(tmp_path):
            assert f"process {os.getpid()} on" in (tmp_path / LOCK_FILE).read_text()
        assert not (tmp_path / LOCK_FILE).exists()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, capsys):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(output_folder.fcntl, "lockf", refuse)
    with lock_folder(tmp_path):
        assert "a file system without locks (No locks available)" in capsys.readouterr().err
