# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Two runs in one folder: the second is refused, until the first has ended, however it ended."""

import errno
import multiprocessing
import os
import signal

import pytest

from csan_hf.training import load_recipe, output_folder
from csan_hf.training.output_folder import LOCK_FILE, lock_folder
from csan_hf.training.recipe import RecipeError
from csan_hf.training.run import train_from_recipe


def _hold(folder, connection, with_child):
    with lock_folder(folder):
        child = os.fork() if with_child else None
        if child == 0:
            signal.pause()
        connection.send(child)
        connection.recv()


@pytest.fixture
def hold(tmp_path):
    """Starts a process that holds a folder; if asked to, with a child, as a run with a data worker."""
    processes, children = [], []

    def start(folder, with_child=False):
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_hold, args=(folder, theirs, with_child))
        process.start()
        processes.append(process)
        children.append(ours.recv())
        return process, ours

    yield start
    for process in processes:
        process.kill()
        process.join()
    for child in filter(None, children):
        os.kill(child, signal.SIGKILL)


def test_a_second_run_is_refused_before_it_touches_anything(hold, tmp_path):
    folder = tmp_path / "run"
    process, ours = hold(folder)
    (folder / "results.json").write_text("{}")
    recipe = load_recipe("numbers", [("output_dir", str(folder)), ("overwrite", "true")])
    with pytest.raises(RecipeError, match=rf"run is in use by process {process.pid} on \S+ since 2\S+ .*--output_dir"):
        train_from_recipe(recipe)
    assert sorted(path.name for path in folder.iterdir()) == [LOCK_FILE, "results.json"]
    ours.send("leave")
    process.join()
    assert not (folder / LOCK_FILE).exists()
    with lock_folder(folder):
        pass


def test_kill_9_gives_the_folder_back_though_a_data_worker_lives_on(hold, tmp_path):
    process, _ = hold(tmp_path, with_child=True)
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
