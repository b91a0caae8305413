//! Activation functions of recurrent operators.

use tract_onnx::pb::NodeProto;
use tract_onnx::tract_core::tract_linalg::element_wise::ElementWise;
use tract_onnx::tract_core::tract_linalg::routines::Func;
use tract_onnx::tract_hir::internal::*;

/// An activation function with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct CellActivation {
    /// ONNX name in lower case.
    name: String,
    alpha: f32,
    beta: f32,
}

/// Name, default `alpha` and default `beta` of each function; `None` where it has no such parameter.
const FUNCTIONS: &[(&str, Option<f32>, Option<f32>)] = &[
    ("sigmoid", None, None),
    ("tanh", None, None),
    ("relu", None, None),
    ("softsign", None, None),
    ("softplus", None, None),
    ("affine", Some(1.0), Some(0.0)),
    ("leakyrelu", Some(0.01), None),
    ("thresholdedrelu", Some(1.0), None),
    ("scaledtanh", Some(1.0), Some(1.0)),
    ("hardsigmoid", Some(0.2), Some(0.5)),
    ("elu", Some(1.0), None),
];

/// Returns the functions of all directions: those of the node's attributes, otherwise `default` for each direction.
pub fn parse(node: &NodeProto, n_directions: usize, default: &[&str]) -> TractResult<Vec<CellActivation>> {
    let n = n_directions * default.len();
    let given = node.get_attr_opt_tvec::<&str>("activations")?;
    let names = given.map_or_else(|| default.repeat(n_directions), |given| given.to_vec());
    ensure!(names.len() == n, "has {} activation functions, expected {n}", names.len());
    let numbers = |name: &str| TractResult::Ok(node.get_attr_opt_slice::<f32>(name)?.unwrap_or(&[]).iter().copied());
    let (mut alphas, mut betas) = (numbers("activation_alpha")?, numbers("activation_beta")?);
    let activation = |name: &str| {
        let name = name.to_ascii_lowercase();
        let known = FUNCTIONS.iter().find(|(known, ..)| *known == name);
        let (_, alpha, beta) =
            known.with_context(|| format!("activation function is `{name}`, expected one that ONNX defines"))?;
        let alpha = alpha.map_or(0.0, |default| alphas.next().unwrap_or(default));
        let beta = beta.map_or(0.0, |default| betas.next().unwrap_or(default));
        Ok(CellActivation { name, alpha, beta })
    };
    names.into_iter().map(activation).collect()
}

/// The engine's vectorized functions.
pub struct CellFunctions {
    sigmoid: Box<dyn ElementWise<f32>>,
    tanh: Box<dyn ElementWise<f32>>,
}

impl CellFunctions {
    pub fn new() -> TractResult<CellFunctions> {
        Ok(CellFunctions { sigmoid: Func::Sigmoid.ew_f32()?, tanh: Func::Tanh.ew_f32()? })
    }
}

impl CellActivation {
    /// Clamps the values to `[-clip, clip]`, then applies the function.
    pub fn apply(&self, functions: &CellFunctions, clip: f32, values: &mut [f32]) -> TractResult<()> {
        if clip.is_finite() {
            values.iter_mut().for_each(|x| *x = x.clamp(-clip.abs(), clip.abs()));
        }
        let (alpha, beta) = (self.alpha, self.beta);
        let mut map = |f: &dyn Fn(f32) -> f32| values.iter_mut().for_each(|x| *x = f(*x));
        match self.name.as_str() {
            "sigmoid" => return functions.sigmoid.run(values),
            "tanh" => return functions.tanh.run(values),
            "relu" => map(&|x| x.max(0.0)),
            "softsign" => map(&|x| x / (1.0 + x.abs())),
            "softplus" => map(&|x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
            "affine" => map(&|x| alpha * x + beta),
            "leakyrelu" => map(&|x| if x < 0.0 { alpha * x } else { x }),
            "thresholdedrelu" => map(&|x| if x > alpha { x } else { 0.0 }),
            "scaledtanh" => map(&|x| alpha * (beta * x).tanh()),
            "hardsigmoid" => map(&|x| (alpha * x + beta).clamp(0.0, 1.0)),
            "elu" => map(&|x| if x < 0.0 { alpha * x.exp_m1() } else { x }),
            other => bail!("internal error: no function `{other}`"),
        }
        Ok(())
    }
}
