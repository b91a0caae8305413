//! The tensors that tell how near a network is to the float one.

use crate::onnx::graph::GraphIndex;
use crate::onnx::node;

/// The tensor by which an output is judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// Its name.
    pub tensor: String,
    /// The axis along which only differences count.
    pub centred: Option<i64>,
}

/// An output is judged by its values; that of a Softmax by what the Softmax reads, up to a constant. There
/// all samples have a say: of probabilities only the samples that are in doubt have.
pub fn judged(index: &GraphIndex, output: &str) -> Judged {
    let mut tensor = output;
    while let Some(producer) = index.producer(tensor) {
        let Some(input) = producer.input.first() else { break };
        match producer.op_type() {
            "Softmax" | "LogSoftmax" => {
                let centred = Some(node::int(producer, "axis", -1));
                return Judged { tensor: input.clone(), centred };
            }
            "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => tensor = input,
            _ => break,
        }
    }
    Judged { tensor: output.to_string(), centred: None }
}
