"""Directories on the Hugging Face Hub. Only named files are downloaded: nothing else of a repository."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from typing_extensions import Unpack

PREFIX = "hf://"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class HubOptions(TypedDict, total=False):
    """How a repository is read; `huggingface_hub.snapshot_download` explains them."""

    revision: str | None
    token: str | bool | None
    cache_dir: str | os.PathLike[str] | None
    local_files_only: bool


def is_address(path: object) -> bool:
    """Whether a path is an address such as hf://owner/name."""
    return isinstance(path, str) and path.startswith(PREFIX)


def upload(
    folder: Path,
    repository: str,
    names: Sequence[str],
    *,
    private: bool | None,
    token: str | bool | None,
    revision: str | None,
) -> str:
    """Upload a folder in place of its earlier version, and return the address of the commit.

    Args:
        folder: the files.
        repository: owner/name; it is created if it is not there. One with other contents is refused.
        names: the files that an earlier version may have; the first one says that it is there.
        private: whether a new repository is private; None for the default of its owner.
        token: of an account that may write; by default that of `hf auth login`.
        revision: the branch, which is created if it is not there; main by default.
    """
    api = _hub().HfApi(token=token)
    api.create_repo(_check(repository), private=private, exist_ok=True)
    if revision is not None:
        api.create_branch(repository, branch=revision, exist_ok=True)
    there = set(api.list_repo_files(repository, revision=revision)) - {".gitattributes"}
    if there and names[0] not in there:
        raise FileExistsError(
            f"the repository {repository} exists and is not a scorer; choose another name, since its "
            f"{min(there)} might be replaced."
        )
    commit = api.upload_folder(
        repo_id=repository, folder_path=folder, revision=revision, delete_patterns=list(names),
        commit_message="Upload a scorer",
    )  # fmt: skip
    return str(commit.commit_url)


def download(repository: str, names: Sequence[str], **options: Unpack[HubOptions]) -> Path:
    """Download named files of a repository, and return the directory that holds them.

    Args:
        repository: owner/name, hf://owner/name or hf://owner/name@revision.
        names: the files; the first one must be there.
        **options: revision, token, cache_dir and local_files_only of `huggingface_hub.snapshot_download`.
    """
    name, _, revision = repository.removeprefix(PREFIX).partition("@")
    if revision:
        if options.get("revision") not in (None, revision):
            raise ValueError(f"{repository} names a revision, got revision={options.get('revision')!r} too.")
        options["revision"] = revision
    found = _hub().snapshot_download(_check(name), allow_patterns=list(names), **options)
    if not (Path(found) / names[0]).is_file():
        raise FileNotFoundError(
            f"the repository {name} of the Hugging Face Hub has no {names[0]}: it is not a scorer, or its "
            "upload was not finished. scorer.push_to_hub writes one."
        )
    return Path(found)


def _check(repository: str) -> str:
    if not _REPOSITORY.fullmatch(repository):
        raise ValueError(
            f"{repository!r} is neither a directory nor the name of a repository; give owner/name."
        )
    return repository


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            "sharing needs huggingface_hub: pip install huggingface_hub. Without it, use scorer.save(path) "
            "and flare.load(path, net)."
        ) from error
    return huggingface_hub
