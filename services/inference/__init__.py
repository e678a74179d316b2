"""The inference service: models through one door. The only holder of provider keys and the only importer of litellm."""
