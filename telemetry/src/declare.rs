//! How a metric is declared.

/// A metric: what both the registry and the documentation are made from.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its full name, by the conventions of Prometheus: base units, `_total` for what only grows.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its meaning, for readers who don't know the program. Ends with a full stop.
    pub help: &'static str,
    /// The labels of its series.
    pub labels: &'static [Label],
    /// Label values that occur, where not every combination does; each in the order of `labels`.
    pub only: &'static [&'static [&'static str]],
    /// The event before which it is zero, if that doesn't happen in a usual run.
    pub after: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// It only grows, but for restarts.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How often values of which size occurred.
    Histogram {
        /// Upper bounds, rising.
        buckets: &'static [f64],
        /// Median and 99th percentile that were measured, and where.
        usual: &'static str,
    },
}

impl Kind {
    /// As Prometheus calls it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram { .. } => "histogram",
        }
    }
}

/// A label of a metric's series.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values.
    pub values: Values,
}

/// The values of a label: never without a bound, as every one costs memory here and in Prometheus.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// One of these.
    OneOf(&'static [&'static str]),
    /// The first so many of a kind of names; whatever comes later is [`Bounded::OTHER`](crate::Bounded::OTHER).
    UpTo(usize, &'static str),
    /// Each value of this other label has one.
    Of(&'static str),
}

impl Label {
    /// One of these values.
    pub const fn one_of(name: &'static str, values: &'static [&'static str]) -> Self {
        let values = Values::OneOf(values);
        Self { name, values }
    }

    /// The first `most` names of `what`.
    pub const fn up_to(name: &'static str, most: usize, what: &'static str) -> Self {
        let values = Values::UpTo(most, what);
        Self { name, values }
    }

    /// A property of another label's value: it makes no series of its own.
    pub const fn of(name: &'static str, other: &'static str) -> Self {
        let values = Values::Of(other);
        Self { name, values }
    }
}

impl Metric {
    const fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self {
            name,
            kind,
            help,
            labels: &[],
            only: &[],
            after: "",
        }
    }

    /// A counter.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Counter, help)
    }

    /// A gauge.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Gauge, help)
    }

    /// A histogram.
    pub const fn histogram(
        name: &'static str,
        help: &'static str,
        buckets: &'static [f64],
        usual: &'static str,
    ) -> Self {
        Self::new(name, Kind::Histogram { buckets, usual }, help)
    }

    /// By these labels.
    pub const fn by(self, labels: &'static [Label]) -> Self {
        Self { labels, ..self }
    }

    /// Of all combinations of the labels' values, only these occur.
    pub const fn only(self, only: &'static [&'static [&'static str]]) -> Self {
        Self { only, ..self }
    }

    /// It stays zero until this happens.
    pub const fn after(self, after: &'static str) -> Self {
        Self { after, ..self }
    }

    /// The combinations of label values that are there from the start; none where a label's aren't known before.
    pub fn children(&self) -> Vec<Vec<&'static str>> {
        if !self.only.is_empty() {
            return self.only.iter().map(|values| values.to_vec()).collect();
        }
        let mut all = vec![Vec::new()];
        for label in self.labels {
            let values: &[&str] = match label.values {
                Values::OneOf(values) => values,
                Values::UpTo(..) | Values::Of(_) => &[],
            };
            let with = |known: &Vec<&'static str>| {
                let known = known.clone();
                values
                    .iter()
                    .map(move |value| [&known[..], &[value]].concat())
            };
            all = all.iter().flat_map(with).collect();
        }
        all
    }
}
