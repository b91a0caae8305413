//! Tuning methods and their inputs.

use super::effort::Effort;
use super::outcome::MethodOutcome;
use super::setup::{Evaluation, PlannedModel, Setup, WeightScheme};
use crate::calibrate::{CalibrationStatistics, SampleSet};
use crate::engine::Value;
use crate::onnx::edit::ModelEdit;
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use crate::simulate::{Candidate, HookChanges, LayerHook, Network, NodeAt, Samples, TensorAt};
use crate::statistics::TensorStatistics;
use anyhow::{Context as _, Result};
use serde::{Serialize, Serializer};
use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// A way to bring the quantized network nearer to the float one.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    /// Name on the command line and in the sidecar.
    pub name: &'static str,
    /// Name in printed text.
    pub title: &'static str,
    /// One-line description.
    pub about: &'static str,
    /// Whether the method is tried where the user names no methods.
    pub is_tried: fn(Case) -> bool,
    /// Whether the method is so slow that all methods before it must be accepted or rejected first.
    pub waits: bool,
    /// The code that makes the change.
    pub action: Action,
}

/// The code of a method, by stage. Held-out samples accept or reject the result by the thresholds of `tune/accept.rs`.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// Changes the float model before calibration and keeps its outputs. This stage is the first.
    FloatModel(fn(&ModelContext) -> Result<FloatProposal>),
    /// Chooses among whole plans. This stage is the second.
    Choice(fn(&ChoiceContext, &mut PlannedModel, &mut Option<Evaluation>) -> Result<Chosen>),
    /// Changes a plan layer by layer during a forward pass, on top of the methods before it. This stage is the last.
    Layer(for<'a> fn(&'a LayerContext<'a>) -> Result<Box<dyn LayerHook + 'a>>),
}

impl Action {
    /// Returns the stage in words.
    pub fn works_on(&self) -> &'static str {
        match self {
            Action::FloatModel(_) => "float model",
            Action::Choice(_) => "plan",
            Action::Layer(_) => "layers",
        }
    }
}

/// Facts about a run and its model, by which default methods are selected.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The level of `--effort`.
    pub effort: Effort,
    /// Whether some weights have fewer than 7 bits.
    pub few_bits: bool,
    /// Whether most weights have fewer than 8 bits or one scale per tensor, or most activations more than 8 bits.
    /// Rounding is then most of the error.
    pub rounding_matters: bool,
    /// Whether more than three of four weights belong to linear layers of transformers.
    pub transformer: bool,
}

/// Inputs of a method that changes the float model.
pub struct ModelContext<'a> {
    /// The options and the calibration data.
    pub setup: Setup<'a>,
    /// The prepared model.
    pub model: &'a ModelProto,
    /// Where the model will be quantized.
    pub placement: &'a Placement,
}

/// Changes of the float model that keep its outputs.
#[derive(Debug, Clone, Default)]
pub struct FloatProposal {
    /// The changes; empty where there is nothing to change.
    pub edits: Vec<ModelEdit>,
    /// Factors on the channels of tensors; all other tensors stay the same. The output of an inserted Mul has its new
    /// name here.
    pub scalings: BTreeMap<String, ChannelScaling>,
    /// The changes in words, for the report.
    pub details: Vec<String>,
    /// One note per change, and one with the reason per skipped group; for the sidecar.
    pub notes: Vec<String>,
}

impl FloatProposal {
    /// Whether the proposal has neither changes nor notes.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty() && self.notes.is_empty()
    }

    /// Whether the proposal inserts nodes.
    pub fn inserts(&self) -> bool {
        self.edits.iter().any(|edit| matches!(edit, ModelEdit::InsertMul(_)))
    }

    /// Returns the tensor of the unchanged model that an inserted Mul scales to `tensor`; `tensor` itself without such
    /// a Mul.
    pub fn source_of<'a>(&'a self, tensor: &'a str) -> &'a str {
        let source = self.edits.iter().find_map(|edit| match edit {
            ModelEdit::InsertMul(mul) if mul.output == tensor => Some(mul.tensor.as_str()),
            _ => None,
        });
        source.unwrap_or(tensor)
    }
}

/// Inputs of a method that chooses among plans.
pub struct ChoiceContext<'a> {
    /// The options and the calibration data.
    pub setup: Setup<'a>,
    /// The methods of this run.
    pub methods: &'a Methods,
    /// Calibration statistics of the model.
    pub calibration: &'a CalibrationStatistics,
}

impl ChoiceContext<'_> {
    /// Returns the samples to evaluate plans on, as positions in [`SampleSet::by_content`]: the samples of the earlier
    /// evaluation `known`, if there is one.
    ///
    /// # Errors
    /// If memory is too small for enough samples.
    pub fn samples(&self, data: &SampleSet, model: &ModelProto, known: Option<&Evaluation>) -> Result<Range<usize>> {
        match known {
            Some(known) => Ok(known.samples.clone()),
            None => self.setup.evaluation_samples(data, model, self.methods.n_of_layers()),
        }
    }
}

/// The result of choosing among plans.
#[derive(Debug, Clone, Default)]
pub struct Chosen {
    /// One outcome per variant that was tried.
    pub outcomes: Vec<MethodOutcome>,
    /// The final range observer of activations; `None` where the table's observer is kept.
    pub observer: Option<&'static str>,
    /// New statistics of tensors that changed.
    pub statistics: BTreeMap<String, TensorStatistics>,
}

/// Inputs of a method that changes layers.
pub struct LayerContext<'a> {
    /// The prepared model.
    pub model: &'a ModelProto,
    /// Where the model is quantized.
    pub placement: &'a Placement,
    /// The plan before this stage.
    pub plan: &'a QuantPlan,
    /// The backend's table, and the range observer of weights.
    pub table: WeightScheme<'a>,
    /// Samples to learn from.
    pub samples: Samples<'a>,
    /// The methods that run on this candidate, including this one.
    pub methods: Methods,
    /// Values that methods keep for the next candidate.
    pub kept: &'a Memo,
}

impl LayerContext<'_> {
    /// Whether the method with this name runs on the candidate.
    pub fn has(&self, name: &str) -> bool {
        self.methods.contains(name)
    }
}

/// Values that are computed once for all candidates, by type.
#[derive(Default)]
pub struct Memo(RefCell<BTreeMap<TypeId, Rc<dyn Any>>>);

impl Memo {
    /// Returns the value of type `T`; calls `make` the first time.
    ///
    /// # Errors
    /// If `make` fails.
    pub fn get<T: 'static>(&self, make: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        let id = TypeId::of::<T>();
        let found = self.0.borrow().get(&id).cloned();
        let value = match found {
            Some(found) => found,
            None => {
                let made: Rc<dyn Any> = Rc::new(make()?);
                self.0.borrow_mut().insert(id, made.clone());
                made
            }
        };
        value.downcast::<T>().ok().context("internal error: a value of another type")
    }
}

impl PartialEq for Method {
    fn eq(&self, other: &Method) -> bool {
        self.name == other.name
    }
}

impl Serialize for Method {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

/// A list of methods, in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Methods(Vec<Method>);

impl Methods {
    /// Returns the methods of `all` for which `is_wanted` holds, in the same order.
    pub fn among(all: &[Method], is_wanted: impl Fn(&Method) -> bool) -> Methods {
        Methods(all.iter().filter(|method| is_wanted(method)).copied().collect())
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the list has a method with this name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|method| method.name == name)
    }

    /// Iterates over the methods in order.
    pub fn iter(&self) -> impl Iterator<Item = Method> {
        self.0.iter().copied()
    }

    /// Returns the number of methods that change layers.
    pub fn n_of_layers(&self) -> usize {
        self.of_layers().0.len()
    }

    /// Returns the methods that change layers.
    pub fn of_layers(&self) -> Methods {
        Methods(self.iter().filter(|method| matches!(method.action, Action::Layer(_))).collect())
    }

    /// Returns the list with `method` added, in the order of `all`.
    #[must_use]
    pub fn with(&self, method: Method, all: &Methods) -> Methods {
        Methods::among(&all.0, |other| self.contains(other.name) || *other == method)
    }
}

/// The hooks of several methods, called one after the other on one candidate.
pub struct Hooks<'a>(Vec<Box<dyn LayerHook + 'a>>);

impl<'a> Hooks<'a> {
    /// Creates the hooks of the methods in `context` that change layers.
    ///
    /// # Errors
    /// If a hook cannot be created.
    pub fn of(context: &'a LayerContext<'a>) -> Result<Hooks<'a>> {
        let hook = |method: Method| match method.action {
            Action::Layer(hook) => Some(hook(context).with_context(|| format!("method `{}`", method.name))),
            Action::FloatModel(_) | Action::Choice(_) => None,
        };
        Ok(Hooks(context.methods.iter().filter_map(hook).collect::<Result<_>>()?))
    }
}

impl LayerHook for Hooks<'_> {
    fn changes(&self) -> HookChanges {
        self.0.iter().map(|hook| hook.changes()).fold(HookChanges::default(), |all, one| HookChanges {
            weights: all.weights || one.weights,
            biases: all.biases.or(one.biases),
            others: all.others || one.others,
        })
    }

    fn reads_inputs(&self) -> bool {
        self.0.iter().any(|hook| hook.reads_inputs())
    }

    fn begin(&mut self, candidate: &mut Candidate) -> Result<()> {
        self.0.iter_mut().try_for_each(|hook| hook.begin(candidate))
    }

    fn tensor(&mut self, net: &Network, at: &TensorAt, candidate: &mut Candidate) -> Result<()> {
        self.0.iter_mut().try_for_each(|hook| hook.tensor(net, at, candidate))
    }

    fn weight(&mut self, net: &Network, at: &NodeAt, candidate: &mut Candidate) -> Result<()> {
        self.0.iter_mut().try_for_each(|hook| hook.weight(net, at, candidate))
    }

    fn outputs(
        &mut self,
        net: &Network,
        at: &NodeAt,
        candidate: &mut Candidate,
        outputs: Vec<Vec<Value>>,
    ) -> Result<Vec<Vec<Value>>> {
        self.0.iter_mut().try_fold(outputs, |outputs, hook| hook.outputs(net, at, candidate, outputs))
    }
}
