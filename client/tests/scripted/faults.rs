//! The faults that are tried at each message of a transaction.

use std::time::Duration;

use percolator_wire::v1;
use percolator_wire::v1::request_error::Kind as Refused;

use crate::network::Fault;

/// Shorter than the ttl of a lock, and longer.
const SHORT: Duration = Duration::from_millis(60);
pub(crate) const BEYOND_TTL: Duration = Duration::from_secs(5);

pub(crate) fn not_served() -> Refused {
    Refused::NotServed(v1::NotServed {
        tablet_id: 1,
        asked_epoch: 1,
        known_epoch: 2,
        ..v1::NotServed::default()
    })
}

/// The tablet is on its way to another server, or stays after all.
pub(crate) fn moving() -> Refused {
    Refused::NotServed(v1::NotServed {
        tablet_id: 1,
        asked_epoch: 1,
        known_epoch: 1,
        moving: true,
        ..v1::NotServed::default()
    })
}

pub(crate) fn frozen() -> Refused {
    Refused::NotServed(v1::NotServed {
        tablet_id: 1,
        asked_epoch: 1,
        known_epoch: 1,
        frozen: true,
        ..v1::NotServed::default()
    })
}

pub(crate) fn busy() -> Refused {
    Refused::Busy("the test's server has too much to do".to_owned())
}

pub(crate) fn failed(damaged: bool) -> Refused {
    Refused::Failed(v1::Failed {
        message: "the test's disk".to_owned(),
        unknown: false,
        damaged,
    })
}

pub(crate) fn too_old() -> Refused {
    Refused::TooOld(v1::TooOld {
        start_ts: 1,
        barrier: 2,
    })
}

/// Those that a client gets over by itself: with one of them, whatever was to be done is done.
pub(crate) fn harmless() -> Vec<Fault> {
    vec![
        Fault::NeverSent,
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::Late(Duration::ZERO),
        Fault::Late(SHORT),
        Fault::Late(BEYOND_TTL),
        Fault::SlowRequest(SHORT),
        Fault::SlowRequest(BEYOND_TTL),
        Fault::SlowAnswer(SHORT),
        Fault::SlowAnswer(BEYOND_TTL),
        Fault::Twice(Duration::ZERO),
        Fault::Twice(SHORT),
        Fault::Twice(BEYOND_TTL),
        Fault::Refuse(not_served()),
        Fault::Refuse(moving()),
        Fault::Refuse(busy()),
        Fault::Refuse(failed(false)),
        Fault::Refuse(Refused::NotLeased(v1::NotLeased { asked: 2, lease: 1 })),
        Fault::Refuse(Refused::OtherServer(v1::OtherServer::default())),
        Fault::DoneAndFailed,
        Fault::DoneAndEmpty,
    ]
}

/// The same, for requests that change nothing: when they arrive makes no difference.
pub(crate) fn harmless_to_reads() -> Vec<Fault> {
    vec![
        Fault::NeverSent,
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::SlowAnswer(BEYOND_TTL),
        Fault::Refuse(not_served()),
        Fault::Refuse(moving()),
        Fault::Refuse(busy()),
        Fault::DoneAndEmpty,
    ]
}

/// Those that may end what is being done.
pub(crate) fn harmful() -> Vec<Fault> {
    vec![
        Fault::Silence,
        Fault::SilentlyDone,
        Fault::DoneAndWrong,
        Fault::Refuse(failed(true)),
        Fault::Refuse(too_old()),
        Fault::Refuse(Refused::Invalid("the test calls it invalid".to_owned())),
    ]
}
