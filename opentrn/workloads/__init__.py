"""What people run, as pure data and pure policy with no clock."""

from opentrn.workloads.batcher import Batcher
from opentrn.workloads.describe import model, models
from opentrn.workloads.hugging_face import from_config
from opentrn.workloads.model import Model
from opentrn.workloads.pipeline import Pipeline
from opentrn.workloads.states import OPTIMIZERS, Optimizer, optimizer
from opentrn.workloads.traffic import Traffic
from opentrn.workloads.weights import Weight, parameters, weights
from opentrn.workloads.work import (
    ActivationBytes,
    activation_bytes,
    attention_flops,
    decode_flops,
    kv_bytes,
    model_flops,
    state_bytes,
    train_flops,
)

__all__ = [
    "OPTIMIZERS", "ActivationBytes", "Batcher", "Model", "Optimizer", "Pipeline", "Traffic",
    "Weight", "activation_bytes", "attention_flops", "decode_flops", "from_config", "kv_bytes",
    "model", "model_flops", "models", "optimizer", "parameters", "state_bytes", "train_flops",
    "weights",
]  # fmt: skip
