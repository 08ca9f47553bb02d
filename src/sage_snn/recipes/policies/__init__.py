"""Policies that a recipe can name, each with its own fields: who sets the slopes."""

from ..parts import Family
from .adaptive import ASGLPart, DSATGOPart, GainMatchedPart, MPDAGLPart
from .part import PolicyPart
from .plain import ConstantsPart, FixedPart, LearnablePart, NonePart, ScheduledPart
from .sage import SagePart
from .trials import AlignedPart, DGSPart

AnyPolicy = (
    FixedPart
    | ScheduledPart
    | LearnablePart
    | SagePart
    | NonePart
    | AlignedPart
    | DGSPart
    | MPDAGLPart
    | DSATGOPart
    | ASGLPart
    | GainMatchedPart
    | ConstantsPart
)
POLICIES = Family(AnyPolicy, default="sage")

__all__ = ["POLICIES", "AnyPolicy", "FixedPart", "LearnablePart", "PolicyPart", "SagePart"]
