//! The protocol by the rules of those who write protocols: see `tests/`.
