"""Which sources of repositories somebody may name. Pure."""

OWNER_TENANT = "local"


def may_name(tenant: str, source: str) -> bool:
    """Folders, names and the ssh keys of the server are its owner's alone; everybody may name an http or https URL."""
    return tenant == OWNER_TENANT or source.lower().startswith(("https://", "http://"))
