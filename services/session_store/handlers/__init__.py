"""What the session store does with each batch and each question: one file a group."""
