"""The translation pipeline and its registration with transformers."""

from transformers import AutoModelForSeq2SeqLM
from transformers.pipelines import PIPELINE_REGISTRY

from .translation import TranslationPipeline

TASK = "csan-translation"
"""The name by which `transformers.pipeline` knows `TranslationPipeline`."""

__all__ = ["TASK", "TranslationPipeline", "register"]


def register() -> None:
    """Makes `transformers.pipeline("csan-translation", model=...)` build a `TranslationPipeline`.

    transformers 5 refuses the task name "translation" unless the checkpoint itself brings the pipeline, hence
    a name of our own. Calling this again changes nothing.
    """
    if TASK in PIPELINE_REGISTRY.supported_tasks:
        return
    saved_under = TranslationPipeline._registered_impl  # type: ignore[attr-defined]
    PIPELINE_REGISTRY.register_pipeline(TASK, TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
    # A saved checkpoint offers the pipeline as "translation", which is what users of the Hub ask for
    TranslationPipeline._registered_impl = saved_under  # type: ignore[attr-defined]
