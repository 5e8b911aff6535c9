"""The domain: the tables and the verbs on them."""
