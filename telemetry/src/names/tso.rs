//! What the timestamp oracle shows.

use super::{COUNTS, SECONDS, declarations};
use crate::{Label, Metric};

const DISK_FAULT: &str = "the oracle's disk fails";

declarations! {
    REQUESTS: Metric::counter(
        "percolator_tso_requests_total",
        "Requests for timestamps, each for one or many. granted: answered; unavailable: none could be granted in time, because the limit could not be made durable; refused: the request made no sense.",
    )
    .by(&[Label::one_of("result", &["granted", "unavailable", "refused"])]);
    REQUEST_WAIT: Metric::histogram(
        "percolator_tso_request_wait_seconds",
        "How long requests that were granted waited for a limit to be made durable. 0 for those that didn't have to: they take a microsecond.",
        SECONDS,
        "0, 0: no request waits",
    );
    TIMESTAMPS: Metric::counter(
        "percolator_tso_timestamps_total",
        "Timestamps that were handed out.",
    );
    BATCH: Metric::histogram(
        "percolator_tso_request_timestamps",
        "Timestamps handed out for one request: clients ask once for all callers that wait at the moment.",
        COUNTS,
        "1, 14",
    );
    LIMIT_WAITS: Metric::counter(
        "percolator_tso_limit_waits_total",
        "Requests that had to wait, because everything below the durable limit was used up.",
    )
    .after("requests come faster than limits, or the disk is slow");
    LIMIT_WRITES: Metric::counter(
        "percolator_tso_limit_writes_total",
        "Attempts to make the next limit durable. Timestamps are only handed out below a durable limit, so that none comes twice.",
    )
    .by(&[Label::one_of("result", &["ok", "error"])]);
    LIMIT_WRITE_SECONDS: Metric::histogram(
        "percolator_tso_limit_write_duration_seconds",
        "How long it took to make a limit durable.",
        SECONDS,
        "6 ms, 24 ms",
    );
    LIMIT_REMAINING: Metric::gauge(
        "percolator_tso_limit_remaining_seconds",
        "Time until the clock reaches the durable limit. It stays between half of the window and the window. At 0 a reserve of timestamps is left, those of a quarter of the window, 262144 for each millisecond of it: they are handed out while time stands still in them, and after the last one none is granted until the next limit is durable.",
    );
    WINDOW: Metric::gauge(
        "percolator_tso_window_seconds",
        "How far ahead of use the limit is made durable, as configured (--window).",
    );
    CLOCK_OFFSET: Metric::gauge(
        "percolator_tso_clock_offset_seconds",
        "The machine's clock, less the time by which timestamps are handed out. Usually 0. Above 0: the clock jumped ahead and is not followed; below 0: it was set back, and timestamps wait for it.",
    );
    CLOCK_FOLLOWED: Metric::gauge(
        "percolator_tso_clock_followed",
        "1 where the machine's clock is believed; 0 since it has jumped ahead by more than --jump-max.",
    );
    CLOCK_JUMPS: Metric::counter(
        "percolator_tso_clock_jumps_total",
        "Times that the machine's clock jumped ahead by more than --jump-max.",
    )
    .after("the machine's clock is set ahead, or the machine is paused");
    STREAMS: Metric::gauge(
        "percolator_tso_streams",
        "Connected clients, by their open streams of requests.",
    );
    LIMIT_FAILING: Metric::gauge(
        "percolator_tso_limit_failing",
        "1 while the last attempt to make a limit durable has failed.",
    )
    .after(DISK_FAULT);
    PROMISED: Metric::gauge(
        "percolator_tso_promised",
        "1 while this oracle leads and all oracles that could take over promise not to: it goes on if the register can't be reached. 0 on a standby.",
    )
    .after("several oracles share a register");
    BY_PROMISES: Metric::gauge(
        "percolator_tso_leads_by_promises",
        "1 while this oracle leads by promises alone, because the register has not answered for 2 s. If another oracle is lost now, no timestamps are granted until the register is back.",
    )
    .after("the register can't be reached");
    REGISTER_AGE: Metric::gauge(
        "percolator_tso_register_age_seconds",
        "Of an oracle that leads: time since it sent its last swap of the register that succeeded. Usually below 1. 0 on a standby.",
    )
    .after("several oracles share a register");
    PROMISES: Metric::counter(
        "percolator_tso_promises_total",
        "Promises not to take over, by what became of them. Of a standby: given, refused, or failed, because its folder takes no writes. Of the leader: received, or missing, because a standby refused or did not answer.",
    )
    .by(&[Label::one_of("result", &["given", "refused", "failed", "received", "missing"])])
    .after("several oracles share a register");
    DISK_FREE: Metric::gauge(
        "percolator_tso_disk_free_bytes",
        "Room that is left on the volume of the data. Full, no limit can be made durable.",
    );
    DISK_SIZE: Metric::gauge(
        "percolator_tso_disk_size_bytes",
        "Size of the volume of the data.",
    );
}
