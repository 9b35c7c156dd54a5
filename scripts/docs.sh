#!/usr/bin/env bash
# Builds the documentation site in build/site from the repository's own pages. Arguments go to mkdocs; `serve` shows it instead.
EXTRAS=docs source "$(dirname "${BASH_SOURCE[0]}")/setup_environment.sh"
export NO_MKDOCS_2_WARNING=1
exec mkdocs "${@:-build}" --strict
