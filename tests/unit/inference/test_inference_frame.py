"""Start-up is light, and no secret leaves in a text."""

import subprocess
import sys

import pytest

from services.inference.catalogue import Catalogue
from services.inference.domain import UNKNOWN_PRICE, estimate_tokens
from services.inference.redaction import redact


def test_litellm_is_not_imported_before_the_first_call(tmp_path):
    code = "import sys; from services.inference.__main__ import build; build(); sys.exit('litellm' in sys.modules)"
    environment = {"AGENT_CODER_HOME": str(tmp_path), "MODEL": "anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY": "k", "PATH": ""}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Incorrect API key provided: sk-abcdefgh1234.", "Incorrect API key provided: ***."),
        ("header Bearer abc.def-123 refused", "header Bearer *** refused"),
        ("GET /models?key=abc123&x=1", "GET /models?key=***&x=1"),
        ("my-own-secret is wrong", "*** is wrong"),
        ("skeletonised sk-8s words stay", "skeletonised sk-8s words stay"),
        ("<!DOCTYPE html><style>x{}</style><h1>502</h1>\n<p>Bad  Gateway</p>", "502 Bad Gateway"),
    ],
)
def test_texts_lose_their_secrets_and_their_markup(text, clean):
    assert redact(text, ["my-own-secret", "x"]) == clean


def test_a_long_text_is_cut():
    assert len(redact("x" * 10_000)) == 2000


def test_the_catalogue_finds_models_with_and_without_their_providers_prefix():
    catalogue = Catalogue()
    assert catalogue.find("anthropic/claude-sonnet-4-5").price == catalogue.find("claude-sonnet-4-5").price
    assert catalogue.find("ollama_chat/anything").price.cost(1_000_000, 1_000_000) == 0
    assert catalogue.find("openai/nobody-knows").price == UNKNOWN_PRICE


def test_chinese_text_is_estimated_by_its_characters():
    assert estimate_tokens("你好世界") == 4
    assert estimate_tokens("a" * 30) == 10
    assert estimate_tokens("") == 0
