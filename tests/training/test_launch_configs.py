# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The launch configurations beside the recipes: accelerate reads them and starts what they say."""

import subprocess
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

FOLDER = Path(__file__).parents[2] / "scripts" / "recipes" / "accelerate"
CONFIGS = sorted(FOLDER.glob("*.yaml"))


def launch(path):
    """What `accelerate launch` makes of a configuration: its arguments and the environment of the processes."""
    command = ["--config_file", str(path), "-m", "csan_hf", "train", "RECIPE.yaml", "--output_dir", "runs/x"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(command))
    return args, prepare_multi_gpu_env(args)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_reads_and_launches_it(path):
    config = load_config_from_file(str(path))
    assert config.num_processes in (2, 8, 32)
    args, environment = launch(path)
    assert (args.module, args.training_script) == (True, "csan_hf")
    assert args.training_script_args == ["train", "RECIPE.yaml", "--output_dir", "runs/x"]
    assert args.multi_gpu or args.use_fsdp  # what makes accelerate start more than one process
    assert args.nproc_per_node == str(config.num_processes // config.num_machines)
    assert environment["ACCELERATE_MIXED_PRECISION"] == config.mixed_precision


def test_the_fsdp_configuration_asks_for_fsdp2_and_complete_checkpoints():
    environment = launch(FOLDER / "fsdp_1_node_8_gpus.yaml")[1]
    asked = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}
    assert asked.items() | {("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP")} <= environment.items()


def test_the_slurm_script_is_valid_shell_and_sets_the_signal_first():
    subprocess.run(["bash", "-n", FOLDER / "slurm.sbatch"], check=True)
    text = (FOLDER / "slurm.sbatch").read_text()
    commands = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert text.index("#SBATCH --signal") < text.index(commands[0])  # SLURM stops reading options at the first command
