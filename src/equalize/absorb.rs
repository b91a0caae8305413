//! High biases absorbed by the next layer.
