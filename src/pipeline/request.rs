//! The options of a run, and what is known of a model before anything runs.

use crate::calibrate::{self, SampleSet};
use crate::equalize::{insertable, with_inserted};
use crate::heads::HeadRequest;
use crate::import::ImportedRanges;
use crate::metrics::ChannelAxes;
use crate::mixed::Wanted;
use crate::observers;
use crate::onnx::edit::InsertedMul;
use crate::onnx::inputs::Shapes;
use crate::onnx::names::Names;
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::{Placement, Selection};
use crate::prepare::raise_opset;
use crate::progress::Progress;
use crate::quant::GivenRange;
use crate::scheme::{Scheme, WIDE_OPSET, WeightStorage};
use crate::simulate::{OutputOptions, PreparedNodes};
use crate::tune::{self, Setup};
use anyhow::Result;
use std::collections::BTreeMap;

/// Options of a run.
pub struct Request {
    /// The backend's table, with switches applied.
    pub scheme: Scheme,
    /// Shapes for inputs with open dimensions.
    pub shapes: Shapes,
    /// Tensors to cut the model at; none for the whole model.
    pub outputs: Vec<String>,
    /// Nodes to exclude or select.
    pub selection: Selection,
    /// The calibration data.
    pub calibration: calibrate::CalibrationOptions,
    /// Given ranges of activations, which need no data.
    pub ranges: Option<ImportedRanges>,
    /// Range observers.
    pub observers: observers::ObserverOptions,
    /// Options of tuning.
    pub tune: tune::TuningOptions,
    /// Channel axes that the user gives, by output.
    pub axes: ChannelAxes,
    /// The network's task and head, as far as the user gives them.
    pub head: HeadRequest,
    /// Whether Muls for channel scales may be inserted, where the table allows it.
    pub inserts: bool,
    /// Mixed precision, where the user asks for it.
    pub mixed: Option<Wanted>,
    /// Whether the sensitivity of each layer is measured where no goal asks for it.
    pub sensitivity: bool,
    /// Storage of weights.
    pub storage: WeightStorage,
    /// Samples that run at the same time.
    pub threads: usize,
    /// The request with the table of wider types. It replaces this request for transformers, and for networks that this
    /// request's table breaks.
    pub wider: Option<Box<Request>>,
}

impl Request {
    /// Returns the given ranges, by tensor.
    pub(super) fn given(&self) -> Option<&BTreeMap<String, GivenRange>> {
        self.ranges.as_ref().map(|imported| &imported.ranges)
    }

    /// Returns the inputs that all methods share.
    pub(super) fn setup<'a>(
        &'a self,
        known: &'a Known,
        samples: Option<&'a SampleSet>,
        progress: &'a Progress<'a>,
    ) -> Setup<'a> {
        Setup {
            scheme: &self.scheme,
            value_info: &known.value_info,
            selection: &known.selection,
            insertable: &known.insertable,
            copies: &known.copies,
            shapes: &known.shapes,
            observers: &self.observers,
            has_given_ranges: self.ranges.is_some(),
            has_goal: self.mixed.is_some(),
            options: &self.tune,
            outputs: OutputOptions {
                axes: &self.axes,
                head: &self.head,
                input: samples.and_then(SampleSet::image_size),
            },
            prepared: &known.prepared,
            samples,
            progress,
        }
    }

    /// Whether ranges of activations are written.
    pub(super) fn has_ranges(&self) -> bool {
        self.scheme.has_ranges(self.storage)
    }

    /// Whether samples are run again after calibration.
    pub fn runs_again(&self) -> bool {
        self.tune.looks_again() || self.mixed.is_some()
    }

    /// Returns the later uses of the samples.
    pub(super) fn data_use(&self) -> calibrate::Use {
        let batch_size = self.observers.activation.observer.batch_size;
        calibrate::Use { batch_size, loads_again: self.runs_again() }
    }
}

/// Facts about a prepared model before anything runs.
pub(super) struct Known {
    /// Types and shapes, also of tensors that may be inserted.
    pub value_info: ValueInfos,
    /// Nodes to exclude or select.
    pub selection: Selection,
    /// Candidate Muls for channel scales.
    pub insertable: Vec<InsertedMul>,
    /// Names for copies of tensors at the borders of a region of wider types, by tensor.
    pub copies: BTreeMap<String, String>,
    /// Shapes of open inputs.
    pub shapes: Shapes,
    /// Nodes that passes share.
    pub prepared: PreparedNodes,
}

impl Known {
    pub fn new(
        model: &ModelProto,
        value_info: ValueInfos,
        placement: &Placement,
        request: &Request,
        shapes: Shapes,
    ) -> Result<Known> {
        let graph = model.graph()?;
        let inserts = request.inserts && request.scheme.insert_scales.is_some() && request.ranges.is_none();
        let insertable = if inserts { insertable(graph, &value_info, placement) } else { Vec::new() };
        let is_float = request.scheme.scales_in_float();
        let names = insertable.iter().filter(|_| is_float).flat_map(InsertedMul::names).cloned();
        let selection = Selection { scaling: names.collect(), ..request.selection.clone() };
        let mut value_info = with_inserted(value_info, &insertable);
        let mut copies = BTreeMap::new();
        let may_have_region =
            request.scheme.region.is_some() && (request.tune.looks_again() || !placement.tails.is_empty());
        if may_have_region && raise_opset(&mut model.clone(), WIDE_OPSET).is_ok() {
            let mut names = Names::of(graph);
            for quantizer in &placement.activations {
                let copy = names.fresh(&format!("{}_converted", quantizer.tensor));
                value_info.copy(&quantizer.tensor, &copy);
                copies.insert(quantizer.tensor.clone(), copy);
            }
        }
        Ok(Known { value_info, selection, insertable, copies, shapes, prepared: PreparedNodes::default() })
    }
}
