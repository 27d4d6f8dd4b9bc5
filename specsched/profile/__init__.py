"""Step profiles: what one forward pass costs, in seconds.

profile     StepProfile: the cost of a step as a sum of parts; load_profile
curve       one measured curve and how it is read between and past its points
document    the JSON of a profile, read with every field checked
lint        what is doubtful about a profile
overhead    the host's share of a step, fitted from a measured run
roofline    a profile estimated from a GPU's data sheet
shapes      weights, KV and FLOPs of a model, from its config.json
"""

from .curve import Curve
from .profile import StepProfile, load_profile

__all__ = [
    "Curve",
    "StepProfile",
    "load_profile",
]
