//! What servers show of which they are several, and one leads.

use super::declarations;
use crate::{Label, Metric};

/// Roles in which one of several servers leads.
const ROLE: Label = Label::up_to("role", 1, "roles");

declarations! {
    LEADER: Metric::gauge(
        "percolator_leader",
        "1 while this server leads its role, or is alone; 0 while it is a standby. The sum over a cluster's servers of a role is 1, but for the seconds of a takeover.",
    )
    .by(&[ROLE]);
    TERM: Metric::gauge(
        "percolator_leader_term",
        "The term that this server knows: it increases with each takeover. 0: the server is alone and has no register.",
    )
    .by(&[ROLE]);
    TAKEOVERS: Metric::counter(
        "percolator_leader_takeovers_total",
        "Terms in which this server began to lead.",
    )
    .by(&[ROLE])
    .after("one of several servers takes over");
    HANDOVERS: Metric::counter(
        "percolator_leader_handovers_total",
        "Times that this server gave the leadership up by itself, so that another one could take over at once. Those at its end are rarely seen: the process is gone then.",
    )
    .by(&[ROLE])
    .after("one of several servers hands over");
    TAKEOVER_SECONDS: Metric::gauge(
        "percolator_leader_last_takeover_seconds",
        "How long this server's last takeover took: from the last change of the register by another server until it led. 0: it has not taken over from another one.",
    )
    .by(&[ROLE]);
}
