//! Write records for a scan. It doesn't read all records of a cell that was written ten thousand times: after some of them it
//! looks up the one that counts, and goes on with the next cell.

use percolator_engine::{Column, Direction, Read, Scan};
use percolator_protocol::actions::Snapshot;
use percolator_protocol::types::{Timestamp, Write, WriteKind, key};

use crate::Error;
use crate::store::version_record;

/// The records of a range as `protocol::actions::scan_forward` and `scan_reverse` need them. Of a cell with many records, those
/// that the snapshot doesn't see are left out.
pub(crate) struct Records<'a> {
    engine: &'a dyn Read,
    snapshot: Snapshot<'a>,
    direction: Direction,
    /// Records of one cell that are read one by one.
    of_one_cell: usize,
    /// The rest of the range.
    start: &'a [u8],
    end: &'a [u8],
    rest: Scan<'a>,
    cell: Vec<u8>,
    of_this_cell: usize,
}

/// A cell's key, and one of its records.
type Record = (Vec<u8>, Timestamp, Write);

impl<'a> Records<'a> {
    pub(crate) fn new(
        engine: &'a dyn Read,
        snapshot: Snapshot<'a>,
        (start, end): (&'a [u8], &'a [u8]),
        direction: Direction,
        of_one_cell: usize,
    ) -> Result<Self, Error> {
        Ok(Self {
            engine,
            snapshot,
            direction,
            of_one_cell,
            start,
            end,
            rest: engine.scan(Column::Write, start, end, direction)?,
            cell: Vec::new(),
            of_this_cell: 0,
        })
    }

    fn read(&mut self) -> Result<Option<Record>, Error> {
        loop {
            let Some(pair) = self.rest.next().transpose()? else {
                return Ok(None);
            };
            let (cell, ts) = key::split_version(&pair.0)?;
            if self.cell == cell {
                self.of_this_cell += 1;
            } else {
                self.cell = cell.to_vec();
                self.of_this_cell = 1;
            }
            if self.of_this_cell <= self.of_one_cell {
                return Ok(Some((self.cell.clone(), ts, Write::decode(ts, pair.1)?)));
            }
            let counts = self.newest_visible()?;
            self.leave_cell()?;
            if let Some((ts, write)) = counts {
                return Ok(Some((self.cell.clone(), ts, write)));
            }
        }
    }

    /// The record of the cell that the snapshot sees, if any. It takes precedence over those read before: newest first it is
    /// the first that shows a value, oldest first the last one.
    fn newest_visible(&self) -> Result<Option<(Timestamp, Write)>, Error> {
        let from = key::version(self.cell.clone(), self.snapshot.ts);
        let behind = key::behind_cell(self.cell.clone());
        let shows = |ts: Timestamp, write: &Write| {
            matches!(write.kind, WriteKind::Put | WriteKind::Delete)
                || self.snapshot.ended_by(ts, write)
        };
        if let Some(pair) = self.engine.first(Column::Write, &from, &behind)? {
            let (ts, write) = version_record(pair)?;
            if shows(ts, &write) {
                return Ok(Some((ts, write)));
            }
        }
        for pair in self
            .engine
            .scan(Column::Write, &from, &behind, Direction::Forward)?
        {
            let (ts, write) = version_record(pair?)?;
            if shows(ts, &write) {
                return Ok(Some((ts, write)));
            }
        }
        Ok(None)
    }

    /// Goes on with the next cell.
    fn leave_cell(&mut self) -> Result<(), Error> {
        self.rest = match self.direction {
            Direction::Forward => {
                let behind = key::behind_cell(self.cell.clone());
                self.engine
                    .scan(Column::Write, &behind, self.end, Direction::Forward)?
            }
            Direction::Reverse => {
                let before = key::version(self.cell.clone(), Timestamp::MAX);
                self.engine
                    .scan(Column::Write, self.start, &before, Direction::Reverse)?
            }
        };
        Ok(())
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell as Counter;
    use std::ops::ControlFlow;

    use percolator_engine::{Batch, Engine, Error as EngineError, MemoryEngine, Value};
    use percolator_protocol::actions::{scan_forward, scan_reverse};
    use percolator_protocol::types::TableId;

    use super::*;

    /// Counts the pairs that are taken from it.
    struct Counted {
        engine: MemoryEngine,
        pairs: Counter<usize>,
    }

    impl Read for Counted {
        fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, EngineError> {
            self.engine.get(column, key)
        }

        fn scan<'a>(
            &'a self,
            column: Column,
            start: &[u8],
            end: &[u8],
            direction: Direction,
        ) -> Result<Scan<'a>, EngineError> {
            let pairs = self.engine.scan(column, start, end, direction)?;
            Ok(Box::new(pairs.inspect(|_| {
                self.pairs.set(self.pairs.get() + 1);
            })))
        }
    }

    fn put(batch: &mut Batch, column: &str, ts: u64, kind: WriteKind) {
        let cell = key::cell(TableId(1), b"row", column.as_bytes());
        let write = Write {
            kind,
            start_ts: Timestamp::from_u64(ts - 1),
            short_value: (kind == WriteKind::Put).then(|| format!("{column}{ts}").into()),
            overlapped_rollback: false,
        };
        let ts = Timestamp::from_u64(ts);
        batch.put(Column::Write, key::version(cell, ts), write.encode(ts));
    }

    /// What the rule emits of all records, and how many pairs were read for it.
    fn scanned(counted: &Counted, ts: u64, direction: Direction) -> (Vec<String>, usize) {
        counted.pairs.set(0);
        let snapshot = Snapshot {
            ts: Timestamp::from_u64(ts),
            bypass: &[],
            own: false,
        };
        let records =
            Records::new(counted, snapshot, (b"", b""), direction, 256).expect("readable");
        let mut seen = Vec::new();
        let emit = |_, read| {
            seen.push(format!("{read:?}"));
            ControlFlow::Continue(())
        };
        let locks = std::iter::empty();
        match direction {
            Direction::Forward => scan_forward(snapshot, records, locks, emit),
            Direction::Reverse => scan_reverse(snapshot, records, locks, emit),
        }
        .expect("readable");
        if direction == Direction::Reverse {
            seen.reverse();
        }
        (seen, counted.pairs.get())
    }

    #[test]
    fn of_a_cell_with_many_versions_the_right_one_is_found_without_reading_all() {
        const VERSIONS: u64 = 20_000;
        let counted = Counted {
            engine: MemoryEngine::new(0),
            pairs: Counter::new(0),
        };
        let mut batch = Batch::default();
        for (column, few) in [("a", true), ("b", false), ("c", true), ("d", false)] {
            let step = if few { VERSIONS / 4 } else { 1 };
            for ts in (10..VERSIONS).step_by(usize::try_from(step).expect("small")) {
                let kind = match ts % 10 {
                    3 => WriteKind::Rollback,
                    4 => WriteKind::Lock,
                    5 => WriteKind::Delete,
                    _ => WriteKind::Put,
                };
                put(&mut batch, column, ts, kind);
            }
        }
        counted.engine.commit(&[batch]).expect("a commit");
        for ts in [
            5,
            10,
            11,
            263,
            274,
            9_999,
            10_003,
            10_004,
            10_005,
            VERSIONS,
            VERSIONS * 2,
        ] {
            let many = |column: &str| match (ts.min(VERSIONS - 1), ts % 10) {
                (..10, _) | (_, 5) => None,
                (ts, 3) => Some(format!("Value(b\"{column}{}\")", ts - 1)),
                (ts, 4) => Some(format!("Value(b\"{column}{}\")", ts - 2)),
                (ts, _) => Some(format!("Value(b\"{column}{ts}\")")),
            };
            for direction in [Direction::Forward, Direction::Reverse] {
                let (seen, pairs) = scanned(&counted, ts, direction);
                let seen: Vec<_> = seen
                    .into_iter()
                    .filter(|one| one.contains(['b', 'd']))
                    .collect();
                for column in ["b", "d"] {
                    let shown = seen.iter().find(|one| one.contains(&format!("\"{column}")));
                    assert_eq!(shown.cloned(), many(column), "{ts} {direction:?}");
                }
                assert!(
                    pairs < 2_000,
                    "{pairs} pairs were read at {ts}, {direction:?}"
                );
            }
        }
    }
}
