# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The laboratory: suites of systems that are trained and compared, the report, statistics of
attention.
"""
