"""Reward functions that compare answers exactly, and the building blocks of rewards.

Runs on the client, imports no torch, and works without a service. Names are loaded when they
are first used, so that ``from mint.rewards import check_answer`` is quick.

>>> from mint.rewards import check_answer
>>> check_answer("2 + 2 = 4. The answer is 4.", "4")
1.0
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
