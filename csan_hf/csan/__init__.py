"""The CSAN family: what a checkpoint on the Hub needs, and nothing else."""

from .configuration_csan import CsanConfig
from .local_attention import local_attention
from .modeling_csan import CsanForConditionalGeneration, CsanModel, CsanPreTrainedModel

__all__ = [
    "CsanConfig",
    "CsanForConditionalGeneration",
    "CsanModel",
    "CsanPreTrainedModel",
    "local_attention",
]
