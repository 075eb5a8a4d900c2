"""Directories on the Hugging Face Hub. Only named files of a repository are downloaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PREFIX = "hf://"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


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
        folder: The directory with the files.
        repository: owner/name. It is created if it does not exist. A repository with other contents raises an
            error.
        names: The files that an earlier version may have. The first one identifies an earlier version.
        private: Whether a new repository is private; None for the owner's default.
        token: Access token with write permission; by default the one of `hf auth login`.
        revision: The branch, which is created if it does not exist; main by default.
    """
    api = _hub().HfApi(token=token)
    api.create_repo(_check(repository), private=private, exist_ok=True)
    if revision is not None:
        api.create_branch(repository, branch=revision, exist_ok=True)
    there = set(api.list_repo_files(repository, revision=revision)) - {".gitattributes"}
    if there and names[0] not in there:
        raise FileExistsError(
            f"the repository {repository} exists and is not a scorer; choose another name, because "
            f"FLARE might replace its {min(there)}."
        )
    commit = api.upload_folder(
        repo_id=repository, folder_path=folder, revision=revision, delete_patterns=list(names),
        commit_message="Upload a scorer",
    )  # fmt: skip
    return str(commit.commit_url)


def download(repository: str, names: Sequence[str], token: str | bool | None = None) -> Path:
    """Download named files of a repository, and return the directory that holds them.

    The environment variables of huggingface_hub apply, such as HF_HUB_CACHE and HF_HUB_OFFLINE.

    Args:
        repository: hf://owner/name or hf://owner/name@revision, with a branch, a tag or a commit.
        names: The files. The first one must exist.
        token: Access token; by default the one of `hf auth login`.
    """
    name, _, revision = repository.removeprefix(PREFIX).partition("@")
    found = _hub().snapshot_download(
        _check(name), allow_patterns=list(names), revision=revision or None, token=token
    )
    if not (Path(found) / names[0]).is_file():
        raise FileNotFoundError(
            f"the repository {name} of the Hugging Face Hub has no {names[0]}: it is not a scorer, or its "
            "upload did not finish. scorer.push_to_hub writes one."
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
