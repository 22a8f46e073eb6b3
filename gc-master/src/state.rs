//! What the master must not forget: its durable state, and the bytes that hold it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Rows, TabletState, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ids;
use crate::servers_by_name::ServersByName;
use crate::settings::StoredSettings;
use crate::tables_by_id::TablesById;

/// The format of the bytes that this program reads and writes.
const FORMAT: u32 = 2;

/// An incarnation of a server that is known no more: a rebuilt state accepts another one for the server only when a lease is
/// over.
pub(crate) const UNKNOWN_INCARNATION: u64 = u64::MAX;

/// The durable state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectoryState {
    format: u32,
    /// The cluster.
    pub cluster_id: String,
    /// The id of the next new table; ids are never given twice.
    pub next_table_id: u32,
    /// The id of the next new tablet; ids are never given twice.
    pub next_tablet_id: u64,
    /// The ids from here to the next were given by this cluster's masters.
    #[serde(default)]
    pub first_table_id: u32,
    /// Tables that were deleted, with ids below that one: as far as the servers knew from which this state was rebuilt.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub deleted: BTreeSet<u32>,
    /// Tables with ids below that one that aren't known are gone: the cluster began with this state, or they were given up when it
    /// was rebuilt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown_are_gone: bool,
    /// By id.
    pub tables: TablesById,
    /// Tablets of which no owner can report, by id: those that it has still to make, and those that it has lost. All others are
    /// soft state ([`Placements`](crate::Placements)).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unreported: BTreeMap<u64, Placement>,
    /// By name.
    pub servers: ServersByName,
    /// Of garbage collection.
    #[serde(default, skip_serializing_if = "Gc::is_default")]
    pub gc: Gc,
    /// No tablet server was granted a lease above this.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub leased_to: u64,
    /// `leased_to` is not known: the state was rebuilt, and the oracle has not reported its time since.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leases_unknown: bool,
    /// The highest timestamp that tablet servers, or oracles before the one that is accepted, have reported, about: kept
    /// with other changes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub highest_seen: u64,
    /// An oracle that may have been alive when another one took its place has given timestamps up to here.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub oracle_above: u64,
    /// The longest lease that an oracle may still have, in milliseconds, where leases are shorter now.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub oracle_lease_ms: u64,
}

/// How far garbage collection is, and its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gc {
    /// Tablet servers refuse what is below.
    pub barrier: u64,
    /// Tablet servers may collect up to here.
    pub safe_point: u64,
    /// Below it no lock is left in any tablet (`protocol::safe_point`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resolved: u64,
    /// The oracle's time when there was a tablet server first, and no safe point; zero: not known. What has never moved
    /// has no age of its own to be seen by.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: u64,
    /// The longest lease that a session may still have, in milliseconds: a master that starts waits for it. Zero: as
    /// long as leases are now.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lease_ms: u64,
    /// What was set.
    #[serde(default, skip_serializing_if = "StoredSettings::is_default")]
    pub set: StoredSettings,
    /// By session: its gc-locks up to here were ended by hand, and the barrier has not passed that yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub released: BTreeMap<u64, u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks like that")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Gc {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// All points.
    pub fn points(&self) -> Points {
        Points {
            barrier: Timestamp::from_u64(self.barrier),
            safe_point: Timestamp::from_u64(self.safe_point),
            resolved: Timestamp::from_u64(self.resolved),
        }
    }
}

/// A table, as the state of the directory has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableRecord {
    /// Unique among tables.
    pub name: String,
    /// Whether clients may use it.
    pub state: TableState,
    /// Of a table that is being deleted: its tablets may go once locks are resolved up to here (`protocol::safe_point`). `None`: not
    /// all of them are frozen yet, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_at: Option<u64>,
    /// Anyone who deletes it has given up what its owners have lost of it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub given_up: bool,
}

/// Whether a table may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableState {
    /// Not every tablet is at its owner yet.
    Creating,
    /// Every row lies in a tablet that its owner has.
    Ready,
    /// Its tablets are being frozen, and dropped once the safe point lies behind that. Its name is free.
    Deleting,
}

/// Where a tablet is, and its last report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The id of its table.
    pub table: u32,
    /// Its rows.
    #[serde(flatten, with = "StoredRows")]
    pub rows: Rows,
    /// Grows with each change of its rows or owner.
    pub epoch: u64,
    /// The server that holds it.
    pub owner: String,
    /// The owner has reported that it has the tablet. From then on its absence is a loss: the master
    /// never again asks for an empty one in its place.
    pub made: bool,
    /// The owner's last report at this epoch: it only goes forward.
    #[serde(
        default,
        skip_serializing_if = "is_serving",
        with = "StoredTabletState"
    )]
    pub state: TabletState,
    /// Its owner's present list has it.
    #[serde(skip)]
    pub listed: bool,
}

/// As [`TabletState`] is written down.
#[derive(Serialize, Deserialize)]
#[serde(remote = "TabletState", rename_all = "lowercase")]
enum StoredTabletState {
    Serving,
    Frozen,
}

/// As [`Rows`] are written down.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Rows")]
struct StoredRows {
    #[serde(with = "hex")]
    start: Bytes,
    #[serde(with = "hex")]
    end: Bytes,
}

/// A server that has sent at least one heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// What it is.
    pub role: Role,
    /// Its last reported address: HOST:PORT.
    pub address: String,
    /// A tablet server that came back with an empty folder: what is missing of tables may have been there.
    #[serde(default, skip_serializing_if = "is_false")]
    pub emptied: bool,
    /// An oracle that knew its cluster when it sent a heartbeat. Its folder holds that since, beside
    /// the limit of its timestamps: an oracle that knows of no cluster has lost both.
    #[serde(default, skip_serializing_if = "is_false")]
    pub adopted: bool,
    /// This state was rebuilt from all that the server had. What else it has of a table with an id below the first of this state was
    /// made by a late command of the master before, and is empty.
    #[serde(default, skip_serializing_if = "is_false")]
    pub taken_in: bool,
    /// The incarnation that was accepted last: another one is only taken for the server when it can't answer any more.
    /// Zero: it has ended in order, or there was none. `UNKNOWN_INCARNATION`: one that a lost state had.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub incarnation: u64,
    /// The highest timestamp of its durable records that it has reported, about: kept with other changes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub high_ts: u64,
    /// How many groups it has reported to be durable, about, as `high_ts`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub groups: u64,
    /// It commits no primary at or below this: an earlier incarnation may have answered reads up to it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub commits_above: u64,
    /// The register that an oracle shares with others: only they may serve beside it. 0: it is alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub oracle_register: u64,
    /// Of a tablet server: whether it is to lose its tablets, or has.
    #[serde(default, skip_serializing_if = "Drain::is_off")]
    pub drain: Drain,
}

/// Whether a tablet server is to lose its tablets, or has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Drain {
    /// It may have tablets.
    #[default]
    Off,
    /// It is being drained.
    Draining,
    /// It has reported since then that it has no tablets, and no rows of any: it may go.
    Drained,
}

impl Drain {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks like that")]
    fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

/// What a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It gives timestamps.
    Oracle,
    /// It holds tablets.
    Tablet,
}

impl Role {
    /// For messages.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Oracle => "an oracle",
            Self::Tablet => "a tablet server",
        }
    }
}

/// Why bytes are not a state that this program can go on with.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another version of the program wrote them.
    #[error("the directory has format {found}, and this program knows format {FORMAT}")]
    Format {
        /// Their format.
        found: u32,
    },
    /// They are not compressed as this program does.
    #[error("the directory can't be decompressed: {0}")]
    Compressed(std::io::Error),
    /// They are not what this program writes.
    #[error("the directory can't be read: {0}")]
    Malformed(serde_json::Error),
}

/// The one field that every format has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl DirectoryState {
    /// The state of a new cluster.
    pub(crate) fn new(cluster_id: String, random: u128) -> Self {
        let mut state = Self::empty(cluster_id);
        let (table, tablet) = ids::first(random);
        (state.next_table_id, state.next_tablet_id) = (table, tablet);
        state.first_table_id = table;
        state.unknown_are_gone = true;
        state
    }

    /// The state of a cluster's master that knows nothing of it but the id: it has given no id, and any.
    pub(crate) fn empty(cluster_id: String) -> Self {
        Self {
            format: FORMAT,
            cluster_id,
            next_table_id: 0,
            next_tablet_id: 0,
            first_table_id: 0,
            deleted: BTreeSet::new(),
            unknown_are_gone: false,
            tables: TablesById::default(),
            unreported: BTreeMap::new(),
            servers: ServersByName::default(),
            gc: Gc::default(),
            leased_to: 0,
            leases_unknown: false,
            highest_seen: 0,
            oracle_above: 0,
            oracle_lease_ms: 0,
        }
    }

    /// Somebody has this tablet.
    pub(crate) fn met_tablet(&mut self, id: u64) {
        self.next_tablet_id = self.next_tablet_id.max(id + 1);
    }

    /// Whether the table got its id from this cluster's masters. If it isn't known then, it was deleted.
    pub(crate) fn gave(&self, table: u32) -> bool {
        (self.first_table_id..self.next_table_id).contains(&table) || self.deleted.contains(&table)
    }

    /// Whether a tablet of the table that this directory doesn't know was dropped.
    pub(crate) fn has_dropped(&self, table: u32) -> bool {
        self.may_drop(table) && self.gave(table)
    }

    /// Whether there is no such table any more. Of a state that was rebuilt without giving anything up, a table that it doesn't
    /// know may be there all the same.
    pub(crate) fn is_gone(&self, table: u32) -> bool {
        let is_older = self.unknown_are_gone && table < self.next_table_id;
        !self.tables.contains_key(&table) && (self.gave(table) || is_older)
    }

    /// A table is gone.
    pub(crate) fn remove_table(&mut self, table: u32) {
        self.tables.remove(&table);
        self.forget_unreported(table);
        if table < self.first_table_id {
            self.deleted.insert(table);
        }
    }

    /// The state in bytes: JSON, compressed by gzip. In a large cluster it is mostly the same fields again and again.
    pub fn encode(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("every part of the state has a form in JSON");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let written = encoder.write_all(&json);
        let compressed = written.and_then(|()| encoder.finish());
        compressed.expect("memory takes every write")
    }

    /// The state that the bytes hold.
    ///
    /// # Errors
    /// Bytes that [`DirectoryState::encode`] did not make, or that of another version did.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let mut json = Vec::new();
        let read = GzDecoder::new(bytes).read_to_end(&mut json);
        read.map_err(StateError::Compressed)?;
        let Format { format } = serde_json::from_slice(&json).map_err(StateError::Malformed)?;
        if format != FORMAT {
            return Err(StateError::Format { found: format });
        }
        serde_json::from_slice(&json).map_err(StateError::Malformed)
    }

    /// The id of the table with this name, if it is not being deleted.
    pub(crate) fn table_named(&self, name: &str) -> Option<u32> {
        let mut tables = self.tables.named(name);
        let found = tables.find(|(_, table)| table.state != TableState::Deleting);
        found.map(|(id, _)| id)
    }

    /// The ids of tables with this name that are being deleted.
    pub(crate) fn deleting_named(&self, name: &str) -> impl Iterator<Item = u32> {
        let is_deleting = |(_, table): &(u32, &TableRecord)| table.state == TableState::Deleting;
        self.tables
            .named(name)
            .filter(is_deleting)
            .map(|(id, _)| id)
    }

    /// Whether the tablets of this table, which is being deleted, may go.
    pub(crate) fn may_drop(&self, table: u32) -> bool {
        let table = self.tables.get(&table);
        let drop_at = table.and_then(|table| table.drop_at);
        drop_at.is_some_and(|at| {
            let unresolved = at <= self.gc.safe_point && mutants::on(Mutant::DroppedUnresolved);
            at <= self.gc.resolved || unresolved || mutants::on(Mutant::DroppedBeforeSafePoint)
        })
    }

    /// Every tablet server of the cluster, by name.
    pub fn tablet_servers(&self) -> BTreeSet<&str> {
        let is_tablet = |(_, server): &(&String, &Server)| server.role == Role::Tablet;
        let servers = self.servers.iter().filter(is_tablet);
        servers.map(|(name, _)| name.as_str()).collect()
    }

    /// Whether this server is to have no tablets, or has none since.
    pub(crate) fn is_draining(&self, server: &str) -> bool {
        let known = self.servers.get(server);
        known.is_some_and(|known| known.drain != Drain::Off)
    }

    /// The servers that are to have no tablets, or have none since.
    pub(crate) fn draining_servers(&self) -> impl Iterator<Item = &str> {
        let servers = self.servers.iter();
        let drained = servers.filter(|(_, known)| known.drain != Drain::Off);
        drained.map(|(name, _)| name.as_str())
    }

    /// Nothing has to be kept any more of the tablets of this table: their owners report them, or they are gone. Whether
    /// anything was.
    pub(crate) fn forget_unreported(&mut self, table: u32) -> bool {
        let before = self.unreported.len();
        self.unreported.retain(|_, tablet| tablet.table != table);
        self.unreported.len() != before
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_serving(state: &TabletState) -> bool {
    *state == TabletState::Serving
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_false(value: &bool) -> bool {
    !value
}

/// Rows are bytes, and JSON has only text.
mod hex {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
        let text: String = bytes
            .iter()
            .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
            .collect();
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        let malformed = || D::Error::custom(format_args!("{text:?} is not a row in hexadecimal"));
        let nibble = |digit: u8| char::from(digit).to_digit(16).ok_or_else(malformed);
        if !text.len().is_multiple_of(2) {
            return Err(malformed());
        }
        text.as_bytes()
            .chunks(2)
            .map(|pair| {
                let byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
                u8::try_from(byte).map_err(|_| malformed())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut state = DirectoryState::new("c0ffee".into(), 7);
        state.leases_unknown = true;
        let table = TableRecord {
            name: "a".into(),
            state: TableState::Deleting,
            drop_at: Some(7),
            given_up: false,
        };
        state.tables.insert(3, table);
        let rows = Rows {
            start: (0..=255).collect(),
            end: Bytes::new(),
        };
        let tablet = Placement {
            table: 3,
            rows,
            epoch: u64::MAX,
            owner: "tablet-0".into(),
            made: true,
            state: TabletState::Frozen,
            listed: false,
        };
        state.unreported.insert(u64::MAX, tablet);
        let oracle = Server {
            role: Role::Oracle,
            address: "oracle-0:7401".into(),
            emptied: true,
            adopted: true,
            taken_in: false,
            incarnation: u64::MAX,
            high_ts: u64::MAX,
            groups: u64::MAX,
            commits_above: u64::MAX,
            oracle_register: u64::MAX,
            drain: Drain::Drained,
        };
        state.servers.insert("oracle-0".into(), oracle);
        assert_eq!(DirectoryState::decode(&state.encode()).unwrap(), state);
    }

    #[test]
    fn another_format_is_refused_by_its_number() {
        let compressed = |json: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(json).unwrap();
            encoder.finish().unwrap()
        };
        let bytes = compressed(br#"{"format":3,"anything":[]}"#);
        let error = DirectoryState::decode(&bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the directory has format 3, and this program knows format 2"
        );
        for json in [&b""[..], b"{}", br#"{"format":2}"#] {
            let bytes = compressed(json);
            let decoded = DirectoryState::decode(&bytes);
            assert!(matches!(decoded, Err(StateError::Malformed(_))));
            let decoded = DirectoryState::decode(json);
            assert!(matches!(decoded, Err(StateError::Compressed(_))));
            let cut = DirectoryState::decode(&bytes[..bytes.len() - 1]);
            assert!(matches!(cut, Err(StateError::Compressed(_))));
        }
    }

    #[test]
    fn ids_of_two_clusters_lie_apart() {
        let ids = |state: &DirectoryState| (state.next_table_id, state.next_tablet_id);
        let new = |random| DirectoryState::new("c0ffee".into(), random);
        assert_ne!(ids(&new(1)).0, ids(&new(2)).0);
        assert_ne!(ids(&new(1 << 16)).1, ids(&new(2 << 16)).1);
        for random in [0, u128::MAX, 0x1234_5678_9abc] {
            let (table, tablet) = ids(&new(random));
            assert!(table < 1 << 31 && tablet < 1 << 52, "{table} {tablet}");
        }
        let (mut state, first) = (new(5), new(5).next_table_id);
        assert!(!state.gave(first));
        state.next_table_id += 1;
        assert!(state.gave(first) && !state.gave(1));
    }
}
