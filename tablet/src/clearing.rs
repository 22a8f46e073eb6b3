//! Removes the rows of dropped tablets: a piece with each group of batches, so that it continues under load, and a larger piece
//! if there is nothing else to write.

use bytes::Bytes;
use percolator_engine::{Column, Direction, Engine};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Tablet, key};

use crate::decision::{Decision, TabletChange};
use crate::latches::{self, Ticket};
use crate::leaving::COLUMNS;
use crate::moves::cell_of;
use crate::store::LockChange;
use crate::tablets::{self, Tablets};

/// The keys that one piece removes beside other batches, and without them.
const KEYS_BESIDE: usize = 32;
const KEYS_ALONE: usize = 1024;
/// The bytes of keys and values after which a piece ends: the scan reads values, too.
const PIECE_BYTES: usize = 256 << 10;

/// The progress. It is not stored: after a restart it begins anew, and finds less.
#[derive(Debug, Default)]
pub(crate) struct Clearing {
    /// Decisions with tickets below this may still write into the last dropped tablet.
    dropped_at: Option<Ticket>,
    position: Option<Position>,
    /// The piece on its way to the disk, and the position behind it; `None`: no row of its tablet is left.
    piece: Option<(Ticket, Option<Position>)>,
    /// The disk refused the last piece, because even the reserve is used up, and would refuse it again at once.
    is_refused: bool,
}

/// A position: keys below `start` of this column, and all earlier columns, are removed.
#[derive(Clone, Debug)]
struct Position {
    tablet: u64,
    column: usize,
    start: Vec<u8>,
}

impl Clearing {
    /// Notes that a tablet was dropped, before this ticket was given.
    pub(crate) fn dropped(&mut self, next_ticket: Ticket) {
        self.dropped_at = Some(next_ticket);
    }

    /// The next piece, under this ticket, unless the last one has not [`Self::ended`]. `waiting`: the tickets of decisions that
    /// are not on their way yet.
    pub(crate) fn piece(
        &mut self,
        ticket: Ticket,
        engine: &dyn Engine,
        tablets: &Tablets,
        mut waiting: impl ExactSizeIterator<Item = Ticket>,
    ) -> Option<Decision> {
        if self.piece.is_some() || self.is_refused {
            return None;
        }
        let tablet = self
            .position
            .as_ref()
            .and_then(|position| tablets.dropped(position.tablet))
            .or_else(|| tablets.next_dropped())?;
        let keys_max = match waiting.len() {
            0 => KEYS_ALONE,
            _ => KEYS_BESIDE,
        };
        if let Some(dropped_at) = self.dropped_at {
            if waiting.any(|ticket| ticket < dropped_at) {
                return None;
            }
            self.dropped_at = None;
        }
        let position = match &self.position {
            Some(position) if position.tablet == tablet.id => position.clone(),
            _ => first_position(tablet),
        };
        let mut decision = Decision::new();
        let behind = take(engine, tablet, position, keys_max, &mut decision)?;
        let mut behind = Some(behind);
        if decision.batch.is_empty() {
            decision.batch = tablets::forget_record(tablet.id);
            decision.tablet_change = Some(TabletChange::Forget(tablet.id));
            // The tablet may come back, and leave again.
            behind = None;
        }
        // A full disk takes the piece, too: a drain may wait for it.
        decision.batch.spend_reserve();
        self.piece = Some((ticket, behind));
        Some(decision)
    }

    /// Takes the result of the piece with this ticket.
    pub(crate) fn ended(&mut self, ticket: Ticket, durable: bool) {
        if let Some((_, behind)) = self.piece.take_if(|(its, _)| *its == ticket) {
            self.is_refused = !durable;
            if durable {
                self.position = behind;
            }
        }
    }

    /// Lets a refused piece be tried again.
    pub(crate) fn try_again(&mut self) {
        self.is_refused = false;
    }
}

fn first_key(tablet: &Tablet) -> Vec<u8> {
    key::row_bound(tablet.table, &tablet.rows.start)
}

fn first_position(tablet: &Tablet) -> Position {
    Position {
        tablet: tablet.id,
        column: 0,
        start: first_key(tablet),
    }
}

/// Deletes keys from the position on, and returns the position behind them. `None`: the engine can't be read, which other reads
/// notice.
fn take(
    engine: &dyn Engine,
    tablet: &Tablet,
    mut position: Position,
    keys_max: usize,
    decision: &mut Decision,
) -> Option<Position> {
    let end = key::rows_end(tablet.table, &tablet.rows.end);
    let mut bytes = 0;
    while let Some(column) = COLUMNS.get(position.column) {
        if *column == Column::Write && mutants::on(Mutant::DroppedRecordsStay) {
            position.column += 1;
            continue;
        }
        let pairs = engine.scan(*column, &position.start, &end, Direction::Forward);
        for pair in pairs.ok()? {
            let (key, value) = pair.ok()?;
            if decision.batch.len() >= keys_max || bytes >= PIECE_BYTES {
                position.start = key.to_vec();
                return Some(position);
            }
            bytes += key.len() + value.len();
            if *column == Column::Lock {
                let hash = latches::hash(&[&key]);
                decision.memory.lock_changes.push(LockChange::Removed(hash));
            }
            // The tablet may come back one day, from another server.
            if *column == Column::Write
                && !mutants::on(Mutant::MovedCacheKept)
                && let Ok(cell_key) = cell_of(&key)
            {
                decision
                    .memory
                    .unlearn
                    .push(Bytes::copy_from_slice(cell_key));
            }
            decision.batch.delete(*column, key);
        }
        position.column += 1;
        position.start = first_key(tablet);
    }
    Some(position)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use percolator_engine::{Batch, EngineKind, Options, open};
    use percolator_protocol::types::{Rows, TableId, TabletState, Timestamp};

    use super::*;

    fn in_memory() -> Box<dyn Engine> {
        let options = Options::new(EngineKind::Memory, "tablet-0");
        open(Path::new("nowhere"), &options).expect("in memory")
    }

    fn tablet() -> Tablet {
        Tablet {
            id: 1,
            table: TableId(5),
            table_name: "t".into(),
            rows: Rows::default(),
            epoch: 1,
            state: TabletState::Serving,
        }
    }

    /// The number of keys that pieces of this size remove, without a commit.
    fn cleared(engine: &dyn Engine, tablet: &Tablet, keys_max: usize) -> usize {
        let (mut position, mut keys) = (first_position(tablet), 0);
        while position.column < COLUMNS.len() {
            let mut decision = Decision::new();
            let behind = take(engine, tablet, position, keys_max, &mut decision);
            position = behind.expect("readable");
            keys += decision.batch.len();
        }
        keys
    }

    /// The number of rows that each piece removes, with values of this many bytes.
    fn pieces(rows: usize, value_bytes: usize) -> Vec<usize> {
        let (engine, tablet) = (in_memory(), tablet());
        let mut batch = Batch::default();
        for row in 0..rows {
            let cell = key::cell(tablet.table, format!("{row:04}").as_bytes(), b"c");
            let key = key::version(cell, Timestamp::from_u64(7));
            batch.put(Column::Data, key, vec![b'x'; value_bytes]);
        }
        engine.commit(&[batch]).expect("in memory");
        let mut position = first_position(&tablet);
        let mut pieces = Vec::new();
        while position.column < COLUMNS.len() {
            let mut decision = Decision::new();
            let behind = take(&*engine, &tablet, position, KEYS_ALONE, &mut decision);
            position = behind.expect("readable");
            pieces.push(decision.batch.len());
            engine.commit(&[decision.batch]).expect("in memory");
        }
        assert_eq!(pieces.iter().sum::<usize>(), rows);
        pieces
    }

    /// Each column begins with the tablet's first row, wherever the one before it ended.
    #[test]
    fn each_column_is_cleared_from_its_first_row_on() {
        let (engine, tablet) = (in_memory(), tablet());
        let mut batch = Batch::default();
        for (number, column) in COLUMNS.iter().enumerate() {
            // The later columns have rows before the first row of the column before.
            for row in 0..5 {
                let row = format!("{}{row}", 9 - number);
                let cell = key::cell(tablet.table, row.as_bytes(), b"c");
                batch.put(*column, key::version(cell, Timestamp::from_u64(7)), "x");
            }
        }
        engine.commit(&[batch]).expect("in memory");
        for keys_max in [1, 3, 5, 7, 1_000] {
            assert_eq!(cleared(&*engine, &tablet, keys_max), 5 * COLUMNS.len());
        }
    }

    #[test]
    fn a_piece_ends_by_keys_or_by_bytes() {
        assert_eq!(pieces(10, 100), [10]);
        assert_eq!(pieces(KEYS_ALONE + 3, 1), [KEYS_ALONE, 3]);
        // The value that exceeds the limit is the last one.
        assert_eq!(pieces(5, PIECE_BYTES / 2), [2, 2, 1]);
        assert_eq!(pieces(3, PIECE_BYTES + 1), [1, 1, 1]);
    }
}
