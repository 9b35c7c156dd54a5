#!/usr/bin/env python
"""`csan-hf align`, in a checkout."""

import sys

from csan_hf.commands.align import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
