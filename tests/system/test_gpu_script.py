# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A rehearsal on a CPU: every stage of scripts/gpu.py runs, measures and writes its rows."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
# What a CPU has not: FlashAttention's sliding window, and the backward pass of FlexAttention
MISSING_ON_A_CPU = (
    "_flash_attention_forward",
    "needs a GPU from Ampere on",
    "no backward on CPU",
    "backward on CPU",
)


def test_the_rehearsal_runs_every_stage(tmp_path):
    output = tmp_path / "rows.json"
    arguments = ["--device", "cpu", "--tiny", "--only", "csan_2d|RNN|flex", "--output", str(output)]
    subprocess.run([sys.executable, str(SCRIPTS / "gpu.py"), *arguments], check=True, timeout=600)
    records = json.loads(output.read_text())
    stages = {record["stage"]: record["rows"] for record in records}
    assert len(stages) == 12
    for stage, rows in stages.items():
        assert rows, stage
        errors = [row["error"] for row in rows if "error" in row]
        for error in errors:
            assert any(words in error for words in MISSING_ON_A_CPU), (stage, error)
    assert {row["rounding alone"] for row in stages["numerics"]} == {"yes"}
    assert all(row["beam 4"] == 1.0 for row in stages["tokens"])
    assert max(row["output"] for row in stages["flex"]) < 1e-5
    assert records[0]["machine"]["torch"]
