//! Servers that aren't well, and what to do about them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::problems::Problem;
use super::survey::{Failed, Server, Survey};

/// So many tables are named whose tablets are at a server that is down.
const TABLES_NAMED_MAX: usize = 3;

pub(super) fn lost_tablets(server: &Server) -> Problem {
    let tablets: Vec<String> = server.lost.iter().map(ToString::to_string).collect();
    Problem {
        kind: "tablet-lost",
        about: server.name.clone(),
        what: format!(
            "{} runs, and has lost tablet {}: calls for its rows fail",
            server.name,
            tablets.join(", ")
        ),
        action: format!(
            "stop {}, and bring its last data folder or volume back, not an older one; `percolator tablet list` \
             says which rows these are. Where there is none, give them up: `percolator table delete \
             --accept-data-loss`",
            server.name
        ),
    }
}

pub(super) fn disk_stalled(server: &Server) -> Problem {
    Problem {
        kind: "disk-stalled",
        about: server.name.clone(),
        what: format!(
            "the disk of {} stalls: a write has waited for it for {} s, and the disk says nothing",
            server.name,
            server.disk_stalled.as_secs()
        ),
        action: format!(
            "look at the volume of {}: it ends by itself after a while (its flag --disk-stall-max), so that another \
             one can be started with that volume",
            server.name
        ),
    }
}

/// A server that has ended because of its disk is reported for a while, also if it was started again and serves.
pub(super) fn disk_failed(server: &Server, failed: &Failed) -> Option<Problem> {
    const REPORTED_FOR: Duration = Duration::from_secs(600);
    (failed.ago < REPORTED_FOR).then(|| Problem {
        kind: "disk-failed",
        about: server.name.clone(),
        what: format!(
            "{} has stopped because its disk failed, or what it has stored is damaged ({} since the master's start, \
             last {} s ago): {}",
            server.name,
            if failed.times == 1 {
                "once".to_owned()
            } else {
                format!("{} times", failed.times)
            },
            failed.ago.as_secs(),
            failed.why
        ),
        action: format!(
            "look at the volume of {}. Where it stops again and again, what it holds is not what was written to it: keep \
             the folder as it is (docs/correctness.md, by hand)",
            server.name
        ),
    })
}

pub(super) fn down(survey: &Survey, server: &Server) -> Problem {
    let since = match server.silence {
        Some(silence) => format!("for {} s", silence.as_secs()),
        None => "since the master's start".into(),
    };
    let lacks = match server.role {
        "tablet" => unserved(survey, &server.name),
        _ => String::new(),
    };
    let name = &server.name;
    // It may not have had the time to say that it is there.
    let first = match server.silence {
        Some(_) => "",
        None => "if the master began just now, wait some seconds; else ",
    };
    Problem {
        kind: "server-down",
        about: name.clone(),
        what: format!("{name} at {} was not heard {since}{lacks}", server.address),
        action: format!(
            "{first}start it again under the same name with the same folder: `percolator up` and Kubernetes do so by \
             themselves, and where it ends again {}",
            log_of(name)
        ),
    }
}

/// What nobody can use while a tablet server is down.
fn unserved(survey: &Survey, server: &str) -> String {
    let mut of_tables: BTreeMap<&str, usize> = BTreeMap::new();
    for (table, _) in survey.owned_by(server) {
        *of_tables.entry(&table.name).or_default() += 1;
    }
    if of_tables.is_empty() {
        return "; no tablet is on it".to_owned();
    }
    let named = of_tables.iter().take(TABLES_NAMED_MAX);
    let named: Vec<String> = named
        .map(|(table, tablets)| format!("{tablets} of table {table}"))
        .collect();
    let more = match of_tables.len().saturating_sub(TABLES_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and those of {more} more tables"),
    };
    format!(
        "; nobody can use its tablets, {}{more}: `percolator tablet list` shows which rows these are",
        named.join(", ")
    )
}

pub(super) fn without_room(server: &Server) -> Problem {
    let name = &server.name;
    Problem {
        kind: "without-room",
        about: name.clone(),
        what: format!(
            "{name} is to have no tablets, and no other server has room for one of them: it stays there"
        ),
        action: format!(
            "give the other servers larger volumes, or add one; `percolator server undrain {name}` takes it back"
        ),
    }
}

pub(super) fn waits_for(server: &Server) -> Problem {
    let Server {
        name, waits_for, ..
    } = server;
    Problem {
        kind: "drain-waits",
        about: name.clone(),
        what: format!("{name} is to have no tablets, and waits for {waits_for}"),
        action: "start that server again: it alone knows at which of the two the rows are".into(),
    }
}

/// Where its last words are.
pub(super) fn log_of(server: &str) -> String {
    format!(
        "its log says why (logs/{server}.log in the data folder of `percolator up --processes`, or `kubectl logs --previous` of \
         its pod)"
    )
}
