"""The API reference: a hook of mkdocs that makes one page per public module from the package itself.

mkdocstrings turns each `::: name` into the signature and the docstring.
"""

from __future__ import annotations

from typing import Any

from tools.public import Name, public_names  # mkdocs loads this file by its path, without its package

FOLDER = "reference"
#: what the examples of the docstrings may use; shown on the first page, run by the tests
SETUP = """\
import torch
import flare

model = flare.bench.load("sines")  # a shipped model: denoiser, schedule, data
denoiser, net = model.denoiser, flare.bench.build(model.config)[0]  # trained, and untrained
schedule, data = model.schedule, model.data
steps = flare.samplers.ddim(schedule, 5, clip=model.clip)
subset = flare.subsets.random(denoiser, count=50, seed=0)
pairs = flare.noising.pairs(data, schedule, n=100, seed=0, weighting=model.weighting)
posterior = flare.posteriors.dense(denoiser, subset, pairs)
result = flare.sample(denoiser, steps, posterior, n=20, shape=model.shape, directions=4, seed=0)
scorer = flare.fit(denoiser, data, schedule, subset=50, pairs=100, check=False)
"""
#: and those of the examples with diffusers, which the tests make from tiny networks
FOREIGN = {
    "pipe": "an unconditional pipeline of diffusers, such as a `DDPMPipeline`",
    "class_pipe": "one with class labels",
    "text_pipe": "a pipeline of Stable Diffusion",
    "images": "training images of `pipe`",
    "text_images": "training images of `text_pipe`",
}
INTRODUCTION = f"""\
# API reference

Every public name of FLARE, from the docstrings of the code. A page per module follows this list.

The examples are run by the tests. They use these names:

```python
{SETUP}```

Those with diffusers also use {"; ".join(f"`{name}`, {what}" for name, what in FOREIGN.items())}.

"""


def pages() -> dict[str, str]:
    """The pages of the reference as Markdown, by path below docs."""
    names = public_names()
    top = [name for name in names if name.depth == 1]
    functions = [name for name in top if not name.is_module]
    made = {
        f"{FOLDER}/index.md": INTRODUCTION + _table("Functions and classes", functions)
        + _table("Modules", [name for name in top if name.is_module]),
        f"{FOLDER}/flare.md": "# flare\n\n" + "".join(map(_entry, functions)),
    }  # fmt: skip
    for module in top:
        if module.is_module:
            own = [name for name in names if name.path.startswith(f"{module.path}.")]
            made[_page(module)] = f"# {module.path}\n\n{_docstring(module)}" + "".join(map(_entry, own))
    return made


def navigation() -> list[dict[str, str]]:
    """The entries of the reference in the navigation."""
    return [{"Overview" if path.endswith("index.md") else path.split("/")[1][:-3]: path} for path in pages()]


def on_config(config: Any, **_: Any) -> Any:
    """Put the pages in the place of the navigation that says `Reference`."""
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = navigation()
    return config


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages to those of docs."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def _page(name: Name) -> str:
    return f"{FOLDER}/{'.'.join(name.path.split('.')[:2])}.md"


def _table(title: str, names: list[Name]) -> str:
    rows = "".join(f"| {_link(name)} | {name.summary.replace('|', chr(92) + '|')} |\n" for name in names)
    return f"## {title}\n\n| name | what it is |\n|---|---|\n{rows}\n"


def _link(name: Name) -> str:
    if name.is_module:
        return f"[`{name.path}`]({_page(name).removeprefix(f'{FOLDER}/')})"
    return f"[`{name.path}`][{name.path}]"


def _docstring(module: Name) -> str:
    return f"::: {module.path}\n    options:\n      show_root_heading: false\n      members: false\n\n"


def _entry(name: Name) -> str:
    """A section of a page: a heading and the docstring."""
    level = max(2, name.depth)
    if name.is_module:
        return f"{'#' * level} {name.path}\n\n{_docstring(name)}"
    return f"::: {name.path}\n    options:\n      heading_level: {level}\n\n"
