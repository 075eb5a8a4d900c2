"""Pages keep their budgets of words, and quote the messages of the library as they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import flare
from tools.document import DOCS, ROOT
from tools.words import BUDGETS, UNLIMITED, count_pages, count_words

COUNTS = count_pages()


@pytest.mark.parametrize("page", BUDGETS)
def test_a_page_keeps_its_budget(page):
    assert COUNTS[page] <= BUDGETS[page]


def test_every_page_has_a_budget_or_is_written_by_a_command():
    assert set(COUNTS) == set(BUDGETS) | {f"docs/{name}" for name in UNLIMITED if (DOCS / name).is_file()}


def test_words_are_those_that_people_read():
    prose, code = "# Two words\n\n<!-- a -->\n[one](b.md#c) 2\n\n", "```sh\nno words\n```\n\n"
    text = prose + code + "| a | b |\n| --- | --- |\n| c | – |\n"
    assert count_words(text) == 7


def find_texts() -> list[str]:
    """Every string of the library, with … for what is put in."""
    texts = []
    for path in Path(flare.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


TEXTS = find_texts()
ROWS = re.findall(r"^\| (.*?) \|", (DOCS / "problems.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
MESSAGES = [row for row in ROWS if row != "message"]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_is_one_of_the_library(message):
    parts = [part.strip() for part in message.split("…") if part.strip()]
    assert any(all(part in text for part in parts) for text in TEXTS)


def test_links_of_the_readme_exist():
    for path in re.findall(
        r"\]\(((?:docs/|CONTRIBUTING)[^)#]*)", (ROOT / "README.md").read_text(encoding="utf-8")
    ):
        assert (ROOT / path).exists(), path
