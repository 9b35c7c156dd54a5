#!/usr/bin/env bash
# Puts the wheels that scripts/gpu.py needs beside torch into a folder, for a machine without a network:
#   scripts/gpu_wheels.sh build/wheels
# There (Python 3.12 with torch 2.12 or newer; numpy, pandas, pyarrow, PyYAML, Jinja2, matplotlib, safetensors, sacrebleu,
# sentencepiece, accelerate and tensorboard, which images for GPUs have):
#   python3 -m pip install --no-index --no-deps --upgrade --target /tmp/site build/wheels/*.whl
#   PYTHONPATH=/tmp/site:. python3 scripts/gpu.py --device cuda --data_dir PATH/TO/multi30k --output gpu.json
set -euo pipefail
folder=$(realpath -m "${1:?folder of the wheels}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
packages=(transformers tokenizers huggingface_hub datasets evaluate jsonargparse docstring-parser num2words babel rapidfuzz sentencex)
unpinned=(dill multiprocess xxhash httpx2 httpcore2 truststore click idna regex)  # what datasets and huggingface_hub need
versions=()
for package in "${packages[@]}"; do
  versions+=("$(grep -i "^$package==" constraints.txt)")
done
platforms=()
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux1; do
  platforms+=(--platform "${platform}_x86_64")
done
rm -f "$folder"/*.whl
pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" \
  --dest "$folder" "${versions[@]}" "${unpinned[@]}"
du -sh "$folder"
