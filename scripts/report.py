#!/usr/bin/env python
"""`csan-hf report`, in a checkout."""

import sys

from csan_hf.commands.report import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
