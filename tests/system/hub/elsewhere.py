# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Fresh processes that do not find csan_hf, and the code of model cards that runs in them."""

import os
import re
import subprocess
import sys


def run_elsewhere(folder, *arguments, **environment):
    """Output and warnings of Python, run in a folder, with a cache of its own beside it."""
    environment = {"HF_HOME": f"{folder}/home", "HF_HUB_OFFLINE": "1", **environment}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=inherited | environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def card_code(text):
    """The code of a card: three lines."""
    [code] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 3
    return code
