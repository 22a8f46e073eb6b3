//! Metrics made from their declarations.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    Encoder as _, Error, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter,
    IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::{Kind, Metric, Values};

/// Makes the metrics of one table, each once, in a registry.
pub struct Set<'a> {
    registry: &'a Registry,
    table: &'static [Metric],
    made: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Set<'a> {
    /// Of this table.
    pub fn new(registry: &'a Registry, table: &'static [Metric]) -> Self {
        Self {
            registry,
            table,
            made: RefCell::default(),
        }
    }

    /// A counter without labels.
    ///
    /// # Errors
    /// The registry has one of that name.
    pub fn counter(&self, metric: Metric) -> Result<IntCounter, Error> {
        self.register(&metric, IntCounter::with_opts(opts(&metric))?)
    }

    /// A counter with labels.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn counters(&self, metric: Metric) -> Result<IntCounterVec, Error> {
        let vec = IntCounterVec::new(opts(&metric), &names(&metric))?;
        self.register_all(&metric, vec)
    }

    /// A counter of seconds, or of something else that comes in fractions.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn fractions(&self, metric: Metric) -> Result<prometheus::Counter, Error> {
        self.register(&metric, prometheus::Counter::with_opts(opts(&metric))?)
    }

    /// A gauge of whole numbers without labels.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn gauge(&self, metric: Metric) -> Result<IntGauge, Error> {
        self.register(&metric, IntGauge::with_opts(opts(&metric))?)
    }

    /// A gauge of whole numbers with labels.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn gauges(&self, metric: Metric) -> Result<IntGaugeVec, Error> {
        let vec = IntGaugeVec::new(opts(&metric), &names(&metric))?;
        self.register_all(&metric, vec)
    }

    /// A gauge of seconds without labels.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn seconds(&self, metric: Metric) -> Result<Gauge, Error> {
        self.register(&metric, Gauge::with_opts(opts(&metric))?)
    }

    /// A gauge of seconds with labels.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn fraction_gauges(&self, metric: Metric) -> Result<GaugeVec, Error> {
        let vec = GaugeVec::new(opts(&metric), &names(&metric))?;
        self.register_all(&metric, vec)
    }

    /// A histogram without labels.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn histogram(&self, metric: Metric) -> Result<Histogram, Error> {
        self.register(&metric, Histogram::with_opts(histogram_opts(&metric))?)
    }

    /// A histogram with labels.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn histograms(&self, metric: Metric) -> Result<HistogramVec, Error> {
        let vec = HistogramVec::new(histogram_opts(&metric), &names(&metric))?;
        self.register_all(&metric, vec)
    }

    /// A metric of the table that comes into being elsewhere.
    #[cfg(feature = "endpoint")]
    pub(crate) fn made_elsewhere(&self, metric: Metric) {
        self.note(&metric);
    }

    /// Every metric of the table was made.
    ///
    /// # Panics
    /// One was not: the documentation would describe a metric that isn't there.
    pub fn finish(self) {
        let made = self.made.into_inner();
        for metric in self.table {
            assert!(made.contains(metric.name), "{} is not made", metric.name);
        }
    }

    fn register<C: Collector + Clone + 'static>(
        &self,
        metric: &Metric,
        made: C,
    ) -> Result<C, Error> {
        self.note(metric);
        self.registry.register(Box::new(made.clone()))?;
        Ok(made)
    }

    /// With every combination of labels that is known before.
    fn register_all<B>(&self, metric: &Metric, made: MetricVec<B>) -> Result<MetricVec<B>, Error>
    where
        B: MetricVecBuilder + Clone + 'static,
    {
        let made = self.register(metric, made)?;
        for values in metric.children() {
            made.with_label_values(&values);
        }
        Ok(made)
    }

    fn note(&self, metric: &Metric) {
        let declared = self.table.iter().any(|known| known.name == metric.name);
        assert!(declared, "{} is not in the table", metric.name);
        self.made.borrow_mut().insert(metric.name);
    }
}

fn opts(metric: &Metric) -> Opts {
    Opts::new(metric.name, metric.help)
}

fn histogram_opts(metric: &Metric) -> HistogramOpts {
    let Kind::Histogram { buckets, .. } = metric.kind else {
        panic!("{} is no histogram", metric.name);
    };
    HistogramOpts::new(metric.name, metric.help).buckets(buckets.to_vec())
}

fn names(metric: &Metric) -> Vec<&'static str> {
    metric.labels.iter().map(|label| label.name).collect()
}

/// Brings a counter up to what something else has counted since the same start.
pub fn keep_up(counter: &IntCounter, counted: u64) {
    counter.inc_by(counted.saturating_sub(counter.get()));
}

/// Values of a label that are names from outside: so many, then [`Self::OTHER`].
#[derive(Debug)]
pub struct Bounded {
    most: usize,
    known: BTreeSet<String>,
}

impl Bounded {
    /// The value for names beyond the bound.
    pub const OTHER: &'static str = "other";

    /// For the first label of the metric that isn't one of a list.
    ///
    /// # Panics
    /// There is none.
    pub fn of(metric: &Metric) -> Self {
        let most = metric.labels.iter().find_map(|label| match label.values {
            Values::UpTo(most, _) => Some(most),
            Values::OneOf(_) | Values::Of(_) => None,
        });
        let Some(most) = most else {
            panic!("{} has no label of names", metric.name);
        };
        Self {
            most,
            known: BTreeSet::new(),
        }
    }

    /// The label's value for a name.
    pub fn name<'n>(&mut self, name: &'n str) -> &'n str {
        if self.known.len() < self.most && !self.known.contains(name) {
            self.known.insert(name.to_owned());
        }
        if self.known.contains(name) {
            name
        } else {
            Self::OTHER
        }
    }

    /// Sets a gauge by names to these values, and drops those that are gone.
    pub fn set(&mut self, gauges: &IntGaugeVec, values: &BTreeMap<&str, i64>) {
        self.known.retain(|name| values.contains_key(name.as_str()));
        let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
        for (name, value) in values {
            *sums.entry(self.name(name)).or_default() += value;
        }
        gauges.reset();
        for (name, sum) in sums {
            gauges.with_label_values(&[name]).set(sum);
        }
    }
}

/// A registry in Prometheus' text format.
///
/// # Errors
/// Metrics contradict each other.
pub fn text(registry: &Registry) -> Result<String, Error> {
    let mut bytes = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Label;

    const BY_TABLE: Metric = Metric::gauge("percolator_test_tablets", "Tablets, by table.")
        .by(&[Label::up_to("table", 2, "tables")]);
    const ASKED: Metric = Metric::counter("percolator_test_requests_total", "Requests.").by(&[
        Label::one_of("method", &["get", "put"]),
        Label::one_of("result", &["ok", "error"]),
    ]);
    const TABLE: &[Metric] = &[BY_TABLE, ASKED];

    #[test]
    fn every_combination_of_labels_is_there_from_the_start() {
        let registry = Registry::new();
        let set = Set::new(&registry, TABLE);
        set.gauges(BY_TABLE).unwrap();
        set.counters(ASKED).unwrap();
        set.finish();
        let text = text(&registry).unwrap();
        let line = "percolator_test_requests_total{method=\"put\",result=\"error\"} 0";
        assert!(text.lines().any(|found| found == line), "{text}");
        assert_eq!(text.matches("requests_total{").count(), 4, "{text}");
    }

    #[test]
    #[should_panic(expected = "percolator_test_requests_total is not made")]
    fn what_is_declared_is_made() {
        let registry = Registry::new();
        let set = Set::new(&registry, TABLE);
        set.gauges(BY_TABLE).unwrap();
        set.finish();
    }

    #[test]
    fn names_beyond_the_bound_share_one_value_and_those_that_go_make_room() {
        let registry = Registry::new();
        let gauges = Set::new(&registry, TABLE).gauges(BY_TABLE).unwrap();
        let mut names = Bounded::of(&BY_TABLE);
        names.set(
            &gauges,
            &BTreeMap::from([("a", 1), ("b", 2), ("c", 3), ("d", 4)]),
        );
        let seen = text(&registry).unwrap();
        for line in [
            "percolator_test_tablets{table=\"a\"} 1",
            "percolator_test_tablets{table=\"b\"} 2",
            "percolator_test_tablets{table=\"other\"} 7",
        ] {
            assert!(seen.contains(line), "{line}\n{seen}");
        }
        names.set(&gauges, &BTreeMap::from([("b", 2), ("d", 4)]));
        let seen = text(&registry).unwrap();
        assert!(
            seen.contains("percolator_test_tablets{table=\"d\"} 4"),
            "{seen}"
        );
        assert!(!seen.contains("other"), "{seen}");
    }
}
