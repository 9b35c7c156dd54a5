#!/usr/bin/env bash
# Runs the test suite with chosen versions. The lowest and the newest have an environment of their own, the tested ones are in .venv:
#   PYTHON=python3.11 scripts/test_versions.sh lowest     # the lowest that pyproject.toml names
#   scripts/test_versions.sh tested                       # those of constraints.txt
#   PYTHON=python3.13 scripts/test_versions.sh newest     # whatever the package index has
# Further arguments go to pytest.
VERSIONS=${1:?lowest, tested or newest} EXTRAS=dev
shift
source "$(dirname "${BASH_SOURCE[0]}")/setup_environment.sh"
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec python -m pytest -n "${TEST_WORKERS:-auto}" --dist loadscope --no-loadscope-reorder "$@"
