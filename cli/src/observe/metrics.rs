//! What the processes show of themselves, for Prometheus and so for us: where that is, and what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use futures_util::future::join_all;
use percolator_local::SERVERS;
use percolator_telemetry::endpoint;
use serde::Deserialize;

/// A process that is there answers sooner.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Where metrics are.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MetricsSource {
    /// The data folder of `percolator up`, which says where each server shows its metrics where the master can't be asked.
    /// It counts only where it is this cluster's.
    #[arg(
        long,
        value_name = "DIR",
        env = "PERCOLATOR_DATA_DIR",
        default_value = "percolator-data"
    )]
    data_dir: PathBuf,
    /// A server's name, and where its metrics are reached, as through `kubectl port-forward POD 9090`; may be given
    /// often.
    #[arg(long, value_name = "SERVER=HOST:PORT")]
    metrics: Vec<Named>,
}

/// A server, and where its metrics are.
#[derive(Clone, Debug)]
struct Named {
    server: String,
    address: String,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not SERVER=HOST:PORT, such as tablet-0=127.0.0.1:9090");
        let (server, address) = text.split_once('=').ok_or_else(wrong)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        if server.is_empty() || host.is_empty() || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        Ok(Self {
            server: server.into(),
            address: address.into(),
        })
    }
}

/// Where each server's metrics are, as far as that is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// By the server's name.
    pub(crate) metrics: BTreeMap<String, String>,
    /// Those of them that were named on the command line.
    named: BTreeSet<String>,
    /// The cluster's data folder, where it is at hand.
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Known {
    server: String,
    address: String,
    metrics: Option<String>,
}

impl MetricsSource {
    pub(crate) fn find(&self, cluster: &str) -> Places {
        let mut places = Places::default();
        let known = read(&self.data_dir.join(SERVERS)).unwrap_or_default();
        let is_ours = |server: &Known| cluster.split(',').any(|master| server.address == master);
        if known.iter().any(is_ours) {
            places.data_dir = Some(self.data_dir.clone());
            let shown = known.into_iter();
            places.metrics = shown
                .filter_map(|server| Some((server.server, server.metrics?)))
                .collect();
        }
        places.named = self.metrics.iter().map(|it| it.server.clone()).collect();
        let named = self.metrics.iter().cloned();
        places
            .metrics
            .extend(named.map(|named| (named.server, named.address)));
        places
    }
}

fn read(file: &Path) -> Option<Vec<Known>> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

impl Places {
    /// With what the master says of where metrics are; what was named on the command line wins.
    pub(crate) fn with(mut self, by_master: &BTreeMap<String, String>) -> Self {
        for (server, address) in by_master {
            if !self.named.contains(server) {
                self.metrics.insert(server.clone(), address.clone());
            }
        }
        self
    }

    /// What each server shows now, or why it isn't reached.
    pub(crate) async fn scrape(&self) -> BTreeMap<String, Result<String, String>> {
        let pages = self.metrics.iter().map(|(server, address)| async move {
            let asked = tokio::time::timeout(TIMEOUT, endpoint::get(address, "/metrics")).await;
            let page = match asked {
                Ok(Ok(answer)) if answer.status == 200 => Ok(answer.body),
                Ok(Ok(answer)) => Err(format!("{address} answers with {}", answer.status)),
                Ok(Err(error)) => Err(format!("{address}: {error}")),
                Err(_) => Err(format!("{address} does not answer within {TIMEOUT:?}")),
            };
            (server.clone(), page)
        });
        join_all(pages).await.into_iter().collect()
    }
}

impl Places {
    /// What each server shows now, read, or why it isn't reached.
    pub(crate) async fn pages(&self) -> BTreeMap<String, Result<Page, String>> {
        let pages = self.scrape().await.into_iter();
        pages
            .map(|(server, page)| (server, page.map(|page| Page::parse(&page))))
            .collect()
    }

    /// Of those that are reached.
    pub(crate) async fn reached(&self) -> BTreeMap<String, Page> {
        let pages = self.pages().await.into_iter();
        pages
            .filter_map(|(server, page)| Some((server, page.ok()?)))
            .collect()
    }
}

/// A page of metrics, read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page(Vec<Sample>);

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Page {
    /// Lines that aren't understood are passed over: a newer server may show more than we know.
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(sample).collect())
    }

    /// The sum of all series of this name with these labels. `None`: there is none.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &[&str])]) -> Option<f64> {
        let found = self.0.iter().filter(|sample| sample.is(name, labels));
        found
            .map(|sample| sample.value)
            .fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// The sums of the series of this name, by what this label says.
    pub(crate) fn by(&self, name: &str, label: &str) -> BTreeMap<&str, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.0.iter().filter(|sample| sample.is(name, &[])) {
            if let Some(value) = sample.label(label) {
                *sums.entry(value).or_default() += sample.value;
            }
        }
        sums
    }

    /// Observations at or below each bound, summed over series with these labels.
    fn buckets(&self, name: &str, labels: &[(&str, &[&str])]) -> Vec<(f64, f64)> {
        let name = format!("{name}_bucket");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in self.0.iter().filter(|sample| sample.is(&name, labels)) {
            let Some(bound) = sample.label("le").and_then(|le| le.parse::<f64>().ok()) else {
                continue;
            };
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }
}

/// The bound of the bucket in which this part of the observations of between two pages ends, of several servers
/// together. `None`: nothing was observed.
pub(crate) fn quantile(
    part: f64,
    pages: &[(&Page, &Page)],
    name: &str,
    labels: &[(&str, &[&str])],
) -> Option<f64> {
    let mut sums: Vec<(f64, f64)> = Vec::new();
    for (before, after) in pages {
        let before = before.buckets(name, labels);
        for (bound, count) in after.buckets(name, labels) {
            let earlier = before.iter().find(|(known, _)| *known == bound);
            // A process that was started again counts from 0.
            let more = match earlier {
                Some((_, earlier)) if *earlier <= count => count - earlier,
                _ => count,
            };
            match sums.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, sum)) => *sum += more,
                None => sums.push((bound, more)),
            }
        }
    }
    sums.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all = sums.last()?.1;
    if all <= 0.0 {
        return None;
    }
    let within = sums.iter().find(|(_, count)| *count >= part * all);
    let largest = sums.iter().rfind(|(bound, _)| bound.is_finite());
    match within {
        Some((bound, _)) if bound.is_finite() => Some(*bound),
        _ => largest.map(|(bound, _)| *bound),
    }
}

impl Sample {
    fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        labels
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    fn is(&self, name: &str, labels: &[(&str, &[&str])]) -> bool {
        self.name == name
            && labels.iter().all(|(label, values)| {
                self.label(label)
                    .is_some_and(|value| values.contains(&value))
            })
    }
}

fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let (series, value) = match line.rfind('}') {
        Some(end) => line.split_at(end + 1),
        None => line.split_at(line.find(' ')?),
    };
    let value = value.split_whitespace().next()?.parse().ok()?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels_of(labels)?),
        None => (series, Vec::new()),
    };
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// What stands behind the opening brace.
fn labels_of(mut rest: &str) -> Option<Vec<(String, String)>> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if rest.starts_with('}') {
            return Some(labels);
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.chars();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => match chars.next()? {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                other => value.push(other),
            }
        }
        rest = chars.as_str();
        labels.push((name.to_owned(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
# HELP a what } it is
# TYPE a counter
a{method=\"get\",result=\"ok\"} 3
a{method=\"scan\",result=\"ok\"} 4
a{method=\"get\",result=\"x\\\"}y\"} 5
b 0.25
h_bucket{le=\"0.1\"} 1
h_bucket{le=\"1\"} 1
h_bucket{le=\"+Inf\"} 1
nonsense
";

    #[test]
    fn series_are_summed_by_their_labels() {
        let page = Page::parse(BEFORE);
        assert_eq!(page.sum("a", &[]), Some(12.0));
        assert_eq!(page.sum("a", &[("result", &["ok"])]), Some(7.0));
        assert_eq!(page.sum("a", &[("result", &["x\"}y"])]), Some(5.0));
        assert_eq!(page.sum("b", &[]), Some(0.25));
        assert_eq!(page.sum("c", &[]), None);
        let by = page.by("a", "method");
        assert_eq!(by, BTreeMap::from([("get", 8.0), ("scan", 4.0)]));
    }

    #[test]
    fn a_quantile_is_that_of_between_two_pages() {
        let before = Page::parse(BEFORE);
        let after = Page::parse(
            "h_bucket{le=\"0.1\"} 1\nh_bucket{le=\"1\"} 100\nh_bucket{le=\"+Inf\"} 101\n",
        );
        let of = |part| quantile(part, &[(&before, &after)], "h", &[]);
        assert_eq!(of(0.5), Some(1.0));
        assert_eq!(
            of(1.0),
            Some(1.0),
            "no more than the largest bound is known"
        );
        assert_eq!(quantile(0.5, &[(&before, &before)], "h", &[]), None);
    }

    #[test]
    fn an_address_of_metrics_names_its_server() {
        let named: Named = "tablet-0=[::1]:9090".parse().expect("an address");
        assert_eq!(
            (&*named.server, &*named.address),
            ("tablet-0", "[::1]:9090")
        );
        for wrong in ["tablet-0", "=h:1", "t=:1", "t=h", "t=h:x"] {
            assert!(wrong.parse::<Named>().is_err(), "{wrong}");
        }
    }
}
