//! A cluster as its master lists it, for people and for tools.

use std::time::Duration;

use crate::Bytes;

/// A cluster, as its master lists it.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its id.
    pub id: String,
    /// The leading master's name.
    pub master: String,
    /// The term in which that master leads; 0: the cluster has one master only.
    pub master_term: u64,
    /// Where that master serves metrics, as it listens: an unspecified address stands for its host. Empty: nowhere.
    pub master_metrics_address: String,
    /// How long that master's last takeover from another one took.
    pub master_takeover: Option<Duration>,
    /// The other masters, as far as they have introduced themselves to the leader.
    pub standby_masters: Vec<StandbyMaster>,
    /// The proxies that have introduced themselves within the last 60 s, by name.
    pub proxies: Vec<IntroducedProxy>,
    /// How many masters the manifest has; 0: unknown.
    pub masters_expected: u32,
    /// How many oracles the manifest has; 0: unknown.
    pub oracles_expected: u32,
    /// The oracles and tablet servers that have reported to the master.
    pub servers: Vec<ReportedServer>,
    /// How many tablet servers the manifest has; 0: unknown.
    pub tablet_servers_expected: u32,
    /// The tables, by name and number: one that is being deleted may have the name of another one.
    pub tables: Vec<Table>,
}

/// The task of a server that reports to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerRole {
    /// It grants timestamps.
    Oracle,
    /// It owns tablets.
    Tablet,
}

/// An oracle or a tablet server, as it has reported to the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedServer {
    /// Its task.
    pub role: ServerRole,
    /// Its stable name.
    pub server: String,
    /// HOST:PORT.
    pub address: String,
    /// Whether its heartbeats arrive, and it has not said that it ends.
    pub alive: bool,
    /// The incarnation of its last heartbeat. `None`: the master has had none since its own start.
    pub incarnation: Option<u64>,
    /// The time since its last heartbeat. `None`: the master has had none since its own start.
    pub silence: Option<Duration>,
    /// Tablets whose data it has lost, in order: it has owned them, and its heartbeats don't list them.
    pub lost_tablets: Vec<u64>,
    /// How long its disk has neither taken a write nor refused it.
    pub disk_stalled: Duration,
    /// Where it serves metrics, as it listens; empty: nowhere, or unknown since the master's start.
    pub metrics_address: String,
    /// Its starts that failed since the master's start. `None`: none did.
    pub failure: Option<ServerFailure>,
    /// The last term in which an oracle led; 0: none.
    pub leads_term: u64,
    /// How long an oracle's last takeover from another one took.
    pub takeover: Option<Duration>,
    /// It is to have no tablets.
    pub draining: bool,
    /// It has no tablets and no rows of any since it is to have none. The master knows so durably.
    pub drained: bool,
    /// It is up and has got the signal to end: other servers get its tablets meanwhile.
    pub stopping: bool,
    /// Tablets that it owns, or whose rows it still has.
    pub tablets: u64,
    /// Bytes of keys and values of its tablets, about.
    pub bytes: u64,
    /// Cells that are read or written a second, about, of its tablets that are used much.
    pub load: u64,
    /// It is to have no tablets, and has one that no other server has room for.
    pub without_room: bool,
    /// What keeps a server that owns no tablets from being drained: a copy of a tablet, and the owner that is down. Empty:
    /// nothing does.
    pub waits_for: String,
}

/// Starts of a server that ended because its disk failed, or its stored data are damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFailure {
    /// How many there were.
    pub times: u32,
    /// The reason of the last one.
    pub reason: String,
    /// The time since the last one.
    pub ago: Duration,
}

/// A master that can take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandbyMaster {
    /// Its stable name.
    pub server: String,
    /// HOST:PORT.
    pub address: String,
    /// Whether it introduced itself within the last 3 s.
    pub alive: bool,
    /// The time since it introduced itself, or led.
    pub silence: Duration,
}

/// A proxy, as it introduced itself to the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntroducedProxy {
    /// Its name.
    pub server: String,
    /// HOST:PORT.
    pub address: String,
    /// Where it serves metrics, as it listens; empty: nowhere.
    pub metrics_address: String,
    /// Whether it introduced itself within the last 6 s.
    pub alive: bool,
    /// The time since its last introduction.
    pub silence: Duration,
    /// The time since its first introduction.
    pub known: Duration,
}

/// A table, as the master lists it.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// Whether every tablet is in place.
    pub ready: bool,
    /// Whether it is being deleted: nobody can use it, and its rows go when the safe point has passed its deletion.
    pub deleting: bool,
    /// Its tablets, in order.
    pub tablets: Vec<Tablet>,
}

/// A tablet, as the master lists it.
#[derive(Clone, Debug)]
pub struct Tablet {
    /// Its number.
    pub id: u64,
    /// Its first row.
    pub start_row: Bytes,
    /// The row behind its last one; empty: none.
    pub end_row: Bytes,
    /// How often it has changed.
    pub epoch: u64,
    /// Its table is being deleted, and its owner has stopped serving it.
    pub frozen: bool,
    /// Its owner.
    pub server: String,
    /// Whether the owner's heartbeats arrive at the master.
    pub server_alive: bool,
    /// The time since the last one. `None`: the master has had none since its own start.
    pub server_silence: Option<Duration>,
    /// The server that is getting it, if one is, and how many bytes of keys and values that one has.
    pub moving_to: Option<(String, u64)>,
    /// Bytes of keys and values of all versions, about.
    pub bytes: u64,
    /// Cells that are read or written a second, about, if these are many.
    pub load: u64,
}

impl ReportedServer {
    /// A server that has sent no heartbeat since the master's start.
    pub fn new(role: ServerRole, server: impl Into<String>, address: impl Into<String>) -> Self {
        Self {
            role,
            server: server.into(),
            address: address.into(),
            alive: false,
            incarnation: None,
            silence: None,
            lost_tablets: Vec::new(),
            disk_stalled: Duration::ZERO,
            metrics_address: String::new(),
            failure: None,
            leads_term: 0,
            takeover: None,
            draining: false,
            drained: false,
            stopping: false,
            tablets: 0,
            bytes: 0,
            load: 0,
            without_room: false,
            waits_for: String::new(),
        }
    }
}

impl Cluster {
    /// A cluster without servers and tables, for tests.
    #[cfg(test)]
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            master: "master-0".to_owned(),
            master_term: 0,
            master_metrics_address: String::new(),
            master_takeover: None,
            standby_masters: Vec::new(),
            proxies: Vec::new(),
            masters_expected: 0,
            oracles_expected: 0,
            servers: Vec::new(),
            tablet_servers_expected: 0,
            tables: Vec::new(),
        }
    }

    /// The ids of the tables of this name that are to be deleted. Tables whose deletion waits for something come before
    /// another table of the name. `None`: there are none.
    pub(crate) fn ids_to_delete(&self, name: &str, accept_data_loss: bool) -> Option<Vec<u32>> {
        let named = || self.tables.iter().filter(|table| table.name == name);
        let deleting = || named().filter(|table| table.deleting);
        let waiting = deleting().filter(|table| self.waits_to_be_frozen(table));
        let waiting: Vec<u32> = waiting.map(|table| table.id).collect();
        if !waiting.is_empty() {
            return Some(waiting);
        }
        let given_up = deleting().filter(|_| accept_data_loss);
        let given_up: Vec<u32> = given_up.map(|table| table.id).collect();
        // A deletion that waits, for reasons that only the master knows, is given up before a table that is complete.
        let mut live = named().filter(|table| !table.deleting);
        match live.next() {
            Some(table) if given_up.is_empty() || self.is_incomplete(table) => Some(vec![table.id]),
            _ => Some(given_up).filter(|ids| !ids.is_empty()),
        }
    }

    /// Whether a tablet of this table is lost, or some of its rows lie in none.
    fn is_incomplete(&self, table: &Table) -> bool {
        let mut reached = Some(&[][..]);
        for tablet in &table.tablets {
            if reached != Some(&tablet.start_row[..]) || self.is_lost(tablet) {
                return true;
            }
            reached = Some(&tablet.end_row[..]).filter(|end| !end.is_empty());
        }
        reached.is_some()
    }

    fn is_lost(&self, tablet: &Tablet) -> bool {
        let mut servers = self.servers.iter();
        servers.any(|server| server.lost_tablets.contains(&tablet.id))
    }

    /// Whether a tablet of this table, which is being deleted, isn't frozen yet, or is lost.
    fn waits_to_be_frozen(&self, table: &Table) -> bool {
        let mut tablets = table.tablets.iter();
        tablets.any(|tablet| !tablet.frozen || self.is_lost(tablet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First rows, and those behind the last.
    type Rows = &'static [(&'static str, &'static str)];

    /// Tables named "t": their ids, whether they are being deleted, and the rows of their tablets.
    fn cluster(tables: &[(u32, bool, Rows)]) -> Cluster {
        let mut ids = 1..;
        let tables = tables.iter().map(|(id, deleting, rows)| Table {
            name: "t".into(),
            id: *id,
            ready: !deleting,
            deleting: *deleting,
            tablets: rows
                .iter()
                .zip(&mut ids)
                .map(|((start_row, end_row), id)| Tablet {
                    id,
                    start_row: (*start_row).into(),
                    end_row: (*end_row).into(),
                    epoch: 1,
                    frozen: *deleting,
                    server: "tablet-0".into(),
                    server_alive: true,
                    server_silence: None,
                    moving_to: None,
                    bytes: 0,
                    load: 0,
                })
                .collect(),
        });
        Cluster {
            tables: tables.collect(),
            ..Cluster::new("c")
        }
    }

    #[test]
    fn a_complete_table_is_not_given_up_for_one_that_is_being_deleted() {
        let complete: Rows = &[("", "m"), ("m", "")];
        let partial: Rows = &[("m", "")];
        for (tables, deleted, given_up) in [
            (&[(5, false, complete)][..], Some(5), Some(5)),
            (
                &[(5, true, complete), (9, false, complete)],
                Some(9),
                Some(5),
            ),
            (
                &[(5, true, partial), (9, false, complete)],
                Some(9),
                Some(5),
            ),
            (&[(5, true, partial), (9, false, partial)], Some(9), Some(9)),
            (&[(5, true, partial)], None, Some(5)),
            (&[], None, None),
        ] {
            let cluster = cluster(tables);
            let ids = |accept_data_loss| cluster.ids_to_delete("t", accept_data_loss);
            assert_eq!(ids(false), deleted.map(|id| vec![id]), "{tables:?}");
            assert_eq!(ids(true), given_up.map(|id| vec![id]), "{tables:?}");
        }
    }
}
