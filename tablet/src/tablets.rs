//! Which tablets this server owns. A tablet's record lies in its owner's engine, so that a write and a
//! change of the tablet's state can be one batch; ownership is the owner's durable fact.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_engine::{Batch, Column, Direction, Engine};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Rows, Tablet, key};
use percolator_wire::v1;
use prost::Message as _;

use crate::Error;
use crate::sizes::Sizes;

const TABLET_PREFIX: &[u8] = b"tablet/";
/// The most tablets that a refusal names.
const FOLLOWING_MAX: usize = 16;
const DROPPED_PREFIX: &[u8] = b"dropped/";
/// Behind it, the id of a tablet that was handed over.
const LEFT_PREFIX: &[u8] = b"left/";
/// Behind it, the number of a table that was deleted.
const DELETED_PREFIX: &[u8] = b"deleted/";
/// Where the highest id of a tablet is.
const HIGHEST: &[u8] = b"highest tablet";
/// Where the settings of garbage collection are.
const SETTINGS: &[u8] = b"gc settings";

/// The tablets of this server, by id.
#[derive(Debug, Default)]
pub(crate) struct Tablets {
    serving: BTreeMap<u64, Tablet>,
    /// Their ids, by table and first row.
    by_start: BTreeMap<(u32, Bytes), u64>,
    /// Dropped or handed over, but their rows are still to be removed.
    dropped: BTreeMap<u64, Tablet>,
    /// Handed over to others, as far as nobody else is known to report them.
    departed: BTreeMap<u64, v1::LeftTablet>,
    /// The epochs of those that were handed over before, or merged into others: a late command must not make one again. Sixteen
    /// bytes each, for every tablet that was here.
    left: BTreeMap<u64, u64>,
    /// Not durable: those that are about to be handed over, and those that this server is getting. Nothing is answered about
    /// them.
    closed: BTreeSet<u64>,
    /// And at which epoch these are to be served here.
    arriving: BTreeMap<u64, u64>,
    /// Tables that were deleted, and had tablets here: a late command must not make one again. The ids of tables
    /// are never given twice. Eight bytes each, for every table that was ever deleted.
    deleted: BTreeSet<u32>,
    /// The settings of garbage collection, for a master whose lost state is rebuilt.
    settings: v1::GcSettings,
    /// The highest id that a tablet here ever had.
    highest: u64,
    /// How often what [`Self::report`] has was changed since the start.
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
                None => v1::GcSettings::default(),
                Some(value) => {
                    v1::GcSettings::decode(value).map_err(|source| Error::TabletRecord {
                        detail: source.to_string(),
                    })?
                }
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

    /// The tablet, where this server serves it at this epoch.
    pub(crate) fn serving(&self, asked: &v1::TabletRef) -> Result<&Tablet, v1::NotServed> {
        match self.deciding(asked)? {
            tablet if refuses(tablet) => Err(v1::NotServed {
                tablet_id: asked.id,
                asked_epoch: asked.epoch,
                known_epoch: tablet.epoch,
                frozen: true,
                ..v1::NotServed::default()
            }),
            tablet => Ok(tablet),
        }
    }

    /// The tablet, where this server has it at this epoch, to tell or to settle what became of transactions:
    /// also a frozen one. No transaction commits by that.
    pub(crate) fn deciding(&self, asked: &v1::TabletRef) -> Result<&Tablet, v1::NotServed> {
        let known = self.serving.get(&asked.id);
        let is_closed = self.closed.contains(&asked.id);
        match known {
            Some(tablet) if tablet.epoch == asked.epoch && !is_closed => Ok(tablet),
            _ => Err(self.not_served(asked, known)),
        }
    }

    fn not_served(&self, asked: &v1::TabletRef, known: Option<&Tablet>) -> v1::NotServed {
        let not = v1::NotServed {
            tablet_id: asked.id,
            asked_epoch: asked.epoch,
            known_epoch: known.map_or(0, |tablet| tablet.epoch),
            moving: self.closed.contains(&asked.id)
                || self.arriving.get(&asked.id) == Some(&asked.epoch),
            ..v1::NotServed::default()
        };
        if let Some(known) = known.filter(|known| known.epoch > asked.epoch) {
            return v1::NotServed {
                tablets: self.following(known),
                ..not
            };
        }
        let moved = |left: &&v1::LeftTablet| {
            let tablet = left.tablet.as_ref();
            tablet.is_some_and(|tablet| tablet.epoch > asked.epoch)
        };
        match self.departed.get(&asked.id).filter(moved) {
            Some(left) if known.is_none() => v1::NotServed {
                known_epoch: left.tablet.as_ref().map_or(0, |tablet| tablet.epoch),
                tablets: left.tablet.iter().cloned().collect(),
                moved_to: left.to.clone(),
                ..not
            },
            _ => not,
        }
    }

    /// The tablet, and those behind it whose rows follow without a gap.
    fn following(&self, first: &Tablet) -> Vec<v1::TabletInfo> {
        let from = (first.table.0, first.rows.start.clone());
        let mut next = Some(first.rows.start.clone());
        self.by_start
            .range(from..)
            .map_while(|((table, start), id)| {
                let follows = *table == first.table.0 && next.as_ref() == Some(start);
                let tablet = self.serving.get(id).filter(|_| follows)?;
                next = Some(tablet.rows.end.clone()).filter(|end| !end.is_empty());
                Some(tablet.clone().into())
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

    /// One that was here and has some of this one's rows, which are still to be removed.
    pub(crate) fn left_over(&self, tablet: &Tablet) -> Option<Tablet> {
        let departed = self.departed.values().filter_map(|left| {
            let left = left.tablet.clone()?;
            Tablet::try_from(left).ok()
        });
        let mut all = self.dropped.values().cloned().chain(departed);
        all.find(|it| it.table == tablet.table && it.rows.overlaps(&tablet.rows))
    }

    /// The tablet that was handed over, and is not known to be reported by anybody else.
    pub(crate) fn departed(&self, id: u64) -> Option<&v1::LeftTablet> {
        self.departed.get(&id)
    }

    /// Whether the tablet was handed over at this epoch, or a later one.
    pub(crate) fn has_left(&self, id: u64, epoch: u64) -> bool {
        let departed = self.departed.get(&id);
        let departed = departed
            .and_then(|left| left.tablet.as_ref())
            .map(|it| it.epoch);
        departed.max(self.left.get(&id).copied()) >= Some(epoch.max(1))
    }

    /// Nothing is answered about the tablet until [`Self::reopen`].
    pub(crate) fn close(&mut self, id: u64) {
        self.closed.insert(id);
    }

    pub(crate) fn reopen(&mut self, id: u64) {
        self.closed.remove(&id);
    }

    pub(crate) fn is_closed(&self, id: u64) -> bool {
        self.closed.contains(&id)
    }

    /// This server is getting the tablet, to serve it at this epoch.
    pub(crate) fn arrives(&mut self, id: u64, epoch: u64) {
        self.arriving.insert(id, epoch);
    }

    /// It isn't any more.
    pub(crate) fn arrives_no_more(&mut self, id: u64) {
        self.arriving.remove(&id);
    }

    /// The tablet is another server's.
    pub(crate) fn leave(&mut self, id: u64, record: v1::LeftTablet) {
        self.remove(id);
        self.reopen(id);
        self.departed.insert(id, record);
    }

    /// Others report it: its rows are to be removed.
    pub(crate) fn settle(&mut self, tablet: Tablet) {
        self.changes += 1;
        self.departed.remove(&tablet.id);
        self.left.insert(tablet.id, tablet.epoch);
        self.dropped.insert(tablet.id, tablet);
    }

    /// It is part of another tablet, which has this epoch: nobody has it as it was any more.
    pub(crate) fn merged(&mut self, gone: u64, epoch: u64) {
        self.remove(gone);
        self.left.insert(gone, epoch);
    }

    /// It was not got after all: what is here of it is to be removed.
    pub(crate) fn discard(&mut self, tablet: Tablet) {
        self.dropped.insert(tablet.id, tablet);
    }

    /// How many there are, without those that were dropped.
    pub(crate) fn len(&self) -> usize {
        self.serving.len()
    }

    /// Those without the ones that were dropped.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Tablet> {
        self.serving.values()
    }

    /// What the master is told.
    pub(crate) fn report(&self) -> v1::HeartbeatRequest {
        v1::HeartbeatRequest {
            tablets: self.serving.values().cloned().map(Into::into).collect(),
            deleted_tables: self.deleted.iter().copied().collect(),
            highest_tablet_id: self.highest,
            departed: self
                .departed
                .values()
                .map(|left| v1::DepartedTablet {
                    tablet: left.tablet.clone(),
                    server: left
                        .to
                        .as_ref()
                        .and_then(|to| to.server.as_ref())
                        .map_or_else(String::new, |to| to.server.clone()),
                })
                .collect(),
            gc: Some(self.settings),
            lists_version: self.lists_version(),
            ..v1::HeartbeatRequest::default()
        }
    }

    /// The version of the lists that the master is told.
    pub(crate) fn lists_version(&self) -> u64 {
        self.changes + 1
    }

    /// Whether the table was deleted, and had tablets here.
    pub(crate) fn is_deleted(&self, table: u32) -> bool {
        self.deleted.contains(&table)
    }

    /// Whether these settings are newer than those that are kept.
    pub(crate) fn are_news(&self, settings: &v1::GcSettings) -> bool {
        settings.revision > self.settings.revision
    }

    pub(crate) fn keep(&mut self, settings: v1::GcSettings) {
        if self.are_news(&settings) {
            self.changes += 1;
            self.settings = settings;
        }
    }

    /// A dropped tablet whose rows are still here.
    pub(crate) fn next_dropped(&self) -> Option<&Tablet> {
        self.dropped.values().next()
    }

    /// The dropped tablet with this id, where its rows are still here.
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

    /// A tablet is not here any more; its rows are those of another one.
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

/// Whether the tablet takes no requests but those that end transactions.
fn refuses(tablet: &Tablet) -> bool {
    tablet.is_frozen() && !mutants::on(Mutant::FreezeIgnored)
}

/// The batch that makes a tablet ours.
pub(crate) fn record(tablet: &Tablet) -> Batch {
    let mut batch = Batch::default();
    add_record(&mut batch, tablet);
    batch
}

/// The batch makes a tablet ours that has this id, which may be the highest so far.
pub(crate) fn note_id(batch: &mut Batch, known: &Tablets, id: u64) {
    if id > known.highest {
        batch.put(Column::Meta, HIGHEST.to_vec(), id.to_be_bytes().to_vec());
    }
}

/// The batch makes this tablet ours as well.
pub(crate) fn add_record(batch: &mut Batch, tablet: &Tablet) {
    let record = v1::TabletInfo::from(tablet.clone()).encode_to_vec();
    batch.put(Column::Meta, key(TABLET_PREFIX, tablet.id), record);
}

/// The batch takes a tablet away whose rows are another one's.
pub(crate) fn remove_record(batch: &mut Batch, id: u64) {
    batch.delete(Column::Meta, key(TABLET_PREFIX, id));
    Sizes::remove_record(batch, id);
}

/// The batch after which a tablet of this deleted table isn't ours, if it was; its rows go later.
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

/// The batch says that the rows of this tablet are to be removed.
pub(crate) fn add_dropped(batch: &mut Batch, tablet: &Tablet) {
    let record = v1::TabletInfo::from(tablet.clone()).encode_to_vec();
    batch.put(Column::Meta, key(DROPPED_PREFIX, tablet.id), record);
}

/// What is kept of a tablet that is not here any more, and has left nothing.
pub(crate) fn settled(tablet: Tablet) -> v1::LeftTablet {
    v1::LeftTablet {
        tablet: Some(tablet.into()),
        settled: true,
        ..v1::LeftTablet::default()
    }
}

/// The batch keeps this of a tablet that was handed over.
pub(crate) fn put_left(batch: &mut Batch, id: u64, record: &v1::LeftTablet) {
    batch.put(Column::Meta, key(LEFT_PREFIX, id), record.encode_to_vec());
}

/// The batch forgets that the tablet was handed over: it is back.
pub(crate) fn remove_left(batch: &mut Batch, id: u64) {
    batch.delete(Column::Meta, key(LEFT_PREFIX, id));
}

/// The batch that keeps the settings of garbage collection.
pub(crate) fn settings_record(settings: &v1::GcSettings) -> Batch {
    let mut batch = Batch::default();
    batch.put(Column::Meta, SETTINGS, settings.encode_to_vec());
    batch
}

/// The batch that says that a dropped tablet's rows are gone.
pub(crate) fn forget_record(id: u64) -> Batch {
    let mut batch = Batch::default();
    batch.delete(Column::Meta, key(DROPPED_PREFIX, id));
    batch
}

/// The key of what is kept of a tablet: the prefix, and the tablet's id, 8 bytes, big-endian.
pub(crate) fn key(prefix: &[u8], id: u64) -> Vec<u8> {
    [prefix, &id.to_be_bytes()].concat()
}

/// Those that were handed over: those that nobody else is known to report, and the epochs of the others.
#[expect(clippy::type_complexity, reason = "two maps by id")]
fn load_left(
    engine: &dyn Engine,
) -> Result<(BTreeMap<u64, v1::LeftTablet>, BTreeMap<u64, u64>), Error> {
    let (mut departed, mut left) = (BTreeMap::new(), BTreeMap::new());
    let end = behind(LEFT_PREFIX);
    for pair in engine.scan(Column::Meta, LEFT_PREFIX, &end, Direction::Forward)? {
        let (_, value) = pair?;
        let record = v1::LeftTablet::decode(value).map_err(|error| Error::TabletRecord {
            detail: error.to_string(),
        })?;
        let (id, epoch) = record
            .tablet
            .as_ref()
            .map_or((0, 0), |tablet| (tablet.id, tablet.epoch));
        if record.settled {
            left.insert(id, epoch);
        } else {
            departed.insert(id, record);
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
        let unreadable = |detail: String| Error::TabletRecord { detail };
        let record =
            v1::TabletInfo::decode(value).map_err(|error| unreadable(error.to_string()))?;
        let tablet = Tablet::try_from(record).map_err(|error| unreadable(error.to_string()))?;
        tablets.insert(tablet.id, tablet);
    }
    Ok(tablets)
}
