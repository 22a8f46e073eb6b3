//! What isn't well, and what to do about it. Pure: the same survey says the same.

use std::collections::BTreeMap;

use percolator_client::Table;
use serde_json::{Value, json};

use super::metrics::Page;
use super::survey::{GIVEN_UP_MAX, PROXY, Server, Survey};
use super::{missing, proxies, servers};
use crate::gc;

/// The oracle's machine may be so far behind its timestamps, in seconds: clocks are set by that now and then. And behind a
/// restart by the window: timestamps go on from the limit.
const CLOCK_MAX: f64 = 1.0;

/// Something that isn't well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// For programs: `server-down`, `servers-missing`, `standby-missing`, `proxy-name`, `oracle`, `without-room`, `tablet-lost`, `disk-stalled`, `disk-full` (or failing), `clock`, `not-ready`, `table-not-ready`,
    /// `table-deleting`, `given-up`, or what `gc why-blocked` calls it.
    pub(crate) kind: &'static str,
    /// What it is about: a server, a table, a point.
    pub(crate) about: String,
    pub(crate) what: String,
    pub(crate) action: String,
}

impl Problem {
    pub(crate) fn json(&self) -> Value {
        json!({"kind": self.kind, "about": self.about, "what": self.what, "do": self.action})
    }
}

/// The most urgent first: what stops everything, then what stops some, then what only grows. What servers alone know,
/// as a full disk, is found where their metrics are reached.
pub(crate) fn find(survey: &Survey, pages: &BTreeMap<String, Page>) -> Vec<Problem> {
    let mut found = Vec::new();
    if let Err(why) = &survey.oracle
        && !is_hidden_from_here(survey)
    {
        found.push(no_oracle(survey, why));
    }
    let missed = |it: &&Server| !it.alive && !it.drained && it.role != PROXY;
    for server in survey.servers.iter().filter(missed) {
        found.push(servers::down(survey, server));
    }
    if !survey.servers.iter().any(|it| it.role == "tablet") {
        found.push(Problem {
            kind: "server-down",
            about: "tablet servers".into(),
            what: "the master knows of no tablet server: no table can be made".into(),
            action: "start one, percolator-tablet, with the master's address".into(),
        });
    }
    found.extend(missing::find(survey));
    found.extend(proxies::find(survey));
    let stuck = |it: &&Server| it.draining && it.without_room;
    let stuck = survey.servers.iter().filter(stuck);
    found.extend(stuck.map(servers::without_room));
    let waiting = survey.servers.iter().filter(|it| !it.waits_for.is_empty());
    found.extend(waiting.map(servers::waits_for));
    let lost = survey.servers.iter().filter(|it| !it.lost.is_empty());
    found.extend(lost.map(servers::lost_tablets));
    let stalled = |it: &&Server| it.alive && !it.disk_stalled.is_zero();
    found.extend(
        survey
            .servers
            .iter()
            .filter(stalled)
            .map(servers::disk_stalled),
    );
    let failed = |server: &Server| servers::disk_failed(server, server.failed.as_ref()?);
    found.extend(survey.servers.iter().filter_map(failed));
    for (server, page) in pages {
        // That is reported already, with the reason.
        let is_reported = found.iter().any(|problem| problem.about == *server);
        found.extend(shown(server, page, is_reported));
    }
    found.extend(survey.tables.iter().filter_map(not_ready));
    if let Ok(by_table) = &survey.given_up {
        let is_all = by_table.values().sum::<usize>() < GIVEN_UP_MAX;
        let given_up = by_table.iter();
        found.extend(given_up.map(|(table, changes)| given_up_of(table, *changes, is_all)));
    }
    for reason in gc::reasons(&survey.gc) {
        if reason.usual || reason.is_oracle() && survey.oracle.is_err() {
            continue;
        }
        found.push(Problem {
            kind: reason.kind,
            about: reason.point.to_owned(),
            what: format!("garbage is kept: {}", reason.what),
            action: reason.todo,
        });
    }
    found
}

fn no_oracle(survey: &Survey, why: &str) -> Problem {
    let action = match survey.servers.iter().find(|it| it.role == "oracle") {
        Some(oracle) if oracle.alive => format!(
            "read the log of {}, which has reported to the master: a full disk, or a clock that was set back",
            oracle.name
        ),
        Some(oracle) => format!("start {} again, see below", oracle.name),
        None => {
            "start the oracle, percolator-tso, with the master's address: none has reported".into()
        }
    };
    Problem {
        kind: "oracle",
        about: "oracle".into(),
        what: format!("nobody gets timestamps, so no transaction begins or commits: {why}"),
        action,
    }
}

/// What could not be reached from here, and so may be well or not.
pub(crate) fn unseen(survey: &Survey, pages: &BTreeMap<String, Page>) -> Vec<String> {
    let mut unseen = Vec::new();
    if let Err(why) = &survey.oracle
        && is_hidden_from_here(survey)
    {
        unseen.push(format!(
            "whether the oracle is reached by clients: no timestamp was got from here ({why}), though the master gets \
             some. Through `kubectl port-forward` to the master alone that is so; a pod sees more, as with `kubectl \
             exec demo-master-0 -- percolator status`"
        ));
    }
    if let (Err(why), Ok(_)) = (&survey.given_up, &survey.oracle) {
        unseen.push(format!("how many changes observers have given up: {why}"));
    }
    // Where a standby master shows its metrics the leader doesn't know.
    let servers = survey.servers.iter();
    let servers = servers.filter(|it| it.alive && it.role != "master");
    let without: Vec<&str> = servers
        .map(|server| &*server.name)
        .filter(|name| !pages.contains_key(*name))
        .collect();
    if !without.is_empty() {
        unseen.push(format!(
            "full disks, clocks and readiness of {}: their metrics are not reached from here (--metrics \
             says where they are, as behind `kubectl port-forward`)",
            without.join(", ")
        ));
    }
    unseen
}

/// Where no timestamp was got from here: whether only this machine gets none. The master asks for them all the time.
fn is_hidden_from_here(survey: &Survey) -> bool {
    let oracle = survey.servers.iter().find(|it| it.role == "oracle");
    let master_has_none = survey.gc.obstacles.iter().any(|it| it.by == "oracle");
    oracle.is_some_and(|oracle| oracle.alive) && !master_has_none
}

/// What a server's metrics say.
fn shown(server: &str, page: &Page, is_reported: bool) -> Option<Problem> {
    let is = |name: &str, value: f64| page.sum(name, &[]) == Some(value);
    let (kind, what, action) = if is("percolator_tablet_disk_full", 1.0) {
        (
            "disk-full",
            format!("{server} refuses new data: its volume is full"),
            "make room or let the volume grow (`spec.tablets.storage.size`); what was begun can still end, \
             and reads go on. The first write that finds room ends this",
        )
    } else if is("percolator_tso_limit_failing", 1.0) {
        (
            "disk-full",
            format!(
                "{server} can't write down how far its timestamps may go: those that are left run out"
            ),
            "see what its log says of its volume: make room there, or mend it",
        )
    } else if page
        .sum("percolator_tso_clock_offset_seconds", &[])
        .is_some_and(|by| {
            by + page
                .sum("percolator_tso_window_seconds", &[])
                .unwrap_or(0.0)
                < -CLOCK_MAX
        })
    {
        (
            "clock",
            format!(
                "the clock of {server}'s machine was set back: timestamps go on from where they were, in small steps"
            ),
            "set that clock right: until then garbage collection and locks' times go by a clock that stands still",
        )
    } else if is("percolator_tso_clock_followed", 0.0) {
        (
            "clock",
            format!("{server} doesn't follow its machine's clock, which has jumped"),
            "set that clock right: until then garbage collection and locks' times go by a clock that stands still",
        )
    } else if is("percolator_ready", 0.0) && !is_reported {
        (
            "not-ready",
            format!("{server} runs, and says that it isn't ready"),
            "its /readyz, beside its metrics, says what it waits for",
        )
    } else {
        return None;
    };
    Some(Problem {
        kind,
        about: server.to_owned(),
        what,
        action: action.to_owned(),
    })
}

fn not_ready(table: &Table) -> Option<Problem> {
    let (kind, what, action) = match (table.deleting, table.ready) {
        (true, _) => (
            "table-deleting",
            format!(
                "table {} is being deleted, and nobody can use it",
                table.name
            ),
            format!(
                "nothing while that runs; where it has ended early, `percolator table delete {}` goes on",
                table.name
            ),
        ),
        (false, false) => (
            "table-not-ready",
            format!("no server has reported some rows of table {}", table.name),
            "nothing while it is being made; else `percolator table list` says which rows: start the server \
             again that has them, with its folder"
                .to_owned(),
        ),
        (false, true) => return None,
    };
    Some(Problem {
        kind,
        about: table.name.clone(),
        what,
        action,
    })
}

fn given_up_of(table: &str, changes: usize, is_all: bool) -> Problem {
    let more = if is_all { "" } else { "at least " };
    Problem {
        kind: "given-up",
        about: table.to_owned(),
        what: format!("observers of table {table} have given up {more}{changes} changes"),
        action: format!(
            "see of which columns by `percolator observe status {table}`, and why by `percolator observe status {table} COLUMN`; when \
             that is mended, `percolator observe retry {table} COLUMN`; `percolator observe discard {table} COLUMN` forgets them"
        ),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use percolator_client::{GcHolder, GcObstacle, GcStatus, Tablet, Timestamp, TxnOwner};

    use super::super::survey::Failed;
    use super::*;

    pub(crate) fn ts(seconds: u64) -> Timestamp {
        Timestamp::from_u64((seconds * 1000) << 18)
    }

    pub(crate) fn server(role: &'static str, name: &str, port: u16) -> Server {
        Server {
            role,
            name: name.into(),
            address: format!("127.0.0.1:{port}"),
            alive: true,
            leads_term: 0,
            takeover: None,
            silence: Some(Duration::ZERO),
            lost: BTreeSet::new(),
            disk_stalled: Duration::ZERO,
            failed: None,
            draining: false,
            drained: false,
            without_room: false,
            waits_for: String::new(),
            proxy: None,
        }
    }

    pub(crate) fn well() -> Survey {
        let tablet = |id, server: &str| Tablet {
            moving_to: None,
            bytes: 0,
            load: 0,
            id,
            start_row: "secret".into(),
            end_row: "".into(),
            epoch: 1,
            frozen: false,
            server: server.into(),
            server_alive: true,
            server_silence: Some(Duration::ZERO),
        };
        let now = ts(2_000_000);
        Survey {
            master: "127.0.0.1:7400".into(),
            master_name: "master-0".into(),
            master_term: 0,
            master_takeover: None,
            masters_expected: 1,
            oracles_expected: 1,
            cluster_id: "c1".into(),
            tablet_servers_expected: 2,
            metrics: BTreeMap::new(),
            servers: vec![
                server("oracle", "tso-0", 7401),
                server("tablet", "tablet-0", 7402),
                server("tablet", "tablet-1", 7403),
            ],
            tables: vec![Table {
                name: "accounts".into(),
                id: 1,
                ready: true,
                deleting: false,
                tablets: vec![tablet(1, "tablet-0"), tablet(2, "tablet-1")],
            }],
            gc: GcStatus {
                retention: Duration::from_secs(600),
                hold_max: None,
                paused: false,
                of_manifest: Vec::new(),
                now,
                barrier: ts(1_999_400),
                safe_point: ts(1_999_398),
                resolved: ts(1_999_398),
                sessions: 0,
                holders: Vec::new(),
                obstacles: Vec::new(),
                servers: Vec::new(),
            },
            given_up: Ok(BTreeMap::new()),
            oracle: Ok(Duration::from_micros(300)),
        }
    }

    /// One of each.
    pub(crate) fn ill() -> Survey {
        let mut survey = well();
        survey.oracle = Err("no answer within 3s".into());
        survey.servers[2].alive = false;
        survey.servers[2].silence = Some(Duration::from_secs(12));
        survey.tables[0].tablets[1].server_alive = false;
        survey.servers[1].lost.insert(1);
        survey.servers[0].disk_stalled = Duration::from_secs(8);
        survey.servers[1].draining = true;
        survey.servers[1].without_room = true;
        survey.servers[1].waits_for = "tablet 7, on its way there from tablet-2".into();
        survey.servers[1].failed = Some(Failed {
            times: 2,
            why: "the value of secret is not what was written".into(),
            ago: Duration::from_secs(70),
        });
        survey.tablet_servers_expected = 3;
        let mut deleting = survey.tables[0].clone();
        deleting.name = "old".into();
        deleting.deleting = true;
        deleting.tablets.clear();
        let mut making = deleting.clone();
        making.name = "young".into();
        (making.deleting, making.ready) = (false, false);
        survey.tables.extend([deleting, making]);
        survey.given_up = Ok([("documents".to_owned(), 3)].into());
        survey.gc.paused = true;
        survey.gc.holders.push(GcHolder {
            session: 1,
            owner: TxnOwner {
                host: "here".into(),
                process: 7,
                application: "app".into(),
                label: String::new(),
            },
            floor: ts(1_990_000),
            transactions: vec![ts(1_990_000)],
            lease: Duration::from_secs(48),
            released: false,
        });
        survey.gc.obstacles.push(GcObstacle {
            server: "tablet-0".into(),
            what: "cell 1/secret:c is locked by transaction 7, which is being committed".into(),
            start_ts: Timestamp::from_u64(7),
            by: "locks".into(),
            ..GcObstacle::default()
        });
        survey.gc.obstacles.push(GcObstacle {
            server: "the oracle".into(),
            what: "no answer".into(),
            by: "oracle".into(),
            ..GcObstacle::default()
        });
        survey
    }

    #[test]
    fn a_cluster_that_is_well_has_no_problem() {
        assert_eq!(find(&well(), &BTreeMap::new()), []);
        let page = "percolator_tablet_disk_full 0\npercolator_ready 1\n";
        let pages = [("tablet-0".to_owned(), Page::parse(page))].into();
        assert_eq!(find(&well(), &pages), []);
    }

    #[test]
    fn each_problem_is_named_with_what_to_do() {
        let found = find(&ill(), &BTreeMap::new());
        let kinds: Vec<&str> = found.iter().map(|problem| problem.kind).collect();
        assert_eq!(
            kinds,
            [
                "oracle",
                "server-down",
                "servers-missing",
                "without-room",
                "drain-waits",
                "tablet-lost",
                "disk-stalled",
                "disk-failed",
                "table-deleting",
                "table-not-ready",
                "given-up",
                "paused",
                "gc-lock",
                "tablet-server"
            ]
        );
        let release = format!("percolator gc release {}", ts(1_990_000));
        for (at, words) in [
            (1, "tablet-1.log"),
            (2, "kubectl describe pod"),
            (3, "server undrain tablet-0"),
            (5, "not an older one"),
            (6, "--disk-stall-max"),
            (7, "keep the folder"),
            (8, "percolator table delete old"),
            (9, "percolator table list"),
            (10, "percolator observe status documents"),
            (11, "percolator gc set --pause false"),
            (12, &*release),
            (13, "percolator txn abort"),
        ] {
            assert!(found[at].action.contains(words), "{words}: {:?}", found[at]);
        }
    }

    #[test]
    fn what_servers_show_of_themselves_counts() {
        for (page, kind) in [
            (
                "percolator_ready 1\npercolator_tablet_disk_full 1\n",
                "disk-full",
            ),
            ("percolator_tso_clock_followed 0\n", "clock"),
            ("percolator_tso_clock_offset_seconds -60.5\n", "clock"),
            (
                "percolator_tso_window_seconds 3\npercolator_tso_clock_offset_seconds -4.5\n",
                "clock",
            ),
            ("percolator_tso_limit_failing 1\n", "disk-full"),
            ("percolator_ready 0\n", "not-ready"),
        ] {
            let pages = [("tablet-0".to_owned(), Page::parse(page))].into();
            let found = find(&well(), &pages);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!((found[0].kind, &*found[0].about), (kind, "tablet-0"));
        }
        // It was started again just now.
        let page = "percolator_tso_window_seconds 3\npercolator_tso_clock_offset_seconds -2.9\n";
        let pages = [("tso-0".to_owned(), Page::parse(page))].into();
        assert_eq!(find(&well(), &pages), []);
        // Of one that is reported to have lost tablets it is no news.
        let pages = [("tablet-0".to_owned(), Page::parse("percolator_ready 0\n"))].into();
        assert_eq!(find(&ill(), &pages), find(&ill(), &BTreeMap::new()));
    }

    #[test]
    fn what_is_not_seen_from_here_is_no_problem_and_is_reported() {
        let mut survey = well();
        let page = || Page::parse("percolator_ready 1\n");
        let names = ["tso-0", "tablet-0", "tablet-1"];
        let pages = names.map(|name| (name.to_owned(), page())).into();
        assert_eq!(unseen(&survey, &pages), Vec::<String>::new());
        let told = unseen(&survey, &BTreeMap::new());
        assert!(told[0].contains("tso-0, tablet-0, tablet-1"), "{told:?}");

        // As through `kubectl port-forward` to the master.
        survey.oracle = Err("connection refused".into());
        assert_eq!(find(&survey, &pages), []);
        let told = unseen(&survey, &pages);
        assert!(told[0].contains("port-forward"), "{told:?}");
        // The master doesn't get any either.
        survey.gc.obstacles.push(GcObstacle {
            by: "oracle".into(),
            ..GcObstacle::default()
        });
        assert_eq!(unseen(&survey, &pages), Vec::<String>::new());
        let found = find(&survey, &pages);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].kind, "oracle");
        assert!(found[0].action.contains("tso-0"), "{found:?}");
    }

    #[test]
    fn without_keys_no_row_is_named() {
        let mut survey = ill();
        survey.given_up = Err("row secret has a lock that could not be resolved".into());
        let survey = survey.without_keys();
        let told = format!("{survey:?}{:?}", find(&survey, &BTreeMap::new()));
        assert!(!told.contains("secret"), "{told}");
        assert!(told.contains("why-blocked"), "{told}");
    }
}
