#!/usr/bin/env python
"""`csan-hf translate`, in a checkout."""

import sys

from csan_hf.commands.translate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
