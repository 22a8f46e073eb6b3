//! The master's core with a large cluster, and with a tenth of it: what an operation costs must not grow with the cluster.
//!
//! Counted are bytes, and placements and servers that are looked at one by one. Times are printed for people; nothing depends on them.

use std::fmt;
use std::time::{Duration, Instant};

use percolator_gc_master::{
    Deletion, Directory, DirectoryState, Drain, Heartbeat, KnownServer, Refusal, Role, Settings,
    Start, TableRecord, TableState, locate, session,
};
use percolator_protocol::types::{Rows, TableId, Tablet, TabletState, Timestamp};
use percolator_register::VALUE_BYTES_MAX;
use percolator_wire::v1;
use prost::Message as _;

/// Tablets of each server.
const TABLETS_EACH: usize = 100;
/// Servers for each table.
const SERVERS_A_TABLE: usize = 2;
/// Sessions for each server.
const SESSIONS_EACH: usize = 20;
/// Bytes of a heartbeat that says nothing new, and of its answer.
const UNCHANGED_BYTES_MAX: usize = 200;
/// The most bytes of durable state for a server, with a table for two servers: what 10,000 may have in the smallest register, whose last
/// quarter is for what servers report.
const STATE_BYTES_MAX: usize = VALUE_BYTES_MAX / 4 * 3 / 10_000;
/// A number that must not grow may differ so much, in percent, as numbers have more digits in a large cluster.
const GROWTH_PERCENT_MAX: usize = 15;
const CLUSTER_ID: &str = "5ca1e000000000000000000000000000";
/// After every lease of an earlier start.
const NOW: Duration = Duration::from_secs(3_600);

/// What one operation costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    sent_bytes: usize,
    answered_bytes: usize,
    /// Placements and servers.
    looked_at: usize,
}

/// What was measured of one cluster.
#[derive(Debug)]
struct Measured {
    servers: usize,
    /// What does not grow with the cluster, by its name.
    constant: Vec<(&'static str, Cost)>,
    /// Placements looked at while all servers reported, for each tablet, in hundredths.
    startup_placements: usize,
    startup: Duration,
    /// Servers and placements looked at by the heartbeat that looks at all servers for balance, for each server, in hundredths; and
    /// how long it takes.
    balance_looked_at: usize,
    balance: Duration,
    state_bytes: usize,
}

/// What grows that must not.
#[derive(Debug)]
pub struct Grows {
    what: &'static str,
    small: usize,
    large: usize,
}

impl fmt::Display for Grows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, small, large } = self;
        write!(
            f,
            "{what}: {small} in a tenth of the cluster, and {large} in all of it"
        )
    }
}

/// A cluster of so many tablet servers, and a tenth of it: a table for people, and what grows that must not.
///
/// # Errors
/// The master refuses what it should not.
pub fn scale(servers: usize) -> Result<(Vec<String>, Vec<Grows>), Refusal> {
    let small = measure((servers / 10).max(1))?;
    let large = measure(servers)?;
    let mut grows = Vec::new();
    let mut must_not = |what, small: usize, large: usize| {
        if large * 100 > small * (100 + GROWTH_PERCENT_MAX) {
            grows.push(Grows { what, small, large });
        }
    };
    for ((what, small), (_, large)) in small.constant.iter().zip(&large.constant) {
        must_not(what, small.sent_bytes, large.sent_bytes);
        must_not(what, small.answered_bytes, large.answered_bytes);
        must_not(what, small.looked_at, large.looked_at);
    }
    must_not(
        "placements looked at for a tablet at the start",
        small.startup_placements,
        large.startup_placements,
    );
    must_not(
        "looked at for balance for a server",
        small.balance_looked_at,
        large.balance_looked_at,
    );
    must_not(
        "durable bytes for a server",
        small.state_bytes / small.servers,
        large.state_bytes / large.servers,
    );
    if large.state_bytes / large.servers > STATE_BYTES_MAX {
        grows.push(Grows {
            what: "durable bytes for a server, of which 10,000 have room in a ConfigMap",
            small: STATE_BYTES_MAX,
            large: large.state_bytes / large.servers,
        });
    }
    let looked_at = |wanted| {
        let found = large.constant.iter().find(|(what, _)| *what == wanted);
        found.map_or(0, |(_, cost)| cost.looked_at)
    };
    // Besides at the tablet of that table, if the server has one.
    let (few, deleted) = (looked_at(UNCHANGED) + 2, looked_at(WHILE_DELETED));
    if deleted > few {
        grows.push(Grows {
            what: "placements looked at by a heartbeat while a table of others is deleted, and how many may be",
            small: few,
            large: deleted,
        });
    }
    for (what, cost) in &large.constant {
        let most = cost.sent_bytes.max(cost.answered_bytes);
        if *what == UNCHANGED && most > UNCHANGED_BYTES_MAX {
            grows.push(Grows {
                what: "bytes of a heartbeat that says nothing new, of which 200 may be",
                small: UNCHANGED_BYTES_MAX,
                large: most,
            });
        }
    }
    Ok((lines(&small, &large), grows))
}

const UNCHANGED: &str = "heartbeat without news";
const WHILE_DELETED: &str = "the same while a table is deleted";

fn lines(small: &Measured, large: &Measured) -> Vec<String> {
    let mut lines = vec![format!(
        "{:34} {:>14} {:>14}   (bytes sent, answered; placements and servers looked at)",
        "servers", small.servers, large.servers
    )];
    let shown = |cost: &Cost| {
        let Cost {
            sent_bytes,
            answered_bytes,
            looked_at,
        } = cost;
        format!("{sent_bytes},{answered_bytes};{looked_at}")
    };
    for ((what, small), (_, large)) in small.constant.iter().zip(&large.constant) {
        lines.push(format!(
            "{what:34} {:>14} {:>14}",
            shown(small),
            shown(large)
        ));
    }
    let mut line = |what: &str, small: String, large: String| {
        lines.push(format!("{what:34} {small:>14} {large:>14}"));
    };
    let number = |it: usize| it.to_string();
    line(
        "durable state, bytes",
        number(small.state_bytes),
        number(large.state_bytes),
    );
    let seconds = |it: Duration| format!("{:.2} s", it.as_secs_f64());
    line(
        "all servers report once",
        seconds(small.startup),
        seconds(large.startup),
    );
    let milliseconds = |it: Duration| format!("{:.1} ms", it.as_secs_f64() * 1_000.0);
    line(
        "a look at all servers for balance",
        milliseconds(small.balance),
        milliseconds(large.balance),
    );
    lines
}

fn name(server: usize) -> String {
    format!("tablet-{server}")
}

fn address(server: usize) -> String {
    format!("tablet-{server}.example-tablet.default.svc:7400")
}

/// The durable state of a cluster, without its tablets.
fn state(servers: usize, tables: usize) -> DirectoryState {
    let begun = Directory::open(Start::NewCluster, Settings::default(), 7);
    let begun = begun.expect("a new cluster has no state to read");
    let mut state = begun.state().expect("it has one now").clone();
    CLUSTER_ID.clone_into(&mut state.cluster_id);
    for server in 0..servers {
        let known = KnownServer {
            role: Role::Tablet,
            address: address(server),
            emptied: false,
            adopted: false,
            taken_in: false,
            incarnation: incarnation(server),
            // What differs from server to server compresses badly.
            high_ts: time().as_u64() - (incarnation(server) >> 36),
            groups: 1_000_000 - (incarnation(server + 1) >> 45),
            commits_above: time().as_u64() - (incarnation(server + 2) >> 36),
            oracle_register: 0,
            drain: Drain::Off,
        };
        state.servers.insert(name(server), known);
    }
    for table in 1..=tables {
        let known = TableRecord {
            name: format!("table_{table}"),
            state: TableState::Ready,
            drop_at: None,
            given_up: false,
        };
        state.tables.insert(table as u32, known);
    }
    state.first_table_id = 1;
    state.next_table_id = 1 + tables as u32;
    state.next_tablet_id = 1 + (servers * TABLETS_EACH) as u64;
    state
}

fn incarnation(server: usize) -> u64 {
    (server as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn time() -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000)
}

/// The tablets of a server: those of a table lie on the servers one after the other.
fn tablets(server: usize, servers: usize, tables: usize) -> Vec<Tablet> {
    let all = servers * TABLETS_EACH;
    let of_table = all / tables;
    let row = |index: usize| format!("{index:06}");
    let tablet = |number: usize| {
        let (table, index) = (number / of_table, number % of_table);
        let start = if index == 0 {
            String::new()
        } else {
            row(index)
        };
        let end = if index + 1 == of_table {
            String::new()
        } else {
            row(index + 1)
        };
        Tablet {
            id: 1 + number as u64,
            table: TableId(1 + table as u32),
            table_name: format!("table_{}", 1 + table),
            rows: Rows {
                start: start.into(),
                end: end.into(),
            },
            epoch: 1,
            state: TabletState::Serving,
        }
    };
    (0..TABLETS_EACH)
        .map(|at| tablet(at * servers + server))
        .collect()
}

struct World {
    directory: Directory,
    servers: usize,
    tables: usize,
}

impl World {
    fn with_lists(&self, server: usize) -> Heartbeat {
        Heartbeat {
            cluster_id: Some(CLUSTER_ID.to_owned()),
            incarnation: incarnation(server),
            tablets: tablets(server, self.servers, self.tables),
            groups: 1_000_001,
            high_ts: time(),
            accepted: true,
            ..Heartbeat::first(Role::Tablet, name(server), address(server))
        }
    }

    /// A heartbeat of this server that says nothing new.
    fn without_lists(&self, server: usize) -> Heartbeat {
        Heartbeat {
            has_lists: false,
            tablets: Vec::new(),
            ..self.with_lists(server)
        }
    }

    /// What an operation costs, and what it answers.
    fn cost<R>(&mut self, act: impl FnOnce(&mut Directory) -> R) -> (usize, R) {
        let visited = |directory: &Directory| {
            let servers = directory.state().map_or(0, |state| state.servers.visited());
            directory.tablets().visited() + servers
        };
        let before = visited(&self.directory);
        let result = act(&mut self.directory);
        self.directory.take_effects();
        let looked_at = visited(&self.directory) - before;
        (usize::try_from(looked_at).unwrap_or(usize::MAX), result)
    }
}

fn measure(servers: usize) -> Result<Measured, Refusal> {
    let tables = (servers / SERVERS_A_TABLE).max(1);
    let bytes = state(servers, tables).encode();
    let state_bytes = bytes.len();
    let directory = Directory::open(Start::State(bytes), Settings::default(), 7);
    let mut world = World {
        directory: directory.expect("the state is one of this program"),
        servers,
        tables,
    };
    let mut startup = Duration::ZERO;
    let mut startup_placements = 0;
    for server in 0..servers {
        let beat = world.with_lists(server);
        let began = Instant::now();
        let (looked_at, heard) = world.cost(|directory| directory.heartbeat(NOW, beat));
        startup += began.elapsed();
        startup_placements += looked_at;
        heard?;
    }
    assert_eq!(world.directory.tablets().len(), servers * TABLETS_EACH);
    world.directory.collect(NOW, Ok(time()));
    world.directory.take_effects();
    for number in 0..servers * SESSIONS_EACH {
        let opened = session(&mut world.directory, NOW, session_of(number));
        opened?;
    }
    let (unchanged, with_lists) = heartbeats(&mut world)?;
    let (balance_looked_at, balance) = balancing(&mut world)?;
    let renewal = session_of(1);
    let sent_bytes = renewal.encoded_len();
    let (looked_at, renewed) = world.cost(|directory| session(directory, NOW, renewal));
    let renewing = Cost {
        sent_bytes,
        answered_bytes: renewed?.encoded_len(),
        looked_at,
    };
    Ok(Measured {
        servers,
        constant: vec![
            (UNCHANGED, unchanged),
            ("heartbeat with lists", with_lists),
            ("session renewed", renewing),
            ("row located, and 16 tablets behind", locating(&mut world)?),
            ("heartbeat of an oracle", oracle(&mut world)?),
            ("step of collection", collecting(&mut world)),
            (WHILE_DELETED, heartbeat_while_deleted(&mut world)?),
        ],
        startup_placements: startup_placements * 100 / (servers * TABLETS_EACH),
        startup,
        balance_looked_at: balance_looked_at * 100 / servers,
        balance,
        state_bytes,
    })
}

fn session_of(session: usize) -> v1::SessionRequest {
    v1::SessionRequest {
        session: incarnation(session),
        floor: time().as_u64(),
        ..v1::SessionRequest::default()
    }
}

/// A heartbeat of one of two oracles.
fn oracle(world: &mut World) -> Result<Cost, Refusal> {
    let beat = |name: &str, leads_term: u64| Heartbeat {
        cluster_id: Some(CLUSTER_ID.to_owned()),
        oracle_register: 1,
        leads_term,
        ..Heartbeat::first(Role::Oracle, name, format!("{name}:7400"))
    };
    for name in ["tso-0", "tso-1"] {
        world.directory.heartbeat(NOW, beat(name, 0))?;
    }
    let leader = beat("tso-0", 1);
    let sent_bytes = request(&leader).encoded_len();
    let (looked_at, heard) = world.cost(|directory| directory.heartbeat(NOW, leader));
    Ok(Cost {
        sent_bytes,
        answered_bytes: v1::HeartbeatResponse::from(heard?).encoded_len(),
        looked_at,
    })
}

/// Each step asks which servers were heard, which is one number for each of them: only placements are counted.
fn collecting(world: &mut World) -> Cost {
    let before = world.directory.tablets().visited();
    let time = Timestamp::from_millis(time().physical_ms() + 60_000);
    world.directory.collect(NOW, Ok(time));
    world.directory.take_effects();
    let looked_at = world.directory.tablets().visited() - before;
    Cost {
        looked_at: usize::try_from(looked_at).unwrap_or(usize::MAX),
        ..Cost::default()
    }
}

/// A heartbeat at which it is time to look at all servers for balance: what it looks at, and how long it takes.
fn balancing(world: &mut World) -> Result<(usize, Duration), Refusal> {
    let beat = world.without_lists(0);
    let began = Instant::now();
    let later = NOW + Duration::from_secs(1);
    let (looked_at, heard) = world.cost(|directory| directory.heartbeat(later, beat));
    heard?;
    Ok((looked_at, began.elapsed()))
}

/// A heartbeat without lists, and one with them.
fn heartbeats(world: &mut World) -> Result<(Cost, Cost), Refusal> {
    let full = world.with_lists(world.servers / 2);
    let lists_bytes: usize = full
        .tablets
        .iter()
        .map(|tablet| {
            let info: v1::TabletInfo = tablet.clone().into();
            info.encoded_len() + 3
        })
        .sum();
    let first = heartbeat_without_lists(world)?;
    let (looked_at, heard) = world.cost(|directory| directory.heartbeat(NOW, full));
    let second = Cost {
        sent_bytes: first.sent_bytes + lists_bytes,
        answered_bytes: v1::HeartbeatResponse::from(heard?).encoded_len(),
        looked_at,
    };
    Ok((first, second))
}

fn heartbeat_without_lists(world: &mut World) -> Result<Cost, Refusal> {
    let beat = world.without_lists(world.servers / 2);
    let sent_bytes = request(&beat).encoded_len();
    let (looked_at, heard) = world.cost(|directory| directory.heartbeat(NOW, beat));
    Ok(Cost {
        sent_bytes,
        answered_bytes: v1::HeartbeatResponse::from(heard?).encoded_len(),
        looked_at,
    })
}

/// A heartbeat without news, while a table's owners don't answer the command to freeze its tablets.
fn heartbeat_while_deleted(world: &mut World) -> Result<Cost, Refusal> {
    let deletion = Deletion::of("table_1");
    world.directory.delete_table(NOW, &deletion)?;
    world.directory.take_effects();
    heartbeat_without_lists(world)
}

fn request(beat: &Heartbeat) -> v1::HeartbeatRequest {
    v1::HeartbeatRequest {
        cluster_id: beat.cluster_id.clone().unwrap_or_default(),
        role: v1::Role::Tablet.into(),
        server: beat.server.clone(),
        address: beat.address.clone(),
        incarnation: beat.incarnation,
        barrier: u64::MAX,
        safe_point: u64::MAX,
        resolved_ts: u64::MAX,
        high_ts: beat.high_ts.as_u64(),
        groups: beat.groups,
        accepted: true,
        lists_version: beat.lists_version,
        without_lists: true,
        ..v1::HeartbeatRequest::default()
    }
}

fn locating(world: &mut World) -> Result<Cost, Refusal> {
    let request = v1::LocateRequest {
        rows: vec![v1::RowToLocate {
            table_id: 1,
            row: "000050x".into(),
            before: false,
        }],
        ahead: 16,
        ..v1::LocateRequest::default()
    };
    let sent_bytes = request.encoded_len();
    let (looked_at, located) = world.cost(|directory| locate(directory, &request));
    let located = located?;
    assert_eq!(located.tablets.len(), 17, "the row's, and those behind");
    Ok(Cost {
        sent_bytes,
        answered_bytes: located.encoded_len(),
        looked_at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_grows_with_the_cluster_that_must_not() {
        let (lines, grows) = scale(300).unwrap();
        let grows: Vec<String> = grows.iter().map(Grows::to_string).collect();
        assert!(grows.is_empty(), "{grows:#?}\n{}", lines.join("\n"));
        assert!(lines.len() > 5);
    }

    #[test]
    fn what_grows_is_named() {
        let grows = Grows {
            what: "it",
            small: 1,
            large: 2,
        };
        assert_eq!(
            grows.to_string(),
            "it: 1 in a tenth of the cluster, and 2 in all of it"
        );
    }
}
