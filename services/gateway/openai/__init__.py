"""The API that OpenAI's clients speak: chat completions and models, stateless, straight to the inference service."""
