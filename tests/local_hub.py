"""A directory that stands in for the Hugging Face Hub: `huggingface_hub` without a network."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from types import SimpleNamespace


class LocalHub:
    """Repositories as directories below `root`, one per branch; `calls` has what was asked for."""

    def __init__(self, root):
        self.root, self.calls = root, []

    def place(self, repo_id, revision=None):
        return self.root / repo_id / (revision or "main")

    def HfApi(self, token=None):  # the name of the class that it stands in for
        self.calls.append(("token", token))
        return SimpleNamespace(
            create_repo=self.create_repo, create_branch=self.create_branch,
            list_repo_files=self.list_repo_files, upload_folder=self.upload_folder,
        )  # fmt: skip

    def create_repo(self, repo_id, *, private=None, exist_ok=False):
        self.calls.append(("private", private))
        self.place(repo_id).mkdir(parents=True, exist_ok=exist_ok)
        (self.place(repo_id) / ".gitattributes").touch()

    def create_branch(self, repo_id, *, branch, exist_ok=False):
        if not self.place(repo_id, branch).exists():
            shutil.copytree(self.place(repo_id), self.place(repo_id, branch))

    def list_repo_files(self, repo_id, *, revision=None):
        return sorted(path.name for path in self.place(repo_id, revision).iterdir())

    def upload_folder(self, *, repo_id, folder_path, revision, delete_patterns, commit_message):
        place = self.place(repo_id, revision)
        for path in list(place.iterdir()):
            if any(fnmatch(path.name, pattern) for pattern in delete_patterns):
                path.unlink()
        shutil.copytree(folder_path, place, dirs_exist_ok=True)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

    def snapshot_download(self, repo_id, *, allow_patterns, revision=None, **options):
        self.calls.append(("download", options))
        place, copy = self.place(repo_id, revision), self.root / ".cache" / repo_id
        if not place.exists():
            raise FileNotFoundError(f"404: {repo_id}")
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir(parents=True)
        for path in place.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, copy)
        return str(copy)


def use_local_hub(monkeypatch, root):
    """Put a `LocalHub` in the place of `huggingface_hub`, for FLARE alone."""
    hub = LocalHub(root)
    monkeypatch.setattr("flare.integrations.hub._hub", lambda: hub)
    return hub
