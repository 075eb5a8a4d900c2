"""What all tests share: fixed seeds, global state that is put back, and a random order on request."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# torch reuses kernels of another instruction set without asking: a cache for each
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    str(Path(tempfile.gettempdir()) / f"flare-inductor-{os.environ.get('ATEN_CPU_CAPABILITY', 'own')}"),
)
# for the processes that tests start, too
os.environ.setdefault("OMP_NUM_THREADS", "1")
# some virtual machines announce AMX and then fail with "Illegal instruction" in a bfloat16 layer
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
settings.register_profile(
    "flare",
    deadline=None,
    max_examples=50,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no failure
)
settings.load_profile("flare")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run the files, and the tests in each, in a random order"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("shuffle")
    if seed is None:
        return
    dice = random.Random(seed)
    dice.shuffle(items)
    # files stay together: fixtures of a module are made once
    places = {path: dice.random() for path in sorted({item.path for item in items})}
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    if fixturedef.scope != "function":  # made before the first test that asks for it, whichever that is
        _seed()


@contextmanager
def isolated() -> Iterator[None]:
    """Seed all randomness, and put back what the block changes globally."""
    dtype, threads, grad = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fastpath = torch.backends.mha.get_fastpath_enabled()
    directory, environment = Path.cwd(), dict(os.environ)
    _seed()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.mha.set_fastpath_enabled(fastpath)
        os.chdir(directory)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


@pytest.fixture(autouse=True)
def _isolate() -> Iterator[None]:
    with isolated():
        yield


@pytest.fixture(scope="session")
def warm() -> None:
    """Import what commands import late, so that the processes forked from this one need not."""
    from chaos.commands import warm_up

    warm_up()


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global state is what a test could use by mistake
    torch.manual_seed(0)
