//! The metrics of every process: its program, its use of the machine, and the load of its runtime.

use std::sync::atomic::{AtomicBool, Ordering};
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

/// Whether a [`ProcessPage`] exists.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The right to show the metrics of the process as a whole. If several servers share a process, one page shows them: a sum over
/// pages would count them more than once.
#[derive(Debug)]
pub(crate) struct ProcessPage(());

impl ProcessPage {
    /// Takes the right, unless another page has it.
    pub(crate) fn take() -> Option<Self> {
        // Not one that is made and thrown away: that would give up what another has.
        let is_free = !IS_TAKEN.swap(true, Ordering::Relaxed);
        is_free.then(|| Self(()))
    }
}

impl Drop for ProcessPage {
    fn drop(&mut self) {
        IS_TAKEN.store(false, Ordering::Relaxed);
    }
}

/// The metrics of a process, or of a server in it.
#[derive(Debug)]
pub(crate) struct Process {
    runtime: RuntimeMetrics,
    ready: IntGauge,
    tasks: IntGauge,
    queued: IntGauge,
    busy: Counter,
    parks: IntCounter,
    scraped: Gauge,
    whole: Option<(ProcessPage, IntGauge)>,
}

impl Process {
    /// Of a process with this role ("tablet"), and with `whole` of all that runs in it. To be called on its runtime.
    ///
    /// # Errors
    /// The registry has them already.
    ///
    /// # Panics
    /// Outside of a runtime; in a build with debug assertions, for a role that isn't declared.
    pub(crate) fn new(
        registry: &Registry,
        role: &'static str,
        whole: Option<ProcessPage>,
    ) -> Result<Self, Error> {
        debug_assert!(names::ROLES.contains(&role), "{role} is not declared");
        let set = Set::new(registry, names::ALL);
        let build = set.gauges(names::BUILD_INFO)?;
        let version = env!("CARGO_PKG_VERSION");
        build.with_label_values(&[version, REVISION, role]).set(1);
        if whole.is_some() {
            registry.register(Box::new(ProcessCollector::for_self()))?;
        }
        for metric in names::OF_THE_SYSTEM.iter().chain([&names::MEMORY_LIMIT]) {
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
            whole: match whole {
                Some(whole) => Some((whole, set.gauge(names::MEMORY_LIMIT)?)),
                None => None,
            },
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
        if let Some((_, memory_limit)) = &self.whole {
            // It may be changed while the process runs.
            memory_limit.set(i64::try_from(memory::limit()).unwrap_or(i64::MAX));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.scraped.set(now.unwrap_or_default().as_secs_f64());
    }
}

fn whole(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
