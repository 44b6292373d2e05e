"""TensorFlow and Keras on a simulated Trainium: `trace(model, example)` compiles a model."""

from opentrn.frameworks.tensorflow.lower import Lowered, from_tensorflow, lower
from opentrn.frameworks.tensorflow.saved import from_saved_model
from opentrn.frameworks.tensorflow.trace import Traced, trace

__all__ = ["Lowered", "Traced", "from_saved_model", "from_tensorflow", "lower", "trace"]
