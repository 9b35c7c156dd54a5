#!/usr/bin/env python
# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Runs `csan-hf compare` from a checkout."""

import sys

from csan_hf.commands.compare import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
