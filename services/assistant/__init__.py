"""The assistant service: answers the turns of conversations, one at a time in each."""
