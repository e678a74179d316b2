"""Who is asking: the owner's token, API keys, JWTs of an issuer, short-lived tokens for addresses. See `docs/identity.md`."""
