"""What `proto/` holds, made from the contracts: JSON Schemas, golden examples, and the record of what was published.

A published version only grows by optional fields; whatever else changes it is a fault and nothing is written.
"""
