"""`flare info`: what a run is."""

from __future__ import annotations

from rich.table import Table

from .app import Run, app, out


@app.command()
def info(run: Run) -> None:
    """Show what a run directory or a shipped model holds.

    Example: `flare info sines`
    """
    from .. import zoo

    model = zoo.load(run)
    config = model.config
    dataset = config["dataset"]
    table = Table("", model.name, show_header=True, header_style="bold")
    rows = {
        "data": f"{dataset['n']:,} samples of shape {model.shape}, seed {dataset['seed']}",
        "network": f"{config['network']['name']}, width {config['network']['width']}",
        "parameters": f"{model.denoiser.parameter_count:,}",
        "predicts": config["prediction"],
        "schedule": f"{config['schedule']['name']}, T = {model.schedule.T}",
        "x̂0 clipped to": f"±{model.clip:g}",
        "dtype": str(model.denoiser.dtype).removeprefix("torch."),
        **{f"training: {key}": f"{value:,}" if isinstance(value, int) else str(value)
           for key, value in config["training"].items()},
    }  # fmt: skip
    for key, value in rows.items():
        table.add_row(key, value)
    out.print(table)
