//! What a method is, and what it is given.

use super::effort::Effort;
use super::outcome::MethodOutcome;
use super::setup::{Evaluation, PlannedModel, Setup, WeightScheme};
use crate::calibrate::{CalibrationStatistics, SampleSet};
use crate::engine::Value;
use crate::onnx::edit::ModelEdit;
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::QuantPlan;
use crate::progress::Progress;
use crate::quant::ChannelScaling;
use crate::simulate::{Candidate, LayerHook, Network, NodeAt, Samples, TensorAt, Touched};
use crate::statistics::TensorStatistics;
use anyhow::{Context as _, Result};
use serde::{Serialize, Serializer};
use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// One way to bring the quantized network nearer to the float one.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    /// Its name on the command line and in the sidecar.
    pub name: &'static str,
    /// Its name where people read.
    pub title: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    /// Whether it is tried where the user names no methods.
    pub is_tried: fn(Case) -> bool,
    /// Whether it takes so long that it waits until those before it are accepted or rejected.
    pub waits: bool,
    /// Its work.
    pub action: Action,
}

/// The work of a method. Held-out samples accept or reject the result: `tune/accept.rs`.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// Changes the float model before it is observed, and leaves its outputs as they are. Models come before all else.
    FloatModel(fn(&ModelContext) -> Result<FloatProposal>),
    /// Chooses among plans, before single layers are changed.
    Choice(fn(&ChoiceContext, &mut PlannedModel, &mut Option<Evaluation>) -> Result<Chosen>),
    /// Changes a plan layer by layer, on the way through the network and on top of the methods before it.
    Layer(for<'a> fn(&'a LayerContext<'a>) -> Result<Box<dyn LayerHook + 'a>>),
}

impl Action {
    /// What a method works on.
    pub fn works_on(&self) -> &'static str {
        match self {
            Action::FloatModel(_) => "float model",
            Action::Choice(_) => "plan",
            Action::Layer(_) => "layers",
        }
    }
}

/// What methods are tried for.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// How much work is wanted.
    pub effort: Effort,
    /// Whether some weights have fewer than 7 bits.
    pub few_bits: bool,
    /// Whether most weights have fewer than 8 bits or one scale per tensor, so that rounding is most of the error.
    pub coarse: bool,
    /// Whether more than three of four weights belong to linear layers of transformers.
    pub transformer: bool,
}

/// What a method that changes the float model is given.
pub struct ModelContext<'a> {
    /// The options, and the calibration data.
    pub setup: Setup<'a>,
    /// The prepared model.
    pub model: &'a ModelProto,
    /// Where it will be quantized.
    pub placement: &'a Placement,
    /// Told of work over the data.
    pub progress: &'a Progress<'a>,
}

/// Changes of the float model that leave its outputs as they are.
#[derive(Debug, Clone, Default)]
pub struct FloatProposal {
    /// The changes; none where there is nothing to change.
    pub edits: Vec<ModelEdit>,
    /// What the channels of tensors are multiplied by with them; all other tensors stay as they are. What an inserted Mul makes
    /// is by the name that it gets.
    pub scalings: BTreeMap<String, ChannelScaling>,
    /// The changes in words, for the report.
    pub details: Vec<String>,
    /// The same one by one, and what was left alone with the reason; for the sidecar.
    pub notes: Vec<String>,
}

impl FloatProposal {
    /// Whether there is nothing to change and nothing to say.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty() && self.notes.is_empty()
    }

    /// Whether nodes are inserted.
    pub fn inserts(&self) -> bool {
        self.edits.iter().any(|edit| matches!(edit, ModelEdit::InsertMul(_)))
    }

    /// The tensor of the model as it is that `tensor` is made of.
    pub fn source_of<'a>(&'a self, tensor: &'a str) -> &'a str {
        let source = self.edits.iter().find_map(|edit| match edit {
            ModelEdit::InsertMul(mul) if mul.output == tensor => Some(mul.tensor.as_str()),
            _ => None,
        });
        source.unwrap_or(tensor)
    }
}

/// What a method that chooses among plans is given.
pub struct ChoiceContext<'a> {
    /// The options, and the calibration data.
    pub setup: Setup<'a>,
    /// The methods that are tried in this run.
    pub methods: &'a Methods,
    /// What was observed of the model.
    pub calibration: &'a CalibrationStatistics,
}

impl ChoiceContext<'_> {
    /// The samples that evaluate plans, by their positions in those by content: those of what is `known`, where something is.
    ///
    /// # Errors
    /// If there is no memory for enough of them.
    pub fn samples(&self, data: &SampleSet, model: &ModelProto, known: Option<&Evaluation>) -> Result<Range<usize>> {
        match known {
            Some(known) => Ok(known.samples.clone()),
            None => self.setup.evaluation_samples(data, model, self.methods.n_of_layers()),
        }
    }
}

/// What was chosen among plans.
#[derive(Debug, Clone, Default)]
pub struct Chosen {
    /// What became of each variant that was tried.
    pub outcomes: Vec<MethodOutcome>,
    /// The range observer of activations in the end, where it is not the table's.
    pub observer: Option<&'static str>,
    /// What is known of tensors that are others now.
    pub statistics: BTreeMap<String, TensorStatistics>,
}

/// What a method that changes layers is given.
pub struct LayerContext<'a> {
    /// The prepared model.
    pub model: &'a ModelProto,
    /// Where it is quantized.
    pub placement: &'a Placement,
    /// The plan as it was before this stage.
    pub plan: &'a QuantPlan,
    /// The backend's table, and the observer of weights.
    pub table: WeightScheme<'a>,
    /// Samples to learn from.
    pub samples: Samples<'a>,
    /// The methods at work on the candidate, this one included.
    pub methods: Methods,
    /// What methods keep for the next candidate.
    pub kept: &'a Memo,
}

impl LayerContext<'_> {
    /// Whether the method of a name is at work, too.
    pub fn has(&self, name: &str) -> bool {
        self.methods.contains(name)
    }
}

/// Values that are made once for all candidates, by their types.
#[derive(Default)]
pub struct Memo(RefCell<BTreeMap<TypeId, Rc<dyn Any>>>);

impl Memo {
    /// The value of this type, made where there is none yet.
    ///
    /// # Errors
    /// If making it fails.
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

/// Some methods, in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Methods(Vec<Method>);

impl Methods {
    /// Those of `all` that `is_wanted` tells.
    pub fn among(all: &[Method], is_wanted: impl Fn(&Method) -> bool) -> Methods {
        Methods(all.iter().filter(|method| is_wanted(method)).copied().collect())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the method of a name is among them.
    pub fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|method| method.name == name)
    }

    /// The methods in their order.
    pub fn iter(&self) -> impl Iterator<Item = Method> {
        self.0.iter().copied()
    }

    /// Number of those that change layers.
    pub fn n_of_layers(&self) -> usize {
        self.of_layers().0.len()
    }

    /// Those that change layers.
    pub fn of_layers(&self) -> Methods {
        Methods(self.iter().filter(|method| matches!(method.action, Action::Layer(_))).collect())
    }

    /// These and another of `all`, in its order.
    #[must_use]
    pub fn with(&self, method: Method, all: &Methods) -> Methods {
        Methods::among(&all.0, |other| self.contains(other.name) || *other == method)
    }
}

/// The hooks of some methods at work on one candidate, one after the other.
pub struct Hooks<'a>(Vec<Box<dyn LayerHook + 'a>>);

impl<'a> Hooks<'a> {
    /// Of the methods of `context`.
    ///
    /// # Errors
    /// If one of them cannot begin.
    pub fn of(context: &'a LayerContext<'a>) -> Result<Hooks<'a>> {
        let hook = |method: Method| match method.action {
            Action::Layer(hook) => Some(hook(context).with_context(|| format!("method `{}`", method.name))),
            Action::FloatModel(_) | Action::Choice(_) => None,
        };
        Ok(Hooks(context.methods.iter().filter_map(hook).collect::<Result<_>>()?))
    }
}

impl LayerHook for Hooks<'_> {
    fn touched(&self) -> Touched {
        self.0.iter().map(|hook| hook.touched()).fold(Touched::default(), |all, one| Touched {
            weights: all.weights || one.weights,
            biases: all.biases.or(one.biases),
            others: all.others || one.others,
        })
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
