# Sourced by quickstart.sh, test.sh and test_versions.sh: makes an environment once, and activates it.
# PYTHON chooses the interpreter (default python3), EXTRAS the optional dependencies, VERSIONS those that are installed:
#   tested (default): constraints.txt, in .venv
#   lowest: the lowest that pyproject.toml names, in .venv-lowest-PYTHONVERSION
#   newest: whatever the package index has within pyproject.toml's bounds, in .venv-newest-PYTHONVERSION
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}
VERSIONS=${VERSIONS:-tested}
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "csan_hf needs Python 3.11 or newer; $("$PYTHON" --version) is too old. Set PYTHON to a newer one." >&2
  exit 1
}
python_version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $VERSIONS in
  tested) environment=.venv ;;
  lowest | newest) environment=.venv-$VERSIONS-$python_version ;;
  *) echo "VERSIONS must be tested, lowest or newest, got '$VERSIONS'." >&2; exit 1 ;;
esac
# Prints a line NAME==VERSION for every version that is asked for.
constraints() {
  case $VERSIONS in
    tested) cat constraints.txt ;;
    lowest) sed -nE 's/^ *"([A-Za-z0-9_.-]+)>=([0-9.]+).*/\1==\2/p' pyproject.toml ;;
  esac
}
# One stamp per set of requirements: a changed pyproject or constraints file installs again.
stamp=$environment/installed-$( (cat pyproject.toml; constraints) | sha256sum | cut -c1-16)${EXTRAS:+-$EXTRAS}
if [ ! -f "$stamp" ]; then
  echo "Installing into $PWD/$environment (a few minutes the first time) ..."
  [ -x "$environment/bin/python" ] || "$PYTHON" -m venv "$environment"
  constraints > "$environment/constraints.txt"
  install=("$environment/bin/python" -m pip install --quiet --disable-pip-version-check -c "$environment/constraints.txt")
  "${install[@]}" torch
  # compat: a path, which comes before a folder called csan_hf in the working directory, such as the clone in its parent
  "${install[@]}" --config-settings editable_mode=compat -e ".${EXTRAS:+[$EXTRAS]}"
  touch "$stamp"
fi
# shellcheck disable=SC1091
source "$environment/bin/activate"
