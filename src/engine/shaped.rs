//! Engines of one model for samples of several shapes.

use super::{Engine, OutputVisitor, Parsed, Session};
use crate::data::Array;
use crate::diag::copy_of;
use crate::onnx::inputs::{InputShapes, InputSpec};
use anyhow::{Context, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An engine, which the first thread that needs it builds.
type Built = Arc<OnceLock<Result<Engine>>>;

/// Engines of one model, each built for the first sample of its shape. Samples should be grouped by shape: besides the
/// engines in use, only the last few are kept.
pub struct ShapedEngines {
    inputs: Vec<InputSpec>,
    /// The model to build other engines from, where inputs have open dimensions.
    open: Option<Parsed>,
    observed: Vec<String>,
    /// The engine for the shapes of the inputs.
    first: Engine,
    others: Mutex<VecDeque<(InputShapes, Built)>>,
}

impl ShapedEngines {
    /// Builds the engine for the shapes of the inputs, as [`Parsed::build`] does.
    ///
    /// # Errors
    /// As [`Parsed::build`].
    pub fn new(parsed: Parsed, observed: &[String]) -> Result<ShapedEngines> {
        let (inputs, open) = (parsed.inputs.clone(), parsed.before_inference.is_some().then(|| parsed.clone()));
        let first = parsed.build(observed)?;
        Ok(ShapedEngines { inputs, open, observed: observed.to_vec(), first, others: Mutex::default() })
    }

    /// Returns the inputs, in the order of the graph.
    pub fn inputs(&self) -> &[InputSpec] {
        &self.inputs
    }

    /// Returns a session for one thread.
    ///
    /// # Errors
    /// If the engine cannot create its state.
    pub fn session(&self) -> Result<ShapedSession<'_>> {
        let shapes = self.inputs().iter().map(|input| input.shape.clone()).collect();
        Ok(ShapedSession { engines: self, shapes, session: self.first.session()? })
    }

    /// Returns a session for samples of these shapes.
    fn session_for(&self, open: &Parsed, shapes: &InputShapes) -> Result<Session> {
        if self.inputs().iter().map(|input| &input.shape).eq(shapes) {
            return self.first.session();
        }
        let built = {
            let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
            let found = others.iter().find(|(known, _)| known == shapes).map(|(_, built)| built.clone());
            found.unwrap_or_else(|| {
                // Threads that take samples by shape are on at most this many shapes.
                while others.len() >= rayon::current_num_threads().max(1) {
                    others.pop_front();
                }
                let built = Built::default();
                others.push_back((shapes.clone(), built.clone()));
                built
            })
        };
        let build = || open.with_shapes(shapes).and_then(|parsed| parsed.build(&self.observed));
        let engine = built.get_or_init(|| build().with_context(|| format!("input shapes {shapes:?}")));
        engine.as_ref().map_err(copy_of)?.session()
    }
}

/// One thread's session, with the engine for the shapes of the last sample.
pub struct ShapedSession<'a> {
    engines: &'a ShapedEngines,
    shapes: InputShapes,
    session: Session,
}

impl ShapedSession<'_> {
    /// As [`Session::run`], in the engine for the sample's shapes.
    ///
    /// # Errors
    /// As [`Session::run`], and if the model cannot be built for these shapes.
    pub fn run(&mut self, sample: &[Array], visit: OutputVisitor) -> Result<Vec<Array>> {
        let shapes = || sample.iter().map(|array| &array.shape);
        if let Some(open) = self.engines.open.as_ref().filter(|_| !self.shapes.iter().eq(shapes())) {
            let shapes: InputShapes = shapes().cloned().collect();
            self.session = self.engines.session_for(open, &shapes)?;
            self.shapes = shapes;
        }
        self.session.run(sample, visit)
    }
}
