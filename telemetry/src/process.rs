//! What every process shows: which program it is, what it takes of the machine, and how busy its runtime is.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::process_collector::ProcessCollector;
use prometheus::{Counter, Error, Gauge, IntCounter, IntGauge, Registry};
use tokio::runtime::RuntimeMetrics;

use crate::names::process as names;
use crate::{Set, keep_up, memory};

/// The commit that the program was built from, where the build said so.
const REVISION: &str = match option_env!("PERCOLATOR_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// The metrics of a process.
#[derive(Debug)]
pub struct Process {
    runtime: RuntimeMetrics,
    ready: IntGauge,
    tasks: IntGauge,
    queued: IntGauge,
    busy: Counter,
    parks: IntCounter,
    scraped: Gauge,
    memory_limit: IntGauge,
}

impl Process {
    /// Of a process with this role ("tablet"). To be called on its runtime.
    ///
    /// # Errors
    /// The registry has them already.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(registry: &Registry, role: &'static str) -> Result<Self, Error> {
        let set = Set::new(registry, names::ALL);
        let build = set.gauges(names::BUILD_INFO)?;
        let version = env!("CARGO_PKG_VERSION");
        build.with_label_values(&[version, REVISION, role]).set(1);
        registry.register(Box::new(ProcessCollector::for_self()))?;
        for metric in names::OF_THE_SYSTEM {
            set.made_elsewhere(*metric);
        }
        let process = Self {
            runtime: tokio::runtime::Handle::current().metrics(),
            ready: set.gauge(names::READY)?,
            tasks: set.gauge(names::RUNTIME_TASKS)?,
            queued: set.gauge(names::RUNTIME_QUEUE)?,
            busy: set.fractions(names::RUNTIME_BUSY)?,
            parks: set.counter(names::RUNTIME_PARKS)?,
            scraped: set.seconds(names::SCRAPED)?,
            memory_limit: set.gauge(names::MEMORY_LIMIT)?,
        };
        set.finish();
        Ok(process)
    }

    /// Brings the numbers up to date.
    pub(crate) fn refresh(&self, ready: bool) {
        let runtime = &self.runtime;
        self.ready.set(ready.into());
        self.tasks.set(whole(runtime.num_alive_tasks()));
        self.queued.set(whole(runtime.global_queue_depth()));
        let workers = 0..runtime.num_workers();
        let busy = workers
            .clone()
            .map(|worker| runtime.worker_total_busy_duration(worker).as_secs_f64());
        let busy: f64 = busy.sum();
        self.busy.inc_by((busy - self.busy.get()).max(0.0));
        keep_up(
            &self.parks,
            workers
                .map(|worker| runtime.worker_park_count(worker))
                .sum(),
        );
        // It may be changed while the process runs.
        self.memory_limit
            .set(i64::try_from(memory::limit()).unwrap_or(i64::MAX));
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.scraped.set(now.unwrap_or_default().as_secs_f64());
    }
}

fn whole(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
