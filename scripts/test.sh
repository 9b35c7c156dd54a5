#!/usr/bin/env bash
# Sets up .venv (first time) and runs lint, types and the whole test suite. Arguments go to pytest.
EXTRAS=dev source "$(dirname "${BASH_SOURCE[0]}")/setup_environment.sh"
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
ruff check .
ruff format --check .
mypy
# One thread per worker: the tests are small, and threads that wait for each other cost more than they bring.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec python -m pytest -n "${TEST_WORKERS:-auto}" --dist loadscope --no-loadscope-reorder "$@"
