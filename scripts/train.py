#!/usr/bin/env python
"""`csan-hf train`, in a checkout."""

import sys

from csan_hf.commands.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
