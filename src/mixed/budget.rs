//! Bits of weights within a budget: narrows weights where it harms least, then widens some with the bits that are left.

use super::search::{Move, Search};
use super::sensitivity::RatedMove;
use anyhow::Result;

impl Search<'_> {
    /// Narrows weights until they fit, least added error per saved bit first. Then widens weights while they fit, most
    /// removed error per spent bit first.
    pub(super) fn fit(&mut self, budget: f64) -> Result<()> {
        while self.mean_bits() > budget {
            let Some(best) = self.best(&self.steps(false), false)? else { return Ok(()) };
            self.commit(best)?;
        }
        loop {
            let left = (budget - self.mean_bits()) * self.cost.n_weights() as f64;
            let mut moves = self.steps(true);
            moves.retain(|moved| self.bits_moved(moved) <= left);
            let Some(best) = self.best(&moves, true)? else { return Ok(()) };
            self.commit(best)?;
        }
    }

    fn mean_bits(&self) -> f64 {
        self.cost.mean_bits(&self.plan)
    }

    /// Returns the move of each layer with a weight to its next wider (`up`) or narrower precision.
    fn steps(&self, up: bool) -> Vec<Move> {
        (0..self.layers.len()).filter_map(|layer| self.step(layer, up)).collect()
    }

    fn step(&self, layer: usize, up: bool) -> Option<Move> {
        let of = self.layers.get(layer).filter(|of| of.n_weights > 0)?;
        let scheme = self.planner.scheme();
        let bits = |precision: Option<&str>| of.weight_bits(precision, scheme);
        let now = bits(self.precision_of(layer));
        let others = self.planner.task.wanted.precisions.iter().map(|name| Some(name.as_str()));
        let all = others.chain([None]);
        let next = match up {
            true => all.filter(|p| bits(*p) > now).min_by_key(|p| bits(*p)),
            false => all.filter(|p| bits(*p) < now).max_by_key(|p| bits(*p)),
        };
        next.map(|precision| Move { layer, precision: precision.map(str::to_string) })
    }

    /// Returns the move with the most removed error per spent bit, or the least added error per saved bit. `None` where
    /// no move is left, or where no widening reduces the error.
    fn best(&mut self, moves: &[Move], up: bool) -> Result<Option<Move>> {
        let rated = self.rate(moves)?;
        let worth = |rated: &RatedMove| {
            let (bits, gain) = (self.bits_moved(&rated.moved), rated.gain);
            // A harmless narrowing is better the more bits it saves.
            if up || gain < 0.0 { gain / bits } else { gain * bits }
        };
        let rated = rated.into_iter().filter(|rated| !up || rated.gain > 0.0);
        Ok(rated.max_by(|a, b| worth(a).total_cmp(&worth(b))).map(|rated| rated.moved))
    }

    /// Returns the bits that a move spends or saves.
    fn bits_moved(&self, Move { layer, precision }: &Move) -> f64 {
        let of = &self.layers[*layer];
        let scheme = self.planner.scheme();
        let bits = |p: Option<&str>| f64::from(of.weight_bits(p, scheme));
        let moved = bits(precision.as_deref()) - bits(self.precision_of(*layer));
        moved.abs().max(1.0) * of.n_weights as f64
    }
}
