//! The tablets that this server owns. The owner's engine has a tablet's record, so that a write and a change of the tablet can
//! be one batch. The owner's record decides about ownership.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use percolator_engine::{Batch, Column, Direction, Engine};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Rows, Tablet, key};

use crate::peers::{DepartedTablet, NotServed};
use crate::sizes::Sizes;
use crate::stored::LeftRecord;
use crate::{Error, stored};

const TABLET_PREFIX: &[u8] = b"tablet/";
/// The most tablets that a refusal names.
const FOLLOWING_MAX: usize = 16;
const DROPPED_PREFIX: &[u8] = b"dropped/";
/// The prefix of the id of a tablet that was handed over.
const LEFT_PREFIX: &[u8] = b"left/";
/// The prefix of the number of a table that was deleted.
const DELETED_PREFIX: &[u8] = b"deleted/";
/// The key of the highest id of a tablet.
const HIGHEST: &[u8] = b"highest tablet";
/// The key of the settings of garbage collection.
const SETTINGS: &[u8] = b"gc settings";

/// The master's settings of garbage collection, as this server stores them for a master whose lost state is rebuilt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcSettingsCopy {
    /// Grows with each change; zero: the settings were never changed.
    pub revision: u64,
    /// How long versions are kept; `None`: the default.
    pub retention: Option<Duration>,
    /// How long a transaction may hold up collection; `None`: no limit.
    pub hold_max: Option<Duration>,
    /// Collection is paused.
    pub paused: bool,
}

/// The tablets of this server, by id.
#[derive(Debug, Default)]
pub(crate) struct Tablets {
    serving: BTreeMap<u64, Tablet>,
    /// Their ids, by table and first row.
    by_start: BTreeMap<(u32, Bytes), u64>,
    /// Dropped or handed over, and their rows are not removed yet.
    dropped: BTreeMap<u64, Tablet>,
    /// Handed over to other servers, which are not known to report them.
    departed: BTreeMap<u64, DepartedTablet>,
    /// The epochs of tablets that were handed over before, or merged into others, so that a late command doesn't make one
    /// again. Sixteen bytes for every tablet that was here.
    left: BTreeMap<u64, u64>,
    /// Not durable: tablets that are about to be handed over. Requests for them are refused.
    closed: BTreeSet<u64>,
    /// Not durable: tablets that this server gets, and the epochs at which it will serve them.
    arriving: BTreeMap<u64, u64>,
    /// Tables that were deleted, and had tablets here, so that a late command doesn't make one again. Ids of tables are never
    /// reused. Eight bytes for every table that was deleted.
    deleted: BTreeSet<u32>,
    /// The settings of garbage collection, for a master whose lost state is rebuilt.
    settings: GcSettingsCopy,
    /// The highest id that a tablet here ever had.
    highest: u64,
    /// Changes of the lists in heartbeats since the start.
    changes: u64,
}

impl Tablets {
    /// Reads the records.
    pub(crate) fn load(engine: &dyn Engine) -> Result<Self, Error> {
        let serving = load(engine, TABLET_PREFIX)?;
        let start = |tablet: &Tablet| (tablet.table.0, tablet.rows.start.clone());
        let starts = serving.values().map(|tablet| (start(tablet), tablet.id));
        let (departed, left) = load_left(engine)?;
        Ok(Self {
            departed,
            left,
            closed: BTreeSet::new(),
            arriving: BTreeMap::new(),
            by_start: starts.collect(),
            serving,
            dropped: load(engine, DROPPED_PREFIX)?,
            deleted: load_set(engine, DELETED_PREFIX, |key| {
                let bytes = key.try_into().map_err(|_| "a table's number has 4 bytes")?;
                Ok(u32::from_be_bytes(bytes))
            })?,
            settings: match engine.get(Column::Meta, SETTINGS)? {
                None => GcSettingsCopy::default(),
                Some(value) => stored::decode_settings(value)?,
            },
            highest: match engine.get(Column::Meta, HIGHEST)? {
                None => 0,
                Some(value) => {
                    let bytes = value.as_ref().try_into().map_err(|_| Error::MetaKey {
                        key: HIGHEST.to_vec(),
                        detail: "a tablet's id has 8 bytes",
                    })?;
                    u64::from_be_bytes(bytes)
                }
            },
            changes: 0,
        })
    }

    /// The tablet, if this server serves it at this epoch.
    pub(crate) fn serving(&self, id: u64, epoch: u64) -> Result<&Tablet, NotServed> {
        match self.deciding(id, epoch)? {
            tablet if refuses(tablet) => Err(NotServed {
                id,
                asked_epoch: epoch,
                known_epoch: tablet.epoch,
                is_frozen: true,
                ..NotServed::default()
            }),
            tablet => Ok(tablet),
        }
    }

    /// The tablet, frozen or not, if this server has it at this epoch. For requests that read or decide how a transaction ended,
    /// and that commit none.
    pub(crate) fn deciding(&self, id: u64, epoch: u64) -> Result<&Tablet, NotServed> {
        let known = self.serving.get(&id);
        let is_closed = self.closed.contains(&id);
        match known {
            Some(tablet) if tablet.epoch == epoch && !is_closed => Ok(tablet),
            _ => Err(self.not_served(id, epoch, known)),
        }
    }

    fn not_served(&self, id: u64, epoch: u64, known: Option<&Tablet>) -> NotServed {
        let not = NotServed {
            id,
            asked_epoch: epoch,
            known_epoch: known.map_or(0, |tablet| tablet.epoch),
            is_moving: self.closed.contains(&id) || self.arriving.get(&id) == Some(&epoch),
            ..NotServed::default()
        };
        if let Some(known) = known.filter(|known| known.epoch > epoch) {
            return NotServed {
                tablets: self.following(known),
                ..not
            };
        }
        let departed = self.departed.get(&id);
        match departed.filter(|departed| departed.tablet.epoch > epoch) {
            Some(departed) if known.is_none() => NotServed {
                known_epoch: departed.tablet.epoch,
                tablets: vec![departed.tablet.clone()],
                moved_to: Some(departed.to.clone()),
                ..not
            },
            _ => not,
        }
    }

    /// The tablet, and the tablets whose rows follow it without a gap.
    fn following(&self, first: &Tablet) -> Vec<Tablet> {
        let from = (first.table.0, first.rows.start.clone());
        let mut next = Some(first.rows.start.clone());
        self.by_start
            .range(from..)
            .map_while(|((table, start), id)| {
                let follows = *table == first.table.0 && next.as_ref() == Some(start);
                let tablet = self.serving.get(id).filter(|_| follows)?;
                next = Some(tablet.rows.end.clone()).filter(|end| !end.is_empty());
                Some(tablet.clone())
            })
            .take(FOLLOWING_MAX)
            .collect()
    }

    /// The tablet that the cell with this key lies in; zero: none that this server serves.
    pub(crate) fn holding(&self, cell_key: &[u8]) -> Result<u64, Error> {
        let cell = key::decode_cell(cell_key)?;
        let tablet = self.owning(cell.table.0, &cell.row);
        let tablet = tablet.filter(|tablet| !refuses(tablet));
        Ok(tablet.map_or(0, |tablet| tablet.id))
    }

    /// The tablet with this id, at any epoch.
    pub(crate) fn get(&self, id: u64) -> Option<&Tablet> {
        self.serving.get(&id)
    }

    /// The tablet that has this row of the table.
    pub(crate) fn owning(&self, table: u32, row: &Bytes) -> Option<&Tablet> {
        let up_to = (table, row.clone());
        let (_, id) = self.by_start.range(..=up_to).next_back()?;
        let tablet = self.serving.get(id)?;
        (tablet.table.0 == table && tablet.rows.contains(row)).then_some(tablet)
    }

    /// A tablet that has some of these rows of the table.
    pub(crate) fn overlapping(&self, table: u32, rows: &Rows) -> Option<&Tablet> {
        let start = (table, rows.start.clone());
        let before = self.by_start.range(..=start.clone()).next_back();
        let behind = self.by_start.range(start..).next();
        let found = before.into_iter().chain(behind);
        let mut found = found.filter_map(|(_, id)| self.serving.get(id));
        found.find(|tablet| tablet.table.0 == table && tablet.rows.overlaps(rows))
    }

    /// A former tablet that has some of this one's rows, which are not removed yet.
    pub(crate) fn left_over(&self, tablet: &Tablet) -> Option<&Tablet> {
        let departed = self.departed.values().map(|departed| &departed.tablet);
        let mut all = self.dropped.values().chain(departed);
        all.find(|it| it.table == tablet.table && it.rows.overlaps(&tablet.rows))
    }

    /// The tablet with this id, if it was handed over, and no other server is known to report it.
    pub(crate) fn departed(&self, id: u64) -> Option<&DepartedTablet> {
        self.departed.get(&id)
    }

    /// All tablets that were handed over, and that no other server is known to report.
    pub(crate) fn all_departed(&self) -> impl Iterator<Item = &DepartedTablet> {
        self.departed.values()
    }

    /// Whether the tablet was handed over at this epoch, or a later one.
    pub(crate) fn has_left(&self, id: u64, epoch: u64) -> bool {
        let departed = self.departed.get(&id).map(|it| it.tablet.epoch);
        departed.max(self.left.get(&id).copied()) >= Some(epoch.max(1))
    }

    /// Refuses all requests for the tablet until [`Self::reopen`].
    pub(crate) fn close(&mut self, id: u64) {
        self.closed.insert(id);
    }

    pub(crate) fn reopen(&mut self, id: u64) {
        self.closed.remove(&id);
    }

    pub(crate) fn is_closed(&self, id: u64) -> bool {
        self.closed.contains(&id)
    }

    /// Notes that this server gets the tablet, to serve it at this epoch.
    pub(crate) fn arrives(&mut self, id: u64, epoch: u64) {
        self.arriving.insert(id, epoch);
    }

    /// Notes that the arrival of the tablet has ended.
    pub(crate) fn arrives_no_more(&mut self, id: u64) {
        self.arriving.remove(&id);
    }

    /// Notes that another server has the tablet.
    pub(crate) fn leave(&mut self, departed: DepartedTablet) {
        let id = departed.tablet.id;
        self.remove(id);
        self.reopen(id);
        self.departed.insert(id, departed);
    }

    /// Notes that another server reports the tablet: its rows here can be removed.
    pub(crate) fn settle(&mut self, tablet: Tablet) {
        self.changes += 1;
        self.departed.remove(&tablet.id);
        self.left.insert(tablet.id, tablet.epoch);
        self.dropped.insert(tablet.id, tablet);
    }

    /// Notes that the tablet is part of another one, which has this epoch.
    pub(crate) fn merged(&mut self, gone: u64, epoch: u64) {
        self.remove(gone);
        self.left.insert(gone, epoch);
    }

    /// Notes that the tablet was not got after all: its rows here can be removed.
    pub(crate) fn discard(&mut self, tablet: Tablet) {
        self.dropped.insert(tablet.id, tablet);
    }

    /// The number of tablets, without dropped ones.
    pub(crate) fn len(&self) -> usize {
        self.serving.len()
    }

    /// All tablets, without dropped ones.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Tablet> {
        self.serving.values()
    }

    /// The tables that were deleted, and had tablets here.
    pub(crate) fn deleted_tables(&self) -> impl Iterator<Item = u32> {
        self.deleted.iter().copied()
    }

    /// The highest id that a tablet here ever had.
    pub(crate) fn highest_id(&self) -> u64 {
        self.highest
    }

    /// The settings of garbage collection.
    pub(crate) fn settings(&self) -> GcSettingsCopy {
        self.settings
    }

    /// The version of the lists in heartbeats.
    pub(crate) fn lists_version(&self) -> u64 {
        self.changes + 1
    }

    /// Whether the table was deleted, and had tablets here.
    pub(crate) fn is_deleted(&self, table: u32) -> bool {
        self.deleted.contains(&table)
    }

    /// Whether these settings are newer than the stored ones.
    pub(crate) fn are_newer(&self, settings: GcSettingsCopy) -> bool {
        settings.revision > self.settings.revision
    }

    pub(crate) fn keep(&mut self, settings: GcSettingsCopy) {
        if self.are_newer(settings) {
            self.changes += 1;
            self.settings = settings;
        }
    }

    /// A dropped tablet whose rows are still here.
    pub(crate) fn next_dropped(&self) -> Option<&Tablet> {
        self.dropped.values().next()
    }

    /// The dropped tablet with this id, if its rows are still here.
    pub(crate) fn dropped(&self, id: u64) -> Option<&Tablet> {
        self.dropped.get(&id)
    }

    pub(crate) fn insert(&mut self, tablet: Tablet) {
        self.highest = self.highest.max(tablet.id);
        self.remove(tablet.id);
        self.left.remove(&tablet.id);
        let start = (tablet.table.0, tablet.rows.start.clone());
        self.by_start.insert(start, tablet.id);
        self.serving.insert(tablet.id, tablet);
    }

    /// Removes a tablet whose rows are another one's now.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Tablet> {
        self.changes += 1;
        let tablet = self.serving.remove(&id)?;
        let start = (tablet.table.0, tablet.rows.start.clone());
        if self.by_start.get(&start) == Some(&id) {
            self.by_start.remove(&start);
        }
        Some(tablet)
    }

    pub(crate) fn drop_tablet(&mut self, id: u64, table: u32) {
        self.deleted.insert(table);
        if let Some(tablet) = self.remove(id) {
            self.dropped.insert(id, tablet);
        }
    }

    pub(crate) fn forget(&mut self, id: u64) {
        self.dropped.remove(&id);
    }
}

/// Whether the tablet refuses all requests but those that end transactions.
fn refuses(tablet: &Tablet) -> bool {
    tablet.is_frozen() && !mutants::on(Mutant::FreezeIgnored)
}

/// The batch that stores a tablet of this server.
pub(crate) fn record(tablet: &Tablet) -> Batch {
    let mut batch = Batch::default();
    add_record(&mut batch, tablet);
    batch
}

/// Stores the id of a tablet of this server with the batch, if it is the highest so far.
pub(crate) fn note_id(batch: &mut Batch, known: &Tablets, id: u64) {
    if id > known.highest {
        batch.put(Column::Meta, HIGHEST.to_vec(), id.to_be_bytes().to_vec());
    }
}

/// Stores a tablet of this server with the batch.
pub(crate) fn add_record(batch: &mut Batch, tablet: &Tablet) {
    let key = key(TABLET_PREFIX, tablet.id);
    batch.put(Column::Meta, key, stored::encode_tablet(tablet));
}

/// Removes a tablet with the batch. Another tablet or server has its rows.
pub(crate) fn remove_record(batch: &mut Batch, id: u64) {
    batch.delete(Column::Meta, key(TABLET_PREFIX, id));
    Sizes::remove_record(batch, id);
}

/// The batch that drops a tablet of this deleted table, if it is here. Its rows are removed later.
pub(crate) fn drop_record(tablet: Option<&Tablet>, table: u32) -> Batch {
    let mut batch = Batch::default();
    let deleted = [DELETED_PREFIX, &table.to_be_bytes()].concat();
    batch.put(Column::Meta, deleted, Vec::new());
    if let Some(tablet) = tablet {
        remove_record(&mut batch, tablet.id);
        add_dropped(&mut batch, tablet);
    }
    batch
}

/// Adds to the batch that the rows of this tablet have to be removed.
pub(crate) fn add_dropped(batch: &mut Batch, tablet: &Tablet) {
    let key = key(DROPPED_PREFIX, tablet.id);
    batch.put(Column::Meta, key, stored::encode_tablet(tablet));
}

/// Adds to the batch that the tablet was handed over.
pub(crate) fn put_departed(batch: &mut Batch, departed: &DepartedTablet) {
    let key = key(LEFT_PREFIX, departed.tablet.id);
    batch.put(Column::Meta, key, stored::encode_departed(departed));
}

/// Adds to the batch that the tablet is not here any more since this epoch: others report it, or it was merged.
pub(crate) fn put_settled(batch: &mut Batch, tablet: &Tablet) {
    let key = key(LEFT_PREFIX, tablet.id);
    batch.put(Column::Meta, key, stored::encode_settled(tablet));
}

/// Adds to the batch that the tablet is back.
pub(crate) fn remove_left(batch: &mut Batch, id: u64) {
    batch.delete(Column::Meta, key(LEFT_PREFIX, id));
}

/// The batch that stores the settings of garbage collection.
pub(crate) fn settings_record(settings: GcSettingsCopy) -> Batch {
    let mut batch = Batch::default();
    batch.put(Column::Meta, SETTINGS, stored::encode_settings(settings));
    batch
}

/// The batch after which a dropped tablet's rows are removed.
pub(crate) fn forget_record(id: u64) -> Batch {
    let mut batch = Batch::default();
    batch.delete(Column::Meta, key(DROPPED_PREFIX, id));
    batch
}

/// The key of a tablet's record: the prefix, and the tablet's id, 8 bytes, big-endian.
pub(crate) fn key(prefix: &[u8], id: u64) -> Vec<u8> {
    [prefix, &id.to_be_bytes()].concat()
}

/// The tablets that were handed over and are not known to be reported elsewhere, and the epochs of the others.
#[expect(clippy::type_complexity, reason = "two maps by id")]
fn load_left(
    engine: &dyn Engine,
) -> Result<(BTreeMap<u64, DepartedTablet>, BTreeMap<u64, u64>), Error> {
    let (mut departed, mut left) = (BTreeMap::new(), BTreeMap::new());
    let end = behind(LEFT_PREFIX);
    for pair in engine.scan(Column::Meta, LEFT_PREFIX, &end, Direction::Forward)? {
        let (_, value) = pair?;
        match stored::decode_left(value)? {
            LeftRecord::Departed(record) => {
                departed.insert(record.tablet.id, record);
            }
            LeftRecord::Settled(id, epoch) => {
                left.insert(id, epoch);
            }
        }
    }
    Ok((departed, left))
}

fn load_set<T: Ord>(
    engine: &dyn Engine,
    prefix: &[u8],
    read: impl Fn(&[u8]) -> Result<T, &'static str>,
) -> Result<BTreeSet<T>, Error> {
    let mut set = BTreeSet::new();
    for pair in engine.scan(Column::Meta, prefix, &behind(prefix), Direction::Forward)? {
        let (key, _) = pair?;
        let unreadable = |detail| Error::MetaKey {
            key: key.to_vec(),
            detail,
        };
        set.insert(read(&key[prefix.len()..]).map_err(unreadable)?);
    }
    Ok(set)
}

/// The end of the keys with this prefix, which ends in a slash.
fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn load(engine: &dyn Engine, prefix: &[u8]) -> Result<BTreeMap<u64, Tablet>, Error> {
    let mut tablets = BTreeMap::new();
    for pair in engine.scan(Column::Meta, prefix, &behind(prefix), Direction::Forward)? {
        let (_, value) = pair?;
        let tablet = stored::decode_tablet(value)?;
        tablets.insert(tablet.id, tablet);
    }
    Ok(tablets)
}
