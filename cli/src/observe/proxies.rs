//! What isn't well with proxies, of which the master knows those that introduce themselves.

use std::collections::BTreeMap;

use super::problems::{Problem, log_of};
use super::survey::{PROXY, Server, Survey};

pub(super) fn find(survey: &Survey) -> Vec<Problem> {
    let proxies = survey.servers.iter().filter(|it| it.role == PROXY);
    let mut found: Vec<Problem> = proxies.filter(|it| !it.alive).map(down).collect();
    found.extend(of_one_name(survey));
    found
}

fn down(proxy: &Server) -> Problem {
    let (name, address) = (&proxy.name, &proxy.address);
    let silence = proxy.silence.unwrap_or_default().as_secs();
    Problem {
        kind: "server-down",
        about: name.clone(),
        what: format!("{name} at {address} was not heard for {silence} s; its sessions are gone if it has ended"),
        action: format!(
            "nothing if another one has taken its place: it is forgotten after a minute. Where it ends again and again, {}",
            log_of(name)
        ),
    }
}

/// Sessions' tokens have the name, where no address is advertised: a call that comes to the wrong one finds no session.
fn of_one_name(survey: &Survey) -> Option<Problem> {
    let alive = survey.servers.iter().filter(|it| it.role == PROXY && it.alive);
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for proxy in alive {
        by_name.entry(&proxy.name).or_default().push(&proxy.address);
    }
    let (name, addresses) = by_name.into_iter().find(|(_, addresses)| addresses.len() > 1)?;
    Some(Problem {
        kind: "proxy-name",
        about: name.to_owned(),
        what: format!("several proxies are called {name}: {}", addresses.join(", ")),
        action: "start each with a name of its own (--server): sessions' tokens have it".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::problems::{find, tests};
    use super::*;

    #[test]
    fn a_proxy_that_is_down_and_two_of_one_name_are_named() {
        let mut survey = tests::well();
        survey.servers.push(tests::server("proxy", "proxy-0", 7490));
        assert_eq!(find(&survey, &BTreeMap::new()), []);
        survey.servers.push(tests::server("proxy", "proxy-0", 7492));
        let found = find(&survey, &BTreeMap::new());
        assert_eq!((found.len(), found[0].kind), (1, "proxy-name"));
        assert!(found[0].what.contains("127.0.0.1:7490, 127.0.0.1:7492"));
        // It was started again elsewhere.
        survey.servers[3].alive = false;
        survey.servers[3].silence = Some(Duration::from_secs(12));
        let found = find(&survey, &BTreeMap::new());
        assert_eq!((found.len(), found[0].kind), (1, "server-down"));
        assert!(found[0].what.contains("proxy-0 at 127.0.0.1:7490 was not heard for 12 s"));
        assert!(found[0].action.contains("forgotten after a minute"));
    }
}
