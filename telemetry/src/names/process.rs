//! What every process shows.

use super::declarations;
use crate::{Label, Metric};

/// The label of which process it is.
const ROLE: Label = Label::one_of("role", &ROLES);

/// Which processes there are.
pub(crate) const ROLES: [&str; 7] = [
    "bank", "master", "observer", "operator", "proxy", "tablet", "tso",
];

declarations! {
    BUILD_INFO: Metric::gauge(
        "percolator_build_info",
        "Always 1; the labels say which program runs: its version, the commit that it was built from, and its role.",
    )
    .by(&[
        Label::up_to("version", 1, "versions"),
        Label::up_to("revision", 1, "commits"),
        ROLE,
    ]);
    READY: Metric::gauge(
        "percolator_ready",
        "1 where the process does its task, as /readyz says; 0 where it waits for something first.",
    );
    RUNTIME_TASKS: Metric::gauge(
        "percolator_runtime_tasks",
        "Tasks of the asynchronous runtime that are alive: connections, timers, requests that wait.",
    );
    RUNTIME_QUEUE: Metric::gauge(
        "percolator_runtime_queued_tasks",
        "Tasks that wait in the runtime's common queue for their turn.",
    );
    RUNTIME_BUSY: Metric::counter(
        "percolator_runtime_busy_seconds_total",
        "Time in which the runtime's thread was at work. Its rate is the part of one processor that requests take: near 1 the process is saturated.",
    );
    RUNTIME_PARKS: Metric::counter(
        "percolator_runtime_parks_total",
        "Times that the runtime's thread went to sleep because nothing was to be done.",
    );
    SCRAPED: Metric::gauge(
        "percolator_time_seconds",
        "The clock of the process' machine when this was read, in seconds since 1970: as against Prometheus' own, it shows clocks that differ.",
    );
    MEMORY_LIMIT: Metric::gauge(
        "percolator_memory_limit_bytes",
        "Memory that the process may take before the system ends it: the limit of its control group, or of one around it. 0: there is none, or it isn't known.",
    )
    .after("the container has a memory limit");
    CPU: Metric::counter(
        "process_cpu_seconds_total",
        "Processor time, of user and system together.",
    );
    OPEN_FDS: Metric::gauge("process_open_fds", "Open file descriptors.");
    MAX_FDS: Metric::gauge("process_max_fds", "How many file descriptors may be open.");
    VIRTUAL: Metric::gauge("process_virtual_memory_bytes", "Virtual memory.");
    RESIDENT: Metric::gauge("process_resident_memory_bytes", "Memory in use.");
    START: Metric::gauge(
        "process_start_time_seconds",
        "When the process started, in seconds since 1970.",
    );
    THREADS: Metric::gauge("process_threads", "Threads of the system.");
}

/// Those that are read from the system.
#[cfg_attr(not(feature = "endpoint"), allow(dead_code))]
pub(crate) const OF_THE_SYSTEM: &[Metric] =
    &[CPU, OPEN_FDS, MAX_FDS, VIRTUAL, RESIDENT, START, THREADS];
