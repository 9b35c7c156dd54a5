#!/usr/bin/env python
"""`csan-hf push`, in a checkout."""

import sys

from csan_hf.commands.push import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
