//! Sums of the metrics over the samples of a comparison.

use crate::data::{Array, Dataset, ImageTruth, Values};
use crate::diag::{WithHint, count};
use crate::heads::{HeadRequest, OutputView, TaskHead};
use crate::metrics::{
    EvaluatedOutput, FloatOutput, InOrder, METRICS, Measurement, NonFiniteCounts, OutputPair, PreparedMetrics,
    SamplePair, argmax, n_classes,
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Maximum samples for preparing metrics.
pub(super) const MAX_FIRST: usize = 64;
/// Minimum samples for preparing metrics, however large the outputs, where there are so many.
const MIN_FIRST: usize = 4;
/// Approximate limit on the bytes of outputs for preparing metrics.
const MAX_BYTES: usize = 1 << 28;
/// Minimum labeled rows that tell whether labels are numbered from another class.
const MIN_LABELED: usize = 10;

/// The outputs of both models for a sample, with the sample's labels.
pub(super) struct SampleOutputs<'a> {
    /// Outputs of the float and of the quantized model.
    pub(super) outputs: [Vec<Array>; 2],
    /// Number of classes, where the labels are positions in a list of names.
    pub(super) n_classes: Option<usize>,
    /// The class of each entry of the batch.
    pub(super) labels: Option<&'a [usize]>,
    /// The boxes of each image of the batch.
    pub(super) truths: Option<&'a [ImageTruth]>,
}

/// Returns the values of a float32 array; none of another array.
pub(super) fn f32s(array: &Array) -> &[f32] {
    match &array.values {
        Values::F32(values) => values,
        _ => &[],
    }
}

impl SampleOutputs<'_> {
    /// Checks that the outputs of both models are alike, and that the labels fit them. Fails if shapes differ, or no
    /// output has class scores for the labels.
    pub(super) fn check(&self, outputs: &[EvaluatedOutput], batch: usize) -> Result<()> {
        let [float, quantized] = &self.outputs;
        for (output, (a, b)) in outputs.iter().zip(float.iter().zip(quantized)) {
            let (Values::F32(x), Values::F32(y)) = (&a.values, &b.values) else {
                bail!("internal error: output `{}` is not float32", output.name)
            };
            ensure!(
                x.len() == y.len(),
                "output `{}` has shape {:?}, expected {:?} as in the float model",
                output.name,
                b.shape,
                a.shape
            );
        }
        let of_labels = |labels: &[usize]| {
            let of_scores = |(output, array): (&EvaluatedOutput, &Array)| {
                let n = n_classes(&array.shape, batch)?;
                (output.is_float && array.shape[0] == labels.len()).then_some(n)
            };
            outputs.iter().zip(float).filter_map(of_scores).collect()
        };
        let found: Option<Vec<usize>> = self.labels.map(of_labels);
        if let (Some(n), Some([of_output, ..])) = (self.n_classes, found.as_deref()) {
            let counts = (count(n, "folder"), count(*of_output, "class score"));
            ensure!(
                found.iter().flatten().any(|of_output| *of_output == n),
                anyhow!("--labels folders: found {}, expected one for each of {}", counts.0, counts.1)
                    .hint("name the folders by the numbers of their classes, or give a .csv as labels")
            );
        }
        let most = found.iter().flatten().max().copied();
        if let (Some(n), Some(class)) = (most, self.labels.and_then(|labels| labels.iter().max())) {
            ensure!(
                *class < n,
                anyhow!(
                    "the label is class {class}, expected 0 to {} as the output has {}",
                    n - 1,
                    count(n, "class score")
                )
                .hint("classes are numbered from 0")
            );
        }
        ensure!(
            found.is_none_or(|found| !found.is_empty()),
            "no output has class scores for --labels, expected one of shape [{batch}, classes], found {}",
            float.iter().map(|array| format!("{:?}", array.shape)).collect::<Vec<_>>().join(", ")
        );
        Ok(())
    }

    /// Counts rows of class scores by the float model's class: one below the label, the label, one above it; and all.
    fn label_hits(&self, batch: usize) -> [usize; 4] {
        let mut hits = [0; 4];
        let Some(labels) = self.labels.filter(|labels| !labels.is_empty()) else { return hits };
        let has_row_for_each = |array: &&Array| {
            n_classes(&array.shape, batch).is_some_and(|n| n > 0 && n * labels.len() == f32s(array).len())
        };
        let Some(scores) = self.outputs[0].iter().find(has_row_for_each).map(f32s) else { return hits };
        for (row, &label) in scores.chunks_exact(scores.len() / labels.len()).zip(labels) {
            hits[3] += 1;
            let Some(class) = argmax(row) else { continue };
            // No label is the last number, which is below class 0.
            for (hits, expected) in hits.iter_mut().zip([class + 1, class, class.wrapping_sub(1)]) {
                *hits += usize::from(label == expected);
            }
        }
        hits
    }

    fn pairs(&self) -> Vec<Option<OutputPair<'_>>> {
        let [float, quantized] = &self.outputs;
        let mut pairs = Vec::with_capacity(float.len());
        for (a, b) in float.iter().zip(quantized) {
            pairs.push(Some(OutputPair { shape: &a.shape, float: f32s(a), quantized: f32s(b) }));
        }
        pairs
    }

    /// Returns the float model's outputs for the first image of the batch.
    fn views<'v>(&'v self, outputs: &'v [EvaluatedOutput], batch: usize) -> Vec<OutputView<'v>> {
        let view = |(about, array): (&'v EvaluatedOutput, &'v Array)| {
            OutputView::of_image(&about.name, &array.shape, f32s(array), (batch, 0))
        };
        outputs.iter().zip(&self.outputs[0]).map(view).collect()
    }

    fn n_bytes(&self) -> usize {
        self.outputs.iter().flatten().map(|array| 4 * f32s(array).len()).sum()
    }
}

/// The sums of all metrics, in the order of the runs. The first samples wait until the metrics are prepared on them.
pub(super) struct Sums<'a> {
    asked: HeadRequest,
    outputs: &'a [EvaluatedOutput],
    batch: usize,
    /// Whether samples have several shapes.
    have_shapes: bool,
    input: Option<[usize; 2]>,
    head: Option<TaskHead>,
    n_samples: usize,
    /// Number of samples for preparing metrics; `None` before the first sample.
    n_first: Option<usize>,
    waiting: BTreeMap<usize, SampleOutputs<'a>>,
    in_order: Option<InOrder>,
    non_finite: Vec<NonFiniteCounts>,
    label_hits: [usize; 4],
}

impl<'a> Sums<'a> {
    /// Returns sums without samples. `asked` is the head for metrics of tasks.
    pub(super) fn new(asked: HeadRequest, outputs: &'a [EvaluatedOutput], dataset: &Dataset) -> Sums<'a> {
        Sums {
            asked,
            outputs,
            batch: dataset.batch(),
            have_shapes: dataset.by_shape(0).is_some(),
            input: dataset.image_size(),
            head: None,
            n_samples: dataset.len(),
            n_first: None,
            waiting: BTreeMap::new(),
            in_order: None,
            non_finite: vec![NonFiniteCounts::default(); outputs.len()],
            label_hits: [0; 4],
        }
    }

    fn prepared(&self) -> Option<Arc<PreparedMetrics>> {
        self.in_order.as_ref().map(|in_order| in_order.prepared().clone())
    }

    /// Stores a sample until all samples for preparing metrics are there.
    fn wait(&mut self, place: usize, sample: SampleOutputs<'a>) -> Result<()> {
        if place == 0 {
            let fit = (MAX_BYTES / sample.n_bytes().max(1)).clamp(MIN_FIRST, MAX_FIRST);
            self.n_first = Some(fit.min(self.n_samples));
        }
        self.waiting.insert(place, sample);
        match self.n_first {
            Some(n_first) if (0..n_first).all(|i| self.waiting.contains_key(&i)) => self.prepare(n_first),
            _ => Ok(()),
        }
    }

    /// Prepares the metrics on the first samples, and adds the waiting samples.
    fn prepare(&mut self, n_first: usize) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let first: Vec<&SampleOutputs> = waiting.range(..n_first).map(|(_, sample)| sample).collect();
        let differing: &[&SampleOutputs] = if self.have_shapes { &first } else { &[] };
        let float = self.outputs.iter().enumerate().map(|(i, about)| FloatOutput {
            about,
            batch: self.batch,
            shape: first.first().map_or(&[], |sample| &sample.outputs[0][i].shape),
            samples: first.iter().map(|sample| f32s(&sample.outputs[0][i])).collect(),
            shapes: differing.iter().map(|sample| &sample.outputs[0][i].shape[..]).collect(),
        });
        let float: Vec<FloatOutput> = float.collect();
        let images: Vec<_> =
            first.iter().take(MIN_FIRST).map(|sample| sample.views(self.outputs, self.batch)).collect();
        let head = self.asked.resolve(&images, self.input)?;
        let prepared = Arc::new(PreparedMetrics::new(METRICS, &float, head.as_ref()));
        let in_order = self.in_order.insert(InOrder::new(prepared.clone()));
        for (place, sample) in &waiting {
            in_order.add(
                *place,
                prepared.sums(&SamplePair { outputs: &sample.pairs(), labels: sample.labels, truths: sample.truths }),
            );
        }
        self.head = head;
        Ok(())
    }

    /// Returns a warning if the classes of the float model are mostly next to the labels.
    pub(super) fn shifted_labels(&self) -> Option<String> {
        let [below, right, above, n] = self.label_hits;
        let (shifted, shift, question) = match below > above {
            true => (below, "minus 1", "are the labels numbered from 1, not from 0?"),
            false => (above, "plus 1", "has the model a class for the background before the labeled ones?"),
        };
        let is_clear = n >= MIN_LABELED && shifted >= n / 5 && shifted > 3 * right;
        let percent = |hits: usize| 100.0 * hits as f64 / n as f64;
        is_clear.then(|| {
            format!(
                "the model's top class is the label in {:.2} % of the rows, and the label {shift} in {:.2} %: {question}",
                percent(right),
                percent(shifted)
            )
        })
    }

    /// Returns the figures of all samples, the values that are not finite by output, and the head. Fails if no head
    /// fits the outputs, where the metrics are not yet prepared.
    pub(super) fn finish(mut self) -> Result<(Measurement, Vec<NonFiniteCounts>, Option<TaskHead>)> {
        if self.in_order.is_none() {
            self.prepare(self.n_samples)?;
        }
        let in_order = self.in_order.context("internal error: nothing was measured")?;
        Ok((in_order.into_total(), self.non_finite, self.head))
    }
}

/// Adds a sample, given its position in the data and in the order of the runs. The lock is not held while its sums are
/// computed. Fails if no head fits the outputs.
pub(super) fn add<'a>(
    sums: &Mutex<Sums<'a>>,
    [sample_idx, place]: [usize; 2],
    name: &str,
    sample: SampleOutputs<'a>,
) -> Result<()> {
    let locked = || sums.lock().map_err(|error| anyhow!("{error}"));
    let counts = |pair: &Option<OutputPair>| {
        pair.map(|pair| NonFiniteCounts::of((sample_idx, name), pair.float, pair.quantized)).unwrap_or_default()
    };
    let counts: Vec<NonFiniteCounts> = sample.pairs().iter().map(counts).collect();
    let batch = locked()?.batch;
    let hits = sample.label_hits(batch);
    let mut locked_sums = locked()?;
    locked_sums.label_hits.iter_mut().zip(hits).for_each(|(all, one)| *all += one);
    locked_sums.non_finite.iter_mut().zip(counts).for_each(|(all, one)| all.merge(one));
    let Some(prepared) = locked_sums.prepared() else {
        return locked_sums.wait(place, sample);
    };
    drop(locked_sums);
    let one = prepared.sums(&SamplePair { outputs: &sample.pairs(), labels: sample.labels, truths: sample.truths });
    if let Some(in_order) = &mut locked()?.in_order {
        in_order.add(place, one);
    }
    Ok(())
}
