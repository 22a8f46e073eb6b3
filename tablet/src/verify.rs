//! Walks what is stored, and compares it with the index of garbage: collection goes by that alone, so what is missing
//! there would never be collected, and space be lost for good. In pieces, each from one snapshot of the engine, so
//! that requests come in between; whoever asks goes through the parts one after the other, at its own pace.

use std::collections::{BTreeMap, BTreeSet};

use percolator_engine::{Column, Direction, Key, Read, Value};
use percolator_protocol::types::{Cell, Lock, Timestamp, Write, WriteKind, key};
use percolator_wire::v1;

use crate::decision::Ground;
use crate::index::{Entry, Hidden};
use crate::store::version_record;
use crate::work::invalid;
use crate::{Error, Refusal};

/// Pairs of a piece: some milliseconds.
const PAIRS: usize = 1_000;
/// Findings that are named.
const FINDINGS_MAX: usize = 100;

/// The next piece.
pub(crate) fn look(
    ground: Ground<'_>,
    request: v1::VerifyRequest,
) -> Result<v1::VerifyResponse, Refusal> {
    let part = request.part();
    ground.check_addressee(request.to)?;
    let snapshot = ground.engine.snapshot().map_err(Error::from)?;
    let mut looked = Looked {
        ground,
        engine: &*snapshot,
        tablets: BTreeMap::new(),
        findings: Vec::new(),
    };
    let after = &request.after[..];
    let resume = match part {
        v1::VerifyPart::Records => looked.records(after)?,
        v1::VerifyPart::Values => looked.values(after)?,
        v1::VerifyPart::Index => looked.index(after)?,
        v1::VerifyPart::Unspecified => return Err(invalid("no part is to be looked at")),
    };
    Ok(v1::VerifyResponse {
        resume: resume.unwrap_or_default(),
        tablets: looked.tablets.into_values().collect(),
        findings: looked.findings,
    })
}

/// A piece, and what was found in it.
struct Looked<'a> {
    ground: Ground<'a>,
    engine: &'a dyn Read,
    tablets: BTreeMap<u64, v1::VerifiedTablet>,
    findings: Vec<v1::VerifyFinding>,
}

/// The tablet's number, and the cell.
type Place = (u64, Cell);

impl Looked<'_> {
    fn place(&self, cell_key: &[u8]) -> Result<Place, Error> {
        let cell = key::decode_cell(cell_key)?;
        Ok((self.ground.tablets.holding(cell_key)?, cell))
    }

    fn tablet(&mut self, tablet: u64) -> &mut v1::VerifiedTablet {
        self.tablets.entry(tablet).or_insert(v1::VerifiedTablet {
            tablet_id: tablet,
            ..v1::VerifiedTablet::default()
        })
    }

    fn find(&mut self, (tablet, cell): &Place, ts: Timestamp, what: &str) {
        self.tablet(*tablet).wrong += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(v1::VerifyFinding {
                tablet_id: *tablet,
                cell: Some(cell.into()),
                ts: ts.as_u64(),
                what: what.to_owned(),
            });
        }
    }

    /// The next pairs of a column.
    fn pairs(
        &self,
        column: Column,
        after: &[u8],
    ) -> Result<impl Iterator<Item = Result<(Key, Value), Error>> + use<'_>, Error> {
        // The smallest key above.
        let start = match after {
            [] => Vec::new(),
            after => [after, &[0]].concat(),
        };
        let pairs = self.engine.scan(column, &start, &[], Direction::Forward)?;
        Ok(pairs.map(|pair| pair.map_err(Error::from)))
    }

    /// The records of whole cells. `Some`: the last key.
    fn records(&mut self, after: &[u8]) -> Result<Option<Key>, Error> {
        let mut cells: BTreeMap<Vec<u8>, Vec<(Timestamp, Write)>> = BTreeMap::new();
        let mut last = None;
        for (seen, pair) in (0..).zip(self.pairs(Column::Write, after)?) {
            let pair = pair?;
            let cell_key = key::split_version(&pair.0)?.0.to_vec();
            if seen >= PAIRS && !cells.contains_key(&cell_key) {
                break;
            }
            last = Some((seen, pair.0.clone()));
            let record = version_record(pair)?;
            cells.entry(cell_key).or_default().push(record);
        }
        for (cell_key, records) in cells {
            let place = self.place(&cell_key)?;
            self.tablet(place.0).seen += records.len() as u64;
            // The rows of tablets that are dropped go as a whole.
            if place.0 != 0 {
                self.cell(&place, &cell_key, &records)?;
            }
        }
        Ok(last
            .filter(|(seen, _)| seen + 1 >= PAIRS)
            .map(|(_, key)| key))
    }

    /// One cell's records, newest first.
    fn cell(
        &mut self,
        place: &Place,
        cell_key: &[u8],
        records: &[(Timestamp, Write)],
    ) -> Result<(), Error> {
        let shows = |write: &Write| matches!(write.kind, WriteKind::Put | WriteKind::Delete);
        for (at, (ts, write)) in records.iter().enumerate() {
            let older = records[at + 1..].iter().find(|(_, older)| shows(older));
            // To find nothing is to look through all entries of that time.
            let is_indexed = write.kind != WriteKind::Put || older.is_some();
            let said = match is_indexed {
                true => self.said(cell_key, *ts)?,
                false => None,
            };
            if said.is_some_and(|said| self.would_lose(said, *ts, older, records)) {
                let what = "the index says that this version hides another one than it does: that would go, or never will";
                self.find(place, *ts, what);
            }
            if is_indexed && said.is_none() {
                let what = match write.kind {
                    WriteKind::Put => {
                        "this version hides older ones, and the index doesn't say so: they are never collected"
                    }
                    _ => "this record is not in the index: it is never collected",
                };
                self.find(place, *ts, what);
            }
            let is_long = write.kind == WriteKind::Put && write.short_value.is_none();
            let value = || key::version(cell_key.to_vec(), write.start_ts);
            if is_long && self.engine.get(Column::Data, &value())?.is_none() {
                self.find(place, *ts, "the value of this version is missing");
            }
        }
        Ok(())
    }

    /// Whether an entry of this time names what is not hidden then. Collection goes by its word, without a look at the cell.
    /// What it names may be gone already, with others of its cell.
    fn would_lose(
        &self,
        said: Hidden,
        ts: Timestamp,
        older: Option<&(Timestamp, Write)>,
        records: &[(Timestamp, Write)],
    ) -> bool {
        let Hidden::Version { commit_ts, .. } = said else {
            return false;
        };
        let is_there = records.iter().any(|(there, _)| *there == commit_ts);
        match older {
            Some((older, write)) if is_there || ts > self.ground.points.ready => {
                said != Hidden::of(*older, write)
            }
            _ => is_there || commit_ts >= ts,
        }
    }

    /// What entries of this time say of the cell: an entry's first cell is that or one before it, mostly the next.
    fn said(&self, cell_key: &[u8], ts: Timestamp) -> Result<Option<Hidden>, Error> {
        let start = ts.as_u64().to_be_bytes();
        let end = [&start, cell_key, &[0]].concat();
        let entries = self
            .engine
            .scan(Column::Garbage, &start, &end, Direction::Reverse)?;
        for pair in entries {
            let (key, value) = pair?;
            let entry = Entry::decode(&key, value)?;
            let mut of_cell = entry.items.iter().filter(|item| item.cell_key == cell_key);
            if let Some(item) = of_cell.next() {
                return Ok(Some(item.hidden));
            }
        }
        Ok(None)
    }

    /// Long values. `Some`: the last key.
    fn values(&mut self, after: &[u8]) -> Result<Option<Key>, Error> {
        let mut keys = Vec::new();
        for pair in self.pairs(Column::Data, after)?.take(PAIRS) {
            keys.push(pair?.0);
        }
        let resume = (keys.len() >= PAIRS)
            .then(|| keys.last().cloned())
            .flatten();
        // Those that records of their cells know, of the cell that was last looked at.
        let mut known: (Vec<u8>, BTreeSet<Timestamp>) = Default::default();
        for stored in &keys {
            // The benchmark's plain keys are none of ours.
            let Ok((cell_key, start_ts)) = key::split_version(stored) else {
                continue;
            };
            let Ok(place) = self.place(cell_key) else {
                continue;
            };
            self.tablet(place.0).seen += 1;
            if known.0 != cell_key {
                known = (cell_key.to_vec(), self.with_values(cell_key)?);
            }
            if place.0 != 0 && !known.1.contains(&start_ts) {
                let what = "this value belongs to no record and to no lock: it is never collected";
                self.find(&place, start_ts, what);
            }
        }
        Ok(resume)
    }

    /// The transactions whose values a cell's records and its lock name.
    fn with_values(&self, cell_key: &[u8]) -> Result<BTreeSet<Timestamp>, Error> {
        let mut known = BTreeSet::new();
        if let Some(lock) = self.engine.get(Column::Lock, cell_key)? {
            known.insert(Lock::decode(lock)?.start_ts);
        }
        let newest = key::version(cell_key.to_vec(), Timestamp::MAX);
        let behind = key::behind_cell(cell_key.to_vec());
        for pair in self
            .engine
            .scan(Column::Write, &newest, &behind, Direction::Forward)?
        {
            let (_, write) = version_record(pair?)?;
            if write.kind == WriteKind::Put && write.short_value.is_none() {
                known.insert(write.start_ts);
            }
        }
        Ok(known)
    }

    /// Entries. `Some`: the last key.
    fn index(&mut self, after: &[u8]) -> Result<Option<Key>, Error> {
        let mut items = Vec::new();
        let mut resume = None;
        for pair in self.pairs(Column::Garbage, after)? {
            let (key, value) = pair?;
            let Entry { ts, items: of_it } = Entry::decode(&key, value)?;
            items.extend(of_it.into_iter().map(|item| (ts, item.cell_key)));
            if items.len() >= PAIRS {
                resume = Some(key);
                break;
            }
        }
        for (ts, cell_key) in items {
            let place = self.place(&cell_key)?;
            self.tablet(place.0).seen += 1;
            if ts < self.ground.points.ready {
                // Its record may be gone already, with others of its cell.
                self.tablet(place.0).waiting += 1;
            } else if place.0 != 0
                && self
                    .engine
                    .get(Column::Write, &key::version(cell_key.to_vec(), ts))?
                    .is_none()
            {
                self.find(&place, ts, "this entry of the index is of no record");
            }
        }
        Ok(resume)
    }
}
