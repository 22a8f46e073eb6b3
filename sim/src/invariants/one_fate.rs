//! A transaction that is committed on one cell is rolled back on no other (paper, section 2.2: the primary
//! decides), also where the table of the one cell is deleted before anybody looks at the other.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_protocol::types::{Timestamp, WriteKind, key};

use super::Invariant;
use crate::watch::Change;

#[derive(Default)]
pub(super) struct OneFate {
    committed: BTreeMap<Timestamp, Bytes>,
    rolled_back: BTreeMap<Timestamp, Bytes>,
}

impl Invariant for OneFate {
    fn name(&self) -> &'static str {
        "one fate"
    }

    fn changed(&mut self, change: &Change) -> Result<(), String> {
        let Change::PutWrite { cell, write, .. } = change else {
            return Ok(());
        };
        let start_ts = write.start_ts;
        let (ours, others) = match write.kind {
            WriteKind::Rollback => (&mut self.rolled_back, &self.committed),
            _ => (&mut self.committed, &self.rolled_back),
        };
        ours.insert(start_ts, cell.clone());
        let Some(other) = others.get(&start_ts) else {
            return Ok(());
        };
        let name =
            |cell: &[u8]| key::decode_cell(cell).map_or_else(|e| e.to_string(), |c| c.to_string());
        let (here, there) = (name(cell), name(other));
        Err(match write.kind {
            WriteKind::Rollback => format!(
                "transaction {start_ts} is rolled back on {here}, and was committed on {there}"
            ),
            _ => format!(
                "transaction {start_ts} is committed on {here}, and was rolled back on {there}"
            ),
        })
    }
}
