"""Which secrets a delivery may be signed with."""

from services.forge.settings import ForgeSettings


def test_a_secret_is_made_once_for_its_owner_only(tmp_path):
    (made,) = ForgeSettings(home=tmp_path).webhook_secrets
    kept = tmp_path / "forge" / "webhook-secret"
    assert len(made) == 64
    assert ForgeSettings(home=tmp_path).webhook_secrets == (made,)
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_never_filled_is_no_secret(tmp_path):
    kept = tmp_path / "forge" / "webhook-secret"
    kept.parent.mkdir()
    kept.write_text("\n")
    (made,) = ForgeSettings(home=tmp_path).webhook_secrets
    assert len(made) == 64


def test_empty_settings_are_no_secrets_and_the_old_one_is_valid_beside_the_new(tmp_path):
    empty = ForgeSettings(home=tmp_path, github_webhook_secret="", github_old_webhook_secret="")
    assert [len(secret) for secret in empty.webhook_secrets] == [64]
    both = ForgeSettings(home=tmp_path, github_webhook_secret="new", github_old_webhook_secret="old")
    assert both.webhook_secrets == (b"new", b"old")
