//! Metrics, traces and logs of a process: how a metric is declared, the declarations of every process, and the port on
//! which they are served; the spans of traces, and how they go to a collector; the lines of its log, and whose they are.
//!
//! One table for each process ([`names`]) is where both the registry and `docs/metrics.md` come from. What a number
//! means for a protocol is not known here; the servers count, and rules never do.

#[cfg(feature = "endpoint")]
mod bind;
mod declare;
mod document;
#[cfg(feature = "endpoint")]
pub mod endpoint;
mod limited;
#[cfg(feature = "logs")]
pub mod logs;
#[cfg(feature = "endpoint")]
mod memory;
pub mod names;
#[cfg(feature = "otlp")]
pub mod otlp;
mod outage;
#[cfg(feature = "endpoint")]
mod process;
mod set;
pub mod trace;
#[cfg(feature = "endpoint")]
mod volume;
pub mod who;

#[cfg(feature = "endpoint")]
pub use bind::bind;
pub use declare::{Kind, Label, Metric, Values};
pub use document::markdown;
pub use limited::Limited;
pub use outage::{Outage, OutageLine};
pub use prometheus::local::{LocalHistogram, LocalIntCounter};
pub use prometheus::{Error, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec};
pub use prometheus::{IntGauge, IntGaugeVec, Registry};
pub use set::{Bounded, Set, keep_up, text};
#[cfg(feature = "endpoint")]
pub use volume::{Volume, writable};
