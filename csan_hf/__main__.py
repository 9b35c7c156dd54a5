# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`python -m csan_hf` is `csan-hf`; launchers need a module: `accelerate launch -m csan_hf train
...`.
"""

import sys

from csan_hf_runtime.command_line import main

sys.exit(main())
