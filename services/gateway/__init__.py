"""The door: HTTP in and out, identity, limits. Stateless; what it knows is on the journals or with the services that it asks."""
