"""Graph to executable by named passes, checked before and after."""

from opentrn.compiler.numerics import MODES as NUMERICS
from opentrn.compiler.numerics import numerics_in_force, use_numerics
from opentrn.compiler.outline import Outline, outline
from opentrn.compiler.pairs import in_pairs
from opentrn.compiler.pipeline import PIPELINE, Stage, State, compile, compile_graph
from opentrn.compiler.place import place_hbm
from opentrn.compiler.why import explain_stages, why

__all__ = ["NUMERICS", "Outline", "PIPELINE", "Stage", "State", "compile", "compile_graph",
           "explain_stages", "in_pairs", "numerics_in_force", "outline", "place_hbm",
           "use_numerics", "why"]  # fmt: skip
