//! Chains of observers: how many runs, one because of the other, a write comes from.
//!
//! A run that writes to an observed column causes another run. The chain goes along with what it writes, in the lock and then
//! in the notification, so that a loop of observers is found by its depth. So does the span of a transaction whose trace is
//! sampled: the runs that it causes are a part of its trace.

use bytes::Bytes;

use super::varint::{Reader, put_bytes, put_u64};
use super::{DecodeError, TableId};

/// Columns that a chain names at the most. A loop has fewer as a rule.
pub const CHAIN_COLUMNS_MAX: usize = 8;
/// Beside the number of columns in the stored form: there is a trace behind them.
const TRACED: u64 = 16;

/// The runs that a write comes from; the default: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// How many runs there were.
    pub depth: u32,
    /// The observed columns that they ran for, each once, in the order of their first run; at most [`CHAIN_COLUMNS_MAX`].
    pub columns: Vec<(TableId, Bytes)>,
    /// The span of the transaction that wrote, where it is sampled; of several changes, of the last one that has one.
    pub trace: Option<TraceParent>,
}

/// A span in a trace, as the W3C's trace context names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace's id.
    pub trace_id: u128,
    /// The span's.
    pub span_id: u64,
}

impl Chain {
    /// The chain of what a run for this column writes. `self`: that of the change that it runs for.
    #[must_use]
    pub fn then(&self, table: TableId, column: &Bytes) -> Self {
        let mut next = self.clone();
        next.depth = next.depth.saturating_add(1);
        let place = (table, column.clone());
        if next.columns.len() < CHAIN_COLUMNS_MAX && !next.columns.contains(&place) {
            next.columns.push(place);
        }
        // The run has a span of its own.
        next.trace = None;
        next
    }

    /// The deeper one of two, with the trace of the later one. `other`: that one.
    #[must_use]
    pub fn deeper(self, other: Self) -> Self {
        let trace = other.trace.or(self.trace);
        let deeper = if other.depth > self.depth {
            other
        } else {
            self
        };
        Self { trace, ..deeper }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u64(out, u64::from(self.depth));
        let traced = if self.trace.is_some() { TRACED } else { 0 };
        put_u64(out, self.columns.len() as u64 | traced);
        for (table, column) in &self.columns {
            put_u64(out, u64::from(table.0));
            put_bytes(out, column);
        }
        if let Some(trace) = &self.trace {
            put_u64(out, (trace.trace_id >> 64) as u64);
            put_u64(out, trace.trace_id as u64);
            put_u64(out, trace.span_id);
        }
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, DecodeError> {
        let depth = u32::try_from(reader.u64()?);
        let depth = depth.map_err(|_| reader.error("has a depth out of range"))?;
        let count = reader.u64()?;
        let (is_traced, count) = (count & TRACED != 0, count & !TRACED);
        if count > CHAIN_COLUMNS_MAX as u64 {
            return Err(reader.error("has too many columns of a chain"));
        }
        let mut columns = Vec::new();
        for _ in 0..count {
            let table = u32::try_from(reader.u64()?);
            let table = table.map_err(|_| reader.error("has a table out of range"))?;
            columns.push((TableId(table), reader.bytes()?));
        }
        let trace = if is_traced {
            Some(TraceParent {
                trace_id: u128::from(reader.u64()?) << 64 | u128::from(reader.u64()?),
                span_id: reader.u64()?,
            })
        } else {
            None
        };
        Ok(Self {
            depth,
            columns,
            trace,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_counts_runs_and_names_each_column_once() {
        let (a, b) = (Bytes::from("a"), Bytes::from("b"));
        let mut chain = Chain::default();
        for _ in 0..3 {
            chain = chain.then(TableId(1), &a).then(TableId(2), &b);
        }
        let expected = Chain {
            depth: 6,
            columns: vec![(TableId(1), a), (TableId(2), b)],
            trace: None,
        };
        assert_eq!(chain, expected);
        assert_eq!(chain.clone().deeper(Chain::default()), expected);
        assert_eq!(Chain::default().deeper(chain), expected);
        let long = (0..20).fold(Chain::default(), |chain, at| {
            chain.then(TableId(at), &Bytes::new())
        });
        assert_eq!((long.depth, long.columns.len()), (20, CHAIN_COLUMNS_MAX));
    }

    #[test]
    fn the_last_change_that_is_sampled_names_the_trace() {
        let traced = |trace_id| Chain {
            trace: Some(TraceParent {
                trace_id,
                span_id: 1,
            }),
            ..Chain::default()
        };
        assert_eq!(traced(1).deeper(traced(2)), traced(2));
        assert_eq!(traced(1).deeper(Chain::default()), traced(1));
        let run = traced(1).then(TableId(1), &Bytes::from("a"));
        assert_eq!(run.trace, None, "a run has a span of its own");
        let both = run.clone().deeper(traced(2));
        assert_eq!((both.depth, both.trace), (1, traced(2).trace));
    }
}
