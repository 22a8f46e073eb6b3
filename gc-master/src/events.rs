//! What goes into the directory and what comes out of it.

use crate::names::is_name;
use crate::refusal::Refusal;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Tablet, Timestamp};

use crate::fencing::Leased;
use crate::reports::{Amount, Arrival, Collected, LockObstacle, Whereabouts};
use crate::settings::StoredSettings;
use crate::state::{DirectoryState, Role};

/// What a master begins with.
#[derive(Clone, Debug)]
pub enum Start {
    /// The state that an earlier start made durable.
    State(Vec<u8>),
    /// Nothing, and this master may begin a new cluster.
    NewCluster,
    /// Nothing. Servers that belong to a cluster are refused, until the state is rebuilt by a command
    /// ([`Directory::rebuild`](crate::Directory::rebuild)).
    NoState {
        /// The cluster that the master's folder belongs to.
        cluster_id: Option<String>,
    },
}

/// A server's heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Heartbeat {
    /// The cluster that it belongs to; none yet.
    pub cluster_id: Option<String>,
    /// What it is.
    pub role: Role,
    /// Its stable name.
    pub server: String,
    /// Where clients reach it: HOST:PORT.
    pub address: String,
    /// A random number of this start of its process.
    pub incarnation: u64,
    /// Every tablet that it owns.
    pub tablets: Vec<Tablet>,
    /// Tables of which it has dropped tablets.
    pub deleted_tables: BTreeSet<u32>,
    /// The highest id of a tablet that it ever had; zero: it had none.
    pub highest_tablet_id: u64,
    /// Tablets that it has handed over, and whose rows it still has.
    pub departed: Vec<Departed>,
    /// Tablets that it gets, or has tried to get.
    pub arriving: Vec<Arrival>,
    /// How far it refuses and collects.
    pub points: Points,
    /// Up to where the locks in its tablets are resolved.
    pub resolved_ts: Timestamp,
    /// What keeps that below its barrier.
    pub obstacle: Option<LockObstacle>,
    /// What it has to collect, and has collected. `None`: unchanged.
    pub progress: Option<Collected>,
    /// The sizes of its tablets. `None`: unchanged.
    pub sizes: Option<Vec<Amount>>,
    /// The loads of its tablets. `None`: unchanged.
    pub loads: Option<Vec<Amount>>,
    /// It knows that it is being drained, and gets no tablet since then.
    pub draining: bool,
    /// It is stopping, and waits until others have its tablets.
    pub stopping: bool,
    /// The settings of garbage collection that it keeps.
    pub settings: StoredSettings,
    /// The master has answered this incarnation before.
    pub accepted: bool,
    /// Earlier incarnations that are surely dead.
    pub replaces: Vec<u64>,
    /// A master has accepted the first of these.
    pub replaces_accepted: bool,
    /// It has stopped serving, and ends.
    pub leaving: bool,
    /// Why it ends, where its disk failed; empty: it didn't.
    pub failure: String,
    /// The highest timestamp of a tablet server's durable records, or an oracle's durable limit.
    pub high_ts: Timestamp,
    /// How many groups a tablet server has made durable.
    pub groups: u64,
    /// How many of them it found when it was started.
    pub groups_found: u64,
    /// An oracle's time.
    pub time: Timestamp,
    /// How long its disk has neither taken a write nor refused it; 0: it doesn't stall.
    pub disk_stalled_ms: u32,
    /// Bytes that are free on its volume; `None`: that isn't known.
    pub free_bytes: Option<u64>,
    /// Where it shows metrics, as it listens.
    pub metrics_address: Option<SocketAddr>,
    /// The version of its lists: its tablets, deleted tables and settings.
    pub lists_version: u64,
    /// These lists are here; otherwise they are empty, and as they were at this version.
    pub has_lists: bool,
    /// The register that an oracle shares with others; 0: it is alone.
    pub oracle_register: u64,
    /// The term in which such an oracle leads; 0: it is a standby.
    pub leads_term: u64,
    /// How long its last takeover took, in milliseconds.
    pub takeover_ms: Option<u64>,
}

impl Heartbeat {
    /// Of a server that has nothing to report yet.
    pub fn first(role: Role, server: impl Into<String>, address: impl Into<String>) -> Self {
        Self {
            cluster_id: None,
            role,
            server: server.into(),
            address: address.into(),
            incarnation: 1,
            tablets: Vec::new(),
            deleted_tables: BTreeSet::new(),
            highest_tablet_id: 0,
            departed: Vec::new(),
            arriving: Vec::new(),
            points: Points::default(),
            resolved_ts: Timestamp::ZERO,
            obstacle: None,
            progress: None,
            sizes: None,
            loads: None,
            draining: false,
            stopping: false,
            settings: StoredSettings::default(),
            accepted: false,
            replaces: Vec::new(),
            replaces_accepted: false,
            leaving: false,
            failure: String::new(),
            high_ts: Timestamp::ZERO,
            groups: 0,
            groups_found: 0,
            time: Timestamp::ZERO,
            disk_stalled_ms: 0,
            free_bytes: None,
            metrics_address: None,
            lists_version: 1,
            has_lists: true,
            oracle_register: 0,
            leads_term: 0,
            takeover_ms: None,
        }
    }
}

/// A tablet that was handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departed {
    /// As it is since then.
    pub tablet: Tablet,
    /// The server that has it.
    pub to: String,
}

/// Which table is to be deleted.
#[derive(Clone, Copy, Debug)]
pub struct Deletion<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its id, where another table of its name isn't meant.
    pub table: Option<u32>,
    /// What its owners have lost of it is given up.
    pub accept_data_loss: bool,
}

impl<'a> Deletion<'a> {
    /// The table of this name.
    pub fn of(name: &'a str) -> Self {
        Self {
            name,
            table: None,
            accept_data_loss: false,
        }
    }
}

/// The master's reply to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// The cluster's id.
    pub cluster_id: String,
    /// The version of the server's lists that the master has; zero: none.
    pub lists_version: u64,
    /// When the next heartbeat is to come.
    pub interval: Duration,
    /// How far it is to refuse and to collect.
    pub points: Points,
    /// The settings of garbage collection: for a tablet server to keep.
    pub settings: StoredSettings,
    /// Tablets that the server has had, and that the heartbeat didn't name, in order.
    pub missing: Vec<u64>,
    /// Tablets that it has handed over, whose rows may go.
    pub settled_moves: Vec<u64>,
    /// Where the servers are from which it gets tablets.
    pub owners: Vec<Whereabouts>,
    /// Tablets that it gets, and that will never be its own: the id and the epoch of each.
    pub settled_arrivals: Vec<(u64, u64)>,
    /// A tablet of more bytes is to be split; zero: none is.
    pub split_bytes: u64,
    /// A tablet of which more cells a second are read or written may be split; zero: none is.
    pub split_load: u64,
    /// It is to have no tablets.
    pub draining: bool,
    /// It is stopping, and nothing keeps it.
    pub may_stop: bool,
    /// What it may do until the next reply.
    pub leased: Leased,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// The new state: durable before anything else happens.
    pub persist: Option<Vec<u8>>,
    /// What to ask of tablet servers; the outcome of each goes to [`Directory::finished`](crate::Directory::finished).
    pub commands: Vec<Command>,
    /// For the log.
    pub notes: Vec<Note>,
    /// The durable state has changed.
    pub has_changed: bool,
    /// All tablets of a table that is being deleted are frozen now, or a tablet was split or merged, or could not be:
    /// requests that wait for that can go on.
    pub wakes: bool,
}

/// Something to ask of a tablet server. Harmless when repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The cluster.
    pub cluster_id: String,
    /// Whom to ask.
    pub server: String,
    /// Which start of it: another one, or another server at its address, refuses.
    pub incarnation: u64,
    /// Where it is.
    pub address: String,
    /// What to ask.
    pub action: Action,
}

/// What a tablet server is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Own this tablet, in the state that it has here.
    Create {
        /// The tablet.
        tablet: Tablet,
        /// The server has reported it: it must not make an empty one in its place.
        made: bool,
        /// It refuses what is below, from before it serves the tablet.
        barrier: Timestamp,
    },
    /// Forget this tablet.
    Drop {
        /// The tablet.
        tablet: u64,
        /// Its table, which is gone for good.
        table: u32,
    },
    /// Cut this tablet in two.
    Split {
        /// The tablet, which keeps the rows before `row`.
        tablet: u64,
        /// Its epoch.
        epoch: u64,
        /// The first row of the other part.
        row: Bytes,
        /// The id of the other part, which no tablet has.
        sibling: u64,
    },
    /// Get this tablet from its owner.
    Import {
        /// The tablet, as its owner has it.
        tablet: Tablet,
        /// Its owner, and where that is.
        from: Whereabouts,
        /// Where the server is that gets it.
        address: String,
    },
    /// Make one tablet of two neighbours.
    Merge {
        /// The one that gets all rows: its id and its epoch.
        first: (u64, u64),
        /// The other one, which is gone then.
        second: (u64, u64),
    },
}

/// A tablet server's report of a command that it has carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// How many groups of changes it has made durable.
    pub groups: u64,
    /// Of a split or a merge: the tablets that it has now in place of those that it was about.
    pub tablets: Vec<Tablet>,
}

impl Done {
    /// Of a command that cuts nothing.
    pub(crate) fn of(groups: u64) -> Self {
        Self {
            groups,
            tablets: Vec::new(),
        }
    }
}

impl Action {
    /// Whether a request may wait for it.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(
            self,
            Self::Split { .. } | Self::Merge { .. } | Self::Import { .. }
        )
    }

    /// The tablets that it changes: nothing else is asked for them meanwhile.
    pub(crate) fn tablets(&self) -> impl Iterator<Item = u64> + use<> {
        let second = match self {
            Self::Merge { second, .. } => Some(second.0),
            _ => None,
        };
        std::iter::once(self.tablet()).chain(second)
    }

    pub(crate) fn tablet(&self) -> u64 {
        match self {
            Self::Create { tablet, .. } | Self::Import { tablet, .. } => tablet.id,
            Self::Drop { tablet, .. } | Self::Split { tablet, .. } => *tablet,
            Self::Merge { first, .. } => first.0,
        }
    }
}

/// Something that administrators may want to know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The fields are the facts of the messages.
pub enum Note {
    #[error(
        "the state of cluster {cluster_id} is rebuilt from what {servers} tablet server(s) report, as asked: {tables} table(s)"
    )]
    Rebuilt {
        cluster_id: String,
        servers: usize,
        tables: usize,
    },
    #[error(
        "{server} reports tablet {tablet} at epoch {epoch}, but the directory has tablet \
         {winner} of {owner} at epoch {winner_epoch} for these rows: the report is ignored"
    )]
    Conflict {
        server: String,
        tablet: u64,
        epoch: u64,
        winner: u64,
        owner: String,
        winner_epoch: u64,
    },
    #[error("{server} no longer reports its tablet {tablet} of table {table}: are its data lost?")]
    Missing {
        server: String,
        tablet: u64,
        table: String,
    },
    #[error(
        "{server} has sent no heartbeat for long, and the other oracles are enough: it is forgotten"
    )]
    Departed { server: String },
    #[error("tablet {tablet} is moved from {from} to {to}")]
    MoveBegan {
        tablet: u64,
        from: String,
        to: String,
    },
    #[error("tablet {tablet} is not moved to {to} now: {cause}")]
    MoveEnded {
        tablet: u64,
        to: String,
        cause: String,
    },
    /// Told once in ten minutes.
    #[error(
        "{server} is to have no tablets, and no other server has room for one that it has left: give the others larger volumes, \
         or add a server"
    )]
    WithoutRoom { server: String },
    /// Told once for each change of the cause.
    #[error(
        "{server} has not carried out a command for tablet {tablet}, it is asked again: {cause}"
    )]
    Failed {
        server: String,
        tablet: u64,
        cause: String,
    },
}

const TABLET_ID_MAX: u64 = u64::MAX / 2;

impl Heartbeat {
    /// Whether it has the documented form.
    pub(crate) fn check_form(&self) -> Result<(), Refusal> {
        let malformed = |wrong: String| {
            Err(Refusal::Heartbeat {
                server: self.server.clone(),
                wrong,
            })
        };
        if !is_name(&self.server) {
            return malformed(
                "the server's name must be 1 to 64 of a-z, 0-9, '_', '.' and '-', starting with a \
             letter or digit"
                    .into(),
            );
        }
        let has_port = |address: &str| {
            address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if !has_port(&self.address) {
            return malformed(format!("its address {:?} is no HOST:PORT", self.address));
        }
        let departed = self.departed.iter().map(|departed| &departed.tablet);
        for (index, report) in self.tablets.iter().chain(departed).enumerate() {
            let rows = &report.rows;
            let is_empty = !rows.end.is_empty() && rows.start >= rows.end;
            // Ids above these bounds are never given, so that there always is a next one.
            let bad_id = !(1..=TABLET_ID_MAX).contains(&report.id)
                || !(1..u32::MAX).contains(&report.table.0);
            if bad_id || is_empty || report.epoch == 0 || !is_name(&report.table_name) {
                return malformed(format!("tablet {} (at {index}) is no tablet", report.id));
            }
        }
        if self.highest_tablet_id > TABLET_ID_MAX {
            let id = self.highest_tablet_id;
            return malformed(format!("its highest tablet, {id}, is no tablet"));
        }
        if self.resolved_ts > self.points.barrier {
            return malformed(format!(
                "its locks are resolved up to {}, which is above its barrier, {}",
                self.resolved_ts, self.points.barrier
            ));
        }
        if self.role == Role::Tablet && self.lists_version == 0 {
            return malformed("its lists have no version".into());
        }
        let has_tablets = !self.tablets.is_empty() || !self.departed.is_empty();
        if !self.has_lists && has_tablets {
            return malformed("its lists are left out, and it has tablets".into());
        }
        let is_table = |id: &u32| (1..u32::MAX).contains(id);
        if let Some(id) = self.deleted_tables.iter().find(|id| !is_table(id)) {
            return malformed(format!("its deleted table {id} is no table"));
        }
        Ok(())
    }

    /// Whether the server belongs to this cluster, or to none.
    pub(crate) fn check_cluster(&self, state: &DirectoryState) -> Result<(), Refusal> {
        match &self.cluster_id {
            Some(theirs) if *theirs != state.cluster_id => Err(Refusal::OtherCluster {
                server: self.server.clone(),
                theirs: theirs.clone(),
                ours: state.cluster_id.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether the state has all that the server has. Otherwise the state is older than the server, or was rebuilt without it, and
    /// may miss more than that.
    ///
    /// `has_joined`: this master accepted this incarnation of the server when it had nothing that the state doesn't have. What it has
    /// now was made by a late command.
    pub(crate) fn check_known(
        &self,
        state: &DirectoryState,
        has_joined: bool,
    ) -> Result<(), Refusal> {
        if self.role != Role::Tablet {
            return Ok(());
        }
        if self.cluster_id.is_some() && !state.servers.contains_key(&self.server) {
            return Err(Refusal::ServerNotInState {
                server: self.server.clone(),
            });
        }
        let departed = self.departed.iter().map(|departed| &departed.tablet);
        let unknown = self.tablets.iter().chain(departed).find(|tablet| {
            let table = tablet.table.0;
            match state.tables.get(&table) {
                // A number that was given again by a state that didn't know it.
                Some(known) => known.name != tablet.table_name,
                None => !state.gave(table),
            }
        });
        let taken_in = state
            .servers
            .get(&self.server)
            .is_some_and(|it| it.taken_in);
        let is_late = |tablet: &&Tablet| taken_in && tablet.table.0 < state.first_table_id;
        match unknown.filter(|tablet| !has_joined && !is_late(tablet)) {
            Some(tablet) => Err(Refusal::TableNotInState {
                server: self.server.clone(),
                table: tablet.table.0,
                name: tablet.table_name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Whether the server may have this role.
    pub(crate) fn check_role(&self, state: &DirectoryState) -> Result<(), Refusal> {
        if let Some(known) = state.servers.get(&self.server)
            && known.role != self.role
        {
            return Err(Refusal::OtherRole {
                server: self.server.clone(),
                known: known.role.describe(),
                asked: self.role.describe(),
            });
        }
        if self.role == Role::Oracle {
            self.check_oracle(state)?;
        }
        Ok(())
    }
}
