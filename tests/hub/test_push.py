"""Pushing to a Hub on this machine, and loading from it where csan_hf cannot be imported."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from reference.loopback_hub import LoopbackHub

from csan_hf import CsanForTokenClassification
from csan_hf.hub import (
    IncompleteCheckpointError,
    card_problems,
    check_checkpoint,
    save_self_contained,
    write_model_card,
)

ROOT = Path(__file__).parents[2]
SENTENCES = ["eins zwei", "Hund", "drei vier Katze Hund"]

# Loads by name, first from the Hub and then from the cache
LOAD = """
import json, sys
sys.modules["csan_hf"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
name, sentences = sys.argv[1], json.loads(sys.argv[2])
AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True)
AutoTokenizer.from_pretrained(name, trust_remote_code=True)
print(json.dumps(pipeline("translation", model=name, trust_remote_code=True, device="cpu")(sentences)))
"""
PUSH_CLASSIFIER = """
import sys
from transformers import AutoModelForTokenClassification, AutoTokenizer
from csan_hf.hub import push_to_hub
model, tokenizer = (auto.from_pretrained(sys.argv[1]) for auto in (AutoModelForTokenClassification, AutoTokenizer))
push_to_hub(model, tokenizer, "tester/classifier", recipe={"license": "apache-2.0", "language": "de"})
"""
TRAIN = {
    "model": "csan",
    "license": "apache-2.0",
    "data": {
        "dataset": "numbers",
        "source_lang": "de",
        "target_lang": "en",
        "train_size": 200,
        "validation_size": 6,
        "test_size": 4,
    },
    "tokenizer": {"vocab_size": 300},
    "config": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
    },
    "training": {
        "max_tokens": 2000,
        "max_steps": 4,
        "eval_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "warmup_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "push_to_hub": True,
        "hub_model_id": "tester/trained",
        "hub_strategy": "every_save",
        "hub_always_push": True,
    },
    "generation": {"num_beams": 1, "max_length": 12},
}


@pytest.fixture
def hub():
    with LoopbackHub() as server:
        yield server


def run(hub, home, *arguments, with_csan_hf=False, **more):
    """A fresh process whose Hub is `hub` and whose cache is `home`."""
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": "hf_token", "HF_HUB_OFFLINE": "0"}
    environment = {**os.environ, **own, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}
    if not with_csan_hf:
        environment.pop("PYTHONPATH")
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=home.parent,
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout.strip().splitlines() or [""])[-1]


def card_code(text):
    """The code of a card: three lines."""
    [code] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 3
    return code


@pytest.mark.parametrize("kind", ["joint", "grid"])
def test_what_was_pushed_loads_elsewhere_by_name(kind, hub, request, tmp_path):
    from csan_hf.pipelines import TranslationPipeline

    model, tokenizers = request.getfixturevalue(kind)
    pair = {"tokenizer": getattr(tokenizers, "source", tokenizers)}
    pair["target_tokenizer"] = getattr(tokenizers, "target", tokenizers)
    here = TranslationPipeline(model=model, device="cpu", **pair)(SENTENCES)
    directory = save_self_contained(model, tokenizers, tmp_path / "model")
    write_model_card(directory, {"license": "apache-2.0", "language": ["de", "en"]}, {})
    home = tmp_path / "home"
    run(hub, home, ROOT / "scripts/push_to_hub.py", directory, "tester/model", with_csan_hf=True)
    files = set(hub.repositories["tester/model"].files)
    assert files >= {"README.md", "config.json", "generation_config.json", "model.safetensors", "translation.py"}
    (tmp_path / "load.py").write_text(LOAD)
    elsewhere = tmp_path / "elsewhere"
    assert json.loads(run(hub, elsewhere, "load.py", "tester/model", json.dumps(SENTENCES))) == here
    requests = len(hub.requests)
    offline = run(hub, elsewhere, "load.py", "tester/model", json.dumps(SENTENCES), HF_HUB_OFFLINE="1")
    assert json.loads(offline) == here
    assert len(hub.requests) == requests, "the cache was enough"


def test_a_training_pushes_complete_checkpoints(hub, tmp_path):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(TRAIN))
    home = tmp_path / "home"
    output = tmp_path / "out"
    run(hub, home, ROOT / "scripts/train.py", tmp_path / "recipe.yaml", "--output_dir", output, with_csan_hf=True)
    repository = hub.repositories["tester/trained"]
    assert repository.messages == [
        "Training in progress, step 2",
        "Training in progress, step 4",
        "Trained model with scores and card",
    ]
    # the last one by the code of its card, as it stands there
    code = card_code(repository.files["README.md"].decode())
    (tmp_path / "card.py").write_text('import sys\nsys.modules["csan_hf"] = None\n' + code)
    run(hub, tmp_path / "elsewhere-2", "card.py")
    (tmp_path / "load.py").write_text(LOAD)
    repository.files = repository.history[0]
    loaded = json.loads(run(hub, tmp_path / "elsewhere-0", "load.py", "tester/trained", json.dumps(["zwölf"])))
    assert loaded[0].keys() == {"translation_text"}
    repository.files = repository.history[2]
    text = repository.files["README.md"].decode()
    assert {"locality.png", "training.png"} <= set(repository.files)
    # card and results are of one run
    results = json.loads(repository.files["results.json"])
    assert card_problems(ModelCard(text), results, pipeline_tag="translation") == []
    assert results["training"]["updates_per_second"] > 0
    assert "updates per second" in text
    assert f"Device: {results['environment']['device']}, 1 thread" in text
    assert not [path for path in repository.files if path.startswith(("checkpoint-", "training_args"))]


def test_a_classifier_is_pushed_as_what_it_is(hub, joint, tmp_path):
    translator = save_self_contained(*joint, tmp_path / "translator")
    names = {0: "O", 1: "animal", 2: "number"}
    model = CsanForTokenClassification.from_pretrained(translator, num_labels=3, id2label=names)
    directory = save_self_contained(model, joint[1], tmp_path / "model")
    # the card of a translator is none for it
    (directory / "README.md").write_text(
        "---\nlicense: mit\nlibrary_name: transformers\npipeline_tag: translation\n---\n"
    )
    with pytest.raises(IncompleteCheckpointError, match="pipeline_tag must be token-classification"):
        check_checkpoint(directory)
    (tmp_path / "push.py").write_text(PUSH_CLASSIFIER)
    run(hub, tmp_path / "home", "push.py", directory, with_csan_hf=True)
    files = hub.repositories["tester/classifier"].files
    assert {"config.json", "modeling_csan_classification.py", "locality.png", "tokenizer.json"} <= set(files)
    assert not {"translation.py", "generation_config.json"} & set(files)
    card = ModelCard(files["README.md"].decode())
    assert card_problems(card, pipeline_tag="token-classification") == []
    (tmp_path / "card.py").write_text('import sys\nsys.modules["csan_hf"] = None\n' + card_code(card.content))
    assert "entity" in run(hub, tmp_path / "elsewhere", "card.py")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "model.safetensors is missing"),
        ("local_attention.py", "does not load where only transformers is installed"),
        ("modeling_csan.py", r"modeling_csan.py is missing, which auto_map\['AutoModel'\]"),
        ("translation.py", r"translation.py is missing, which custom_pipelines\['translation'\]"),
        ("tokenizer_config.json", "tokenizer_config.json is missing"),
        ("generation_config.json", "generation_config.json is missing"),
        ("README.md", "the model card, is missing"),
    ],
)
def test_an_incomplete_checkpoint_is_refused(file, words, joint, tmp_path):
    directory = save_self_contained(*joint, tmp_path / "model")
    write_model_card(directory, {"license": "apache-2.0"}, {})
    (directory / file).unlink()
    with pytest.raises(IncompleteCheckpointError, match=words):
        check_checkpoint(directory)


def test_a_missing_shard_and_a_poor_card_are_named(joint, tmp_path):
    directory = save_self_contained(*joint, tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "README.md").write_text("---\nlicense: apache-2.0\n---\nA model.\n")
    with pytest.raises(IncompleteCheckpointError) as error:
        check_checkpoint(directory)
    assert "model-00002-of-00002.safetensors is missing" in str(error.value)
    assert "README.md: the metadata have no library_name" in str(error.value)
    assert "model-00001" not in str(error.value)


def test_nothing_incomplete_is_uploaded(hub, joint, tmp_path):
    directory = save_self_contained(*joint, tmp_path / "model")
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    environment["HF_HUB_OFFLINE"] = "0"
    script = [sys.executable, str(ROOT / "scripts/push_to_hub.py"), str(directory), "tester/model"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "README.md, the model card, is missing" in done.stderr
    assert not hub.repositories
