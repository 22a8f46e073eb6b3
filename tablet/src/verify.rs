//! Compares the stored rows with the index of garbage. Collection reads the index alone: garbage that it doesn't name is never
//! collected. A request verifies one piece from one snapshot of the engine, so that other requests come in between. The caller
//! goes through the parts one after the other.

use std::collections::{BTreeMap, VecDeque};

use percolator_engine::{Column, Direction, Key, Read, Value};
use percolator_protocol::types::{Cell, Lock, Timestamp, Write, WriteKind, key};
use percolator_wire::v1;

use crate::index::{Entry, Hidden};
use crate::state::State;
use crate::store::version_record;
use crate::work::invalid;
use crate::{Error, Refusal};

/// Entries of the index that are cached: the next records are of neighbouring cells, mostly in the same entry.
const RECENT_MAX: usize = 4;
/// The most findings that a response names.
const FINDINGS_MAX: usize = 100;

/// Verifies the next piece.
pub(crate) fn verify(
    state: &State,
    request: v1::VerifyRequest,
) -> Result<v1::VerifyResponse, Refusal> {
    let part = request.part();
    state.check_addressee(request.to.map(Into::into))?;
    let snapshot = state.engine.snapshot().map_err(Error::from)?;
    let mut piece = VerifiedPiece {
        state,
        engine: &*snapshot,
        tablets: BTreeMap::new(),
        findings: Vec::new(),
        recent: VecDeque::new(),
    };
    let after = &request.after[..];
    let resume = match part {
        v1::VerifyPart::Records => piece.records(RecordPosition::decode(after)?)?,
        v1::VerifyPart::Values => piece.values(after)?,
        v1::VerifyPart::Index => piece.index(after)?,
        v1::VerifyPart::Unspecified => return Err(invalid("the part to verify is missing")),
    };
    Ok(v1::VerifyResponse {
        resume: resume.unwrap_or_default(),
        tablets: piece.tablets.into_values().collect(),
        findings: piece.findings,
    })
}

/// A piece that is verified, and its findings.
struct VerifiedPiece<'a> {
    state: &'a State,
    engine: &'a dyn Read,
    tablets: BTreeMap<u64, v1::VerifiedTablet>,
    findings: Vec<v1::VerifyFinding>,
    /// The entries in which cells were found, the last one first.
    recent: VecDeque<Entry>,
}

/// The tablet's id, and the cell.
type LocatedCell = (u64, Cell);

/// A cell whose records are being verified.
struct SeenCell {
    key: Vec<u8>,
    place: LocatedCell,
    /// The newest version, or delete, of the verified records.
    older: Option<(Timestamp, Write)>,
}

/// The end of a piece of the records.
struct RecordPosition {
    /// The last verified record: the next piece lies below it. Empty: at the end of all.
    key: Key,
    /// The newest verified version, or delete, of the record's cell.
    older: Option<Timestamp>,
}

impl RecordPosition {
    fn encode(&self) -> Key {
        // No version has the time zero.
        let older = self.older.unwrap_or_default().as_u64();
        [&older.to_be_bytes()[..], &self.key].concat().into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        if bytes.is_empty() {
            return Ok(Self {
                key: Key::default(),
                older: None,
            });
        }
        let (older, record) = bytes.split_first_chunk().ok_or_else(nowhere)?;
        let cell = key::split_version(record).map_err(|_| nowhere())?.0;
        key::decode_cell(cell).map_err(|_| nowhere())?;
        let older = Timestamp::from_u64(u64::from_be_bytes(*older));
        Ok(Self {
            key: Key::copy_from_slice(record),
            older: (older != Timestamp::ZERO).then_some(older),
        })
    }
}

/// Whether a newer version hides this record.
fn is_version(write: &Write) -> bool {
    matches!(write.kind, WriteKind::Put | WriteKind::Delete)
}

fn nowhere() -> Refusal {
    invalid("no piece has ended there: begin anew")
}

impl VerifiedPiece<'_> {
    fn place(&self, cell_key: &[u8]) -> Result<LocatedCell, Error> {
        let cell = key::decode_cell(cell_key)?;
        Ok((self.state.tablets.holding(cell_key)?, cell))
    }

    fn tablet(&mut self, tablet: u64) -> &mut v1::VerifiedTablet {
        self.tablets.entry(tablet).or_insert(v1::VerifiedTablet {
            tablet_id: tablet,
            ..v1::VerifiedTablet::default()
        })
    }

    fn find(&mut self, (tablet, cell): &LocatedCell, ts: Timestamp, what: &str) {
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

    /// The pairs of a column behind this key.
    fn pairs(
        &self,
        column: Column,
        after: &[u8],
    ) -> Result<impl Iterator<Item = Result<(Key, Value), Error>> + use<'_>, Error> {
        // The next key.
        let start = match after {
            [] => Vec::new(),
            after => [after, &[0]].concat(),
        };
        let pairs = self.engine.scan(column, &start, &[], Direction::Forward)?;
        Ok(pairs.map(|pair| pair.map_err(Error::from)))
    }

    /// Verifies records, oldest first within a cell, and cells backward. The record that another one hides is then known
    /// already, so that a piece may end within a cell. Returns the end of the piece, if there is more.
    fn records(
        &mut self,
        RecordPosition { key: end, older }: RecordPosition,
    ) -> Result<Option<Key>, Error> {
        let mut cell = match older {
            Some(ts) => Some(self.cell_of(&end, ts)?),
            None => None,
        };
        let mut last = None;
        let pairs = self
            .engine
            .scan(Column::Write, &[], &end, Direction::Reverse)?;
        let most = self.state.limits.verify_pairs;
        for pair in pairs.take(most) {
            let pair = pair?;
            let key = pair.0.clone();
            let cell_key = key::split_version(&key)?.0;
            if cell.as_ref().is_none_or(|it| it.key != cell_key) {
                cell = Some(SeenCell {
                    key: cell_key.to_vec(),
                    place: self.place(cell_key)?,
                    older: None,
                });
            }
            let (ts, write) = version_record(pair)?;
            if let Some(cell) = &mut cell {
                self.tablet(cell.place.0).seen += 1;
                // The rows of dropped tablets are removed without the index.
                if cell.place.0 != 0 {
                    self.record(cell, ts, &write)?;
                }
                if is_version(&write) {
                    cell.older = Some((ts, write));
                }
                let older = cell.older.as_ref().map(|(ts, _)| *ts);
                last = Some((
                    last.map_or(1, |(seen, _)| seen + 1),
                    RecordPosition { key, older },
                ));
            }
        }
        Ok(last
            .filter(|(seen, _)| *seen >= most)
            .map(|(_, at)| at.encode()))
    }

    /// The cell in which a piece has ended. Its older records may have been collected since.
    fn cell_of(&self, record: &[u8], older: Timestamp) -> Result<SeenCell, Error> {
        let key = key::split_version(record)?.0.to_vec();
        let stored = key::version(key.clone(), older);
        let write = match self.engine.get(Column::Write, &stored)? {
            Some(value) => Some(version_record((stored.into(), value))?),
            None => None,
        };
        Ok(SeenCell {
            place: self.place(&key)?,
            key,
            // Its fate alone may be left, which nothing hides.
            older: write.filter(|(_, write)| is_version(write)),
        })
    }

    /// Verifies one record.
    fn record(&mut self, cell: &SeenCell, ts: Timestamp, write: &Write) -> Result<(), Error> {
        let (place, older) = (&cell.place, cell.older.as_ref());
        // A search that finds nothing reads all entries of that time.
        let is_indexed = write.kind != WriteKind::Put || older.is_some();
        let named = if is_indexed {
            self.indexed(&cell.key, false, ts)?
        } else {
            None
        };
        if is_indexed && named.is_none() && self.indexed(&cell.key, true, ts)?.is_some() {
            // The record is a fate, or becomes one with those below it.
            return self.value(cell, ts, write);
        }
        if let Some(named) = named
            && self.would_lose(named, ts, cell)?
        {
            let what = "the index says that this version hides another one than it does: that would go, or never will";
            self.find(place, ts, what);
        }
        if is_indexed && named.is_none() {
            let what = match write.kind {
                WriteKind::Put => {
                    "this version hides older ones, and the index doesn't say so: they are never collected"
                }
                _ => "this record is not in the index: it is never collected",
            };
            self.find(place, ts, what);
        }
        self.value(cell, ts, write)
    }

    /// Verifies that a long value is there.
    fn value(&mut self, cell: &SeenCell, ts: Timestamp, write: &Write) -> Result<(), Error> {
        let is_long = write.kind == WriteKind::Put && write.short_value.is_none();
        let value = || key::version(cell.key.clone(), write.start_ts);
        if is_long && self.engine.get(Column::Data, &value())?.is_none() {
            self.find(&cell.place, ts, "the value of this version is missing");
        }
        Ok(())
    }

    /// Whether the index names a version that isn't hidden at this time. Collection would remove it without reading the cell.
    /// The named version may be collected already, with others of its cell.
    fn would_lose(&self, hidden: Hidden, ts: Timestamp, cell: &SeenCell) -> Result<bool, Error> {
        let Hidden::Version { commit_ts, .. } = hidden else {
            return Ok(false);
        };
        let named = key::version(cell.key.clone(), commit_ts);
        let stored = self.engine.get(Column::Write, &named)?;
        let stored = stored.map(|stored| version_record((named.into(), stored)));
        let stored = stored.transpose()?;
        // The fate stays there until it is resolved.
        let is_fate = |write: &Write| write.kind == WriteKind::Lock;
        if stored.as_ref().is_some_and(|(_, write)| is_fate(write)) {
            return Ok(commit_ts >= ts);
        }
        let is_there = stored.is_some();
        Ok(match &cell.older {
            Some((older, write)) if is_there || ts > self.state.points.now().safe_point => {
                hidden != Hidden::of(*older, write)
            }
            _ => is_there || commit_ts >= ts,
        })
    }

    /// The garbage that entries of this time name for the cell. Such an entry begins with that cell or one before it, mostly
    /// the next.
    fn indexed(
        &mut self,
        cell_key: &[u8],
        of_fates: bool,
        ts: Timestamp,
    ) -> Result<Option<Hidden>, Error> {
        let is_meant = |entry: &&Entry| entry.ts == ts && entry.of_fates == of_fates;
        let mut recent = self.recent.iter().filter(is_meant);
        if let Some(hidden) = recent.find_map(|entry| entry.names(cell_key)) {
            return Ok(Some(hidden));
        }
        let start = Entry::first_key(of_fates, ts);
        let end = [&start, cell_key, &[0]].concat();
        let entries = self
            .engine
            .scan(Column::Garbage, &start, &end, Direction::Reverse)?;
        for pair in entries {
            let (key, value) = pair?;
            let entry = Entry::decode(&key, value)?;
            if let Some(hidden) = entry.names(cell_key) {
                self.recent.truncate(RECENT_MAX - 1);
                self.recent.push_front(entry);
                return Ok(Some(hidden));
            }
        }
        Ok(None)
    }

    /// Verifies long values. Returns the last key, if there is more.
    fn values(&mut self, after: &[u8]) -> Result<Option<Key>, Error> {
        let most = self.state.limits.verify_pairs;
        let mut keys = Vec::new();
        for pair in self.pairs(Column::Data, after)?.take(most) {
            keys.push(pair?.0);
        }
        let resume = (keys.len() >= most).then(|| keys.last().cloned()).flatten();
        for stored in &keys {
            // The benchmark's raw keys don't count.
            let Ok((cell_key, start_ts)) = key::split_version(stored) else {
                continue;
            };
            let Ok(place) = self.place(cell_key) else {
                continue;
            };
            self.tablet(place.0).seen += 1;
            if place.0 != 0 && !self.is_somebodys(cell_key, start_ts)? {
                let what = "this value belongs to no record and to no lock: it is never collected";
                self.find(&place, start_ts, what);
            }
        }
        Ok(resume)
    }

    /// Whether the value belongs to the cell's lock, or to one of its records. That is usually the next record above:
    /// transactions that committed later began later, and only rollbacks lie between.
    fn is_somebodys(&self, cell_key: &[u8], start_ts: Timestamp) -> Result<bool, Error> {
        if let Some(lock) = self.engine.get(Column::Lock, cell_key)?
            && Lock::decode(lock)?.start_ts == start_ts
        {
            return Ok(true);
        }
        let newest = key::version(cell_key.to_vec(), Timestamp::MAX);
        let own = key::version(cell_key.to_vec(), start_ts);
        for pair in self
            .engine
            .scan(Column::Write, &newest, &own, Direction::Reverse)?
        {
            let (_, write) = version_record(pair?)?;
            if write.start_ts == start_ts {
                return Ok(write.kind == WriteKind::Put && write.short_value.is_none());
            }
            if write.kind != WriteKind::Rollback && write.start_ts > start_ts {
                break;
            }
        }
        Ok(false)
    }

    /// Verifies entries of the index. Returns the last key, if there is more.
    fn index(&mut self, after: &[u8]) -> Result<Option<Key>, Error> {
        let mut items = Vec::new();
        let mut resume = None;
        for pair in self.pairs(Column::Garbage, after)? {
            let (key, value) = pair?;
            let Entry {
                ts, items: of_it, ..
            } = Entry::decode(&key, value)?;
            items.extend(of_it.into_iter().map(|item| (ts, item.cell_key)));
            if items.len() >= self.state.limits.verify_pairs {
                resume = Some(key);
                break;
            }
        }
        for (ts, cell_key) in items {
            let place = self.place(&cell_key)?;
            self.tablet(place.0).seen += 1;
            if ts < self.state.points.now().safe_point {
                // The record may be collected already, with others of its cell.
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
