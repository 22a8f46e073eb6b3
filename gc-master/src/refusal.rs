//! What the directory does not do, and why.

use std::time::Duration;

use humantime::format_duration;

use crate::locate::LOCATED_MAX;
use crate::names::{CUTS_MAX, NAME_BYTES_MAX};
use crate::settings::{RETENTION_MAX, RETENTION_MIN};

/// Seconds.
const DAY: u64 = 24 * 3600;

/// Why a request is not carried out. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The fields are the facts of the messages.
pub enum Refusal {
    /// The master has no state, and may not begin a cluster.
    #[error(
        "this master has no state. If it was lost, bring the master's folder or register back, or rebuild the state with \
         `percolator master rebuild`. If the cluster is new, start the master once with --new-cluster"
    )]
    NoState,
    /// The same, and it is known that the state was lost.
    #[error(
        "this master has no state, and {server} belongs to cluster {theirs}: the state was lost. Nothing is begun over it. Bring \
         the master's folder or register back; or start all tablet servers, and name them to `percolator master rebuild`"
    )]
    LostState { server: String, theirs: String },
    /// A tablet server of the cluster that the state doesn't have.
    #[error(
        "{server} belongs to this cluster, and the master's state doesn't have it: the state is an older copy, or was rebuilt \
         without {server}. Bring the newer state back, or remove this one and name all tablet servers to `percolator master \
         rebuild`; or start {server} with an empty folder, if what it has is given up"
    )]
    ServerNotInState { server: String },
    /// A table of the cluster that the state doesn't have.
    #[error(
        "{server} has table {table} ({name}), and the master's state, which gives such ids later, doesn't have it: the state is \
         an older copy. Bring the newer state back, or remove this one and name all tablet servers to `percolator master \
         rebuild`"
    )]
    TableNotInState {
        server: String,
        table: u32,
        name: String,
    },
    /// There is nothing to rebuild.
    #[error(
        "this master has the state of cluster {cluster}, and only one that has none is rebuilt. Where this one is not the \
         cluster's, stop the master, move its folder or register away, and start it again without --new-cluster"
    )]
    HasState { cluster: String },
    /// The servers that hold tablets had no time yet to report.
    #[error("the master has just started and waits for heartbeats of its tablet servers")]
    Settling { until: Duration },

    /// A heartbeat of another cluster's server.
    #[error(
        "{server} belongs to cluster {theirs}, and this is the master of cluster {ours}: start {server} with that one's \
         master, or with an empty folder to join this one. If the other one's state was lost, see `percolator master rebuild`"
    )]
    OtherCluster {
        server: String,
        theirs: String,
        ours: String,
    },
    /// Two processes use one server's name.
    #[error(
        "{server} is alive at {first}: a second {server}, at {second}, is not accepted. Stop one of them; one that takes \
         the other's place has to have its folder or volume"
    )]
    Duplicate {
        server: String,
        first: String,
        second: String,
    },
    /// The one that beats was accepted before, and another one is now.
    #[error(
        "another {server} has taken the place of this one, which sent no heartbeat for too long: it must not answer any more"
    )]
    Replaced { server: String },
    /// It has to wait, as the one before may still answer.
    #[error(
        "the {server} before this one may still answer, as it has not ended in order, and not surely on this machine: \
         this one is accepted when its lease is over, in {left_ms} ms"
    )]
    StillLeased { server: String, left_ms: u128 },
    /// Nobody waits for the answer to it.
    #[error("this incarnation of {server} has reported more since it sent this heartbeat")]
    LateHeartbeat { server: String },
    /// What was answered would be lost.
    #[error(
        "the folder of {server} is older than what it had before: it has reported {what} {reported}, and the folder ends at \
         {what} {has}. \
         One server can't be brought back to an earlier state alone: bring its last folder or volume back; or start it \
         with an empty folder, and give up the tables that had tablets there, `percolator table delete --accept-data-loss`"
    )]
    OlderFolder {
        server: String,
        what: &'static str,
        reported: u64,
        has: u64,
    },
    /// There may be one oracle, or timestamps would not be in order.
    #[error(
        "{second} is not accepted: the cluster's oracle is {first}, which is alone; before another one comes, start {first} again with \
         --register, and {second} with the same one"
    )]
    SecondOracle { first: String, second: String },
    /// The oracle belonged to the cluster, and now knows of none.
    #[error(
        "{server} is this cluster's oracle, and has lost its folder: it has forgotten which timestamps it handed \
         out, and might hand them out again; bring its folder or volume back"
    )]
    ForgetfulOracle { server: String },
    /// Oracles of two registers would grant the same timestamps.
    #[error(
        "{server} is not accepted: this cluster's oracles share another register; check its --register, and that all of them \
         have the same one"
    )]
    OtherRegister { server: String },
    /// A server's role does not change.
    #[error("{server} is known as {known}, and now calls itself {asked}")]
    OtherRole {
        server: String,
        known: &'static str,
        asked: &'static str,
    },
    /// A heartbeat breaks the documented form.
    #[error("the heartbeat of {server:?} is malformed: {wrong}")]
    Heartbeat { server: String, wrong: String },

    /// A session breaks the documented form, or a limit.
    #[error("the session is refused: {wrong}")]
    Session { wrong: String },
    /// An introduction of a proxy breaks the documented form, or a limit.
    #[error("the proxy is refused: {wrong}")]
    Proxy { wrong: String },
    #[error(
        "a retention of {} is refused: it may be from {}s to {} days", format_duration(*.asked),
        RETENTION_MIN.as_secs(), RETENTION_MAX.as_secs() / DAY
    )]
    Retention { asked: Duration },
    #[error(
        "a limit of {} on how long a gc-lock may be held is refused: it may be from {}s to {} days, or 0s for none",
        format_duration(*.asked), RETENTION_MIN.as_secs(), RETENTION_MAX.as_secs() / DAY
    )]
    HoldMax { asked: Duration },
    /// What the manifest says wins.
    #[error(
        "the cluster's manifest sets it, in spec.gc.{field}, and wins: change it there, or leave it out there"
    )]
    OfManifest { field: &'static str },

    #[error(
        "{name:?} can't be a table's name: it must be 1 to {NAME_BYTES_MAX} of a-z, 0-9, '_', '.' \
         and '-', starting with a letter or digit"
    )]
    TableName { name: String },
    #[error("{cuts} cuts are too many: a table may be created with at most {CUTS_MAX}")]
    TooManyCuts { cuts: usize },
    #[error(
        "{asked} names, rows or tablets ahead are asked for at a time, and {LOCATED_MAX} may be"
    )]
    TooManyToLocate { asked: usize },
    #[error("row {} to split at is refused: {wrong}", .index + 1)]
    Cut { index: usize, wrong: &'static str },

    /// All of its rows would lie on those that came first.
    #[error(
        "the first table waits for all tablet servers that the manifest has: {met} of {expected} have joined. See what \
         keeps the others, or lower the number in the manifest"
    )]
    UnmetTabletServers { met: usize, expected: usize },
    #[error("the table {name} exists already")]
    TableExists { name: String },
    #[error("the table {name} is being created with other cuts: delete it to begin again")]
    OtherCuts { name: String },
    /// Its name is free when it is frozen.
    #[error(
        "a table {name} is being deleted: the name is free when {waits_for} has frozen its tablets"
    )]
    BeingDeleted { name: String, waits_for: String },
    #[error("the table {name} was deleted while it was being created")]
    DeletedMeanwhile { name: String },
    #[error("the table {name} is being created: its tablets can be split when it is ready")]
    NotReady { name: String },
    #[error(
        "the table {table} has rows there that no tablet server has reported, or has lost: `percolator table list` shows \
         what it waits for"
    )]
    Unplaced { table: String },
    #[error("tablet {tablet} is at {server}, which is down: start it, then ask again")]
    OwnerAway { tablet: u64, server: String },
    #[error("{server} is down: start it, then ask again")]
    ServerAway { server: String },
    #[error("there is no tablet {tablet}: `percolator tablet list` names those that there are")]
    NoSuchTablet { tablet: u64 },
    #[error("there is no tablet server {server}: there are {known}")]
    NoSuchServer { server: String, known: String },
    #[error(
        "{server} is drained and gets no tablets: `percolator server undrain {server}` lets it have some again"
    )]
    Draining { server: String },
    /// It may have some again when it has started again.
    #[error("{server} is about to end and gets no tablets until it has started again")]
    Stopping { server: String },
    #[error(
        "{server} gets no tablet that it has no room for: tablet {tablet} has {bytes} bytes, and it has room for {room}. Give it a \
         larger volume"
    )]
    NoRoom {
        tablet: u64,
        server: String,
        bytes: u64,
        room: u64,
    },
    #[error(
        "{servers} can't be drained: the cluster has no other tablet server for the tablets. Add one, or \
         `percolator server undrain` one"
    )]
    NowhereToDrain { servers: String },
    #[error(
        "{servers} can't be drained: {bytes} bytes are to be moved then, and the other tablet servers have room for {room} together. \
         Give them larger volumes, or add a server"
    )]
    NoRoomToDrain {
        servers: String,
        bytes: u64,
        room: u64,
    },
    #[error("{server} has not got tablet {tablet}, which stays where it was: {cause}")]
    NotMoved {
        tablet: u64,
        server: String,
        cause: String,
    },
    #[error("{server} has not done it with tablet {tablet}: {cause}")]
    NotCut {
        tablet: u64,
        server: String,
        cause: String,
    },
    /// It goes on.
    #[error("{what}: it waits for {waits_for}")]
    Pending { what: String, waits_for: String },
    #[error("there is no table {name}")]
    NoSuchTable { name: String },
    #[error("no tablet server is up to hold the table: {known}")]
    NoTabletServer { known: String },
    #[error("every table id has been used")]
    NoTableIds,
    #[error(
        "with this table the directory would have {bytes} bytes, and {bytes_max} are the most: \
         use fewer or shorter cuts"
    )]
    DirectoryFull { bytes: usize, bytes_max: usize },
}
