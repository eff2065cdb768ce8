"""RL on a service: from a reward function to a better model. Client side, no torch.

>>> from mint.rl import RLConfig
>>> RLConfig().group_size
4
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
