"""Which models are configured, and what is said when the settings are wrong or absent."""

import json

import pytest

from services.inference.settings import ADVICE, SettingsError, configured, read_settings, wire_name


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Settings from exactly these variables."""

    def read(**variables):
        import os

        for name in list(os.environ):
            if name.startswith("MODEL") or name.endswith("_API_KEY"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return configured(read_settings(), os.environ)

    return read


def test_without_a_model_there_is_advice_and_no_model(read):
    models = read()
    assert models.chain == ()
    assert models.advice == ADVICE
    assert "MODEL=anthropic/" in ADVICE
    assert "ANTHROPIC_API_KEY" in ADVICE


def test_a_provider_model_takes_context_and_price_from_the_list(read):
    (spec,) = read(MODEL="anthropic/claude-sonnet-4-5", ANTHROPIC_API_KEY="k").chain
    assert spec.description.context_tokens == 200_000
    assert (spec.price.input_usd, spec.price.output_usd, spec.price.source) == (3.0, 15.0, "listed")
    assert (spec.description.edit_format, spec.description.tool_calling) == ("tools", True)


def test_a_missing_key_is_named(read):
    models = read(MODEL="anthropic/claude-sonnet-4-5")
    assert models.chain[0].missing_key == "ANTHROPIC_API_KEY"
    assert "set ANTHROPIC_API_KEY" in models.advice


def test_fallbacks_keep_their_order_and_do_not_inherit_the_first_models_server(read):
    models = read(
        MODEL="mine", MODEL_BASE_URL="http://h/v1", MODEL_API_KEY="s", MODEL_FALLBACKS="openai/gpt-4o, ollama/llama3", OPENAI_API_KEY="k"
    )
    assert [s.name for s in models.chain] == ["mine", "openai/gpt-4o", "ollama/llama3"]
    assert [s.base_url for s in models.chain] == ["http://h/v1", None, None]
    assert models.chain[1].api_key is None


def test_prices_and_formats_can_be_set(read):
    (spec,) = read(
        MODEL="mine",
        MODEL_BASE_URL="http://h/v1",
        MODEL_PRICE_IN="1",
        MODEL_PRICE_OUT="2",
        MODEL_EDIT_FORMAT="whole_file",
        MODEL_CONTEXT_TOKENS="9000",
    ).chain
    assert (spec.price.input_usd, spec.price.output_usd, spec.price.source) == (1.0, 2.0, "configured")
    assert (spec.description.edit_format, spec.description.tool_calling, spec.description.context_tokens) == ("whole_file", False, 9000)


def test_a_model_without_tool_calling_edits_whole_files(read):
    (spec,) = read(MODEL="ollama/tiny", MODEL_TOOL_CALLING="false").chain
    assert spec.description.edit_format == "whole_file"


def test_all_faults_of_the_environment_are_reported_at_once(read):
    with pytest.raises(SettingsError) as caught:
        read(MODEL="x", MODEL_BASE_URL="nonsense", MODEL_EDIT_FORMAT="guess", MODEL_CONTEXT_TOKENS="few")
    assert len(caught.value.faults) == 3
    assert "MODEL_EDIT_FORMAT" in str(caught.value)


def test_all_faults_of_the_models_are_reported_at_once(read, tmp_path):
    (tmp_path / "models.toml").write_text(
        '[[models]]\nname="a"\nprice_in=1.0\n[[models]]\nname="b"\nspeed=1\n[[models]]\nname="c"\napi_key_env="NO_KEY"\n'
    )
    with pytest.raises(SettingsError) as caught:
        read(MODEL="scripted:/nowhere.json")
    text = str(caught.value)
    assert "give both prices" in text
    assert "model 2: speed" in text
    assert "NO_KEY" in text
    assert "/nowhere.json" in text


def test_a_broken_file_of_models_is_named(read, tmp_path):
    (tmp_path / "models.toml").write_text("[[models]\n")
    with pytest.raises(SettingsError, match=r"models\.toml"):
        read()


def test_the_file_of_models_is_the_chain_when_no_model_is_set(read, tmp_path):
    (tmp_path / "models.toml").write_text(
        '[[models]]\nname="a"\nbase_url="http://h/v1"\napi_key_env="A_KEY"\nedit_format="search_replace"\n[[models]]\nname="ollama/b"\n'
    )
    models = read(A_KEY="secret")
    assert [s.name for s in models.chain] == ["a", "ollama/b"]
    assert models.chain[0].api_key.get_secret_value() == "secret"
    assert "secret" not in repr(models)


def test_models_of_the_file_besides_model_can_be_named_but_are_no_fallback(read, tmp_path):
    (tmp_path / "models.toml").write_text('[[models]]\nname="ollama/a"\n[[models]]\nname="ollama/b"\ncontext_tokens=4096\n')
    models = read(MODEL="ollama/b")
    assert [s.name for s in models.chain] == ["ollama/b"]
    assert models.chain[0].description.context_tokens == 4096
    assert [s.name for s in models.selectable] == ["ollama/a"]


def test_the_scripted_model_is_labelled_wherever_it_is_named(read, tmp_path):
    script = tmp_path / "demo.json"
    script.write_text(json.dumps({"edit_format": "unified_diff", "tool_calling": False, "rules": [{"replies": [{"content": "x"}]}]}))
    (spec,) = read(MODEL=f"scripted:{script}").chain
    assert spec.name == "scripted:demo"
    assert spec.description.scripted
    assert spec.description.edit_format == "unified_diff"


@pytest.mark.parametrize(
    ("name", "base_url", "wire"),
    [
        ("anthropic/x", None, "anthropic/x"),
        ("gpt-4o", None, "gpt-4o"),
        ("mine", "http://h/v1", "openai/mine"),
        ("openai/mine", "http://h/v1", "openai/mine"),
        ("Qwen/Coder", "http://h/v1", "openai/Qwen/Coder"),
        ("ollama/x", None, "ollama_chat/x"),
        ("ollama/x", "http://h:11434", "ollama_chat/x"),
        ("ollama/x", "http://h:11434/v1", "openai/x"),
    ],
)
def test_names_on_the_wire(name, base_url, wire):
    assert wire_name(name, base_url) == wire
