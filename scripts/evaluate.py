#!/usr/bin/env python
"""`csan-hf evaluate`, in a checkout."""

import sys

from csan_hf.commands.evaluate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
