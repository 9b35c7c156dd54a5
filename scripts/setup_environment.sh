# Sourced by quickstart.sh and test.sh: makes .venv with the tested versions once, and activates it.
# PYTHON chooses the interpreter (default python3), EXTRAS the optional dependencies.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
  echo "csan_hf needs Python 3.10 or newer; $("$PYTHON" --version) is too old. Set PYTHON to a newer one." >&2
  exit 1
}
# One stamp per set of requirements: a changed pyproject or constraints file installs again.
stamp=.venv/installed-$(cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)${EXTRAS:+-$EXTRAS}
if [ ! -f "$stamp" ]; then
  echo "Installing into $PWD/.venv (a few minutes the first time) ..."
  [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".${EXTRAS:+[$EXTRAS]}"
  touch "$stamp"
fi
# shellcheck disable=SC1091
source .venv/bin/activate
