from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("flare", deadline=None, max_examples=50)
settings.load_profile("flare")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
