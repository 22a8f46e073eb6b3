//! The metrics of every process, one table each.
//!
//! A name says whose it is, what, and in which unit; its help is written for somebody who has never seen the
//! program. Buckets lie around what was measured; the medians and 99th percentiles are those of the bank with 16
//! clients, all servers and other work on two virtual cores of one machine.

pub mod client;
pub mod leadership;
pub mod master;
pub mod operator;
pub mod process;
pub mod proxy;
pub mod tablet;
pub mod tso;

use crate::Metric;

/// A table, with what it is of.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Of which process.
    pub title: &'static str,
    /// Who shows it, and where.
    pub about: &'static str,
    /// Its metrics.
    pub metrics: &'static [Metric],
}

/// All tables, in the order of the documentation.
pub const TABLES: &[Table] = &[
    Table {
        title: "Every process",
        about: "The oracle, tablet servers, the master, the proxy and the operator show these beside their own. Where servers share a \
                process, as under `percolator up`, each has a runtime, and so `percolator_runtime_*`, of its own; \
                `process_*` and `percolator_memory_limit_bytes` are of all of them together, and shown by the master \
                alone.",
        metrics: process::ALL,
    },
    Table {
        title: "Servers of which one leads",
        about: "Oracles and masters show these beside their own.",
        metrics: leadership::ALL,
    },
    Table {
        title: "Timestamp oracle",
        about: "Shown by `percolator-tso`.",
        metrics: tso::ALL,
    },
    Table {
        title: "Tablet server",
        about: "Shown by `percolator-tablet`.",
        metrics: tablet::ALL,
    },
    Table {
        title: "Master",
        about: "Shown by `percolator-master`.",
        metrics: master::ALL,
    },
    Table {
        title: "Proxy",
        about: "Shown by `percolator-proxy`, with those of the client library.",
        metrics: proxy::ALL,
    },
    Table {
        title: "Operator",
        about: "Shown by `percolator-operator`, on the port of its health.",
        metrics: operator::ALL,
    },
    Table {
        title: "Client library",
        about: "Shown by applications, through the registry that they give to `Client::measure`.",
        metrics: client::ALL,
    },
];

/// From a millionth of a second to ten seconds: what mostly stays in memory.
const SECONDS_SHORT: &[f64] = &[
    0.000_001,
    0.000_002_5,
    0.000_005,
    0.000_01,
    0.000_025,
    0.000_05,
    0.000_1,
    0.000_25,
    0.000_5,
    0.001,
    0.002_5,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
];
/// From a twentieth of a millisecond to ten seconds: what waits for a disk or a network.
const SECONDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 10.0,
];
/// Powers of two, then wider apart.
const COUNTS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1_024.0, 4_096.0, 65_536.0,
];
/// From 256 bytes to 64 MiB.
const BYTES: &[f64] = &[
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Declares metrics, and the table of all of them.
macro_rules! declarations {
    ($($name:ident: $metric:expr;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`: its help says what it is.")]
            pub const $name: Metric = $metric;
        )*
        /// Every one of them.
        pub const ALL: &[Metric] = &[$($name),*];
    };
}
use declarations;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Kind;

    #[test]
    fn names_follow_the_conventions() {
        let mut seen = BTreeSet::new();
        for metric in TABLES.iter().flat_map(|table| table.metrics) {
            let name = metric.name;
            assert!(seen.insert(name), "{name} is there twice");
            let ours = name.starts_with("percolator_") || name.starts_with("process_");
            assert!(ours, "{name}");
            assert!(metric.help.ends_with('.'), "{name}: {}", metric.help);
            let total = name.ends_with("_total");
            assert_eq!(total, matches!(metric.kind, Kind::Counter), "{name}");
            if let Kind::Histogram { buckets, usual } = metric.kind {
                assert!(buckets.is_sorted(), "{name}");
                assert!(!usual.is_empty(), "{name} has no median");
            }
            for values in metric.only {
                assert_eq!(values.len(), metric.labels.len(), "{name}: {values:?}");
            }
        }
    }
}
