//! The tensors that tell how near a network is to the float one.

use crate::onnx::graph::GraphIndex;
use crate::onnx::node;

/// The tensor by which an output is evaluated.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluatedTensor {
    /// Its name.
    pub tensor: String,
    /// The axis along which only differences count.
    pub centred: Option<i64>,
}

impl EvaluatedTensor {
    /// An output is evaluated by its values; that of a Softmax by what the Softmax reads, up to a constant. There
    /// all samples have a say: of probabilities only the samples that are in doubt have.
    pub fn of(index: &GraphIndex, output: &str) -> EvaluatedTensor {
        let mut tensor = output;
        while let Some(producer) = index.producer(tensor) {
            let Some(input) = producer.input.first() else { break };
            match producer.op_type() {
                "Softmax" | "LogSoftmax" => {
                    let centred = Some(node::int(producer, "axis", -1));
                    return EvaluatedTensor { tensor: input.clone(), centred };
                }
                "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => tensor = input,
                _ => break,
            }
        }
        EvaluatedTensor { tensor: output.to_string(), centred: None }
    }
}
