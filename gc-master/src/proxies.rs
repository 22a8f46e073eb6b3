//! The proxies, for people and tools: those that introduce themselves. Nothing is durable here, and nothing is decided by it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use percolator_wire::is_address;

use crate::core::Directory;
use crate::names::is_name_of_at_most;
use crate::refusal::Refusal;

/// Of which one knows at a time.
pub(crate) const PROXIES_MAX: usize = 1_000;
/// A proxy that was silent for longer counts as down: three introductions are missing.
const INTRODUCTION_TIMEOUT: Duration = Duration::from_secs(6);
/// One that was silent for so long is forgotten: proxies come and go with the load, and one that ends by force can't say so.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// A pod's name has at most so many bytes, and so has a host's, with 6 for a port.
const NAME_BYTES_MAX: usize = 253;
const ADDRESS_BYTES_MAX: usize = NAME_BYTES_MAX + 6;

/// A proxy's report of itself.
#[derive(Clone, Debug)]
pub struct ProxyReport {
    /// Its name.
    pub server: String,
    /// Where clients reach it: HOST:PORT.
    pub address: String,
    /// Where it shows metrics, IP:PORT; empty: nowhere.
    pub metrics_address: String,
    /// It ends.
    pub is_leaving: bool,
}

/// A proxy, as people see it.
#[derive(Clone, Debug)]
pub(crate) struct ListedProxy<'a> {
    pub(crate) server: &'a str,
    pub(crate) address: &'a str,
    pub(crate) metrics_address: Option<SocketAddr>,
    pub(crate) is_alive: bool,
    /// Since when it hasn't introduced itself.
    pub(crate) silent: Duration,
    /// Since when it is known.
    pub(crate) known: Duration,
}

/// The proxies, by name and address: of two with one name, which is a mistake, both are listed.
#[derive(Debug, Default)]
pub(crate) struct Proxies(BTreeMap<(String, String), KnownProxy>);

#[derive(Debug)]
struct KnownProxy {
    metrics_address: Option<SocketAddr>,
    /// When it introduced itself first, since the master's start.
    since: Duration,
    /// When it did so last.
    introduced_at: Duration,
}

impl Proxies {
    fn introduced(&mut self, now: Duration, proxy: ProxyReport) -> Result<(), String> {
        // What is refused isn't repeated: it may be long.
        if !is_name_of_at_most(NAME_BYTES_MAX, &proxy.server) {
            return Err(format!(
                "its name is not 1 to {NAME_BYTES_MAX} of a-z, 0-9, '_', '.' and '-', starting with a letter or digit"
            ));
        }
        let address = &proxy.address;
        let is_shown = address.len() <= ADDRESS_BYTES_MAX
            && address.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_shown || !is_address(address) {
            return Err(format!(
                "the address of {} is not HOST:PORT of at most {ADDRESS_BYTES_MAX} bytes",
                proxy.server
            ));
        }
        let metrics_address = match &*proxy.metrics_address {
            "" => None,
            text => Some(
                text.parse()
                    .map_err(|_| format!("the metrics of {} are not at IP:PORT", proxy.server))?,
            ),
        };
        self.forget(now);
        let place = (proxy.server, proxy.address);
        if proxy.is_leaving {
            self.0.remove(&place);
            return Ok(());
        }
        let before = self.0.get(&place);
        if before.is_none() && self.0.len() >= PROXIES_MAX {
            return Err(format!("there are {PROXIES_MAX} proxies already"));
        }
        let known = KnownProxy {
            metrics_address,
            since: before.map_or(now, |before| before.since),
            introduced_at: now,
        };
        self.0.insert(place, known);
        Ok(())
    }

    fn forget(&mut self, now: Duration) {
        self.0
            .retain(|_, known| now.saturating_sub(known.introduced_at) < FORGOTTEN_AFTER);
    }

    /// The proxies that have introduced themselves lately, by name and address.
    pub(crate) fn list(&self, now: Duration) -> impl Iterator<Item = ListedProxy<'_>> {
        let silence = move |known: &KnownProxy| now.saturating_sub(known.introduced_at);
        let known = self.0.iter();
        known
            .filter(move |(_, known)| silence(known) < FORGOTTEN_AFTER)
            .map(move |((server, address), known)| ListedProxy {
                server,
                address,
                metrics_address: known.metrics_address,
                is_alive: silence(known) < INTRODUCTION_TIMEOUT,
                silent: silence(known),
                known: now.saturating_sub(known.since),
            })
    }
}

impl Directory {
    /// Registers a proxy that serves, or records that it ends.
    ///
    /// # Errors
    /// [`Refusal::Proxy`].
    pub fn introduce_proxy(&mut self, now: Duration, proxy: ProxyReport) -> Result<(), Refusal> {
        let introduced = self.proxies.introduced(now, proxy);
        introduced.map_err(|wrong| Refusal::Proxy { wrong })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(server: &str, address: &str) -> ProxyReport {
        ProxyReport {
            server: server.to_owned(),
            address: address.to_owned(),
            metrics_address: "0.0.0.0:9090".to_owned(),
            is_leaving: false,
        }
    }

    fn listed(proxies: &Proxies, seconds: u64) -> Vec<(String, bool)> {
        let list = proxies.list(Duration::from_secs(seconds));
        list.map(|it| (format!("{} {}", it.server, it.address), it.is_alive))
            .collect()
    }

    #[test]
    fn a_proxy_is_listed_while_it_introduces_itself_then_as_down_then_not_at_all() {
        let mut proxies = Proxies::default();
        let at = Duration::from_secs;
        proxies.introduced(at(1), proxy("b", "h:2")).unwrap();
        proxies.introduced(at(1), proxy("a", "h:1")).unwrap();
        for seconds in [3, 5] {
            proxies.introduced(at(seconds), proxy("a", "h:1")).unwrap();
        }
        let both = |a, b| vec![("a h:1".to_owned(), a), ("b h:2".to_owned(), b)];
        assert_eq!(listed(&proxies, 6), both(true, true));
        assert_eq!(listed(&proxies, 7), both(true, false));
        assert_eq!(listed(&proxies, 61), both(false, false)[..1]);
        assert_eq!(listed(&proxies, 65), []);
        let known: Vec<_> = proxies.list(at(6)).collect();
        let metrics = "0.0.0.0:9090".parse().unwrap();
        assert_eq!((known[0].silent, known[0].known), (at(1), at(5)));
        assert_eq!(
            (known[1].silent, known[1].metrics_address),
            (at(5), Some(metrics))
        );
    }

    #[test]
    fn one_that_ends_is_forgotten_at_once_and_two_of_a_name_are_both_there() {
        let mut proxies = Proxies::default();
        let mut ends = proxy("a", "h:1");
        for address in ["h:1", "h:2"] {
            proxies
                .introduced(Duration::ZERO, proxy("a", address))
                .unwrap();
        }
        assert_eq!(listed(&proxies, 0).len(), 2);
        ends.is_leaving = true;
        proxies.introduced(Duration::ZERO, ends).unwrap();
        assert_eq!(listed(&proxies, 0), [("a h:2".to_owned(), true)]);
    }

    #[test]
    fn what_cannot_be_shown_or_is_too_much_is_refused() {
        let mut proxies = Proxies::default();
        let mut metrics = proxy("a", "h:1");
        metrics.metrics_address = "host:9090".to_owned();
        for (wrong, reason) in [
            (proxy("", "h:1"), "name"),
            (proxy("a\u{1b}[2J", "h:1"), "name"),
            (proxy(&"a".repeat(254), "h:1"), "253"),
            (proxy("a", "h"), "HOST:PORT"),
            (proxy("a", "h\n:1"), "HOST:PORT"),
            (proxy("a", "\u{202e}:1"), "HOST:PORT"),
            (
                proxy("a", &format!("{}:1", "h".repeat(60 << 20))),
                "HOST:PORT",
            ),
            (proxy("../a", "h:1"), "name"),
            (metrics, "IP:PORT"),
        ] {
            let error = proxies.introduced(Duration::ZERO, wrong).unwrap_err();
            assert!(error.contains(reason) && error.len() < 400, "{error}");
        }
        for number in 1..=PROXIES_MAX {
            let one = proxy("a", &format!("h:{number}"));
            proxies.introduced(Duration::ZERO, one).unwrap();
        }
        let error = proxies.introduced(Duration::ZERO, proxy("a", "h:9999"));
        assert!(error.unwrap_err().contains("1000 proxies"));
        // Those that are known stay, and there is room again when they have gone.
        proxies
            .introduced(Duration::ZERO, proxy("a", "h:1"))
            .unwrap();
        let later = Duration::from_secs(60);
        proxies.introduced(later, proxy("a", "h:9999")).unwrap();
        assert_eq!(proxies.0.len(), 1);
    }
}
