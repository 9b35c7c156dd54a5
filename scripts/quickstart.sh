#!/usr/bin/env bash
# Sets up .venv (first time), trains a small CSAN to translate English number-words, dates and times into German
# (recipe csan_hf/recipes/numbers.yaml), scores it on held-out sentences and translates three sentences.
# OUTPUT chooses the folder (default runs/numbers); further arguments go to csan-hf train.
EXTRAS=train source "$(dirname "${BASH_SOURCE[0]}")/setup_environment.sh"
export TOKENIZERS_PARALLELISM=false
output=${OUTPUT:-runs/numbers}
csan-hf train numbers --output_dir "$output" "$@"
echo
echo "Three sentences through the pipeline:"
python - "$output" <<'PYTHON'
import sys

from csan_hf import TranslationPipeline
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils import logging

logging.disable_progress_bar()
directory = sys.argv[1]
translator = TranslationPipeline(
    model=AutoModelForSeq2SeqLM.from_pretrained(directory), tokenizer=AutoTokenizer.from_pretrained(directory)
)
sentences = [
    "The number is seven hundred and sixty-five thousand, four hundred and thirty-two.",
    "On Friday, the twenty-first of March, the shop is closed.",
    "The train leaves at twenty-nine minutes past one.",
]
for sentence, result in zip(sentences, translator(sentences, num_beams=5)):
    print(f"  {sentence}\n    -> {result['translation_text']}")
PYTHON
echo
echo "In $output: the checkpoint, the tokenizer, README.md (the model card), training.png (loss and BLEU over steps),"
echo "results.json (scores) and hypotheses/. Next: source .venv/bin/activate; csan-hf translate --model $output"
