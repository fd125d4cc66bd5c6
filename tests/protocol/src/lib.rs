//! Checks of the protocol by the rules for protobuf files: see `tests/`.
