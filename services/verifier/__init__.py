"""The verifier: decides whether a change may be committed, from what the repository's own tests say before and after it."""
