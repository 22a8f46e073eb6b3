//! A survey on one page, for people and for programs.

use std::time::Duration;

use percolator_client::Timestamp;
use serde_json::{Value, json};

use super::problems::Problem;
use super::survey::{Server, Survey};
use crate::gc::age_at;
use crate::output::columns;

pub(crate) fn text(survey: &Survey, problems: &[Problem], unseen: &[String]) -> String {
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut servers = vec![
        words(&["ROLE", "NAME", "ADDRESS", "STATE"]),
        words(&[
            "master",
            &survey.master_name,
            &survey.master,
            &master_state(survey),
        ]),
    ];
    servers.extend(survey.servers.iter().map(|server| {
        words(&[
            server.role,
            &server.name,
            &server.address,
            &state(survey, server),
        ])
    }));
    let mut tables = vec![words(&[
        "TABLE", "STATE", "TABLETS", "READY", "AWAY", "LOST",
    ])];
    tables.extend(survey.tables.iter().map(|table| {
        let count = survey.tablets(table);
        let counts =
            [count.all, count.ready, count.away, count.lost].map(|count| count.to_string());
        let mut row = words(&[&table.name, table_state(survey, table)]);
        row.extend(counts);
        row
    }));
    let tables = if survey.tables.is_empty() {
        "no tables".to_owned()
    } else {
        columns(&tables)
    };
    let health = match problems.len() {
        0 => "healthy".to_owned(),
        1 => "1 thing isn't well".to_owned(),
        many => format!("{many} things aren't well"),
    };
    let mut page = format!(
        "cluster {}: {health}\n\n{}\n\n{tables}\n\n{}",
        survey.cluster_id,
        columns(&servers),
        points(survey)
    );
    for problem in problems {
        page += &format!("\n\n! {}\n  do: {}", problem.what, problem.action);
    }
    for unseen in unseen {
        page += &format!("\n\nnot looked at: {unseen}");
    }
    page
}

/// Of the master that answers.
pub(crate) fn master_state(survey: &Survey) -> String {
    match survey.master_term {
        0 => "up".to_owned(),
        term => format!("up, {}", leads(term, survey.master_takeover)),
    }
}

/// Of a leader, and how long it took to take over.
fn leads(term: u64, takeover: Option<Duration>) -> String {
    match takeover {
        None => format!("leads in term {term}"),
        Some(took) => format!(
            "leads in term {term}, took over in {:.1} s",
            took.as_secs_f64()
        ),
    }
}

/// Whether it could take over from the leader of its role.
fn is_standby(survey: &Survey, server: &Server) -> bool {
    let is_one_of_several = match server.role {
        "master" => true,
        "oracle" => survey.last_oracle_term() > 0,
        _ => false,
    };
    is_one_of_several && server.alive && survey.leads(server).is_none()
}

/// Of a proxy, where that is known.
fn sessions(server: &Server) -> Option<u64> {
    server.proxy?.sessions
}

pub(crate) fn state(survey: &Survey, server: &Server) -> String {
    let mut state = match (server.alive, server.silence) {
        (true, _) => "up".to_owned(),
        (false, Some(silence)) => format!("down for {} s", silence.as_secs()),
        (false, None) => "silent since this master leads".to_owned(),
    };
    if server.drained {
        state += ", drained";
    } else if server.draining {
        state += ", draining";
    }
    if let Some(term) = survey.leads(server).filter(|_| server.alive) {
        state += &format!(", {}", leads(term, server.takeover));
    } else if is_standby(survey, server) {
        state += ", standby";
    }
    if server.role == "oracle" && server.alive && survey.oracle.is_err() {
        state += ", no timestamp was got from here";
    }
    if let Some(sessions) = sessions(server) {
        state += &format!(", {sessions} sessions");
    }
    if !server.lost.is_empty() {
        state += &format!(", has lost {} tablets", server.lost.len());
    }
    state
}

pub(crate) fn table_state(survey: &Survey, table: &percolator_client::Table) -> &'static str {
    let count = survey.tablets(table);
    match (table.deleting, table.ready) {
        (true, _) => "deleting",
        (false, true) if count.ready == count.all => "ready",
        (false, true) => "partly",
        (false, false) => "incomplete",
    }
}

fn points(survey: &Survey) -> String {
    let gc = &survey.gc;
    let oldest = match survey.oldest() {
        Some((start_ts, owner)) => {
            format!("{start_ts}, {} old, of {owner}", age_at(gc.now, start_ts))
        }
        None => "none that has been open for a while".to_owned(),
    };
    let rows = [
        ("barrier", old(gc.now, gc.barrier)),
        ("safe point", old(gc.now, gc.safe_point)),
        (
            "retention",
            humantime::format_duration(gc.retention).to_string(),
        ),
        ("oldest transaction", oldest),
        ("sessions", gc.sessions.to_string()),
    ];
    columns(&rows.map(|(name, value)| vec![name.to_owned(), value]))
}

pub(crate) fn json(survey: &Survey, problems: &[Problem], unseen: &[String]) -> Value {
    let gc = &survey.gc;
    let servers = survey.servers.iter().map(|server| {
        json!({
            "role": server.role,
            "server": server.name,
            "address": server.address,
            "up": server.alive,
            "leads_term": survey.leads(server),
            "standby": is_standby(survey, server),
            "takeover_ms": server.takeover.map(millis),
            "silent_ms": server.silence.map(millis),
            "tablets": survey.owned_by(&server.name).count(),
            "draining": server.draining,
            "drained": server.drained,
            "without_room": server.without_room,
            "waits_for": server.waits_for,
            "lost_tablets": server.lost,
            "disk_stalled_ms": millis(server.disk_stalled),
            "disk_failures": server.failed.as_ref().map_or(0, |failed| failed.times),
            "sessions": sessions(server),
        })
    });
    let tables = survey.tables.iter().map(|table| {
        let count = survey.tablets(table);
        json!({
            "table": table.name,
            "state": table_state(survey, table),
            "tablets": count.all,
            "ready": count.ready,
            "away": count.away,
            "lost": count.lost,
        })
    });
    json!({
        "cluster": survey.cluster_id,
        "healthy": problems.is_empty(),
        "master": survey.master,
        "master_name": survey.master_name,
        "master_term": (survey.master_term > 0).then_some(survey.master_term),
        "master_takeover_ms": survey.master_takeover.map(millis),
        "servers": servers.collect::<Vec<_>>(),
        "tables": tables.collect::<Vec<_>>(),
        "oracle": match &survey.oracle {
            Ok(took) => json!({"answers": true, "took_us": u64::try_from(took.as_micros()).unwrap_or(u64::MAX)}),
            Err(why) => json!({"answers": false, "why": why}),
        },
        "gc": {
            "retention_ms": millis(gc.retention),
            "barrier": gc.barrier.to_string(),
            "barrier_age_ms": age_ms(gc.now, gc.barrier),
            "safe_point": gc.safe_point.to_string(),
            "safe_point_age_ms": age_ms(gc.now, gc.safe_point),
            "resolved": gc.resolved.to_string(),
            "resolved_age_ms": age_ms(gc.now, gc.resolved),
            "sessions": gc.sessions,
        },
        "oldest_transaction": survey.oldest().map(|(start_ts, owner)| json!({
            "start_ts": start_ts.to_string(),
            "age_ms": age_ms(gc.now, start_ts),
            "owner": owner,
        })),
        "problems": problems.iter().map(Problem::json).collect::<Vec<_>>(),
        "not_looked_at": unseen,
    })
}

/// A point's age in words.
pub(crate) fn old(now: Timestamp, point: Timestamp) -> String {
    match age_ms(now, point) {
        Some(_) => format!("{} old", age_at(now, point)),
        None => "none yet".to_owned(),
    }
}

/// `None`: there's no such point yet.
pub(crate) fn age_ms(now: Timestamp, point: Timestamp) -> Option<u64> {
    (point != Timestamp::ZERO && now != Timestamp::ZERO)
        .then(|| now.physical_ms().saturating_sub(point.physical_ms()))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::problems::{find, tests};

    #[test]
    fn the_page_of_a_cluster_that_is_well() {
        let survey = tests::well();
        assert_eq!(
            super::text(
                &survey,
                &find(&survey, &std::collections::BTreeMap::new()),
                &[]
            ),
            "\
cluster c1: healthy

ROLE     NAME       ADDRESS          STATE
master   master-0   127.0.0.1:7400   up
oracle   tso-0      127.0.0.1:7401   up
tablet   tablet-0   127.0.0.1:7402   up
tablet   tablet-1   127.0.0.1:7403   up

TABLE      STATE   TABLETS   READY   AWAY   LOST
accounts   ready   2         2       0      0

barrier              10m old
safe point           10m 2s old
retention            10m
oldest transaction   none that has been open for a while
sessions             0"
        );
    }

    #[test]
    fn of_several_the_leader_is_named() {
        let mut survey = tests::well();
        survey.master_term = 4;
        survey.servers[0].leads_term = 7;
        let mut standby = survey.servers[0].clone();
        // It has led before, and has not said anything else since.
        (standby.name, standby.leads_term) = ("tso-1".into(), 6);
        survey.servers[0].takeover = Some(Duration::from_millis(3_049));
        let mut master = standby.clone();
        (master.role, master.name, master.leads_term) = ("master", "master-1".into(), 0);
        survey.servers.insert(1, standby);
        survey.servers.insert(0, master.clone());
        (master.name, master.alive) = ("master-2".into(), false);
        master.silence = Some(Duration::from_secs(7));
        survey.servers.insert(1, master);
        survey.master_takeover = Some(Duration::from_millis(35));
        let page = super::text(&survey, &[], &[]);
        for line in [
            "master   master-0   127.0.0.1:7400   up, leads in term 4, took over in 0.0 s",
            "master   master-1   127.0.0.1:7401   up, standby",
            "master   master-2   127.0.0.1:7401   down for 7 s",
            "oracle   tso-0      127.0.0.1:7401   up, leads in term 7, took over in 3.0 s",
            "oracle   tso-1      127.0.0.1:7401   up, standby",
        ] {
            assert!(page.lines().any(|it| it == line), "{line}: {page}");
        }
        let json = super::json(&survey, &[], &[]);
        assert_eq!(json["master_term"], 4);
        assert_eq!(json["master_takeover_ms"], 35);
        let of = |field: &str| -> Vec<serde_json::Value> {
            let servers = json["servers"].as_array().expect("a list").iter();
            servers.map(|server| server[field].clone()).collect()
        };
        let null = serde_json::Value::Null;
        let terms = [null.clone(), null.clone(), 7.into(), null.clone()];
        assert_eq!(of("leads_term")[..4], terms);
        assert_eq!(of("takeover_ms")[2], 3_049);
        let standbys = [true, false, false, true, false, false];
        assert_eq!(of("standby"), standbys.map(serde_json::Value::from));
    }

    #[test]
    fn a_proxy_is_a_server_with_sessions() {
        let mut survey = tests::well();
        survey
            .servers
            .push(super::super::proxies::tests::proxy("proxy-0", 7490));
        let line = |survey: &super::Survey| {
            let page = super::text(survey, &[], &[]);
            let line = page.lines().find(|it| it.starts_with("proxy "));
            line.unwrap_or_default().to_owned()
        };
        assert_eq!(line(&survey), "proxy    proxy-0    127.0.0.1:7490   up");
        let page = super::super::metrics::Page::parse("percolator_proxy_sessions 12\n");
        survey.add_shown(&[("proxy-0".to_owned(), page)].into());
        let expected = "proxy    proxy-0    127.0.0.1:7490   up, 12 sessions";
        assert_eq!(line(&survey), expected);
        assert_eq!(super::json(&survey, &[], &[])["servers"][3]["sessions"], 12);
    }

    #[test]
    fn the_page_of_one_that_is_not() {
        let survey = tests::ill();
        let page = super::text(
            &survey,
            &find(&survey, &std::collections::BTreeMap::new()),
            &[],
        );
        for line in [
            "cluster c1: 14 things aren't well",
            "oracle   tso-0      127.0.0.1:7401   up, no timestamp was got from here",
            "tablet   tablet-0   127.0.0.1:7402   up, draining, has lost 1 tablets",
            "tablet   tablet-1   127.0.0.1:7403   down for 12 s",
            "accounts   partly       2         0       1      1",
            "! tablet-1 at 127.0.0.1:7403 was not heard for 12 s; nobody can use its tablets, 1 of table accounts: `percolator tablet list` \
             shows which rows these are",
        ] {
            assert!(page.lines().any(|have| have == line), "{line}\n{page}");
        }
    }
}
