//! What isn't well with proxies, of which the master knows those that introduce themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use super::problems::Problem;
use super::servers::log_of;
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
        what: format!(
            "{name} at {address} was not heard for {silence} s; its sessions are gone if it has ended"
        ),
        action: format!(
            "nothing if another one has taken its place: it is forgotten after a minute. Where it ends again and again, {}",
            log_of(name)
        ),
    }
}

/// Sessions' tokens have the name, where no address is advertised: a call that comes to the wrong one finds no session.
fn of_one_name(survey: &Survey) -> Option<Problem> {
    let proxies = survey.servers.iter().filter(|it| it.role == PROXY);
    let mut by_name: BTreeMap<&str, Vec<&Server>> = BTreeMap::new();
    for proxy in proxies {
        by_name.entry(&proxy.name).or_default().push(proxy);
    }
    let (name, proxies) = by_name
        .into_iter()
        .find(|(_, proxies)| are_at_once(proxies))?;
    let addresses: Vec<&str> = proxies.iter().map(|proxy| &*proxy.address).collect();
    Some(Problem {
        kind: "proxy-name",
        about: name.to_owned(),
        what: format!(
            "several proxies are called {name}: {}",
            addresses.join(", ")
        ),
        action: "start each with a name of its own (--server): sessions' tokens have it".to_owned(),
    })
}

/// Whether one of them was introduced again after another one had come: that one has not taken its place.
fn are_at_once(proxies: &[&Server]) -> bool {
    let silence = |proxy: &Server| proxy.silence.unwrap_or_default();
    let known = |proxy: &Server| proxy.proxy.map_or(Duration::ZERO, |state| state.known);
    let came_last = proxies.iter().map(|proxy| known(proxy)).min();
    let heard_later = |proxy: &&&Server| Some(silence(proxy)) < came_last;
    proxies.iter().filter(heard_later).count() > 1
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::problems::{find, tests};
    use super::super::survey::ProxyState;
    use super::*;

    pub(crate) fn proxy(name: &str, port: u16) -> Server {
        Server {
            proxy: Some(ProxyState {
                known: Duration::from_secs(60),
                sessions: None,
            }),
            ..tests::server("proxy", name, port)
        }
    }

    #[test]
    fn a_proxy_that_is_down_and_two_of_one_name_are_named() {
        let mut survey = tests::well();
        survey.servers.push(proxy("proxy-0", 7490));
        assert_eq!(find(&survey, &BTreeMap::new()), []);
        survey.servers.push(proxy("proxy-0", 7492));
        let found = find(&survey, &BTreeMap::new());
        assert_eq!((found.len(), found[0].kind), (1, "proxy-name"));
        assert!(found[0].what.contains("127.0.0.1:7490, 127.0.0.1:7492"));
        // It was started again elsewhere: the first one was last introduced before that.
        survey.servers[3].silence = Some(Duration::from_secs(5));
        let state = survey.servers[4].proxy.as_mut();
        state.expect("a proxy").known = Duration::from_secs(4);
        assert_eq!(find(&survey, &BTreeMap::new()), []);
        survey.servers[3].alive = false;
        survey.servers[3].silence = Some(Duration::from_secs(12));
        let found = find(&survey, &BTreeMap::new());
        assert_eq!((found.len(), found[0].kind), (1, "server-down"));
        assert!(
            found[0]
                .what
                .contains("proxy-0 at 127.0.0.1:7490 was not heard for 12 s")
        );
        assert!(found[0].action.contains("forgotten after a minute"));
    }
}
