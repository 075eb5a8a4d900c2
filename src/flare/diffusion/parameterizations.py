"""What a network predicts, as two numbers per level: x̂0 = p·x + q·f(x, t).

| prediction | the network's target | p | q |
|---|---|---|---|
| epsilon | ε | 1/α | −σ/α |
| sample | x_0 | 0 | 1 |
| v | α·ε − σ·x_0 | α | −σ |
| flow | ε − x_0 | 1 | −σ |
| edm, edm_sigma | (x_0 − c_skip·x)/c_out | c_skip = σ_d²/(σ²+σ_d²) | c_out = σ·σ_d/√(σ²+σ_d²) |

"edm" is a network F in the preconditioning of EDM (α = 1): it is called as F(c_in·x, c_noise) with c_in =
1/√(σ²+σ_d²) and c_noise = log(σ)/4, both computed here from the time σ that the schedule gives. "edm_sigma"
is the same for a network that takes σ itself, F(c_in·x, σ), such as the inner models of k-diffusion. σ_d, the
standard deviation of the data, is 0.5; "edm:1.0" sets another.
"""

from __future__ import annotations

import math
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from ..core.validation import one_of

Prediction = Literal["epsilon", "sample", "v", "flow", "edm", "edm_sigma"]  # and "edm:σ_data"
PREDICTIONS: tuple[Prediction, ...] = get_args(Prediction)
ALIASES = {"v_prediction": "v", "x0": "sample", "noise": "epsilon"}  # what others call them
PRECONDITIONED = ("edm", "edm_sigma")
SIGMA_DATA = 0.5  # of these
_TOLERANCE = 1e-6


def check_prediction(prediction: str) -> Prediction:
    """Return the prediction with this name; raise if there is none.

    "edm:0.5" is "edm". Names of other libraries also work: "v_prediction" (diffusers) is "v", "x0" is
    "sample" and "noise" is "epsilon".

    >>> check_prediction("edm:1.0")
    'edm:1.0'
    >>> check_prediction("v_prediction")
    'v'
    """
    name, colon, number = str(prediction).partition(":")
    name = ALIASES.get(name, name)
    one_of("prediction", name, PREDICTIONS)
    if not colon:
        return cast("Prediction", name)
    try:
        data = float(number) if name in PRECONDITIONED else math.nan
    except ValueError:
        data = math.nan
    if not 0 < data < math.inf:
        raise ValueError(
            f"prediction must be one of {', '.join(PREDICTIONS)}, or edm with a positive standard deviation "
            f"of the data, such as 'edm:1.0', got {prediction!r}."
        )
    return cast("Prediction", name if data == SIGMA_DATA else f"{name}:{data}")


def sigma_data(prediction: Prediction) -> float | None:
    """σ_data of a network in the preconditioning of EDM; None for all others.

    >>> sigma_data("edm")
    0.5
    """
    name, _, number = prediction.partition(":")
    return (float(number) if number else SIGMA_DATA) if name in PRECONDITIONED else None


def scale_input(prediction: Prediction, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs of the network at states x (B, *shape) and times t (B,).

    These are (c_in·x, log(σ)/4) in the preconditioning of EDM, where t is σ, (c_in·x, σ) for "edm_sigma", and
    (x, t) otherwise.

    >>> x, t = scale_input("edm", torch.ones(1, 2), torch.ones(1))
    >>> x, t
    (tensor([[0.8944, 0.8944]]), tensor([0.]))
    """
    data = sigma_data(prediction)
    if data is None:
        return x, t
    sigma = t.to(torch.promote_types(t.dtype, torch.float32))
    c_in = (sigma.square() + data**2).rsqrt().to(x.dtype)
    scaled = x * c_in.view(-1, *[1] * (x.ndim - 1))
    return scaled, sigma if prediction.startswith("edm_sigma") else sigma.log() / 4


def unscale_input(prediction: Prediction, seen: Tensor, sigma: float) -> Tensor:
    """The states x of a network's inputs at one level: the inverse of `scale_input`.

    >>> unscale_input("edm:1.0", torch.zeros(2), 3.0)
    tensor([0., 0.])
    """
    data = sigma_data(prediction)
    return seen if data is None else seen * math.hypot(sigma, data)


def check_level(prediction: Prediction, time: float, alpha: float, sigma: float) -> None:
    """Raise if the network needs a different level or time. A preconditioned network needs the ones of EDM.

    >>> check_level("edm", 2.0, 1.0, 2.0)
    """
    if sigma_data(prediction) is None:
        return
    if alpha != 1:
        raise ValueError(
            f"prediction={prediction!r} needs α = 1, got α = {alpha:.4g}, σ = {sigma:.4g}; use "
            "schedules.edm()."
        )
    if not math.isclose(time, sigma, rel_tol=_TOLERANCE):
        raise ValueError(
            f"prediction={prediction!r} computes the network's input and time from σ, but the "
            f"schedule gives the time {time:.4g} at σ = {sigma:.4g}; use schedules.edm() with its default "
            "time and time_scale."
        )


def coefficients(prediction: Prediction, alpha: float, sigma: float) -> tuple[float, float]:
    """(p, q) of x̂0 = p·x + q·f at the level (alpha, sigma).

    >>> coefficients("epsilon", 0.5, 0.25)
    (2.0, -0.5)
    >>> coefficients("sample", 0.5, 0.25)
    (0.0, 1.0)
    """
    if (data := sigma_data(prediction)) is not None:
        check_level(prediction, sigma, alpha, sigma)
        total = sigma**2 + data**2
        return data**2 / total, sigma * data / total**0.5
    if prediction == "epsilon":
        if alpha == 0:
            raise ValueError(
                "prediction='epsilon' cannot recover x_0 from pure noise (alpha = 0); train with "
                "prediction='v' or 'sample', or start the sampler at a lower level."
            )
        return 1 / alpha, -sigma / alpha
    if prediction == "sample":
        return 0.0, 1.0
    if prediction == "v":
        if abs(alpha**2 + sigma**2 - 1) > _TOLERANCE:
            raise ValueError(
                f"prediction='v' needs α² + σ² = 1, got α = {alpha:.4g}, σ = {sigma:.4g}; "
                "use prediction='flow' with a flow schedule."
            )
        return alpha, -sigma
    if abs(alpha + sigma - 1) > _TOLERANCE:
        raise ValueError(
            f"prediction='flow' needs α + σ = 1, got α = {alpha:.4g}, σ = {sigma:.4g}; "
            "use schedules.flow(T), or prediction='v' with a variance-preserving schedule."
        )
    return 1.0, -sigma


def target(prediction: Prediction, alpha: Tensor, sigma: Tensor, x0: Tensor, noise: Tensor) -> Tensor:
    """The network's target at x_t = alpha·x0 + sigma·noise.

    >>> x0, noise = torch.ones(2), torch.zeros(2)
    >>> target("epsilon", torch.tensor(0.8), torch.tensor(0.6), x0, noise)
    tensor([0., 0.])

    Args:
        prediction: One of `PREDICTIONS`.
        alpha: α_t, broadcastable to x0, such as (B, 1).
        sigma: σ_t, broadcastable to x0.
        x0: The clean samples, (B, *shape).
        noise: ε, (B, *shape).
    """
    if (data := sigma_data(prediction)) is not None:
        # (x_0 − c_skip·x)/c_out with x = x_0 + σ·ε, without the division by σ
        return (sigma * x0 / data - data * noise) / (sigma**2 + data**2) ** 0.5
    if prediction == "epsilon":
        return noise
    if prediction == "sample":
        return x0
    if prediction == "v":
        return alpha * noise - sigma * x0
    return noise - x0


def min_snr_weight(prediction: Prediction, alpha: Tensor, sigma: Tensor, gamma: float = 5.0) -> Tensor:
    """The min-SNR-γ weight of the squared error of f: min(SNR, γ)·q².

    Min-SNR weights the squared error of x̂0 by min(SNR, γ), and x̂0 changes by q per unit of f. The weight is
    min(SNR, γ)/SNR for epsilon and min(SNR, γ)/(SNR+1) for v.

    >>> low, high = torch.tensor([0.99, 0.1]), torch.tensor([0.6, 0.8])  # (α, σ) of two levels
    >>> min_snr_weight("epsilon", *low)
    tensor(0.0510)
    >>> min_snr_weight("epsilon", *high)
    tensor(1.)

    Args:
        prediction: One of `PREDICTIONS`.
        alpha: α_t, any shape.
        sigma: σ_t, the same shape.
        gamma: The largest signal-to-noise ratio.
    """
    snr = (alpha / sigma) ** 2
    if prediction == "epsilon":
        # min(SNR, γ)/SNR without 0/0 at alpha = 0
        return torch.where(snr > gamma, gamma / snr, torch.ones_like(snr))
    if (data := sigma_data(prediction)) is not None:
        q2 = (sigma * data) ** 2 / (sigma**2 + data**2)
    else:
        q2 = torch.ones_like(snr) if prediction == "sample" else sigma**2
    return snr.clamp(max=gamma) * q2
